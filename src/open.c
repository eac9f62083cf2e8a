/* SPDX-License-Identifier: Apache-2.0 */
/*
 * open: opening and closing a run. The only file that knows all rooms.
 *
 * Promises P8 (a folder of another run is refused), P9 and E7 (ids and lists come from the manifests), P10 (lease).
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/text.h"
#include "catalog/place.h"
#include "foreign/unpacked.h"
#include "mirror/mirror.h"
#include "policy/name.h"
#include "policy/retain.h"
#include "ranks/meet.h"
#include "run/lease.h"
#include "save/save.h"
#include "save/writer.h"
#include "store/layers/layer_nodes.h"

/* single: splits root into the parent folder (the store) and the checkpoint's name. */
static int
split_single(struct pawl *run, const char *root, char **ret_parent, struct pawl_error *err)
{
	PAWL_FREE char *copy = NULL;
	char *slash, *real = run->opts.read_only ? realpath(root, NULL)
	                                         : NULL; /* "latest" is a link that a store would not follow */

	copy = mem_strdup(real ? real : root);
	free(real);
	if (!copy)
		return err_set(err, PAWL_ENOMEM, "run: out of memory");
	const char *sign = strstr(copy, "://"); /* of "memory://name" the root is "memory://" */
	const size_t least = sign ? (size_t)(sign - copy) + 3 : 1;

	for (size_t n = strlen(copy); n > least && copy[n - 1] == '/'; n--)
		copy[n - 1] = 0;
	slash = strrchr(copy, '/');
	run->single_name = mem_strdup(slash ? slash + 1 : copy);
	if (run->single_name &&
	    (!*run->single_name || strcmp(run->single_name, ".") == 0 || strcmp(run->single_name, "..") == 0))
		return err_set(err, PAWL_EUSAGE,
		               "%s: expected a path that ends in the name of a checkpoint, found '%s'", root,
		               run->single_name);
	if (slash)
		slash[slash == copy || (sign && sign + 2 == slash) ? 1 : 0] = 0;
	*ret_parent = mem_strdup(slash ? copy : ".");
	if (!run->single_name || !*ret_parent)
		return err_set(err, PAWL_ENOMEM, "run: out of memory");
	return 0;
}

static int
open_nodes(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;
	const struct store_nodes nodes = {.template_url = o->node_folder,
	                                  .node = run->node,
	                                  .n_nodes = o->n_nodes,
	                                  .n_copies = 1 + o->partner,
	                                  .wait_ms = run->world > 1 ? o->commit_timeout_ms : 0,
	                                  .read_only = o->read_only || o->upkeep,
	                                  .no_direct_io = o->no_direct_io};

	TRY(store_nodes_wrap(run->store, &nodes, &run->nodes, err));
	run->store = run->nodes;
	return 0;
}

static int
open_store(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	const char *root = o->root;
	PAWL_FREE char *parent = NULL;
	bool memory = o->retention.num_to_keep == PAWL_KEEP_MEMORY;

	if (strncmp(root, "file://", 7) == 0)
		root += 7;
	if (o->single)
		TRY(split_single(run, root, &parent, err));
	TRY(store_open_with(o->stores,
	                    memory   ? "mem:"
	                    : parent ? parent
	                             : root,
	                    !o->read_only, o->no_direct_io, &run->store, err));
	if (o->node_folder)
		TRY(open_nodes(run, err));
	TRY(store_limit(&run->store, o->bandwidth_bytes_per_second, o->read_bandwidth_bytes_per_second, err));
	if (o->fault) {
		struct store *wrapped;

		TRY(store_fault_wrap(run->store, o->fault, &wrapped, err));
		run->store = wrapped;
	}
	if (o->single && o->read_only)
		TRY(unpacked_wrap(&run->store, run->single_name, err));
	if (o->single && o->read_only)
		TRY(foreign_detect(run->store, run->single_name, root, &run->foreign, err));
	store_get_caps(run->store, &run->caps);
	if (run->world > 1 && !o->read_only && !run->caps.exclusive_put)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "%s: a job of many ranks needs a store that keeps two writers apart (it does not honour "
		               "If-None-Match)",
		               root);
	if (o->node_folder && !run->caps.rename_folder)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: node_folder needs a run in a folder, not in a bucket",
		               root);
	if (run->caps.local) {
		char *whole = realpath(run->store->root, NULL); /* given back to users, so that a chdir does no harm */

		run->root = o->single ? mem_printf("%s/%s", whole ? whole : "", run->single_name)
		                      : mem_strdup(whole ? whole : root);
		free(whole);
	} else {
		run->root = mem_strdup(root);
	}
	return run->root ? 0 : err_set(err, PAWL_ENOMEM, "run: out of memory");
}

/* ---- identity */

/* R90: checkpoints of another run that ours would be mixed up with. */
static int
check_foreign(struct pawl *run, struct pawl_error *err)
{
	for (size_t i = 0; i < run->catalog->n; i++) {
		const struct catalog_entry *e = &run->catalog->entries[i];

		if (e->summary && strcmp(e->summary->run_id, run->run_id) != 0)
			return err_set(
				err, PAWL_EEXISTS,
				"%s holds %s of another run (%s, this one is %s); choose another folder, or overwrite",
				run->root, e->name, e->summary->run_id, run->run_id);
	}
	return 0;
}

/* A single checkpoint's place must be free, or hold one like it that may be replaced (P8: nothing else is deleted). */
static int
check_single(struct pawl *run, struct pawl_error *err)
{
	const struct catalog_entry *there = catalog_latest(run->catalog);
	struct store_entry entry;
	int rc;

	if (run->opts.read_only || run->opts.upkeep)
		return 0;
	rc = store_stat(run->store, run->single_name, &entry, err);
	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (run->opts.overwrite && !there)
		return err_set(err, PAWL_EEXISTS,
		               "%s is no single checkpoint, and only such a one is overwritten; remove it yourself, or "
		               "choose another name",
		               run->root);
	if (run->opts.overwrite && !run->caps.rename_folder)
		return err_set(
			err, PAWL_EUNSUPPORTED,
			"%s exists already, and nothing is overwritten in a bucket; remove it, or choose another name",
			run->root);
	if (run->opts.overwrite && there->summary->run_id[0])
		return err_set(err, PAWL_EEXISTS,
		               "%s belongs to the run %s and is not overwritten; choose another name", run->root,
		               there->summary->run_id);
	if (run->opts.overwrite)
		return 0;
	return err_set(err, PAWL_EEXISTS, "%s exists already; choose another name, or overwrite", run->root);
}

/* The run's folder is lost, or on another host, and a mirror has its run.json. */
static int
adopt_mirrored(struct pawl *run, bool *ret_found, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	int rc = mirrors_get_run_file(run, &text, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc < 0)
		return err_prefix(err, rc, "%s", run->root);
	TRY(run_adopt_file(run, &text, err));
	*ret_found = true;
	return 0;
}

/* Who we are: run.json, else the newest checkpoint that is there (a folder that lost its run.json), else new. */
static int
identify(struct pawl *run, struct pawl_error *err)
{
	struct catalog_entry *latest = catalog_latest(run->catalog);
	const char *wanted = run->opts.run_id;
	bool found;

	if (wanted && !run_is_id(wanted))
		return err_set(err, PAWL_EUSAGE, "run_id: expected 32 lower-case hex digits, found '%.80s'", wanted);
	TRY(run_read_file(run, &found, err));
	if (!found && !latest && run->mirrors)
		TRY(adopt_mirrored(run, &found, err));
	if (!found && latest)
		memcpy(run->run_id, latest->summary->run_id, sizeof(run->run_id));
	else if (!found && wanted)
		memcpy(run->run_id, wanted, 33);
	else if (!found)
		TRY(clock_token(run->run_id, err));
	if (wanted && strcmp(wanted, run->run_id) != 0) {
		if (!run->opts.overwrite && latest)
			return err_set(err, PAWL_EEXISTS, "%s belongs to run %s, expected run %s", run->root,
			               run->run_id, wanted);
		memcpy(run->run_id, wanted, 33);
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
		if (run->catalog->entries[i].id > run->last_id)
			run->last_id = run->catalog->entries[i].id;
	for (size_t i = 0; i < run->catalog->n_withdrawn; i++)
		if (run->catalog->withdrawn[i].id > run->last_id)
			run->last_id = run->catalog->withdrawn[i].id;
	if (run->opts.after_id > run->last_id)
		run->last_id = run->opts.after_id;
	run_mark_at(run, latest ? &latest->summary->progress : NULL);
	if (latest && latest->summary->attempt > run->attempt)
		run->attempt = latest->summary->attempt;
}

/* The newest checkpoint's packs, so that the first save of a resumed run can link what has not changed. */
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
	if (reuse_of_manifest(m, buf_str(&folder), &run->writer->reuse, NULL) == 0)
		past_of_manifest(m, run->rank, &run->writer->past, NULL);
	manifest_free(m);
}

static struct meet_opts
meet_options(const struct pawl *run)
{
	return (struct meet_opts){.rank = &run->who,
	                          .timeout_ms = run->opts.commit_timeout_ms,
	                          .lease_timeout_ms = run->opts.lease_timeout_ms,
	                          .broadcast = run->opts.broadcast,
	                          .broadcast_arg = run->opts.broadcast_arg};
}

/* Rank 0 lets the others in. */
static int
host(struct pawl *run, struct pawl_error *err)
{
	struct meet_opts opts = meet_options(run);
	struct meet_pass pass = {.attempt = run->attempt, .last_id = run->last_id, .created_ns = run->created_ns};

	memcpy(pass.run_id, run->run_id, sizeof(pass.run_id));
	if (run->lease)
		memcpy(pass.lease, lease_token(run->lease), sizeof(pass.lease));
	run->meet_id = run->meet_cleared = run->last_id;
	return meet_host(run->store, &opts, &pass, &run->meet, err);
}

/* Another rank learns from rank 0 which run and which attempt this is. */
static int
join(struct pawl *run, struct pawl_error *err)
{
	struct meet_opts opts = meet_options(run);
	struct meet_pass pass = {0};
	int rc = meet_join(run->store, &opts, &pass, &run->meet, err);

	if (rc < 0)
		return err_prefix(err, rc, "%s", run->root);
	memcpy(run->run_id, pass.run_id, sizeof(run->run_id));
	run->attempt = pass.attempt;
	run->created_ns = pass.created_ns;
	run->meet_id = run->last_id = pass.last_id;
	return 0;
}

/* P20: without conditional puts there is no lease, and nothing that calls a late writer's save off. */
static int
warn_of_writers(struct pawl *run, struct pawl_error *err)
{
	struct pawl_error why = {0};

	if (run->caps.exclusive_put || run->caps.is_private || run->single_name)
		return 0;
	run->warning = mem_printf("%s: the store does not honour conditional puts, so that nothing keeps two writers "
	                          "apart; train there with one process at a time",
	                          run->root);
	if (!run->warning)
		return err_set(err, PAWL_ENOMEM, "run: out of memory");
	err_set(&why, PAWL_EUNSUPPORTED, "%s", run->warning);
	if (!run->opts.upkeep)
		run_warn(run, &why);
	return 0;
}

static int
open_for_writing(struct pawl *run, struct pawl_error *err)
{
	if (!run->single_name && !run->opts.upkeep && run->rank == 0) {
		run->attempt++;
		TRY(run_write_file(run, err));
		pawl_gc(run, 0, NULL, NULL, NULL); /* what crashes left; failing to is no reason not to train */
	}
	run_warn_of_damage(run);
	TRY(warn_of_writers(run, err));
	if (!run->opts.arena) {
		TRY(pawl_arena_new(0, &run->arena, err));
		run->owns_arena = true;
	} else {
		run->arena = run->opts.arena;
	}
	if (run->world > 1 && run->rank == 0)
		TRY(host(run, err));
	TRY(writer_new(run, &run->writer, err));
	remember_packs(run);
	return run->rank == 0 && !run->opts.upkeep ? mirrors_start(run, err) : 0;
}

static void
run_free(struct pawl *run)
{
	mirrors_free(run->mirrors);
	run->mirrors = NULL;
	writer_free(run->writer);
	recycle_clear(&run->recycle);
	meet_leave(run->meet);
	lease_drop(run->lease);
	catalog_clear(run->catalog);
	mem_free(run->catalog);
	if (run->owns_arena)
		pawl_arena_free(run->arena);
	run_drop_place(run);
	store_close(run->store);
	pawl_ticket_free(run->pending);
	mem_free(run->root);
	mem_free(run->single_name);
	mem_free(run->left_behind);
	mem_free(run->file_damage);
	mem_free(run->warning);
	bump_clear(&run->strings);
	buf_clear(&run->events.text);
	pthread_mutex_destroy(&run->events.lock);
	pthread_mutex_destroy(&run->lock);
	pthread_mutex_destroy(&run->edit);
	mem_free(run);
}

/* What lies only in mirrors belongs to the run, too. Where they cannot be asked the training goes on with what is here,
 * unless there is nothing, or there has been something newer. */
static int
list_mirrored(struct pawl *run, struct pawl_error *err)
{
	struct pawl_error why = {0};

	run->catalog->mirrors = run->mirrors;
	if (!run->mirrors || run->rank > 0)
		return 0;
	int rc = mirrors_list(run, &why);
	const struct catalog_entry *latest = catalog_latest(run->catalog);

	if (rc < 0 && (rc == PAWL_EEXISTS || run->mirrors->is_denied || run->opts.mirror_errors || !latest ||
	               latest->id < run->stored_id))
		return err_give(err, rc, &why);
	return 0;
}

static int
take_lease(struct pawl *run, struct pawl_error *err)
{
	const struct lease_opts opts = {.timeout_ms = run->opts.lease_timeout_ms,
	                                .wait_ms = run->opts.lease_wait_ms,
	                                .on_wait = run->opts.on_lease_wait,
	                                .on_wait_arg = run->opts.on_lease_wait_arg};

	return lease_take(run->store, &opts, &run->lease, err);
}

static int
open_steps(struct pawl *run, const struct pawl_open_opts *opts, struct pawl_error *err)
{
	TRY(run_take_options(run, opts, err));
	TRY(open_store(run, err));
	TRY(run_check_place(run, err));
	TRY(run_hold_place(run, err));
	bool is_guest = run->rank > 0 && !run->opts.read_only;

	if (is_guest)
		TRY(join(run, err)); /* rank 0 has the lease, and clears up first */
	else if (!run->opts.read_only && !run->single_name && !run->caps.is_private && run->caps.exclusive_put)
		TRY(take_lease(run, err));
	if (run->lease && !run->opts.upkeep)
		TRY(run_hide_partials(run, err));
	TRY(run->foreign ? catalog_load_foreign(run->catalog, run->store, run->single_name, run->foreign, err)
	                 : catalog_load(run->catalog, run->store, run->single_name, run->opts.name_template, err));
	run->catalog->guard = &run->lock;
	TRY(mirrors_open(run, err));
	if (!is_guest)
		TRY(run->single_name ? check_single(run, err) : identify(run, err));
	TRY(list_mirrored(run, err));
	if (run->nodes)
		store_nodes_set_run(run->nodes, run->run_id);
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
		return err_set(err, PAWL_EUSAGE, "open: expected options and a place for the handle, found NULL");
	run = mem_zalloc(1, sizeof(*run));
	if (run)
		run->catalog = mem_zalloc(1, sizeof(*run->catalog));
	if (!run || !run->catalog) {
		mem_free(run);
		return err_set(err, PAWL_ENOMEM, "run: out of memory");
	}
	pthread_mutex_init(&run->lock, NULL);
	pthread_mutex_init(&run->edit, NULL);
	pthread_mutex_init(&run->recycle.lock, NULL);
	pthread_mutex_init(&run->events.lock, NULL);
	rc = open_steps(run, opts, &own);
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
	int rc;

	if (!run)
		return 0;
	if (run->writer)
		writer_wait(run->writer, -1);
	rc = mirrors_take_pending(run, err);
	int uploads = mirrors_stop(run, rc < 0 ? NULL : err);

	rc = rc < 0 ? rc : uploads;
	run_free(run);
	return rc;
}
