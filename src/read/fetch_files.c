/* SPDX-License-Identifier: Apache-2.0 */
/* fetch_files: see fetch_files.h. */
#include "read/fetch_files.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <string.h>

#include "base/err.h"
#include "store/layers/nodes/nodes_mark.h"

struct open_file {
	struct store_reader *reader;
	struct compressed_pack *compressed; /* NULL = not compressed */
	size_t units_left;
	bool bad; /* cannot be opened, and was reported */
};

struct fetch_files {
	struct store *store;
	const struct fetch_job *job;
	pthread_mutex_t lock; /* guards all below */
	struct open_file file[];
};

int
fetch_files_new(struct store *store, const struct fetch_job *job, struct fetch_files **ret, struct pawl_error *err)
{
	const uint64_t n = job->manifest->n_files;
	uint64_t nbytes;
	struct fetch_files *f = NULL;
	if (mem_mul_ok(n, sizeof(struct open_file), &nbytes) && mem_add_ok(nbytes, sizeof(*f), &nbytes))
		f = mem_zalloc(1, (size_t)nbytes);
	if (!f)
		return err_nomem(err, "reading");
	f->store = store;
	f->job = job;
	for (size_t u = 0; u < job->plan->n_units; u++)
		f->file[job->plan->units[u].file].units_left++;
	pthread_mutex_init(&f->lock, NULL);
	*ret = f;
	return 0;
}

static void
close_file(struct fetch_files *f, struct open_file *file)
{
	compressed_pack_close(file->compressed);
	if (file->reader)
		store_close_reader(f->store, file->reader);
}

void
fetch_files_free(struct fetch_files *f)
{
	if (!f)
		return;
	for (uint64_t i = 0; i < f->job->manifest->n_files; i++)
		close_file(f, &f->file[i]);
	pthread_mutex_destroy(&f->lock);
	mem_free(f);
}

static int
visit_mark(void *arg, const struct store_entry *entry)
{
	struct mark m;
	return nodes_mark_parse(entry->name, &m) && strcmp(m.pack, arg) == 0 ? PAWL_EEXISTS : 0;
}

/* If the store has no layer that follows them, marks of node-local files are plain files. */
static bool
is_on_node(struct store *store, const char *folder, const char *name)
{
	PAWL_FREE char *pack = mem_strdup(name);
	return pack && store_list(store, folder, visit_mark, pack, NULL) == PAWL_EEXISTS;
}

/* Opens a file and compares its size. The lock is held. *ret_end: the size that was found. */
static int
open_file(struct fetch_files *f, const struct manifest_file *info, struct open_file *file, uint64_t *ret_end,
          struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	buf_printf(&key, "%s%s%s", f->job->folder, f->job->folder[0] ? "/" : "", info->name);
	TRY(buf_check(&key, info->name, err));
	*ret_end = 0;
	int rc = store_open_reader(f->store, buf_str(&key), &file->reader, ret_end, err);
	if (rc == PAWL_ENOTFOUND && err && strncmp(err->message, "node ", 5) == 0) {
		rc = err_set(err, PAWL_ECORRUPT, "the file is missing: %s", err->message);
	} else if (rc == PAWL_ENOTFOUND) {
		rc = err_set(err, PAWL_ECORRUPT, "the file is missing%s",
		             is_on_node(f->store, f->job->folder, info->name)
		                     ? " here; it was written to the folder of a node: open the run with node_folder"
		                     : "");
	}
	if (rc == PAWL_ECORRUPT && err)
		err->sys = ENOENT; /* or the checkpoint was deleted: catalog_judge */
	uint64_t other;
	while (rc == 0 && *ret_end != info->nbytes && store_pass_over(f->store, file->reader, &other, NULL) == 0)
		*ret_end = other;
	if (rc == 0 && *ret_end != info->nbytes)
		return err_set(err, PAWL_ECORRUPT, "%" PRIu64 " bytes expected in the file, %" PRIu64 " found",
		               info->nbytes, *ret_end);
	if (rc == 0 && info->codec)
		rc = compressed_pack_open(f->store, file->reader, info->name, info->nbytes, info->plain_bytes,
		                          f->job->only_copy, &file->compressed, err);
	return rc;
}

int
fetch_files_enter(struct fetch_files *f, uint32_t index, struct store_reader **ret,
                  struct compressed_pack **ret_compressed, uint64_t *ret_end, struct pawl_error *err)
{
	const struct manifest_file *info = &f->job->manifest->files[index];
	struct open_file *file = &f->file[index];
	int rc = 0;
	pthread_mutex_lock(&f->lock);
	if (!file->reader && !file->bad && !info->memory) {
		rc = open_file(f, info, file, ret_end, err);
		file->bad = rc < 0;
	}
	*ret = file->bad ? NULL : file->reader;
	*ret_compressed = file->compressed;
	pthread_mutex_unlock(&f->lock);
	return rc;
}

void
fetch_files_leave(struct fetch_files *f, uint32_t index)
{
	struct open_file done = {0};
	pthread_mutex_lock(&f->lock);
	if (--f->file[index].units_left == 0) {
		done.reader = steal(&f->file[index].reader);
		done.compressed = steal(&f->file[index].compressed);
	}
	pthread_mutex_unlock(&f->lock);
	close_file(f, &done);
}
