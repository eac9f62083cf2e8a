/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_repair: rebuilds lost or damaged manifests from the tensor files. */
#include <string.h>

#include "cli.h"
#include "human.h"
#include "info.h"
#include "target.h"

struct repair_args {
	bool dry_run;
};

static const struct operand operands[] = {{"TARGET", OPERAND_TARGET, 1, 1}, OPERAND_LIST_END};

static const struct option options[] = {
	{"dry-run", 'n', OPT_FLAG, offsetof(struct repair_args, dry_run), NULL,
         "print what would be repaired; change nothing"},
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl repair runs/demo -n", "can the damaged ones be repaired?"},
	{"pawl repair runs/demo/checkpoints/checkpoint_000007", "repair this one"},
	EXAMPLE_END,
};

struct repair {
	const char *name, *path;
	const char *problem; /* the damage found */
	int code;            /* result of the attempt */
	const char *message; /* why the attempt failed */
};

struct repairs {
	struct repair *items;
	size_t n, n_failed;
	size_t n_running; /* unfinished saves of a process that holds the run */
	size_t n_unread;  /* may be intact: of a newer format, or without permission to read */
	int code;         /* first failure */
};

/* Lists the damaged checkpoints that the target names. */
static int
collect_damaged(struct cli *cli, struct pawl *run, const struct target *target, struct repairs *ret,
                struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	const char *only = NULL;
	uint64_t id;
	int rc;

	TRY(pawl_list_open(run, 2, &list, err));
	if (target->selector != NULL || target->single) {
		rc = target_find(cli, run, target, &id, err);
		if (rc < 0 && rc != PAWL_ECORRUPT)
			return rc;
		only = target_bad_name(cli, run, target);
		if (only == NULL)
			return 0; /* the checkpoint is complete */
	}
	ret->items = keep_alloc(&cli->keep, pawl_list_count(list) + 1, sizeof(*ret->items));
	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if ((info->marks & PAWL_MARK_BAD) == 0 || (only != NULL && strcmp(info->name, only) != 0))
			continue;
		if (info->code == PAWL_EBUSY) {
			ret->n_running++;
			continue;
		}
		if (info->code != PAWL_ECORRUPT) {
			ret->n_unread++;
			continue;
		}
		ret->items[ret->n].name = keep_printf(&cli->keep, "%s", info->name);
		ret->items[ret->n].path = keep_printf(&cli->keep, "%s", info->path);
		ret->items[ret->n++].problem = keep_printf(&cli->keep, "%s", info->problem);
	}
	return 0;
}

/* Opens the folder as a single checkpoint. Opening the run for writing would delete it, because
 * a folder without a manifest looks like an interrupted deletion. Existing files are not
 * overwritten. */
static int
repair_one(const struct repair *r, bool dry_run, struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	int rc;

	opts.root = r->path;
	opts.single = 1;
	opts.read_only = dry_run;
	opts.maintenance = 1;
	rc = pawl_open(&opts, &run, err);
	return rc == 0 ? pawl_repair(run, r->name, dry_run, NULL, err) : rc;
}

static void
repair_all(struct cli *cli, bool dry_run, struct repairs *repairs)
{
	for (size_t i = 0; i < repairs->n; i++) {
		struct repair *r = &repairs->items[i];
		struct pawl_error err = {0};

		r->code = repair_one(r, dry_run, &err);
		r->message = keep_printf(&cli->keep, "%s", err.message);
		if (r->code == 0)
			continue;
		if (repairs->n_failed++ == 0)
			repairs->code = r->code;
	}
}

static void
print_json(struct cli *cli, struct pawl *run, bool dry_run, const struct repairs *repairs)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "repair");
	jsonout_text(&j, "root", pawl_root(run));
	jsonout_bool(&j, "dry_run", dry_run);
	jsonout_begin_array(&j, "checkpoints");
	for (size_t i = 0; i < repairs->n; i++) {
		jsonout_begin_object(&j, NULL);
		jsonout_text(&j, "name", repairs->items[i].name);
		jsonout_text(&j, "problem", repairs->items[i].problem);
		jsonout_bool(&j, "repaired", repairs->items[i].code == 0);
		if (repairs->items[i].code != 0)
			jsonout_text(&j, "message", repairs->items[i].message);
		jsonout_end(&j);
	}
	jsonout_end(&j);
	jsonout_end(&j);
}

static void
print_text(struct cli *cli, bool dry_run, const struct repairs *repairs)
{
	struct keep *keep = &cli->keep;

	for (size_t i = 0; i < repairs->n; i++) {
		const struct repair *r = &repairs->items[i];

		(void)printf("%s  ", term_clean(keep, r->name));
		term_put(&cli->out, r->code == 0 ? STYLE_GOOD : STYLE_BAD,
		         r->code != 0 ? "not repaired"
		         : dry_run    ? "can be repaired"
		                      : "repaired");
		(void)printf("\n  was: %s\n", term_clean(keep, r->problem));
		if (r->code != 0 && strcmp(r->message, r->problem) != 0)
			(void)printf("  why: %s\n", term_clean(keep, r->message));
	}
	if (repairs->n == 0 && repairs->n_unread == 0)
		cli_note(cli, "nothing is damaged ('pawl verify' also reads the tensors)");
}

static int
run_repair(struct cli *cli, const void *ptr)
{
	const struct repair_args *args = ptr;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	struct repairs repairs = {0};
	struct pawl_error err = {0};
	struct target target;

	if (target_parse(cli, cli->operands[0], &target, &err) < 0 ||
	    target_open(cli, &target, false, NULL, &run, &err) < 0)
		return cli_fail(cli, &err);
	if (target.file)
		return cli_usage(cli,
		                 "%s is a file or folder of another program; pawl can repair only its own checkpoints",
		                 target.root);
	if (collect_damaged(cli, run, &target, &repairs, &err) < 0)
		return cli_fail(cli, &err);
	repair_all(cli, args->dry_run, &repairs);
	if (cli->common.json)
		print_json(cli, run, args->dry_run, &repairs);
	else
		print_text(cli, args->dry_run, &repairs);
	if (repairs.n_running > 0)
		target_note_unfinished(cli, repairs.n_running);
	if (repairs.n_unread > 0)
		cli_note(cli, "%s cannot be read and may be intact: 'pawl ls --bad' prints the reason",
		         human_count(&cli->keep, repairs.n_unread, "checkpoint", "checkpoints"));
	return pawl_code_exit_status(repairs.code);
}

const struct command cmd_repair = {
	.name = "repair",
	.group = GROUP_MEND,
	.summary = "rebuild lost manifests from the tensor files",
	.about = "Rebuilds a lost or damaged manifest.json from the checkpoint's tensor files, which hold all that is "
		 "needed. If a tensor is incomplete, nothing is changed and the reason is printed. "
		 "TARGET is a run (all damaged checkpoints) or one checkpoint. Checkpoints of a run that cannot be "
		 "read, such as those of a newer format, are left alone.\n\n"
		 "The new checksums are those of the files as they are now, so earlier damage to their bytes can no "
		 "longer be found. The manifest records that the checkpoint was repaired.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct repair_args),
	.run = run_repair,
};
