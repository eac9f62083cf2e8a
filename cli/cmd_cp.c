/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_cp: copies one checkpoint, some checkpoints of a run, or a complete run between any two
 * places. Every byte is checked at the source and again at the destination. An interrupted copy is
 * resumed.
 */
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "copy.h"
#include "info.h"
#include "target.h"
#include "transfer.h"

struct cp_args {
	struct transfer_args transfer;
	struct texts only;
	uint64_t last;
	struct score score;
};

#define MOST_LOOKS 100u /* if chosen checkpoints are deleted each time */

static const struct operand operands[] = {
	{"SOURCE", OPERAND_TARGET, 1, 1},
	{"DEST", OPERAND_PATH, 1, 1},
	OPERAND_LIST_END,
};

static const struct option options[] = {
	{"only", 0, OPT_TEXTS, offsetof(struct cp_args, only), "SELECTOR",
         "copy only this checkpoint of a run (repeatable)"},
	{"last", 0, OPT_COUNT, offsetof(struct cp_args, last), "N",
         "copy the newest N of a run, in addition to --only"},
	TRANSFER_OPTIONS(cp_args),
	SCORE_OPTIONS(cp_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl cp runs/demo s3://bucket/demo", "a run, into a bucket"},
	{"pawl cp s3://bucket/demo@best ./best", "its best checkpoint, as a folder of its own"},
	{"pawl cp runs/demo /mnt/usb/demo --last 2 --only best --by accuracy", "some of its checkpoints"},
	{"pawl cp --bwlimit 20MB/s gs://a/demo s3://b/demo", "from one cloud to another, gently"},
	EXAMPLE_END,
};

static bool
add_id(uint64_t *ids, size_t *n, uint64_t id)
{
	for (size_t i = 0; i < *n; i++)
		if (ids[i] == id)
			return false;
	ids[(*n)++] = id;
	return true;
}

/* Adds the newest checkpoints. One that cannot be read is refused, also where its name does not
 * show the id. */
static int
choose_last(struct pawl *run, const struct pawl_list *list, uint64_t last, struct transfer *t, uint64_t *ids,
            struct pawl_error *err)
{
	for (size_t i = pawl_list_count(list); i-- > 0;) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if (t->n_ids < last || (last > 0 && info->id == 0))
			TRY(target_check_row(run, info, err));
		if (t->n_ids < last && (info->marks & PAWL_MARK_BAD) == 0)
			(void)add_id(ids, &t->n_ids, info->id);
	}
	return 0;
}

/* The ids that --only and --last name; none if neither is given. */
static int
choose_ids(struct cli *cli, struct pawl *run, const struct target *target, const struct cp_args *args,
           struct transfer *t, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	uint64_t *ids, id;
	size_t count;

	if (args->only.n == 0 && args->last == 0)
		return 0;
	TRY(pawl_list_open(run, 1, &list, err));
	count = pawl_list_count(list);
	ids = keep_alloc(&cli->keep, count + args->only.n + 1, sizeof(*ids));
	TRY(choose_last(run, list, args->last, t, ids, err));
	for (size_t i = 0; i < args->only.n; i++) {
		struct target one = *target;

		one.selector = args->only.items[i];
		TRY(target_find(cli, run, &one, &id, err));
		(void)add_id(ids, &t->n_ids, id);
	}
	if (t->n_ids == 0)
		return err_set(err, PAWL_ENOTFOUND, "%s has no checkpoints", target->root);
	t->ids = ids;
	return 0;
}

static int
prepare_transfer(struct cli *cli, const struct cp_args *args, struct taken *from, struct transfer *t,
                 struct pawl_error *err)
{
	struct target *target = &from->target;
	bool is_run;

	TRY(transfer_check_place(cli, t->to, err));
	TRY(copy_check_suffix(cli, "cp", t->to, err));
	TRY(target_parse(cli, cli->operands[0], target, err));
	target->bandwidth = args->transfer.bandwidth;
	is_run = !target->single && target->selector == NULL;
	if (!is_run && (args->only.n > 0 || args->last > 0))
		return err_set(err, PAWL_EUSAGE, "%s names one checkpoint; --only and --last choose from a run",
		               cli->operands[0]);
	TRY(target_open(cli, target, false, &args->score, &from->run, err));
	if (is_run)
		return choose_ids(cli, from->run, target, args, t, err);
	return target_hold(cli, from->run, target, &t->info, &from->hold, err);
}

/* Chooses and copies again if the run deleted a chosen checkpoint before the copy held it. */
static void
transfer_chosen(struct cli *cli, const struct cp_args *args, const struct taken *from, struct transfer *t)
{
	struct pawl_error err = {0};

	for (unsigned looks = 1;; looks++) {
		transfer_run(cli, from->run, &args->transfer, t);
		if (t->code != PAWL_ENOTFOUND || t->n_ids == 0 || t->copies != NULL || looks == MOST_LOOKS)
			return;
		const uint64_t *before = t->ids;
		const size_t n_before = t->n_ids;

		t->n_ids = 0;
		int rc = pawl_reload(from->run, &err);

		if (rc == 0)
			rc = choose_ids(cli, from->run, &from->target, args, t, &err);
		if (rc == 0 && t->n_ids == n_before && memcmp(t->ids, before, n_before * sizeof(*before)) == 0)
			return; /* something else is missing */
		if (rc < 0) {
			t->code = rc;
			t->message = keep_printf(&cli->keep, "%s", err.message);
			return;
		}
	}
}

static int
run_cp(struct cli *cli, const void *ptr)
{
	const struct cp_args *args = ptr;
	PAWL_CLEAN(target_release) struct taken from = {0};
	PAWL_CLEAN(transfer_clear) struct transfer t = {.to = cli->operands[1]};
	struct pawl_error err = {0};
	struct jsonout j;

	if (prepare_transfer(cli, args, &from, &t, &err) < 0)
		return cli_fail(cli, &err);
	transfer_chosen(cli, args, &from, &t);
	if (t.code < 0)
		(void)err_set(&err, t.code, "%s", t.message);
	if (t.code < 0 && t.copies == NULL)
		return cli_fail(cli, &err);
	if (cli->common.json) {
		jsonout_init(&j, stdout);
		cli->wrote_json = true;
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "command", "cp");
		jsonout_text(&j, "from", cli->operands[0]);
		transfer_json(&j, &t);
		jsonout_end(&j);
	} else {
		transfer_print(cli, &t);
	}
	return t.code < 0 ? cli_fail(cli, &err) : 0;
}

const struct command cmd_cp = {
	.name = "cp",
	.group = GROUP_USE,
	.summary = "copy a checkpoint or a run from any place to any other",
	.about = "Copies SOURCE to DEST; both may be paths or URLs. One checkpoint (RUN@SELECTOR, or a folder of its "
		 "own) becomes a separate checkpoint at DEST, which must be a new name. A run becomes the same run at "
		 "DEST, with its id, ids, pins, metrics and pointers; --only and --last choose from it. DEST may "
		 "already hold a part of that run. Then only missing checkpoints are copied, the newest first, and "
		 "nothing there is removed.\n\n"
		 "Every byte is compared with its checksum when it is read and after it was written. A checkpoint "
		 "appears at DEST only when it is complete and verified. After an interruption the same command "
		 "continues where it stopped.\n\n"
		 "A damaged checkpoint of a run is skipped with a warning, and the exit status is 4.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct cp_args),
	.run = run_cp,
};
