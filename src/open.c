/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open: opening and closing a run. The only file that knows all rooms.
 *
 * Promises P8 (a folder of another run is refused), P9 and E7 (ids and lists come from the
 * manifests), P10 (lease).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "catalog/explain.h"
#include "catalog/hold_root.h"
#include "catalog/places.h"
#include "foreign/compressed_file.h"
#include "keep/gc.h"
#include "keep/removal.h"
#include "mirror/mirror.h"
#include "policy/name.h"
#include "policy/retain.h"
#include "ranks/agree.h"
#include "ranks/rendezvous.h"
#include "run/check_root.h"
#include "run/lease.h"
#include "run/single.h"
#include "save/save.h"
#include "save/commit.h"
#include "save/role.h"
#include "save/writer.h"
#include "store/layers/nodes/store_nodes.h"

static int
open_nodes(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;
	const struct store_nodes nodes = {.template_url = o->ranks.node_folder,
	                                  .node = run->home.node,
	                                  .n_nodes = o->ranks.n_nodes,
	                                  .n_copies = 1 + o->ranks.n_partners,
	                                  .wait_ms = run->group.world > 1 ? o->timeouts.commit_ms : 0,
	                                  .read_only = o->read_only || o->maintenance,
	                                  .no_direct_io = o->io.no_direct};

	TRY(store_nodes_wrap(run->store, &nodes, &run->home.nodes, err));
	run->store = run->home.nodes;
	return 0;
}

static int
open_store(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	const char *root = text_skip_file(o->root);
	const bool memory = o->retention.num_to_keep == PAWL_KEEP_MEMORY;

	if (!o->single && !o->read_only && !memory)
		TRY(check_root_name(root, err));
	int rc = o->single ? single_open_store(run, root, err) : run_open_store(run, memory ? "mem:" : root, err);

	if (rc == PAWL_ENOTFOUND && (o->read_only || o->maintenance) && !strstr(root, "://"))
		return explain_address(root, err);
	TRY(rc);
	if (o->ranks.node_folder)
		TRY(open_nodes(run, err));
	TRY(store_limit(&run->store, o->io.write_bytes_per_second, o->io.read_bytes_per_second, o->io.meter, err));
	if (o->io.fault) {
		struct store *wrapped;

		TRY(store_fault_wrap(run->store, o->io.fault, &wrapped, err));
		run->store = wrapped;
	}
	if (o->single && o->read_only)
		TRY(compressed_file_wrap(&run->store, run->home.single_name, err));
	if (o->single && o->read_only)
		TRY(foreign_detect(run->store, run->home.single_name, root, &run->home.foreign, err));
	store_get_caps(run->store, &run->home.caps);
	if (run->group.world > 1 && !o->read_only && !run->home.caps.exclusive_put)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s: many ranks need a store that keeps two writers apart; this one does not", root);
	if (o->ranks.node_folder && !run->home.caps.rename_folder)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: ranks.node_folder needs a run in a folder, not in a bucket",
		               root);
	if (run->home.caps.local) /* as the store resolved it: a later chdir or deletion does no harm */
		run->home.root = o->single ? mem_printf("%s/%s", run->store->root, run->home.single_name)
		                           : mem_strdup(run->store->root);
	else
		run->home.root = mem_strdup(root);
	return run->home.root ? 0 : err_nomem(err, "run");
}

/* ---- identity */

/* R90: refuses checkpoints of another run, which would be mixed with ours. */
static int
check_foreign(struct pawl *run, struct pawl_error *err)
{
	for (size_t i = 0; i < run->catalog->n; i++) {
		const struct catalog_entry *e = &run->catalog->entries[i];

		if (e->summary && strcmp(e->summary->run_id, run->self.run_id) != 0)
			return err_set(
				err, PAWL_EEXISTS,
				"%s holds %s of another run (%s, this one is %s); choose another folder, or overwrite",
				run->home.root, e->name, e->summary->run_id, run->self.run_id);
	}
	return 0;
}

/* The path of a single checkpoint must be free, or hold one that may be replaced (P8: nothing else
 * is deleted). */
static int
check_single(struct pawl *run, struct pawl_error *err)
{
	const struct catalog_entry *there = catalog_latest(run->catalog);
	struct store_entry entry;
	int rc;

	if (run->opts.read_only || run->opts.maintenance)
		return 0;
	rc = store_stat(run->store, run->home.single_name, &entry, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (run->opts.overwrite && !there)
		return err_set(err, PAWL_EEXISTS,
		               "%s is not a single checkpoint, so it is not overwritten; remove it yourself, or "
		               "choose another name",
		               run->home.root);
	if (run->opts.overwrite && !run->home.caps.rename_folder)
		return err_set(
			err, PAWL_EUNSUPPORTED,
			"%s already exists, and nothing is overwritten in a bucket; remove it, or choose another name",
			run->home.root);
	if (run->opts.overwrite && there->summary->run_id[0])
		return err_set(err, PAWL_EEXISTS,
		               "%s belongs to the run %s and is not overwritten; choose another name", run->home.root,
		               there->summary->run_id);
	if (run->opts.overwrite)
		return 0;
	return err_set(err, PAWL_EEXISTS, "%s already exists; choose another name, or overwrite", run->home.root);
}

/* Takes run.json from a mirror, if the run's folder is lost or on another host. */
static int
adopt_mirrored(struct pawl *run, bool *ret_found, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	int rc = mirrors_get_run_file(run, &text, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0)
		return err_prefix(err, rc, "%s", run->home.root);
	TRY(run_file_adopt(run, &text, err));
	*ret_found = true;
	return 0;
}

struct shelf {
	struct store *store;
	char *name; /* of a run in it, or NULL */
};

static int
visit_run(void *arg, const struct store_entry *entry)
{
	struct shelf *shelf = arg;
	struct store_entry found;
	PAWL_FREE char *key = entry->is_folder ? mem_printf("%s/" RUN_KEY, entry->name) : NULL;

	if (!key || store_stat(shelf->store, key, &found, NULL) < 0)
		return 0;
	shelf->name = mem_strdup(entry->name);
	return PAWL_EEXISTS;
}

/* Refuses a new run in a folder of runs, which it would hide. Refuses a reader also in a folder of
 * other files, where it would see no checkpoint. Not asked of other machines, where it would take
 * many requests. */
static int
check_shelf(struct pawl *run, struct pawl_error *err)
{
	struct shelf shelf = {.store = run->store};

	if (run->home.single_name || !run->home.caps.local)
		return 0;
	if (run->opts.read_only || run->opts.maintenance)
		return places_kind_of(run->home.root, NULL, NULL) == PAWL_KIND_OTHER
		               ? explain_address(run->opts.root, err)
		               : 0;
	(void)store_list(run->store, "", visit_run, &shelf, NULL);
	PAWL_FREE char *name = shelf.name;

	if (!name)
		return 0;
	return err_set(err, PAWL_EEXISTS,
	               "%s holds runs, such as %s; open one of them, or name a new folder in it (%s/NAME)",
	               run->home.root, name, run->home.root);
}

/* Which run this is: by run.json, else by the newest checkpoint if the folder has lost its
 * run.json, else a new one. */
static int
identify_run(struct pawl *run, struct pawl_error *err)
{
	struct catalog_entry *latest = catalog_latest(run->catalog);
	const char *wanted = run->opts.naming.run_id;
	bool found;

	if (wanted && !text_is_hex32(wanted))
		return err_set(err, PAWL_EUSAGE, "naming.run_id: expected 32 lower-case hex digits, found '%.80s'",
		               wanted);
	TRY(run_file_read(run, &found, err));
	if (!found && !latest)
		TRY(adopt_mirrored(run, &found, err));
	if (!found && latest)
		memcpy(run->self.run_id, latest->summary->run_id, sizeof(run->self.run_id));
	else if (!found && wanted)
		memcpy(run->self.run_id, wanted, 33);
	else if (!found) {
		TRY(check_shelf(run, err));
		TRY(clock_token(run->self.run_id, err));
	}
	if (wanted && strcmp(wanted, run->self.run_id) != 0) {
		if (!run->opts.overwrite && latest)
			return err_set(err, PAWL_EEXISTS, "%s belongs to run %s, expected run %s", run->home.root,
			               run->self.run_id, wanted);
		memcpy(run->self.run_id, wanted, 33);
	}
	if (!run->opts.read_only && !run->opts.overwrite)
		TRY(check_foreign(run, err));
	return 0;
}

static void
note_history(struct pawl *run)
{
	struct catalog_entry *latest = catalog_latest(run->catalog);

	for (size_t i = 0; i < run->catalog->n; i++)
		run_file_raise_id(run, run->catalog->entries[i].id);
	for (size_t i = 0; i < run->catalog->n_withdrawn; i++)
		run_file_raise_id(run, run->catalog->withdrawn[i].id);
	run_file_raise_id(run, run->opts.naming.after_id);
	interval_restart(&run->interval, latest ? &latest->summary->progress : NULL);
	if (latest && latest->summary->attempt > run->self.attempt)
		run->self.attempt = latest->summary->attempt;
}

/* The newest checkpoint's packs, so that the first save of a resumed run can link what has not
 * changed. */
static void
remember_packs(struct pawl *run)
{
	struct catalog_entry *latest = catalog_latest(run->catalog);
	PAWL_CLEAN(buf_clear) struct buf folder = {0};
	struct manifest *m;

	if (!latest || latest->at || !run_links_packs(run))
		return;
	if (catalog_manifest(run->catalog, latest, &m, NULL) < 0)
		return;
	catalog_key(run->catalog, latest->name, &folder);
	if (reuse_of_manifest(m, buf_str(&folder), &run->saves.writer->reuse, NULL) == 0)
		past_of_manifest(m, run->group.rank, &run->saves.writer->past, NULL);
	manifest_free(m);
}

static struct rendezvous_opts
rendezvous_options(const struct pawl *run)
{
	return (struct rendezvous_opts){.rank = &run->group.who,
	                                .timeout_ms = run->opts.timeouts.commit_ms,
	                                .lease_timeout_ms = run->opts.timeouts.lease_ms,
	                                .broadcast = run->opts.ranks.broadcast,
	                                .broadcast_arg = run->opts.ranks.broadcast_arg};
}

/* Rank 0 admits the others. */
static int
host_ranks(struct pawl *run, struct pawl_error *err)
{
	struct rendezvous_opts opts = rendezvous_options(run);
	struct rendezvous_pass pass = {
		.attempt = run->self.attempt, .last_id = run->self.last_id, .created_ns = run->self.created_ns};

	memcpy(pass.run_id, run->self.run_id, sizeof(pass.run_id));
	if (run->self.lease)
		memcpy(pass.lease, lease_token(run->self.lease), sizeof(pass.lease));
	run->group.save_id = run->group.cleared_id = run->self.last_id;
	TRY(rendezvous_host(run->store, &opts, &pass, &run->group.rendezvous, err));
	run->modes.agree = &agree_host;
	run->modes.role = &role_host;
	return 0;
}

/* Another rank learns the run and the attempt from rank 0. */
static int
join_ranks(struct pawl *run, struct pawl_error *err)
{
	struct rendezvous_opts opts = rendezvous_options(run);
	struct rendezvous_pass pass = {0};
	int rc = rendezvous_join(run->store, &opts, &pass, &run->group.rendezvous, err);

	if (rc < 0)
		return err_prefix(err, rc, "%s", run->home.root);
	run->modes.agree = &agree_guest;
	run->modes.role = &role_guest;
	memcpy(run->self.run_id, pass.run_id, sizeof(run->self.run_id));
	run->self.attempt = pass.attempt;
	run->self.created_ns = pass.created_ns;
	run->group.save_id = run->self.last_id = pass.last_id;
	return 0;
}

/* Without conditional puts the run has no lease, and nothing aborts the save of a late
 * writer. */
static int
warn_of_writers(struct pawl *run, struct pawl_error *err)
{
	struct pawl_error why = {0};

	if (run->home.caps.exclusive_put || run->home.caps.is_private || run->home.single_name)
		return 0;
	run->home.warning =
		mem_printf("%s: the store does not honour conditional puts, so that nothing keeps two writers "
	                   "apart; train there with one process at a time",
	                   run->home.root);
	if (!run->home.warning)
		return err_nomem(err, "run");
	err_set(&why, PAWL_EUNSUPPORTED, "%s", run->home.warning);
	if (!run->opts.maintenance)
		events_warn(&run->events, &why);
	return 0;
}

static int
open_for_writing(struct pawl *run, struct pawl_error *err)
{
	if (!run->home.single_name && !run->opts.maintenance && run->group.rank == 0) {
		run->self.attempt++;
		TRY(run_file_write(run, err));
		/* Removes the remains of crashes; a failure does not stop the training. */
		pawl_gc(run, 0, NULL, NULL, NULL, NULL);
	}
	run_file_warn(run);
	TRY(warn_of_writers(run, err));
	if (!run->opts.staging.arena) {
		TRY(pawl_arena_new(0, &run->saves.arena, err));
		run->saves.owns_arena = true;
	} else {
		run->saves.arena = run->opts.staging.arena;
	}
	if (run->group.world > 1 && run->group.rank == 0)
		TRY(host_ranks(run, err));
	TRY(writer_new(run, &run->saves.writer, err));
	remember_packs(run);
	return run->group.rank == 0 && !run->opts.maintenance ? mirrors_start(run, err) : 0;
}

static void
run_free(struct pawl *run)
{
	mirrors_free(run->mirrors);
	run->mirrors = NULL;
	writer_free(run->saves.writer);
	rendezvous_leave(run->group.rendezvous);
	lease_drop(run->self.lease);
	if (run->catalog)
		catalog_clear(run->catalog);
	mem_free(run->catalog);
	if (run->saves.owns_arena)
		pawl_arena_free(run->saves.arena);
	hold_root_drop(run);
	store_close(run->store);
	run_delete(run);
}

/* Checkpoints that exist only in mirrors belong to the run too. If a mirror cannot be reached, the
 * training continues with the local ones. It does not if there are none, or if something newer has
 * existed. */
static int
list_mirrored(struct pawl *run, struct pawl_error *err)
{
	struct pawl_error why = {0};

	run->catalog->mirrors = run->mirrors;
	if (run->group.rank > 0)
		return 0;
	int rc = mirrors_list(run, &why);
	const struct catalog_entry *latest = catalog_latest(run->catalog);

	mirrors_wake(run); /* now it is known what is not due for them */
	if (rc < 0 && (rc == PAWL_EEXISTS || run->mirrors->is_denied || run->opts.uploads.fail_saves || !latest ||
	               latest->id < run->self.stored_id))
		return err_give(err, rc, &why);
	return 0;
}

static int
take_lease(struct pawl *run, struct pawl_error *err)
{
	const struct lease_opts opts = {.maintenance = run->opts.maintenance,
	                                .timeout_ms = run->opts.timeouts.lease_ms,
	                                .wait_ms = run->opts.timeouts.lease_wait_ms,
	                                .on_wait = run->opts.on_lease_wait,
	                                .on_wait_arg = run->opts.on_lease_wait_arg};

	return lease_take(run->store, &opts, &run->self.lease, err);
}

static const struct commit_ops *
rename_commit(const struct pawl *run)
{
	return run->home.single_name && run->opts.overwrite ? &commit_by_exchange : &commit_by_rename;
}

static const struct commit_ops *
put_commit(const struct pawl *run)
{
	return run->home.single_name || !run->home.caps.exclusive_put ? &commit_by_lone_put : &commit_by_put;
}

/* Of many ranks, `host` and `join` choose how they agree. */
static void
choose_modes(struct pawl *run)
{
	const bool by_rename = run->home.caps.rename_folder;

	run->modes.removal = by_rename ? &removal_by_rename : &removal_by_manifest;
	run->modes.gc = by_rename ? &gc_by_rename : &gc_by_manifest;
	run->modes.commit = by_rename ? rename_commit(run) : put_commit(run);
	run->modes.agree = &agree_alone;
	run->modes.role = run->home.single_name ? &role_single : &role_alone;
}

static int
open_steps(struct pawl *run, const struct pawl_open_opts *opts, struct pawl_error *err)
{
	TRY(run_options_take(run, opts, err));
	TRY(open_store(run, err));
	choose_modes(run);
	run->saves.recycle.store = run->store;
	run->saves.recycle.max_checkpoints = run->opts.packs.recycle;
	events_open(&run->events, run->store, &run->self, !run->home.single_name,
	            !run->opts.read_only && run->group.rank == 0);
	TRY(check_root(run, err));
	TRY(hold_root_take(run, err));
	bool is_guest = run->group.rank > 0 && !run->opts.read_only;

	if (is_guest)
		TRY(join_ranks(run, err)); /* rank 0 has the lease, and cleans up first */
	else if (!run->opts.read_only && !run->home.single_name && !run->home.caps.is_private &&
	         run->home.caps.exclusive_put)
		TRY(take_lease(run, err));
	if (run->self.lease && !run->opts.maintenance)
		TRY(run->modes.gc->hide_unfinished(run, err));
	TRY(run->home.foreign
	            ? catalog_load_foreign(run->catalog, run->store, run->home.single_name, run->home.foreign, err)
	            : catalog_load_unowned(run->catalog, run->store, run->home.single_name,
	                                   run->opts.naming.name_template,
	                                   run->opts.read_only ? run->opts.timeouts.lease_ms : 0, err));
	run->catalog->guard = &run->guard.lock;
	TRY(mirrors_open(run, err));
	if (!is_guest)
		TRY(run->home.single_name ? check_single(run, err) : identify_run(run, err));
	TRY(list_mirrored(run, err));
	if (run->home.nodes)
		store_nodes_set_run(run->home.nodes, run->self.run_id);
	note_history(run);
	return run->opts.read_only ? 0 : open_for_writing(run, err);
}

int
pawl_open(const struct pawl_open_opts *opts, struct pawl **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};
	struct pawl *run;
	int rc;

	if (!opts || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "open: expected options and a pointer that receives the handle, found NULL");
	run = run_new();
	if (!run)
		return err_nomem(err, "run");
	run->catalog = mem_zalloc(1, sizeof(*run->catalog));
	rc = run->catalog ? open_steps(run, opts, &own) : err_nomem(&own, "run");
	if (rc < 0) {
		err_give(err, rc, &own);
		run_free(run);
		return rc;
	}
	*ret = run;
	return 0;
}

int
pawl_close(struct pawl *run, struct pawl_error *err)
{
	struct pawl_error upload = {0};
	int rc;

	if (!run)
		return 0;
	if (run->saves.writer)
		writer_wait(run->saves.writer, -1);
	rc = mirrors_take_pending(run, err);
	int uploads = mirrors_stop(run, rc < 0 ? &upload : err);

	if (rc < 0 && uploads < 0 && err) {
		const size_t used = strlen(err->message);

		snprintf(err->message + used, sizeof(err->message) - used, "; an upload has failed too: %s",
		         upload.message);
	}
	rc = rc < 0 ? rc : uploads;
	run_free(run);
	return rc;
}
