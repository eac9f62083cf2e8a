/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_entry: see catalog_entry.h. Promises P1, P2 (an entry is valid only if its manifest
 * verifies), P17. */
#include "catalog/catalog_entry.h"

#include <string.h>

#include "base/err.h"
#include "policy/name.h"

#define MAX_AGAIN 2u

void
catalog_entry_set_metrics(struct catalog_entry *e, struct pawl_metric *metrics, size_t n)
{
	if (!e->summary || e->metrics != e->summary->metrics)
		mem_free(e->metrics);
	e->metrics = metrics;
	e->n_metrics = n;
}

void
catalog_entry_clear(struct catalog_entry *e)
{
	catalog_entry_set_metrics(e, NULL, 0);
	manifest_free(e->summary);
	mem_free(e->name);
	mem_free(e->problem);
	*e = (struct catalog_entry){0};
}

void
catalog_entry_turn_bad(struct catalog_entry *e, char *problem)
{
	catalog_entry_set_metrics(e, NULL, 0);
	manifest_free(e->summary);
	e->summary = NULL;
	mem_free(e->problem);
	e->problem = problem;
	e->code = PAWL_ECORRUPT;
	e->mtime_ns = 0; /* read again next time */
}

static uint64_t
id_of_name(const struct catalog *c, const char *name)
{
	size_t len = strlen(name), at = len;
	uint64_t id = c->name_template ? name_id(c->name_template, name) : 0;

	if (id > 0)
		return id;

	while (at > 0 && name[at - 1] >= '0' && name[at - 1] <= '9')
		at--;
	for (; at < len; at++) {
		if (!mem_mul_ok(id, 10, &id) || !mem_add_ok(id, (uint64_t)(name[at] - '0'), &id))
			return 0;
	}
	return id;
}

/* Does this failure concern one checkpoint, so that the others can still be used? Any other
 * failure, such as too many open files, would make valid checkpoints disappear. */
static bool
is_about_one(int code)
{
	switch (code) {
	case PAWL_ENOTFOUND:
	case PAWL_ECORRUPT:
	case PAWL_EVERSION:
	case PAWL_ELIMIT:
	case PAWL_EIO:
	case PAWL_EAUTH:
	case PAWL_EUSAGE:
	case PAWL_EUNSUPPORTED:
		return true;
	default:
		return false;
	}
}

static bool
is_folder(struct store *store, const char *key)
{
	struct store_entry entry;

	return store_stat(store, key, &entry, NULL) == 0 && entry.is_folder;
}

static int
read_manifest(const struct catalog *c, struct store *store, const char *name, bool summary, struct buf *scratch,
              struct manifest **ret, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	catalog_manifest_key(c, name, &key);
	TRY(buf_check(&key, name, err));
	if (c->foreign)
		return foreign_manifest(c->foreign, c->store, buf_str(&key), ret, err);
	scratch->len = 0;
	int rc = store_get(store, buf_str(&key), MANIFEST_MAX_BYTES, scratch, err);

	if (rc == PAWL_ENOTFOUND && is_folder(store, buf_str(&key)))
		return err_set(err, PAWL_ECORRUPT, "%s: " MANIFEST_NAME " is a folder, expected a file", name);
	TRY(rc);
	if (manifest_is_withdrawn(scratch->ptr, scratch->len))
		return err_set(err, PAWL_ENOTFOUND, "%s: the save was aborted", name);
	return manifest_decode(name, scratch->ptr, scratch->len, summary, ret, err);
}

int
catalog_entry_empty(const struct catalog *c, const char *name, struct catalog_entry *ret, struct pawl_error *err)
{
	PAWL_CLEAN(catalog_entry_clear)
	struct catalog_entry e = {.name = mem_strdup(name), .name_id = id_of_name(c, name)};

	e.id = e.name_id;

	e.problem = mem_strdup(CATALOG_NO_MANIFEST);
	e.code = PAWL_ENOTFOUND;
	if (!e.name || !e.problem)
		return err_nomem(err, "catalog");
	*ret = e;
	e = (struct catalog_entry){0};
	return 0;
}

/* Is the manifest missing because another process deleted the checkpoint after it was listed? */
static bool
is_gone(const struct catalog *c, const char *name, int64_t mtime_ns)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};
	struct store_entry entry;

	if (c->kind->is_by_manifest && mtime_ns != 0) /* it is the time of the manifest, which was listed */
		return true;
	buf_printf(&key, "%s%s", c->kind->folder, name);
	return !key.failed && store_stat(c->store, buf_str(&key), &entry, NULL) == PAWL_ENOTFOUND;
}

/* A folder without its manifest is looked at again. The manifest may have been read while another
 * process took the checkpoint away, and the folder looked for after it was put back (P6). */
static int
read_settled(const struct catalog *c, struct buf *scratch, struct catalog_entry *e, struct pawl_error *err)
{
	for (unsigned tries = 0;; tries++) {
		int rc = read_manifest(c, c->store, e->name, true, scratch, &e->summary, err);

		e->is_withdrawn = rc == PAWL_ENOTFOUND && manifest_is_withdrawn(scratch->ptr, scratch->len);
		e->is_gone = rc == PAWL_ENOTFOUND && !e->is_withdrawn && is_gone(c, e->name, e->mtime_ns);
		if (rc != PAWL_ENOTFOUND || e->is_withdrawn || e->is_gone || tries == MAX_AGAIN)
			return rc;
	}
}

int
catalog_entry_read(const struct catalog *c, const char *name, int64_t mtime_ns, struct buf *scratch, bool is_read,
                   struct catalog_entry *ret, struct pawl_error *err)
{
	struct pawl_error why = {0};
	PAWL_CLEAN(catalog_entry_clear)
	struct catalog_entry e = {.name = mem_strdup(name), .name_id = id_of_name(c, name), .mtime_ns = mtime_ns};

	if (!e.name)
		return err_nomem(err, "catalog");
	int rc = is_read ? manifest_decode(name, scratch->ptr, scratch->len, true, &e.summary, &why)
	                 : read_settled(c, scratch, &e, &why);
	if (rc == 0) {
		e.id = e.summary->id;
		e.metrics = e.summary->metrics;
		e.n_metrics = e.summary->n_metrics;
	} else if (is_about_one(rc) && !(c->foreign && rc == PAWL_EUNSUPPORTED)) { /* that is not damage */
		e.id = e.name_id;
		e.problem = mem_strdup(rc == PAWL_ENOTFOUND ? CATALOG_NO_MANIFEST : why.message);
		e.code = rc;
		if (!e.problem)
			return err_nomem(err, "catalog");
	} else {
		if (err)
			*err = why;
		return rc;
	}
	*ret = e;
	e = (struct catalog_entry){0};
	return 0;
}

/* Reads the manifest of an entry again, and checks that it is still the same checkpoint. */
static int
read_again(const struct catalog *c, const struct catalog_entry *e, bool summary, struct manifest **ret,
           struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf scratch = {0};
	struct manifest *m;

	TRY(read_manifest(c, e->at ? e->at : c->store, e->name, summary, &scratch, &m, err));
	if (e->summary && (m->id != e->summary->id || strcmp(m->token, e->summary->token) != 0)) {
		manifest_free(m);
		return err_set(err, PAWL_ECONFLICT, "%s: it was replaced by another checkpoint after it was listed",
		               e->name);
	}
	*ret = m;
	return 0;
}

int
catalog_manifest(const struct catalog *c, const struct catalog_entry *e, struct manifest **ret, struct pawl_error *err)
{
	return read_again(c, e, false, ret, err);
}

int
catalog_summary(const struct catalog *c, const struct catalog_entry *e, struct manifest **ret, struct pawl_error *err)
{
	return read_again(c, e, true, ret, err);
}
