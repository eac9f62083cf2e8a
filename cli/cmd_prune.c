/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_prune: deletes checkpoints by rule, each with its reason (R141). The library decides what is
 * kept. */
#include <inttypes.h>
#include <string.h>

#include "ask.h"
#include "cli.h"
#include "disk.h"
#include "grid.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct prune_args {
	struct score score;
	uint64_t keep_last, keep_best, keep_every, max_bytes;
	double younger_than, keep_hourly, keep_daily, keep_weekly;
	bool dry_run, drop_latest, yes;
};

static const struct operand operands[] = {{"RUN", OPERAND_RUN, 1, 1}, OPERAND_LIST_END};

static const struct option options[] = {
	{"keep-last", 0, OPT_COUNT, offsetof(struct prune_args, keep_last), "N", "keep the newest N"},
	{"keep-best", 0, OPT_COUNT, offsetof(struct prune_args, keep_best), "N", "keep the best N (see --by)"},
	SCORE_OPTIONS(prune_args),
	{"keep-every", 0, OPT_COUNT, offsetof(struct prune_args, keep_every), "N",
         "keep the first checkpoint of every N steps"},
	{"younger-than", 0, OPT_SECONDS, offsetof(struct prune_args, younger_than), "TIME",
         "keep those younger than this: 90s, 30min, 12h, 7d"},
	{"keep-hourly", 0, OPT_SECONDS, offsetof(struct prune_args, keep_hourly), "TIME",
         "of those younger than this, keep one an hour"},
	{"keep-daily", 0, OPT_SECONDS, offsetof(struct prune_args, keep_daily), "TIME", "the same, one a day: 30d"},
	{"keep-weekly", 0, OPT_SECONDS, offsetof(struct prune_args, keep_weekly), "TIME", "the same, one a week: 52w"},
	{"max-bytes", 0, OPT_BYTES, offsetof(struct prune_args, max_bytes), "SIZE",
         "delete the oldest until the rest fits into SIZE"},
	{"drop-latest", 0, OPT_FLAG, offsetof(struct prune_args, drop_latest), NULL,
         "with --keep-best: keep the latest only if a rule keeps it"},
	{"dry-run", 'n', OPT_FLAG, offsetof(struct prune_args, dry_run), NULL,
         "print what would be deleted; change nothing"},
	YES_OPTION(prune_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl prune runs/demo --keep-last 3 --keep-every 1000 -n", "what would stay?"},
	{"pawl prune runs/demo --keep-best 2 --by loss --order min", "the two with the least loss, and the latest"},
	{"pawl prune runs/demo --max-bytes 200GB", "a budget"},
	EXAMPLE_END,
};

PAWL_DEFINE_CLEAN(struct pawl_decisions, pawl_decisions_free);

static int
make_policy(struct cli *cli, const struct prune_args *args, struct pawl_retention *policy, struct pawl_error *err)
{
	policy->keep_last = args->keep_last;
	policy->keep_best = args->keep_best;
	policy->keep_every = args->keep_every;
	policy->keep_seconds = args->younger_than;
	policy->keep_hourly = args->keep_hourly;
	policy->keep_daily = args->keep_daily;
	policy->keep_weekly = args->keep_weekly;
	policy->max_bytes = args->max_bytes;
	policy->drop_latest = args->drop_latest;
	if (args->keep_last == 0 && args->keep_best == 0 && args->keep_every == 0 && args->max_bytes == 0 &&
	    !(args->younger_than > 0) && !(args->keep_hourly > 0) && !(args->keep_daily > 0) &&
	    !(args->keep_weekly > 0))
		return err_set(err, PAWL_EUSAGE,
		               "no rule was given (expected --keep-last, --keep-best, --keep-every, "
		               "--keep-hourly, --keep-daily, --keep-weekly, --younger-than or --max-bytes)");
	return target_score(cli, &args->score, policy, err);
}

/* The summary of an id in the list from before the deletion. Rows and list are both ascending; *at
 * is the position in the list. */
static const struct pawl_info *
info_of(const struct pawl_list *list, uint64_t id, size_t *at)
{
	while (*at < pawl_list_count(list) && pawl_list_get(list, *at)->id < id)
		(*at)++;
	return *at < pawl_list_count(list) && pawl_list_get(list, *at)->id == id ? pawl_list_get(list, *at) : NULL;
}

struct totals {
	uint64_t deleted, kept, freed_bytes, kept_bytes;
};

static struct totals
add_up(struct cli *cli, const struct pawl_list *list, const struct disk_files *files,
       const struct pawl_decisions *decisions)
{
	bool *is_deleted = keep_alloc(&cli->keep, pawl_list_count(list) + 1, sizeof(*is_deleted));
	struct totals ret = {0};
	size_t at = 0;

	for (size_t i = 0; i < pawl_decisions_count(decisions); i++) {
		const struct pawl_decision *d = pawl_decisions_get(decisions, i);
		const struct pawl_info *info = info_of(list, d->id, &at);

		ret.kept += d->keep != 0;
		ret.deleted += d->keep == 0;
		if (info != NULL)
			is_deleted[at] = d->keep == 0;
		if (d->keep && info != NULL)
			ret.kept_bytes += info->new_bytes;
	}
	ret.freed_bytes = disk_freed(cli, files, is_deleted);
	return ret;
}

static void
print_table(struct cli *cli, bool dry_run, const struct pawl_list *list, const struct pawl_decisions *decisions)
{
	static const struct column columns[] = {
		{"id", true, RIGID, 0},  {"step", true, RIGID, 0}, {"new", true, RIGID, 2},
		{"age", true, RIGID, 1}, {"", false, RIGID, 0},    {"reason", false, RUN_OVER, 0},
	};
	struct grid *grid = grid_new(&cli->keep, columns, 6);
	struct keep *keep = &cli->keep;
	double now = info_now();
	size_t at = 0, n = 0;

	for (size_t i = 0; i < pawl_decisions_count(decisions); i++) {
		const struct pawl_decision *d = pawl_decisions_get(decisions, i);
		const struct pawl_info *info = info_of(list, d->id, &at);
		struct cell *cells;

		if (d->keep && !dry_run && !cli->common.verbose)
			continue;
		n++;
		cells = grid_row(grid);
		cells[0].text = keep_printf(keep, "%" PRIu64, d->id);
		if (info != NULL) {
			cells[1].text = keep_printf(keep, "%" PRId64, info->step);
			cells[2].text = human_bytes(keep, (double)info->new_bytes);
			cells[3].text = human_age(keep, now - info->unix_seconds);
		}
		if (d->keep)
			cells[4] = (struct cell){"keep", STYLE_GOOD, NULL};
		else
			cells[4] = (struct cell){dry_run ? "delete" : "deleted", STYLE_BAD, NULL};
		cells[5].text = term_clean(keep, d->reason);
	}
	if (n > 0)
		grid_print(grid, &cli->out);
}

static void
print_json(struct cli *cli, struct pawl *run, bool dry_run, const struct pawl_list *list,
           const struct disk_files *files, const struct pawl_decisions *decisions)
{
	struct totals totals = add_up(cli, list, files, decisions);
	struct jsonout j;
	size_t at = 0;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "prune");
	jsonout_text(&j, "run", pawl_root(run));
	jsonout_bool(&j, "dry_run", dry_run);
	jsonout_uint(&j, "kept", totals.kept);
	jsonout_uint(&j, "deleted", totals.deleted);
	jsonout_uint(&j, "bytes", totals.freed_bytes);
	jsonout_begin_array(&j, "decisions");
	for (size_t i = 0; i < pawl_decisions_count(decisions); i++) {
		const struct pawl_decision *d = pawl_decisions_get(decisions, i);
		const struct pawl_info *info = info_of(list, d->id, &at);

		jsonout_begin_object(&j, NULL);
		jsonout_uint(&j, "id", d->id);
		if (info != NULL) {
			jsonout_text(&j, "name", info->name);
			jsonout_int(&j, "step", info->step);
			jsonout_uint(&j, "new_bytes", info->new_bytes);
		}
		jsonout_bool(&j, "keep", d->keep);
		jsonout_text(&j, "reason", d->reason);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

/* Shows what would be deleted, and asks. 1 = yes, or there is nothing to delete. */
static int
ask_prune(struct cli *cli, struct pawl *run, const struct pawl_retention *policy, const struct pawl_list *list,
          const struct disk_files *files, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_decisions_free_clean) struct pawl_decisions *decisions = NULL;

	TRY(pawl_prune(run, policy, 1, &decisions, err));
	const struct totals totals = add_up(cli, list, files, decisions);

	if (totals.deleted == 0)
		return 1;
	print_table(cli, true, list, decisions);
	return ask_confirm(cli, "delete %s, which frees %s",
	                   human_count(&cli->keep, totals.deleted, "checkpoint", "checkpoints"),
	                   human_bytes(&cli->keep, (double)totals.freed_bytes));
}

static int
run_prune(struct cli *cli, const void *ptr)
{
	const struct prune_args *args = ptr;
	struct pawl_retention policy = PAWL_RETENTION_INIT;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	PAWL_CLEAN(pawl_decisions_free_clean) struct pawl_decisions *decisions = NULL;
	struct pawl_error err = {0};
	struct target target;
	struct totals totals;
	int rc;

	if (make_policy(cli, args, &policy, &err) < 0)
		return cli_usage(cli, "%s", err.message);
	/* a dry run needs no lease: it may look at the run of an active training */
	if (target_parse_run(cli, cli->operands[0], &target, &err) < 0 ||
	    target_open(cli, &target, !args->dry_run, &args->score, &run, &err) < 0 ||
	    pawl_list_open(run, 0, &list, &err) < 0)
		return cli_fail(cli, &err);
	const struct disk_files *files = disk_files_of(cli, list);

	rc = ask_is_needed(cli, args->yes || args->dry_run) ? ask_prune(cli, run, &policy, list, files, &err) : 1;
	if (rc == 0)
		return 1;
	if (rc > 0)
		rc = pawl_prune(run, &policy, args->dry_run, &decisions, &err);
	if (rc == PAWL_EUSAGE && args->keep_best > 0 && policy.n_scores == 0)
		return cli_usage(cli, "--keep-best needs --by METRIC, which decides what is best");
	if (rc < 0)
		return cli_fail(cli, &err);
	if (cli->common.json) {
		print_json(cli, run, args->dry_run, list, files, decisions);
		return 0;
	}
	print_table(cli, args->dry_run, list, decisions);
	totals = add_up(cli, list, files, decisions);
	cli_note(cli, "%s %s, which %s %s; %s kept", args->dry_run ? "would delete" : "deleted",
	         human_count(&cli->keep, totals.deleted, "checkpoint", "checkpoints"),
	         args->dry_run ? "frees" : "freed", human_bytes(&cli->keep, (double)totals.freed_bytes),
	         human_count(&cli->keep, totals.kept, "", ""));
	if (args->max_bytes > 0 && totals.kept_bytes > args->max_bytes)
		cli_note(cli, "--max-bytes cannot be met: the checkpoints that always stay need %s, more than %s",
		         human_bytes(&cli->keep, (double)totals.kept_bytes),
		         human_bytes(&cli->keep, (double)args->max_bytes));
	return 0;
}

const struct command cmd_prune = {
	.name = "prune",
	.group = GROUP_KEEP,
	.summary = "delete checkpoints by rule",
	.about = "Deletes the checkpoints of RUN that no rule keeps. A checkpoint stays if any rule keeps it. These "
		 "always stay: pinned ones, those a reader uses, the best by the run's own scores, the latest, and the "
		 "newest without NaN or Inf. --max-bytes alone keeps everything that fits; with other "
		 "rules it bounds what they keep.\n\n"
		 "--dry-run (-n) shows the decision on every checkpoint with its reason and changes nothing; it also "
		 "works during a training run.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct prune_args),
	.run = run_prune,
};
