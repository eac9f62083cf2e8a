/* SPDX-License-Identifier: Apache-2.0 */
/* copy_object: see copy_object.h. Promises P2, P5, P14, P15. */
#include "copy/copy_object.h"

#include <string.h>

#include "base/err.h"
#include "base/hidden.h"
#include "base/sum.h"
#include "copy/copy_work.h"

#define UNIT_BYTES ((uint64_t)8 << 20) /* of stores that state no preferred size */

struct move {
	const struct copy_object *job;
	copy_step_fn *step;
	struct store_caps caps; /* of the target */
	struct store_opened source;
	struct manifest_file file;
	struct sum128 *sums;
};

static void
move_clear(struct move *m)
{
	store_opened_close(&m->source);
	mem_free(m->sums);
}

static int
take_no_step(void *arg, uint64_t nbytes, struct pawl_error *err)
{
	(void)arg;
	(void)nbytes;
	(void)err;
	return 0;
}

static int
open_source(struct move *m, struct pawl_error *err)
{
	const struct copy_object *job = m->job;
	const uint64_t unit = m->caps.unit_bytes ? m->caps.unit_bytes : UNIT_BYTES;
	uint64_t nbytes;
	TRY(store_open_reader(job->from, job->from_key, &m->source.reader, &nbytes, err));
	m->file = (struct manifest_file){
		.name = job->from_key, .nbytes = nbytes, .block_bytes = nbytes && nbytes < unit ? nbytes : unit};
	m->file.n_blocks = (size_t)((nbytes + m->file.block_bytes - 1) / m->file.block_bytes);
	m->sums = mem_zalloc(m->file.n_blocks, sizeof *m->sums);
	m->file.sums = m->sums;
	return m->sums ? 0 : err_nomem(err, job->from_key);
}

/* Sends the object to key, and reads it back if the job asks for that. With ret_differs it only
 * compares and sets *ret_differs. */
static int
run_work(struct move *m, const char *key, bool *ret_differs, struct pawl_error *err)
{
	const struct copy_object *job = m->job;
	struct copy_item item = {.file = &m->file,
	                         .learned = m->sums,
	                         .source = m->source.reader,
	                         .from_key = job->from_key,
	                         .to_key = key,
	                         .unit_bytes = m->file.block_bytes,
	                         .stale = true,
	                         .no_check = !job->read_back,
	                         .no_sending = ret_differs != NULL,
	                         .phase = ret_differs ? COPY_OLD : COPY_SEND};
	struct copy_work work = {.from = job->from,
	                         .to = job->to,
	                         .name = job->to_key,
	                         .step = m->step,
	                         .step_arg = job->arg,
	                         .caps = m->caps,
	                         .items = &item,
	                         .n = 1,
	                         .from_copies = 1};
	TRY(copy_work_run(&work, err));
	if (ret_differs)
		*ret_differs = item.differs;
	return 0;
}

/* 1 = the target holds the same bytes; 0 = it must be written. */
static int
compare_target(struct move *m, struct pawl_error *err)
{
	const struct copy_object *job = m->job;
	struct pawl_error why = {0};
	struct store_entry entry;
	bool differs = true;

	if (job->existing == COPY_REPLACE)
		return 0;
	int rc = store_stat(job->to, job->to_key, &entry, &why);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0)
		return err_give(err, rc, &why);
	if (entry.nbytes == m->file.nbytes)
		TRY(run_work(m, job->to_key, &differs, err));
	if (differs && job->existing == COPY_KEEP)
		return err_set(err, PAWL_EEXISTS,
		               "%s already exists at %s and differs; choose another name, or overwrite it", job->to_key,
		               job->to->root);
	return !differs;
}

/* One piece: a put, which replaces the object in one step. */
static int
put_whole(struct move *m, struct pawl_error *err)
{
	const struct copy_object *job = m->job;
	PAWL_FREE char *bytes = mem_alloc((size_t)m->file.nbytes);
	bool differs = false;
	if (!bytes)
		return err_nomem(err, job->to_key);
	TRY(m->step(job->arg, 0, err));
	TRY(store_read(job->from, m->source.reader, 0, bytes, (size_t)m->file.nbytes, err));
	TRY(store_put_bytes(job->to, job->to_key, bytes, (size_t)m->file.nbytes, STORE_DURABLE, err));
	if (job->read_back)
		TRY(run_work(m, job->to_key, &differs, err));
	if (differs) {
		store_remove(job->to, job->to_key, NULL);
		return err_set(err, PAWL_EIO, "%s: the bytes read back from %s differ from those sent", job->to_key,
		               job->to->root);
	}
	return job->read_back ? 0 : m->step(job->arg, m->file.nbytes, err); /* reading back has counted them */
}

/* An object store shows nothing before the object is finished. A folder would show what a crash
 * left. */
static int
send_hidden(struct move *m, struct pawl_error *err)
{
	const struct copy_object *job = m->job;
	const char *slash = strrchr(job->to_key, '/'), *name = slash ? slash + 1 : job->to_key;
	char hidden[HIDDEN_NAME_BYTES];
	hidden_name_fixed(name, HIDDEN_TMP, hidden);
	PAWL_FREE char *key = mem_printf("%.*s%s", (int)(name - job->to_key), job->to_key, hidden);
	PAWL_FREE char *folder = mem_strndup(job->to_key, slash ? (size_t)(slash - job->to_key) : 0);
	if (!key || !folder)
		return err_nomem(err, job->to_key);
	TRY(run_work(m, key, NULL, err));
	int rc = store_move(job->to, key, job->to_key, err);
	if (rc < 0) {
		store_remove(job->to, key, NULL);
		return rc;
	}
	return store_sync(job->to, folder, err);
}

int
copy_object(const struct copy_object *job, struct pawl_error *err)
{
	PAWL_CLEAN(move_clear)
	struct move m = {.job = job, .step = job->step ? job->step : take_no_step, .source.store = job->from};
	struct pawl_error own = {0};
	store_get_caps(job->to, &m.caps);
	int rc = open_source(&m, &own);
	if (rc == 0)
		rc = compare_target(&m, &own);
	if (rc == 0 && m.file.n_blocks <= 1)
		rc = put_whole(&m, &own);
	else if (rc == 0)
		rc = m.caps.flat ? run_work(&m, job->to_key, NULL, &own) : send_hidden(&m, &own);
	return err_give(err, rc < 0 ? rc : 0, &own);
}

int
copy_open_target(const struct pawl_stores *stores, const char *url, bool no_direct, struct store **ret,
                 struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = store_open_with(stores, url, true, no_direct, ret, &why);

	if (rc == 0)
		return 0;
	rc = rc == PAWL_ENOTFOUND ? PAWL_EIO : rc;
	if (!strstr(why.message, url))
		err_prefix(&why, rc, "%s", url);
	why.code = rc;
	return err_give(err, rc, &why);
}

int
copy_open_path(const char *path, struct store **ret, const char **ret_key, struct pawl_error *err)
{
	const char *slash = strrchr(path, '/');
	PAWL_FREE char *folder = slash ? mem_strndup(path, slash > path ? (size_t)(slash - path) : 1) : mem_strdup(".");
	if (!folder)
		return err_nomem(err, path);
	*ret_key = slash ? slash + 1 : path;
	return store_file_open(folder, false, true, ret, err);
}
