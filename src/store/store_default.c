/* SPDX-License-Identifier: Apache-2.0 */
/* store_default: see store_default.h. */
#include "store/store_default.h"

#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"

#define WHOLE_BYTES ((size_t)8 << 20) /* objects up to this are held in memory */
#define GET_TRIES 1000                /* while other threads replace the object all the time */
#define PIECE_BYTES ((size_t)4 << 20) /* a multiple of every alignment */

static int
get_once(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	PAWL_CLEAN(store_opened_close) struct store_opened opened = {.store = s};
	const size_t before = out->len;
	uint64_t nbytes;
	TRY(store_open_reader(s, key, &opened.reader, &nbytes, err));
	if (nbytes > max)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %zu bytes, found %" PRIu64, key, max, nbytes);
	char *dst = buf_grow(out, (size_t)nbytes);
	if (dst == NULL)
		return buf_check(out, key, err);
	int rc = store_read(s, opened.reader, 0, dst, (size_t)nbytes, err);
	if (rc < 0)
		out->len = before;
	return rc;
}

/* The object may be replaced after it was opened. Then the next one is wanted. */
int
store_default_get(struct store *s, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = PAWL_ECONFLICT;
	for (int i = 0; rc == PAWL_ECONFLICT && i < GET_TRIES; i++)
		rc = get_once(s, key, max, out, &why);
	return err_give(err, rc, &why);
}

/* Only one process at a time appends to an object (the run's lease). The lock separates its
 * threads. */
int
store_default_append(struct store *s, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf whole = {0};
	pthread_mutex_lock(&s->append_lock);
	int rc = store_get(s, key, WHOLE_BYTES, &whole, err);
	if (rc == PAWL_ENOTFOUND)
		rc = 0;
	if (rc == 0 && len > WHOLE_BYTES - whole.len)
		rc = err_set(err, PAWL_ELIMIT, "%s: cannot append: it would be larger than %zu bytes", key,
		             WHOLE_BYTES);
	const struct pawl_slice parts[] = {{whole.ptr, whole.len}, {ptr, len}};
	if (rc == 0)
		rc = store_put(s, key, parts, 2, 0, err);
	pthread_mutex_unlock(&s->append_lock);
	return rc;
}

int
store_default_pointer(struct store *s, const char *key, const char *target, struct pawl_error *err)
{
	const struct pawl_slice line[] = {{target, strlen(target)}, {"\n", 1}};
	return store_put(s, key, line, 2, 0, err);
}

static int
copy_pieces(struct store *s, struct store_reader *r, struct store_file *f, uint64_t nbytes, struct pawl_error *err)
{
	PAWL_FREE char *piece = mem_alloc(PIECE_BYTES);
	if (piece == NULL)
		return err_nomem(err, "move");
	for (uint64_t at = 0; at < nbytes; at += PIECE_BYTES) {
		const size_t n = nbytes - at < PIECE_BYTES ? (size_t)(nbytes - at) : PIECE_BYTES;
		TRY(store_read(s, r, at, piece, n, err));
		TRY(store_write(s, f, at, piece, n, err));
	}
	return 0;
}

static int
copy_large(struct store *s, struct store_reader *r, uint64_t nbytes, const char *to, struct pawl_error *err)
{
	struct store_file *f;
	TRY(store_remove(s, to, err));
	TRY(store_create(s, to, &(struct store_create){.nbytes = nbytes}, &f, err));
	int rc = copy_pieces(s, r, f, nbytes, err);
	if (rc == 0)
		return store_finish(s, f, err);
	store_abort(s, f);
	return rc;
}

static int
copy_small(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf whole = {0};
	TRY(store_get(s, from, WHOLE_BYTES, &whole, err));
	return store_put_bytes(s, to, whole.ptr, whole.len, 0, err);
}

static int
copy_object(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	PAWL_CLEAN(store_opened_close) struct store_opened opened = {.store = s};
	uint64_t nbytes;
	TRY(store_open_reader(s, from, &opened.reader, &nbytes, err));
	return nbytes > WHOLE_BYTES ? copy_large(s, opened.reader, nbytes, to, err) : copy_small(s, from, to, err);
}

int
store_default_move(struct store *s, const char *from, const char *to, struct pawl_error *err)
{
	TRY(copy_object(s, from, to, err));
	return store_remove(s, from, err);
}

#define WALK_DEPTH 64 /* of folders in folders */

struct walk {
	struct store *store;
	int depth;
	const char *folder; /* that is listed now */
	size_t begin;       /* of the path in a key that fn is given */
	store_list_fn *fn;
	void *arg;
	bool is_stopped; /* by fn, or by an error that was reported */
	struct pawl_error *err;
};

static int walk_entry(void *arg, const struct store_entry *entry);

/* A folder that is missing, or that is removed meanwhile, is empty. */
static int
walk_folder(struct walk *w)
{
	struct pawl_error why = {0};
	if (++w->depth > WALK_DEPTH)
		return err_set(w->err, PAWL_ELIMIT, "%s: folders nest deeper than %d", w->folder, WALK_DEPTH);
	const int rc = store_list(w->store, w->folder, walk_entry, w, &why);
	w->depth--;
	if (w->is_stopped)
		return rc;
	return rc < 0 && rc != PAWL_ENOTFOUND ? err_give(w->err, rc, &why) : 0;
}

static int
walk_entry(void *arg, const struct store_entry *entry)
{
	struct walk *w = arg;
	const char *folder = w->folder;
	PAWL_FREE char *key = mem_printf("%s%s%s", folder, folder[0] ? "/" : "", entry->name);
	int rc;
	if (key == NULL) {
		rc = err_nomem(w->err, folder);
	} else if (!text_is_key(key)) { /* another program's */
		rc = 0;
	} else if (entry->is_folder) {
		w->folder = key;
		rc = walk_folder(w);
		w->folder = folder;
	} else {
		struct store_entry found = *entry;
		found.name = key + w->begin;
		rc = w->fn(w->arg, &found);
	}
	w->is_stopped = rc < 0;
	return rc;
}

int
store_default_list_all(struct store *s, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	struct walk w = {.store = s, .folder = folder, .fn = fn, .arg = arg, .err = err};
	w.begin = folder[0] ? strlen(folder) + 1 : 0;
	return walk_folder(&w);
}
