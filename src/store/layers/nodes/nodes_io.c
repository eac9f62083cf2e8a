/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nodes_io: contents of packs. A pack is written to all its nodes at once. It is read from the
 * first node that has it, and from another if a read fails or the caller finds wrong bytes.
 * Promises P3 (the mark is put when all copies are durable) and P5 (a failed copy fails the pack).
 */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/layers/nodes/nodes.h"

#define POLL_MS 20

struct nodes_file {
	struct store_file base;
	struct mark mark; /* n_nodes 0: the pack is in the inner store; pack points into base.key */
	struct store *at[NODES_MAX_COPIES];
	struct store_file *copies[NODES_MAX_COPIES];
	uint32_t n;
};

struct nodes_reader {
	struct store_reader base;
	pthread_mutex_t lock; /* guards the opening of copies */
	struct mark mark;     /* n_nodes 0: the pack is in the inner store */
	uint32_t first;       /* where reads begin */
	struct store *at[NODES_MAX_COPIES];
	struct store_reader *copies[NODES_MAX_COPIES];
};

/* ----------------------------------------------------------------- writing */

static void
free_file(struct nodes_file *f)
{
	mem_free(f->base.key);
	mem_free(f);
}

/* Removes the copies, including finished ones. */
static void
abort_copies(struct nodes_store *s, struct nodes_file *f)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	if (f->mark.n_nodes)
		nodes_mark_node_key(s->run_id, f->mark.token, f->mark.pack, &key);
	for (uint32_t i = 0; i < f->n; i++) {
		if (f->copies[i])
			store_abort(f->at[i], steal(&f->copies[i]));
		else if (f->mark.n_nodes && !key.failed)
			store_remove(f->at[i], buf_str(&key), NULL);
	}
	if (f->mark.n_nodes)
		nodes_unmark(s, f->base.key, &f->mark);
}

/* Only a node itself makes its folder. Otherwise a path where nothing is mounted would look like
 * one. */
static int
await_node(struct nodes_store *s, uint32_t node, struct store **ret, struct pawl_error *err)
{
	int64_t deadline_ms = clock_mono_ms() + s->opts.wait_ms;

	for (;;) {
		int rc = nodes_at(s, node, false, ret, err);

		if (rc != PAWL_ENOTFOUND || clock_mono_ms() >= deadline_ms)
			return rc;
		clock_sleep_ms(POLL_MS);
	}
}

static int
create_copies(struct nodes_store *s, struct nodes_file *f, const struct store_create *opts, struct pawl_error *err)
{
	struct store_create own = {.nbytes = opts->nbytes, .buffered = opts->buffered};
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	nodes_mark_node_key(s->run_id, f->mark.token, f->mark.pack, &key);
	TRY(buf_check(&key, f->base.key, err));
	for (; f->n < f->mark.n_nodes; f->n++) {
		uint32_t node = f->mark.nodes[f->n];

		TRY(await_node(s, node, &f->at[f->n], err));
		int rc = store_create(f->at[f->n], buf_str(&key), &own, &f->copies[f->n], err);

		if (rc < 0)
			return nodes_name_error(s, node, rc, err);
	}
	return 0;
}

static int
start_file(struct nodes_store *s, struct nodes_file *f, const struct store_create *opts, struct pawl_error *err)
{
	size_t folder_len;

	if (!nodes_mark_pack_key(f->base.key, &folder_len, f->mark.token, &f->mark.pack)) {
		f->at[0] = s->base.inner;
		TRY(store_create(s->base.inner, f->base.key, opts, &f->copies[0], err));
		f->n = 1;
	} else {
		f->mark.nbytes = opts->nbytes;
		nodes_targets(s, &f->mark);
		TRY(nodes_mark_begun(s, f->base.key, &f->mark, err));
		TRY(create_copies(s, f, opts, err));
	}
	f->base.nbytes = opts->nbytes;
	f->base.offset_align = 1;
	for (uint32_t i = 0; i < f->n; i++)
		if (f->copies[i]->offset_align > f->base.offset_align)
			f->base.offset_align = f->copies[i]->offset_align;
	return 0;
}

int
nodes_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	struct nodes_file *f = mem_zalloc(1, sizeof(*f));

	if (!f)
		return err_nomem(err, key);
	f->base.key = mem_strdup(key);
	int rc = f->base.key ? start_file((struct nodes_store *)base, f, opts, err) : err_nomem(err, key);

	if (rc < 0) {
		abort_copies((struct nodes_store *)base, f);
		free_file(f);
		return rc;
	}
	*ret = &f->base;
	return 0;
}

static int
name_copy(struct store *base, const struct nodes_file *f, uint32_t i, int rc, struct pawl_error *err)
{
	return rc < 0 && f->mark.n_nodes ? nodes_name_error((struct nodes_store *)base, f->mark.nodes[i], rc, err) : rc;
}

int
nodes_write(struct store *base, struct store_file *file, uint64_t offset, const void *ptr, size_t len,
            struct pawl_error *err)
{
	struct nodes_file *f = (struct nodes_file *)file;

	for (uint32_t i = 0; i < f->n; i++)
		TRY(name_copy(base, f, i, store_write(f->at[i], f->copies[i], offset, ptr, len, err), err));
	return 0;
}

static int
finish_copies(struct store *base, struct nodes_file *f, struct pawl_error *err)
{
	struct nodes_store *s = (struct nodes_store *)base;

	for (uint32_t i = 0; i < f->n; i++) {
		int rc = store_finish(f->at[i], steal(&f->copies[i]), err);

		if (rc == 0 && f->mark.n_nodes)
			rc = nodes_sync(s, f->at[i], f->mark.token, err);
		TRY(name_copy(base, f, i, rc, err));
	}
	return f->mark.n_nodes ? nodes_mark_done(s, f->base.key, &f->mark, err) : 0;
}

int
nodes_finish(struct store *base, struct store_file *file, struct pawl_error *err)
{
	struct nodes_file *f = (struct nodes_file *)file;
	int rc = finish_copies(base, f, err);

	if (rc < 0)
		abort_copies((struct nodes_store *)base, f);
	free_file(f);
	return rc;
}

void
nodes_abort(struct store *base, struct store_file *file)
{
	struct nodes_file *f = (struct nodes_file *)file;

	abort_copies((struct nodes_store *)base, f);
	free_file(f);
}

/* ----------------------------------------------------------------- reading */

static int
open_copy(struct nodes_store *s, struct nodes_reader *r, uint32_t i, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	uint64_t nbytes;

	if (r->copies[i])
		return 0;
	nodes_mark_node_key(s->run_id, r->mark.token, r->mark.pack, &key);
	TRY(buf_check(&key, r->base.key, err));
	TRY(nodes_at(s, r->mark.nodes[i], false, &r->at[i], err));
	int rc = store_open_reader(r->at[i], buf_str(&key), &r->copies[i], &nbytes, err);

	if (rc == 0 && nbytes != r->mark.nbytes) {
		store_close_reader(r->at[i], steal(&r->copies[i]));
		rc = err_set(err, PAWL_ECORRUPT, "%s: expected %llu bytes, found %llu", r->mark.pack,
		             (unsigned long long)r->mark.nbytes, (unsigned long long)nbytes);
	}
	return rc < 0 ? nodes_name_error(s, r->mark.nodes[i], rc, err) : 0;
}

/* Tries this node's own copy first, then the others in the order of the mark. */
static int
open_any(struct nodes_store *s, struct nodes_reader *r, struct pawl_error *err)
{
	struct pawl_error first = {0};

	for (uint32_t i = 0; i < r->mark.n_nodes; i++)
		if (r->mark.nodes[i] == s->opts.node)
			r->first = i;
	for (uint32_t n = 0; n < r->mark.n_nodes; n++) {
		uint32_t i = (r->first + n) % r->mark.n_nodes;
		struct pawl_error why = {0};

		int rc = open_copy(s, r, i, &why);

		if (rc == 0) {
			r->first = i;
			return 0;
		}
		if (n == 0 || (first.code == PAWL_ENOTFOUND && rc != PAWL_ENOTFOUND)) /* it may have it */
			first = why;
	}
	return err_set(err, first.code, "%s (and no other copy can be opened)", first.message);
}

static int
start_reader(struct nodes_store *s, struct nodes_reader *r, char **mark_name, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = store_open_reader(s->base.inner, r->base.key, &r->copies[0], &r->base.nbytes, &why);

	if (rc == 0) {
		r->at[0] = s->base.inner;
		return 0;
	}
	int found = rc == PAWL_ENOTFOUND ? nodes_find(s, r->base.key, mark_name, &r->mark, err) : rc;

	if (found < 0)
		return found == rc ? err_set(err, rc, "%s", why.message) : found;
	TRY(open_any(s, r, err));
	r->base.nbytes = r->mark.nbytes;
	return 0;
}

static void
free_reader(struct nodes_reader *r)
{
	for (uint32_t i = 0; i < NODES_MAX_COPIES; i++)
		if (r->copies[i])
			store_close_reader(r->at[i], r->copies[i]);
	pthread_mutex_destroy(&r->lock);
	mem_free(r->base.key);
	mem_free(r);
}

int
nodes_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	struct nodes_reader *r = mem_zalloc(1, sizeof(*r));
	PAWL_FREE char *mark_name = NULL;

	if (!r)
		return err_nomem(err, key);
	pthread_mutex_init(&r->lock, NULL);
	r->base.key = mem_strdup(key);
	int rc = r->base.key ? start_reader((struct nodes_store *)base, r, &mark_name, err) : err_nomem(err, key);

	if (rc == 0 && r->mark.n_nodes) { /* the mark's name is freed here, the key stays */
		const char *slash = strrchr(r->base.key, '/');
		r->mark.pack = slash ? slash + 1 : r->base.key;
	}
	if (rc < 0) {
		free_reader(r);
		return rc;
	}
	*ret = &r->base;
	*ret_nbytes = r->base.nbytes;
	return 0;
}

int
nodes_read_copy(struct store *base, struct store_reader *reader, unsigned copy, uint64_t offset, void *dst, size_t n,
                struct pawl_error *err)
{
	struct nodes_reader *r = (struct nodes_reader *)reader;
	struct pawl_error why = {0};
	uint32_t n_copies = r->mark.n_nodes ? r->mark.n_nodes : 1;

	if (copy >= n_copies)
		return err_set(err, PAWL_ENOTFOUND, "%s: there are only %u copies", r->base.key, n_copies);
	if (r->mark.n_nodes == 0)
		return store_read(r->at[0], r->copies[0], offset, dst, n, err);
	pthread_mutex_lock(&r->lock);
	int rc = open_copy((struct nodes_store *)base, r, copy, &why);

	pthread_mutex_unlock(&r->lock);
	if (rc < 0) /* "not found" is reserved for a number beyond the last copy */
		return err_set(err, rc == PAWL_ENOTFOUND ? PAWL_ECORRUPT : rc, "%s", why.message);
	rc = store_read(r->at[copy], r->copies[copy], offset, dst, n, err);
	return rc < 0 ? nodes_name_error((struct nodes_store *)base, r->mark.nodes[copy], rc, err) : 0;
}

int
nodes_read(struct store *base, struct store_reader *reader, uint64_t offset, void *dst, size_t n,
           struct pawl_error *err)
{
	struct nodes_reader *r = (struct nodes_reader *)reader;
	struct pawl_error why = {0};
	int rc = store_read(r->at[r->first], r->copies[r->first], offset, dst, n, &why);

	for (uint32_t i = 0; rc < 0 && i < r->mark.n_nodes; i++)
		if (i != r->first && nodes_read_copy(base, reader, i, offset, dst, n, NULL) == 0)
			return 0;
	return rc < 0 ? err_set(err, rc, "%s", why.message) : 0;
}

bool
nodes_is_cached(struct store *base, struct store_reader *reader, uint64_t offset, size_t n)
{
	struct nodes_reader *r = (struct nodes_reader *)reader;

	(void)base;
	return store_is_cached(r->at[r->first], r->copies[r->first], offset, n);
}

void
nodes_close_reader(struct store *base, struct store_reader *reader)
{
	(void)base;
	free_reader((struct nodes_reader *)reader);
}
