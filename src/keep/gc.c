/* SPDX-License-Identifier: Apache-2.0 */
/* gc: see gc.h. */
#include "keep/gc.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/hidden.h"
#include "base/vec.h"
#include "catalog/catalog.h"
#include "layout/pack_header.h"
#include "policy/name.h"
#include "ranks/abort_commit.h"
#include "ranks/agree.h"
#include "read/compressed_pack.h"
#include "run/lease.h"
#include "state/pack_name.h"
#include "store/layers/nodes/store_nodes.h"

#define UPLOAD_AGE_NS ((int64_t)86400 * 1000000000) /* an upload that began a day ago has no writer */
#define MAX_ENTRIES 1000000u

struct sweep {
	struct pawl *run;
	bool dry_run;
	uint64_t count, bytes;
	struct pawl_meter *meter; /* or NULL */
};

/* ---------------------------------------------------------------- listings */

struct seen {
	const char *name;
	bool is_folder, is_link;
	uint64_t nbytes, n_links;
	int64_t mtime_ns;
};

struct folder {
	struct bump memory;
	VEC(struct seen) seen;
};

static void
folder_clear(struct folder *f)
{
	vec_free(&f->seen);
	bump_clear(&f->memory);
}

static int
add_entry(void *arg, const struct store_entry *entry)
{
	struct folder *f = arg;

	if (f->seen.n == MAX_ENTRIES)
		return PAWL_ELIMIT;
	struct seen *s = vec_add(&f->seen);

	if (!s)
		return PAWL_ENOMEM;
	*s = (struct seen){.name = bump_strndup(&f->memory, entry->name, strlen(entry->name)),
	                   .is_folder = entry->is_folder,
	                   .is_link = entry->is_link,
	                   .nbytes = entry->nbytes,
	                   .n_links = entry->n_links,
	                   .mtime_ns = entry->mtime_ns};
	return s->name ? 0 : PAWL_ENOMEM;
}

/* A folder that does not exist is empty. */
static int
list_folder(struct sweep *s, const char *key, struct folder *ret, struct pawl_error *err)
{
	int rc = store_list(s->run->store, key, add_entry, ret, err);

	if (rc == PAWL_ENOMEM)
		return err_nomem(err, "gc");
	if (rc == PAWL_ELIMIT)
		return err_set(err, rc, "%s: expected at most %u entries, found more", key, MAX_ENTRIES);
	return rc == PAWL_ENOTFOUND ? 0 : rc;
}

/* The bytes that a deletion frees: a file with other links frees nothing. */
static uint64_t
freed_bytes(const struct seen *seen)
{
	return seen->is_folder || seen->is_link || seen->n_links > 1 ? 0 : seen->nbytes;
}

/* ----------------------------------------------------------------- removal */

/* A process that has lost the lease deletes nothing (P10). */
static int
check_lease(const struct sweep *s, struct pawl_error *err)
{
	return s->run->self.lease ? lease_check(s->run->self.lease, err) : 0;
}

/* After each deletion. */
static int
count_drop(struct sweep *s, uint64_t nbytes, struct pawl_error *err)
{
	s->count++;
	s->bytes += nbytes;
	if (!s->meter)
		return 0;
	__atomic_store_n(&s->meter->done_bytes, s->bytes, __ATOMIC_RELAXED);
	return __atomic_load_n(&s->meter->cancel, __ATOMIC_RELAXED) ? err_set(err, PAWL_ECANCELLED, "gc: cancelled")
	                                                            : 0;
}

static int
drop_file(struct sweep *s, const char *key, uint64_t nbytes, struct pawl_error *err)
{
	if (!s->dry_run) {
		TRY(check_lease(s, err));
		TRY(store_remove(s->run->store, key, err));
	}
	return count_drop(s, nbytes, err);
}

static int
drop_folder(struct sweep *s, const char *key, struct pawl_error *err)
{
	PAWL_CLEAN(folder_clear) struct folder f = {0};
	uint64_t nbytes = 0;

	TRY(list_folder(s, key, &f, err));
	if (!s->dry_run) {
		TRY(check_lease(s, err));
		int rc = s->run->modes.gc->drop_unfinished(s->run->store, key, err);

		if (rc == PAWL_EEXISTS) /* it has become a checkpoint */
			return 0;
		TRY(rc);
	}
	for (size_t i = 0; i < f.seen.n; i++)
		nbytes += freed_bytes(&f.seen.items[i]);
	return count_drop(s, nbytes, err);
}

/* ------------------------------------------------------------------- names */

/* Is a save with this token running, or waiting to run, in this process? Or has another rank begun
 * it? */
static bool
is_running(struct pawl *run, const char *token)
{
	if (!run->saves.writer)
		return false;
	return run->modes.agree->is_next_save(run, token) || run->saves.queue_ops->has_token(run->saves.writer, token);
}

static int
sweep_partials(struct sweep *s, struct pawl_error *err)
{
	PAWL_CLEAN(folder_clear) struct folder f = {0};

	TRY(list_folder(s, CATALOG_FOLDER, &f, err));
	for (size_t i = 0; i < f.seen.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		const char *token = f.seen.items[i].is_folder && !f.seen.items[i].is_link
		                            ? hidden_token(f.seen.items[i].name, HIDDEN_PARTIAL)
		                            : NULL;

		if (!token || is_running(s->run, token))
			continue;
		buf_printf(&key, CATALOG_FOLDER "/%s", f.seen.items[i].name);
		TRY(buf_check(&key, "gc", err));
		if (!s->dry_run && !gc_is_withdrawn(f.seen.items[i].name)) {
			PAWL_CLEAN(buf_clear) struct buf aside = {0};

			TRY(check_lease(s, err));
			int rc = s->run->modes.gc->take_unfinished(s->run->store, buf_str(&key), &aside, err);

			if (rc == PAWL_ENOTFOUND)
				continue;
			TRY(rc);
			TRY(drop_folder(s, buf_str(&aside), err));
			continue;
		}
		TRY(drop_folder(s, buf_str(&key), err));
	}
	return 0;
}

/* ----------------------------------------------- folders without a manifest */

/* 1 if the packs in a folder, at least one, all name this run; 0 if not. */
static int
packs_are_ours(struct sweep *s, const char *folder, const struct folder *f, struct pawl_error *err)
{
	size_t n_packs = 0;
	uint32_t rank, index;

	for (size_t i = 0; i < f->seen.n; i++) {
		PAWL_CLEAN(bump_clear) struct bump memory = {0};
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		struct st_table table;
		uint64_t nbytes;

		if (!pack_parse_name(f->seen.items[i].name, &rank, &index))
			continue;
		buf_printf(&key, "%s/%s", folder, f->seen.items[i].name);
		TRY(buf_check(&key, "gc", err));
		int rc = compressed_pack_read_header(s->run->store, buf_str(&key), &memory, &table, &nbytes, err);
		if (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT)
			return 0;
		TRY(rc);
		if (!pack_header_is_of_run(&table, s->run->self.run_id))
			return 0;
		n_packs++;
	}
	return n_packs > 0;
}

/* Did this run create a folder of this name? Template and id must fit. */
static bool
is_our_name(struct pawl *run, const char *name)
{
	uint64_t id = name_id(run->opts.naming.name_template, name);
	return id > 0 && id <= run_file_last_id(run);
}

/* 1 if the folder may be removed with everything in it. */
static int
is_orphan(struct sweep *s, const char *name, const char *key, bool withdrawn, struct pawl_error *err)
{
	PAWL_CLEAN(folder_clear) struct folder f = {0};
	bool has_manifest = false, deleting = false;
	uint32_t rank, index;

	TRY(list_folder(s, key, &f, err));
	for (size_t i = 0; i < f.seen.n; i++) {
		const struct seen *e = &f.seen.items[i];

		if (e->is_folder || e->is_link)
			return 0;
		if (strcmp(e->name, MANIFEST_NAME) == 0)
			has_manifest = true;
		else if (strcmp(e->name, CATALOG_DELETING) == 0)
			deleting = true;
		else if (!pack_parse_name(e->name, &rank, &index) && !hidden_token(e->name, HIDDEN_TMP))
			return 0;
	}
	if (has_manifest && !deleting && !withdrawn)
		return 0;
	if (f.seen.n - (has_manifest ? 1u : 0u) - (deleting ? 1u : 0u) == 0)
		return is_our_name(s->run, name);
	int rc = packs_are_ours(s, key, &f, err);
	if (rc != 1)
		return rc;
	/* Manifests get lost, too. A folder that repair could restore is kept, and only a clear no
	 * from repair counts. */
	rc = pawl_repair(s->run, name, 1, NULL, err);
	if (rc == PAWL_ECORRUPT || rc == PAWL_ECONFLICT)
		return 1;
	return rc == PAWL_EVERSION || rc == PAWL_ELIMIT ? 0 : rc;
}

struct bad {
	const char *name;
	bool withdrawn;
};

/* Folders whose manifest is missing or does not verify, copied so that the lock need not be
 * held. */
static int
copy_bad_names(struct pawl *run, struct bump *memory, struct bad **ret, size_t *ret_n)
{
	const struct catalog *c = run->catalog;
	struct bad *names = bump_array(memory, c->n, sizeof(*names));
	size_t n = 0;

	for (size_t i = 0; names && i < c->n; i++) {
		if (c->entries[i].summary || c->entries[i].code == PAWL_EAUTH || c->entries[i].is_running)
			continue;
		names[n].withdrawn = c->entries[i].is_withdrawn;
		names[n].name = bump_strndup(memory, c->entries[i].name, strlen(c->entries[i].name));
		if (!names[n++].name)
			return PAWL_ENOMEM;
	}
	*ret = names;
	*ret_n = n;
	return names ? 0 : PAWL_ENOMEM;
}

static int
sweep_orphans(struct sweep *s, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct bad *names = NULL;
	size_t n = 0;

	run_edit(s->run);
	int rc = catalog_reload(s->run->catalog, err);
	int copied = rc == 0 ? copy_bad_names(s->run, &memory, &names, &n) : 0;
	run_edited(s->run);
	TRY(rc);
	if (copied < 0)
		return err_nomem(err, "gc");
	/* Where a checkpoint is written under its own name, one without a manifest may be the
	 * running save's. */
	if (s->run->modes.gc->leaves_orphans && s->run->saves.writer &&
	    (s->run->modes.agree->is_shared || s->run->saves.queue_ops->is_busy(s->run->saves.writer)))
		return 0;
	for (size_t i = 0; i < n; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};

		catalog_key(s->run->catalog, names[i].name, &key);
		TRY(buf_check(&key, "gc", err));
		rc = is_orphan(s, names[i].name, buf_str(&key), names[i].withdrawn, err);
		if (rc == 1)
			rc = drop_folder(s, buf_str(&key), err);
		TRY(rc);
	}
	return abort_commit_forget(s->run, s->dry_run, &s->count, err);
}

/* ------------------------------------------------------------- small things */

static int
sweep_holds(struct sweep *s, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct hold *holds;
	size_t n;

	TRY(holds_read(s->run->store, &memory, &holds, &n, err));
	for (size_t i = 0; i < n; i++) {
		if (!holds[i].alive)
			TRY(drop_file(s, holds[i].key, holds[i].nbytes, err));
	}
	return 0;
}

/* A small file before its rename. Or a pointer before its rename, the only kind of link that we
 * make. Or a folder in which the store or the doctor tries the file system. */
static bool
is_temp(const char *folder, const struct seen *e)
{
	const char *name = e->name;

	if (e->is_link)
		return !*folder && hidden_token(name, HIDDEN_TMP) &&
		       (strncmp(name, ".latest.", 8) == 0 || strncmp(name, ".best.", 6) == 0);
	if (e->is_folder)
		return !*folder && (strncmp(name, ".probe.", 7) == 0 || strncmp(name, ".doctor.", 8) == 0) &&
		       (hidden_token(name, HIDDEN_TMP) || hidden_token(name, ".renamed" HIDDEN_TMP));
	return hidden_token(name, HIDDEN_TMP);
}

/* While the run is being opened only readers, other ranks, contenders for the lease and doctors can
 * be running. They try the store's abilities and request the lease. */
static bool
is_of_contender(const char *name)
{
	static const char *const theirs[] = {("." LEASE_KEY), ".probe.", ".doctor."};

	for (size_t i = 0; i < sizeof(theirs) / sizeof(theirs[0]); i++)
		if (strncmp(name, theirs[i], strlen(theirs[i])) == 0)
			return true;
	return false;
}

/* Readers hold, pin and score checkpoints at any time, without the lease. */
static bool
is_of_readers(const char *folder)
{
	return strcmp(folder, CATALOG_HOLDS) == 0 || strcmp(folder, PINS_FOLDER) == 0;
}

/* No living process can be using this temporary file or folder. */
static bool
is_dead_temp(const struct sweep *s, const char *folder, const struct seen *e)
{
	int64_t timeout_ms = s->run->opts.timeouts.lease_ms > 0 ? s->run->opts.timeouts.lease_ms : 120000;

	if ((clock_unix_ns() - e->mtime_ns) / 1000000 >= timeout_ms)
		return true;
	return s->run->self.lease && !s->run->saves.writer && !e->is_folder && !is_of_readers(folder) &&
	       !is_of_contender(e->name);
}

/* ".lease.<token>" of a lease that is not ours: its holder was overtaken, or is gone. */
static bool
is_old_renewal(const struct sweep *s, const char *folder, const struct seen *e)
{
	const size_t prefix = strlen(LEASE_KEY ".");

	return s->run->self.lease && !*folder && !e->is_folder && !e->is_link &&
	       strncmp(e->name, LEASE_KEY ".", prefix) == 0 && strlen(e->name) == prefix + 32 &&
	       hidden_is_token(e->name + prefix) && strcmp(e->name + prefix, lease_token(s->run->self.lease)) != 0;
}

static int
sweep_temps(struct sweep *s, const char *folder, struct pawl_error *err)
{
	PAWL_CLEAN(folder_clear) struct folder f = {0};

	TRY(list_folder(s, folder, &f, err));
	for (size_t i = 0; i < f.seen.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};
		const struct seen *e = &f.seen.items[i];

		if (!is_old_renewal(s, folder, e) && (!is_temp(folder, e) || !is_dead_temp(s, folder, e)))
			continue;
		buf_printf(&key, "%s%s%s", folder, *folder ? "/" : "", e->name);
		TRY(buf_check(&key, "gc", err));
		TRY(e->is_folder ? drop_folder(s, buf_str(&key), err)
		                 : drop_file(s, buf_str(&key), freed_bytes(e), err));
	}
	return 0;
}

/* "<bytes>-<token>" */
static bool
is_recycled_name(const char *name)
{
	size_t digits = strspn(name, "0123456789");

	return digits > 0 && name[digits] == '-' && strlen(name + digits + 1) == 32 &&
	       hidden_is_token(name + digits + 1);
}

/* With recycling on, the writer keeps the number of files itself. */
static int
sweep_recycled(struct sweep *s, struct pawl_error *err)
{
	PAWL_CLEAN(folder_clear) struct folder f = {0};

	if (s->run->opts.packs.recycle)
		return 0;
	TRY(list_folder(s, RECYCLE_FOLDER, &f, err));
	for (size_t i = 0; i < f.seen.n; i++) {
		PAWL_CLEAN(buf_clear) struct buf key = {0};

		if (f.seen.items[i].is_folder || f.seen.items[i].is_link || !is_recycled_name(f.seen.items[i].name))
			continue;
		buf_printf(&key, RECYCLE_FOLDER "/%s", f.seen.items[i].name);
		TRY(buf_check(&key, "gc", err));
		TRY(drop_file(s, buf_str(&key), freed_bytes(&f.seen.items[i]), err));
	}
	return 0;
}

static bool
spare_running(void *arg, const char *token)
{
	return is_running(arg, token);
}

/* The remains of failed saves in the folders of the nodes. */
static int
sweep_nodes(struct sweep *s, struct pawl_error *err)
{
	uint64_t count, nbytes;

	if (!s->run->home.nodes)
		return 0;
	TRY(check_lease(s, err));
	TRY(nodes_sweep(s->run->home.nodes, CATALOG_FOLDER, spare_running, s->run, s->dry_run, &count, &nbytes, err));
	s->count += count;
	s->bytes += nbytes;
	return 0;
}

/* Uploads that were begun and never ended: no listing shows them, but the store charges for
 * them. */
static int
sweep_uploads(struct sweep *s, struct pawl_error *err)
{
	uint64_t n = 0;

	if (s->dry_run)
		return 0;
	TRY(check_lease(s, err));
	int rc = store_sweep(s->run->store, clock_unix_ns() - UPLOAD_AGE_NS, &n, err);
	s->count += n;
	return rc;
}

static int
sweep_all(struct sweep *s, struct pawl_error *err)
{
	static const char *const folders[] = {"", CATALOG_FOLDER, ".pawl", PINS_FOLDER, CATALOG_HOLDS, RECYCLE_FOLDER};

	TRY(sweep_partials(s, err));
	/* Only on request, since a checkpoint that lost its manifest can be repaired. But where
	 * folders are not renamed, a killed save leaves the same. */
	if (s->run->saves.writer || s->run->opts.read_only || s->run->modes.gc->leaves_orphans)
		TRY(sweep_orphans(s, err));
	TRY(sweep_nodes(s, err));
	TRY(sweep_holds(s, err));
	for (size_t i = 0; i < sizeof(folders) / sizeof(folders[0]); i++)
		TRY(sweep_temps(s, folders[i], err));
	return sweep_recycled(s, err);
}

static int
collect_garbage(struct pawl *run, int dry_run, struct pawl_meter *meter, uint64_t *ret_count, uint64_t *ret_bytes,
                struct pawl_error *err)
{
	struct sweep s = {.run = run, .dry_run = dry_run, .meter = meter};
	struct pawl_error why = {0};
	char fields[96];
	int uploads = 0;

	if (!run)
		return err_set(err, PAWL_EUSAGE, "gc: expected a run, found NULL");
	if (!dry_run)
		TRY(run_check_keeper(run, err));
	if (!run->home.single_name) {
		TRY(sweep_all(&s, err));
		/* Last, since it may need a right that the rest does not need. */
		uploads = sweep_uploads(&s, &why);
	}
	if (s.count && !dry_run) {
		run_edit(run);
		int rc = catalog_reload(run->catalog, err);
		run_edited(run);
		TRY(rc);
		snprintf(fields, sizeof(fields), "\"count\":%llu,\"bytes\":%llu", (unsigned long long)s.count,
		         (unsigned long long)s.bytes);
		events_add(&run->events, "gc", fields);
	}
	TRY(err_give(err, uploads, &why));
	if (ret_count)
		*ret_count = s.count;
	if (ret_bytes)
		*ret_bytes = s.bytes;
	return 0;
}

int
pawl_gc(struct pawl *run, int dry_run, struct pawl_meter *meter, uint64_t *ret_count, uint64_t *ret_bytes,
        struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, collect_garbage(run, dry_run, meter, ret_count, ret_bytes, &own), &own);
}
