/* SPDX-License-Identifier: Apache-2.0 */
/* run_options: see run_options.h. */
#include "run/run_options.h"

#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/err.h"
#include "base/text.h"
#include "policy/name.h"
#include "policy/retain.h"
#include "run/option_table.h"
#include "run/run.h"
#include "state/manifest.h"
#include "state/pack_name.h"
#include "store/layers/nodes/store_nodes.h"

#define RUN_MAX_WORLD 100000

int
run_options_copy_text(struct pawl *run, const char **field, struct pawl_error *err)
{
	if (!*field)
		return 0;
	*field = bump_strndup(&run->settings.strings, *field, strlen(*field));
	return *field ? 0 : err_nomem(err, "run");
}

static int
copy_scores(struct pawl *run, struct pawl_retention *r, struct pawl_error *err)
{
	const char **names = bump_array(&run->settings.strings, (uint64_t)r->n_scores + 1, sizeof(*names));
	int *orders = bump_array(&run->settings.strings, (uint64_t)r->n_scores + 1, sizeof(*orders));

	if (!names || !orders)
		return err_nomem(err, "run");
	for (size_t i = 0; i < r->n_scores; i++) {
		names[i] = r->score_attributes[i];
		TRY(run_options_copy_text(run, &names[i], err));
		orders[i] = r->score_orders ? r->score_orders[i] : 1;
	}
	r->score_attributes = names;
	r->score_orders = orders;
	return 0;
}

/* Memory only: the run is in this process alone, and ends with it. */
static int
check_memory(const struct pawl *run, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;
	const char *other = o->read_only ? "read_only" : o->single ? "single" : o->maintenance ? "maintenance" : NULL;

	if (o->retention.num_to_keep != PAWL_KEEP_MEMORY || !other)
		return 0;
	return err_set(err, PAWL_EUSAGE,
	               "retention.num_to_keep: a run in memory only begins empty and is trained; found %s as well",
	               other);
}

/* A template that cannot make a folder name is refused at open, not at the first save. */
static int
check_template(const char *text, struct pawl_error *err)
{
	struct name_values sample = {
		.run_name = "run", .world_size = 1, .local_world_size = 1, .id = 1, .progress = PAWL_PROGRESS_INIT};
	PAWL_CLEAN(buf_clear) struct buf name = {0};

	TRY(name_format(text, &sample, false, &name, err));
	TRY(buf_check(&name, "naming.name_template", err));
	if (!text_is_component(buf_str(&name)))
		return err_set(err, PAWL_EUSAGE,
		               "naming.name_template: expected a folder name of letters, digits and '._=-', found '%s'",
		               text);
	if (!name_uses(text, "id"))
		return err_set(err, PAWL_EUSAGE,
		               "naming.name_template: '%s' has no {id}, so two checkpoints could have one name", text);
	return 0;
}

/* Many ranks cannot use some options, because they would not all do the same. Refused when the run
 * is opened. */
static int
check_ranks(const struct pawl *run, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;
	const char *what = NULL;

	if (run->group.world == 1 || o->read_only)
		return 0;
	if (o->single)
		what = "single: a single checkpoint is written by one process";
	else if (o->maintenance)
		what = "maintenance: a run is maintained by one process";
	else if (run->settings.retention.num_to_keep == PAWL_KEEP_MEMORY)
		what = "retention.num_to_keep: ranks cannot meet in memory";
	else if (o->on_busy != PAWL_BUSY_WAIT)
		what = "on_busy: expected wait, since all ranks must take part in the same saves";
	else if (run->settings.retention.strict_score)
		what = "retention.strict_score: one rank cannot refuse a save that the others have begun";
	else if (triggers_use_clock(&run->settings.triggers) && !o->ranks.broadcast)
		what = "save_interval: clocks differ between ranks, so an interval in seconds, 'dur' or 'auto' needs a "
		       "broadcast function";
	return what ? err_set(err, PAWL_EUSAGE, "with %u ranks, %s", run->group.world, what) : 0;
}

/* This process's node: as the launcher reports it, or from the number of ranks per node. -1 =
 * unknown. */
static int64_t
own_node(const struct pawl *run)
{
	const struct pawl_rank *r = &run->group.who;

	if (r->node_rank >= 0 && run->group.world > 1)
		return r->node_rank;
	if (run->group.world == 1)
		return 0;
	return r->local_world_size > 0 ? r->rank / r->local_world_size : -1;
}

static int
check_nodes(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	int32_t local = run->group.who.local_world_size;
	int64_t node = own_node(run);

	if (!o->ranks.node_folder)
		return o->ranks.n_partners
		               ? err_set(err, PAWL_EUSAGE, "ranks.n_partners: expected ranks.node_folder as well")
		               : 0;
	if (o->single || run->settings.retention.num_to_keep == PAWL_KEEP_MEMORY)
		return err_set(err, PAWL_EUSAGE, "ranks.node_folder: expected a run with a folder of its own");
	if (o->packs.recycle)
		return err_set(err, PAWL_EUSAGE, "packs.recycle: files in node folders are not kept aside");
	if (o->read_only || o->maintenance) { /* reads packs from any node */
		o->ranks.n_nodes = o->ranks.n_nodes ? o->ranks.n_nodes : NODES_MAX_NODES;
		node = 0;
	}
	if (node < 0)
		return err_set(
			err, PAWL_EUSAGE,
			"ranks.node_folder: the launcher does not say on which node rank %u is; give node_rank or "
			"local_world_size",
			run->group.rank);
	if (!o->ranks.n_nodes && run->group.world > 1 && local < 1)
		return err_set(err, PAWL_EUSAGE,
		               "ranks.node_folder: expected ranks.n_nodes, since the launcher does not set it");
	if (!o->ranks.n_nodes)
		o->ranks.n_nodes =
			run->group.world == 1 ? 1 : (run->group.world + (uint32_t)local - 1) / (uint32_t)local;
	if (node >= o->ranks.n_nodes)
		return err_set(err, PAWL_EUSAGE, "ranks.n_nodes: rank %u is on node %lld, expected more than %u nodes",
		               run->group.rank, (long long)node, o->ranks.n_nodes);
	run->home.node = (uint32_t)node;
	return 0;
}

static int
check_mirror(const struct pawl_mirror *m, size_t i, struct pawl_error *err)
{
	const char *url = m && m->url && *m->url ? m->url : NULL;
	struct pawl_retention policy;
	struct triggers every;

	if (!url || strncmp(url, "mem:", 4) == 0)
		return err_set(err, PAWL_EUSAGE, "mirrors: expected a path or URL as number %zu, found %s", i + 1,
		               url ? url : "none");
	if (m->every)
		TRY(triggers_parse_fixed(m->every, &every, err));
	if (!m->retention)
		return 0;
	TRY(retain_take(m->retention, &policy, err));
	if (policy.keep)
		return err_set(err, PAWL_EUSAGE, "mirror %s: expected no rule of the caller, which is for the run only",
		               url);
	return retain_check(&policy, err);
}

static int
check_mirrors(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;

	if (!o->n_mirrors)
		return o->uploads.delete_local ? err_set(err, PAWL_EUSAGE,
		                                         "uploads.delete_local: expected a mirror as well, found none")
		                               : 0;
	if (o->single)
		return err_set(err, PAWL_EUSAGE, "mirrors: expected a run, a single checkpoint has none");
	if (run->settings.retention.num_to_keep == PAWL_KEEP_MEMORY)
		return err_set(
			err, PAWL_EUSAGE,
			"mirrors: a run that keeps its checkpoints in memory (retention.num_to_keep) uploads nothing; to keep "
			"nothing here after an upload set uploads.delete_local");
	for (size_t i = 0; i < o->n_mirrors; i++)
		TRY(check_mirror(o->mirrors ? &o->mirrors[i] : NULL, i, err));
	return 0;
}

/* The copies live as long as the run. */
static int
copy_mirrors(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	struct pawl_mirror *list = bump_array(&run->settings.strings, (uint64_t)o->n_mirrors + 1, sizeof(*list));

	if (!list)
		return err_nomem(err, "run");
	for (size_t i = 0; i < o->n_mirrors; i++) {
		list[i] = o->mirrors[i];
		TRY(run_options_copy_text(run, &list[i].url, err));
		TRY(run_options_copy_text(run, &list[i].every, err));
		if (!list[i].retention)
			continue;
		struct pawl_retention *policy = bump_alloc(&run->settings.strings, sizeof(*policy));
		if (!policy)
			return err_nomem(err, "run");
		TRY(retain_take(list[i].retention, policy, err));
		list[i].retention = policy;
		TRY(copy_scores(run, policy, err));
	}
	o->mirrors = list;
	return 0;
}

static int
take_compression(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_open_opts *o = &run->opts;

	run->settings.compress_by_rule = o->packs.compression && strcmp(o->packs.compression, "auto") == 0;
	return pack_check_compression(run->settings.compress_by_rule ? COMPRESS_CODEC : o->packs.compression,
	                              o->packs.compression_level, &run->settings.codec, err);
}

static int
fill_defaults(struct pawl *run, struct pawl_error *err)
{
	struct pawl_open_opts *o = &run->opts;
	const long processors = sysconf(_SC_NPROCESSORS_ONLN);

	if (!o->staging.copy_threads)
		o->staging.copy_threads = processors < 1 ? 1 : processors > 4 ? 4 : (uint32_t)processors;
	if (!o->naming.name_template)
		o->naming.name_template = "checkpoint_{id:06d}";
	if (o->packs.block_bytes & (o->packs.block_bytes - 1))
		return err_set(err, PAWL_EUSAGE, "packs.block_bytes: expected a power of two, found %llu",
		               (unsigned long long)o->packs.block_bytes);
	TRY(check_template(o->naming.name_template, err));
	if (o->save_interval)
		TRY(triggers_parse(o->save_interval, &run->settings.triggers, err));
	TRY(check_nodes(run, err));
	TRY(take_compression(run, err));
	return check_ranks(run, err);
}

/* Our rank and the world size. */
static int
take_rank(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_rank *given = run->opts.ranks.self;
	struct pawl_rank *r = &run->group.who;

	*r = (struct pawl_rank){.size = sizeof(*r), .rank = 0, .world_size = 1};
	run->opts.ranks.self = r;
	if (given && !given->size)
		return err_set(err, PAWL_EUSAGE, "open: the rank has no size; start from PAWL_RANK_INIT");
	if (given)
		memcpy(r, given, given->size < sizeof(*r) ? given->size : sizeof(*r));
	r->attempt[sizeof(r->attempt) - 1] = 0;
	if (r->world_size < 1 || r->world_size > RUN_MAX_WORLD || r->rank < 0 || r->rank >= r->world_size)
		return err_set(err, PAWL_EUSAGE,
		               "open: expected a rank below the world's size (1 to %d), found %d of %d", RUN_MAX_WORLD,
		               r->rank, r->world_size);
	run->group.rank = (uint32_t)r->rank;
	run->group.world = (uint32_t)r->world_size;
	return 0;
}

static int
take_stores(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_stores *given = run->opts.io.stores;

	if (!given)
		return 0;
	if (given->size < sizeof(*given))
		return err_set(err, PAWL_EUSAGE, "open: the stores have no size; start from PAWL_STORES_INIT");
	run->settings.stores = *given;
	run->opts.io.stores = &run->settings.stores;
	return 0;
}

int
run_options_take(struct pawl *run, const struct pawl_open_opts *opts, struct pawl_error *err)
{
	size_t n = opts->size < sizeof(run->opts) ? opts->size : sizeof(run->opts);

	if (!opts->size)
		return err_set(err, PAWL_EUSAGE, "open: the options have no size; start from PAWL_OPEN_OPTS_INIT");
	memcpy(&run->opts, opts, n); /* fields that an older caller does not know stay zero */
	run->opts.size = sizeof(run->opts);
	if (!run->opts.root || !*run->opts.root)
		return err_set(err, PAWL_EUSAGE, "open: expected a root folder, found %s",
		               run->opts.root ? "an empty text" : "NULL");
	TRY(store_check_slashes(run->opts.root, err));
	TRY(option_table_complete(&run->opts, err));
	TRY(take_rank(run, err));
	TRY(take_stores(run, err));
	TRY(run_options_copy_text(run, &run->opts.root, err));
	TRY(run_options_copy_text(run, &run->opts.naming.run_id, err));
	TRY(run_options_copy_text(run, &run->opts.naming.name_template, err));
	TRY(run_options_copy_text(run, &run->opts.save_interval, err));
	TRY(run_options_copy_text(run, &run->opts.ranks.node_folder, err));
	TRY(run_options_copy_text(run, &run->opts.packs.compression, err));
	run->settings.retention = run->opts.retention;
	TRY(retain_check(&run->settings.retention, err));
	TRY(check_memory(run, err));
	if (run->settings.retention.num_to_keep == PAWL_KEEP_MEMORY) /* R3: no scores, the newest only, in memory */
		run->settings.retention = (struct pawl_retention){.size = sizeof(run->settings.retention),
		                                                  .num_to_keep = PAWL_KEEP_MEMORY};
	TRY(copy_scores(run, &run->settings.retention, err));
	TRY(check_mirrors(run, err));
	TRY(copy_mirrors(run, err));
	return fill_defaults(run, err);
}
