/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion_output: see conversion.h. Called by conversion_write.c; calls the store of the folder (direct I/O,
 * reservation, fsync) and pool.
 *
 *   room ──> a slab is filled ──> put ──> the thread writes it          two slabs take turns
 *                                  └────> what is no whole block begins the other slab
 *
 * Promise P5: after an error of a write nothing but abort is left.
 */
#include <string.h>

#include "base/err.h"
#include "base/pool.h"
#include "jobs/convert/conversion.h"

#define ALIGN_BYTES ((uint64_t)65536) /* of slabs, and of what is written but the end: a multiple of all engines' */

struct slab {
	struct conversion_output *output;
	char *ptr;         /* aligned */
	uint64_t at;       /* in the file */
	size_t nbytes;     /* that are written */
	struct group busy; /* until it is; then the thread has left: */
	int rc;
	struct pawl_error error;
};

struct conversion_output {
	const char *name; /* that the file gets when it is whole, for errors */
	struct store *store;
	struct store_file *file; /* NULL = finished or not yet there */
	struct pool *pool;       /* one thread */
	char *memory;
	struct slab slabs[2];
	unsigned now;    /* the slab that is filled */
	uint64_t nbytes; /* of the file */
	uint64_t at;     /* where in the file the slab begins */
	uint64_t held;   /* bytes that it has begun with */
};

static void
write_slab(void *arg)
{
	struct slab *slab = arg;

	slab->rc =
		store_write(slab->output->store, slab->output->file, slab->at, slab->ptr, slab->nbytes, &slab->error);
}

static int
wait_for(struct slab *slab, struct pawl_error *err)
{
	group_wait(&slab->busy);
	if (slab->rc < 0 && err)
		*err = slab->error;
	return slab->rc < 0 ? err_prefix(err, slab->rc, "%s", slab->output->name) : 0;
}

static void
free_output(struct conversion_output *o)
{
	if (o->file)
		store_abort(o->store, o->file);
	for (unsigned i = 0; i < 2; i++)
		group_clear(&o->slabs[i].busy);
	mem_free(o->memory);
	mem_free(o);
}

int
conversion_output_open(struct conversion *c, const struct conversion_file *f, uint64_t nbytes,
                       struct conversion_output **ret, struct pawl_error *err)
{
	const struct store_create create = {.nbytes = nbytes};
	struct conversion_output *o = mem_zalloc(1, sizeof *o);
	int rc = o ? 0 : conversion_no_memory(c, err);

	if (rc < 0)
		return rc;
	o->name = f->name;
	o->store = c->store;
	o->nbytes = nbytes;
	for (unsigned i = 0; i < 2; i++)
		group_init(&o->slabs[i].busy);
	o->memory = mem_alloc(2 * CONVERSION_SLAB_BYTES + ALIGN_BYTES);
	if (!o->memory)
		rc = conversion_no_memory(c, err);
	if (rc == 0)
		rc = pool_new("pawl-convert", 1, &o->pool, err);
	if (rc == 0)
		rc = store_create(o->store, f->temp, &create, &o->file, err);
	if (rc < 0) {
		rc = err_prefix(err, rc, "%s", f->name);
		conversion_output_abort(o);
		return rc;
	}
	for (unsigned i = 0; i < 2; i++) {
		const uintptr_t begin = (uintptr_t)o->memory, align = ALIGN_BYTES;

		o->slabs[i].output = o;
		o->slabs[i].ptr = o->memory + ((align - begin % align) % align) + i * CONVERSION_SLAB_BYTES;
	}
	*ret = o;
	return 0;
}

void
conversion_output_room(const struct conversion_output *o, char **ret, uint64_t *ret_nbytes)
{
	*ret = o->slabs[o->now].ptr + o->held;
	*ret_nbytes = CONVERSION_SLAB_BYTES - o->held;
}

int
conversion_output_put(struct conversion_output *o, uint64_t nbytes, struct pawl_error *err)
{
	struct slab *slab = &o->slabs[o->now], *other = &o->slabs[!o->now];
	const uint64_t there = o->held + nbytes;
	const bool is_end = o->at + there == o->nbytes;

	slab->at = o->at;
	slab->nbytes = (size_t)(is_end ? there : there - there % ALIGN_BYTES);
	o->held = there - slab->nbytes;
	o->at += slab->nbytes;
	TRY(wait_for(other, err));
	memcpy(other->ptr, slab->ptr + slab->nbytes, (size_t)o->held);
	o->now = !o->now;
	return slab->nbytes ? pool_add(o->pool, &slab->busy, write_slab, slab, err) : 0;
}

int
conversion_output_finish(struct conversion_output **output, struct pawl_error *err)
{
	struct conversion_output *o = *output;
	int rc = 0;

	for (unsigned i = 0; i < 2 && rc == 0; i++)
		rc = wait_for(&o->slabs[i], err);
	if (rc == 0) {
		struct store_file *file = o->file;

		o->file = NULL;
		rc = store_finish(o->store, file, err);
		if (rc < 0)
			rc = err_prefix(err, rc, "%s", o->name);
	}
	conversion_output_abort(o);
	*output = NULL;
	return rc;
}

void
conversion_output_abort(struct conversion_output *o)
{
	if (!o)
		return;
	pool_free(o->pool);
	free_output(o);
}
