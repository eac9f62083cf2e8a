/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cmd_restore: copies one checkpoint of a run to a folder of its own. The copy is made and verified
 * in a folder next to DEST, then renamed: DEST is complete or absent. If the latest checkpoint was
 * requested and is damaged, an older one is used; otherwise damage is an error (R137). With other
 * names or dtypes the checkpoint is written again (pawl_reshard).
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err_path.h"
#include "base/fd.h"
#include "base/hidden.h"
#include "cli.h"
#include "copy.h"
#include "human.h"
#include "info.h"
#include "pawl_jobs.h"
#include "target.h"

struct restore_args {
	struct score score;
	struct texts rename, cast;
	bool strict;
};

static const struct operand operands[] = {
	{"TARGET", OPERAND_TARGET, 1, 1},
	{"DEST", OPERAND_PATH, 1, 1},
	OPERAND_LIST_END,
};

static const struct option options[] = {
	{"no-fallback", 0, OPT_FLAG, offsetof(struct restore_args, strict), NULL,
         "fail if the latest is damaged; take no older one"},
	{"rename", 'r', OPT_TEXTS, offsetof(struct restore_args, rename), "GLOB=TEMPLATE",
         "rename tensors and values, such as 'old/*=new/*'"},
	{"cast", 0, OPT_TEXTS, offsetof(struct restore_args, cast), "[GLOB=]DTYPE",
         "cast floating-point tensors to fp16, bf16, fp32 or fp64"},
	SCORE_OPTIONS(restore_args),
	OPTION_END,
};

static const struct example examples[] = {
	{"pawl restore runs/demo@best kept/demo-best", "the best checkpoint as a folder of its own"},
	{"pawl restore runs/demo /mnt/usb/demo", "the latest one"},
	{"pawl restore runs/demo half --cast 'model/*=bf16' -r 'model/old/*=model/new/*'",
         "with other names and dtypes"},
	EXAMPLE_END,
};

struct restored {
	struct pawl_reshard_opts rules;
	const struct pawl_info *info;
	const char **passed_over; /* "checkpoint_000007: why" */
	size_t n_passed_over;
	double seconds;
};

/* Writes the checkpoint again, for as many ranks. */
static int
restore_renamed(struct cli *cli, struct pawl *run, const struct pawl_info *info, const char *dest,
                struct pawl_reshard_opts *rules, struct pawl_error *err)
{
	struct pawl_meter meter;
	int rc;

	rules->world_size = info->world_size;
	work_begin(cli->work, "restoring", &meter, 0);
	rc = pawl_reshard(run, info->id, dest, rules, &meter, err);
	work_end(cli->work);
	return rc;
}

/* Copies into the hidden folder `partial`, which is renamed at the end. */
static int
copy_and_publish(struct cli *cli, struct pawl *run, const struct pawl_info *info, const char *partial, const char *dest,
                 struct pawl_meter *meter, struct pawl_error *err)
{
	const char *copy = keep_printf(&cli->keep, "%s/%s", partial, info->name);
	int rc;

	if (mkdir(partial, 0777) != 0)
		return err_path_new(err, errno, dest, "cannot create");
	rc = pawl_copy(run, info->id, copy, NULL, meter, NULL, err);
	if (rc == 0)
		rc = copy_publish(copy, dest, err);
	copy_remove(partial);
	return rc;
}

/* A signal outside of the work ends the process at once, so all that leaves something is in it. */
static int
restore_one(struct cli *cli, struct pawl *run, const struct pawl_info *info, const char *partial, const char *dest,
            struct pawl_error *err)
{
	struct pawl_meter meter;
	int rc;

	work_begin(cli->work, "copying", &meter, info->bytes);
	rc = target_is_url(dest) ? pawl_copy(run, info->id, dest, NULL, &meter, NULL, err)
	                         : copy_and_publish(cli, run, info, partial, dest, &meter, err);
	work_end(cli->work);
	return rc;
}

/* Restores checkpoint `id`, or, if `fallback`, the newest older one that is complete. */
static int
restore_newest(struct cli *cli, struct pawl *run, uint64_t id, bool fallback, const char *dest, struct restored *ret,
               struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	char hidden[HIDDEN_NAME_BYTES];
	int rc;

	TRY(hidden_name("pawl-restore", HIDDEN_PARTIAL, hidden, err));
	const char *partial = keep_printf(&cli->keep, "%s/%s", copy_parent(&cli->keep, dest), hidden);
	TRY(pawl_list_open(run, 1, &list, err));
	ret->passed_over = keep_alloc(&cli->keep, pawl_list_count(list) + 1, sizeof(*ret->passed_over));
	ret->n_passed_over = 0;
	rc = PAWL_ENOTFOUND;
	for (size_t i = pawl_list_count(list); i-- > 0;) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if (info->id > id)
			continue;
		TRY(target_check_row(run, info, err));
		if ((info->marks & PAWL_MARK_BAD) != 0)
			continue;
		rc = ret->rules.n_rename + ret->rules.n_cast > 0
		             ? restore_renamed(cli, run, info, dest, &ret->rules, err)
		             : restore_one(cli, run, info, partial, dest, err);
		if (rc == 0)
			return target_info(cli, run, info->id, &ret->info, err);
		if (rc != PAWL_ECORRUPT || !fallback)
			return rc;
		ret->passed_over[ret->n_passed_over++] = keep_printf(&cli->keep, "%s", err->message);
		cli_warn(cli, "skipped: %s", err->message);
	}
	return rc == PAWL_ENOTFOUND
	               ? err_set(err, rc, "%s: checkpoint %" PRIu64 " no longer exists", pawl_root(run), id)
	               : rc;
}

/* Restores the checkpoint that the target names. Without a hold, it may be deleted meanwhile; then
 * the target may name another one. */
static int
restore_selected(struct cli *cli, struct pawl *run, const struct target *target, bool fallback, const char *dest,
                 struct restored *ret, struct pawl_error *err)
{
	uint64_t before = 0;

	for (;;) {
		PAWL_CLEAN(target_close_hold) struct pawl_hold *hold = NULL;
		const struct pawl_info *info;

		TRY(target_hold(cli, run, target, &info, &hold, err));
		if (!target_is_url(dest))
			TRY(fd_mkdirs(AT_FDCWD, copy_parent(&cli->keep, dest), err));
		const int rc = restore_newest(cli, run, info->id, fallback, dest, ret, err);
		if (rc != PAWL_ENOTFOUND || info->id == before)
			return rc;
		before = info->id;
	}
}

static void
print_json(struct cli *cli, struct pawl *run, const char *dest, const struct restored *restored)
{
	struct jsonout j;

	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "restore");
	jsonout_text(&j, "root", pawl_root(run));
	info_json(&j, "checkpoint", restored->info);
	jsonout_text(&j, "to", dest);
	jsonout_begin_array(&j, "fallbacks");
	for (size_t i = 0; i < restored->n_passed_over; i++)
		jsonout_text(&j, NULL, restored->passed_over[i]);
	jsonout_end(&j);
	jsonout_real(&j, "seconds", restored->seconds);
	jsonout_end(&j);
}

static int
check_dest(struct cli *cli, const char *dest, struct pawl_error *err)
{
	struct stat st;

	TRY(copy_check_suffix(cli, "restore", dest, err));
	if (target_is_url(dest))
		return 0;
	if (lstat(dest, &st) == 0)
		return err_set(err, PAWL_EEXISTS, "%s already exists; name a new folder", dest);
	return copy_check_place(cli, dest, err);
}

/* A dtype without a glob is that of all tensors. */
static struct pawl_reshard_opts
rules_of(struct cli *cli, const struct restore_args *args)
{
	const char **cast = keep_alloc(&cli->keep, args->cast.n + 1, sizeof(*cast));
	struct pawl_reshard_opts opts = PAWL_RESHARD_OPTS_INIT;

	for (size_t i = 0; i < args->cast.n; i++)
		cast[i] = strchr(args->cast.items[i], '=') != NULL
		                  ? args->cast.items[i]
		                  : keep_printf(&cli->keep, "*=%s", args->cast.items[i]);
	opts.rename = args->rename.items;
	opts.n_rename = args->rename.n;
	opts.cast = cast;
	opts.n_cast = args->cast.n;
	return opts;
}

static int
run_restore(struct cli *cli, const void *ptr)
{
	const struct restore_args *args = ptr;
	PAWL_CLEAN(cli_close) struct pawl *run = NULL;
	const char *dest = cli->operands[1];
	struct restored restored = {.rules = rules_of(cli, args)};
	struct pawl_error err = {0};
	struct target target;
	double began = info_now();
	bool fallback;
	uint64_t id;

	if (target_is_url(dest) && args->rename.n + args->cast.n > 0)
		return cli_usage(cli, "%s: --rename and --cast write to a local path, not to a URL", dest);
	if (check_dest(cli, dest, &err) < 0 || target_parse(cli, cli->operands[0], &target, &err) < 0 ||
	    target_open(cli, &target, false, &args->score, &run, &err) < 0)
		return cli_fail(cli, &err);
	if (target.file && target_find(cli, run, &target, &id, &err) < 0) /* reports a damaged checkpoint as such */
		return cli_fail(cli, &err);
	if (target.file)
		return cli_usage(
			cli,
			"TARGET is a file or folder of another program; copy it, convert it with 'pawl convert', or "
			"make a checkpoint of it with 'pawl reshard'");
	fallback =
		!args->strict && !target.single && (target.selector == NULL || strcmp(target.selector, "latest") == 0);
	if (restore_selected(cli, run, &target, fallback, dest, &restored, &err) < 0)
		return cli_fail(cli, &err);
	restored.seconds = info_now() - began;
	if (cli->common.json)
		print_json(cli, run, dest, &restored);
	else
		(void)printf("%s\n", term_clean(&cli->keep, dest));
	cli_note(cli, "%s (step %" PRId64 "), %s, %s in %s", restored.info->name, restored.info->step,
	         human_bytes(&cli->keep, (double)restored.info->bytes),
	         args->rename.n + args->cast.n > 0 ? "verified and rewritten" : "copied and verified",
	         human_seconds(&cli->keep, restored.seconds));
	return 0;
}

const struct command cmd_restore = {
	.name = "restore",
	.group = GROUP_USE,
	.summary = "copy a checkpoint out of a run, into a separate folder",
	.about = "Copies the checkpoint TARGET to the new folder DEST and verifies every byte of the copy. DEST is "
		 "complete in itself: it can be moved, sent away, and loaded with pawl.load(DEST) or any tool that "
		 "reads safetensors. It appears only when it is complete and verified.\n\n"
		 "If the latest checkpoint is asked for and is damaged, the newest intact one is taken instead, with "
		 "a warning. Pins and metrics that were added after the save stay with the run.\n\n"
		 "--rename and --cast write the checkpoint again; what is read is verified. GLOBs and TEMPLATEs are "
		 "those of 'pawl convert'. The GLOB of --cast matches the new path. Without a GLOB all tensors of 16, "
		 "32 and 64 bit floats are cast. Elements of lists keep their names.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct restore_args),
	.run = run_restore,
};
