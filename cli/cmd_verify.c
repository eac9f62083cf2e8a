/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_verify: reads every byte and compares it with the checksums taken when it was saved
 * (R136). */
#include <inttypes.h>
#include <string.h>

#include "cli.h"
#include "folder.h"
#include "human.h"
#include "info.h"
#include "search.h"
#include "target.h"

struct verify_args {
	struct score score;
};

static const struct operand operands[] = {{"TARGET", OPERAND_TARGET, 0, 1}, OPERAND_LIST_END};

static const struct option options[] = {SCORE_OPTIONS(verify_args), OPTION_END};

static const struct example examples[] = {
	{"pawl verify runs/demo", "all checkpoints of the run"},
	{"pawl verify runs/demo@latest && ./resume", "only the latest one"},
	EXAMPLE_END,
};

/* The outcome for one checkpoint. */
struct verdict {
	const char *name;
	uint64_t id, bytes;
	bool has_sums, is_safetensors;
	int code;                       /* 0, PAWL_ECORRUPT, or the reason why it could not be verified */
	const char *message;            /* if code is not 0 */
	struct pawl_findings *findings; /* owned; NULL = none */
};

struct verdicts {
	struct verdict *items;
	size_t n, n_bad, n_unknown; /* n_bad: damaged; n_unknown: could not be verified */
	uint64_t bytes, total_bytes;
	size_t name_width;
	int code; /* the worst of all checkpoints */
};

static void
clear_verdicts(struct verdicts *v)
{
	for (size_t i = 0; i < v->n; i++)
		pawl_findings_free(v->items[i].findings);
}

static void
print_finding(struct cli *cli, const struct pawl_finding *f)
{
	struct keep *keep = &cli->keep;

	(void)printf("  %s", term_clean(keep, f->file));
	if (f->end > f->begin)
		(void)printf(", bytes %" PRIu64 " to %" PRIu64, f->begin, f->end);
	if (*f->tensor != '\0')
		(void)printf(", tensor %s", term_clean(keep, f->tensor));
	(void)printf(": %s\n", term_clean(keep, f->message));
}

static void
print_verdict(struct cli *cli, const struct verdicts *all, const struct verdict *v)
{
	struct keep *keep = &cli->keep;
	const char *name = term_clean(keep, v->name), *size = v->bytes > 0 ? human_bytes(keep, (double)v->bytes) : "";
	size_t n = v->findings != NULL ? pawl_findings_count(v->findings) : 0;

	if (cli->common.json || (cli->common.quiet && v->code == 0))
		return;
	work_hide(cli->work);
	(void)printf("%s%*s  %10s  ", name, (int)(all->name_width - term_width(name)), "", size);
	term_put(&cli->out, v->code == 0 ? STYLE_GOOD : STYLE_BAD,
	         v->code == 0               ? v->has_sums ? "ok" : "readable"
	         : v->code == PAWL_ECORRUPT ? "corrupt"
	                                    : "not verified");
	(void)fputc('\n', stdout);
	for (size_t i = 0; i < n; i++)
		print_finding(cli, pawl_findings_get(v->findings, i));
	if (n == 0 && v->code != 0)
		(void)printf("  %s\n", term_clean(keep, v->message));
	(void)fflush(stdout);
	work_show(cli->work);
}

/* Verifies one checkpoint of the list. Returns PAWL_ECANCELLED to stop, else 0. */
static int
verify_one(struct cli *cli, struct pawl *run, const struct pawl_info *info, struct pawl_meter *meter,
           struct verdicts *all)
{
	struct verdict *v = &all->items[all->n];
	struct pawl_error err = {0};

	*v = (struct verdict){info->name, info->id, info->bytes, !info_is_foreign(info), info_has_no_sums(info),
	                      0,          NULL,     NULL};
	if ((info->marks & PAWL_MARK_BAD) != 0) {
		v->code = info->code;
		v->message = info->problem;
	} else {
		v->code = pawl_verify(run, info->id, meter, &v->findings, &err);
		v->message = keep_printf(&cli->keep, "%s", err.message);
		work_next(cli->work);
		if (v->code == PAWL_ECANCELLED)
			return v->code;
		if (v->code == PAWL_ENOTFOUND) {
			cli_note(cli, "%s was deleted in the meantime", info->name);
			return 0;
		}
	}
	all->n++;
	all->bytes += v->bytes;
	all->n_bad += v->code == PAWL_ECORRUPT;
	all->n_unknown += v->code != 0 && v->code != PAWL_ECORRUPT;
	if (v->code != 0 && all->code != PAWL_ECORRUPT)
		all->code = v->code;
	print_verdict(cli, all, v);
	return 0;
}

static bool
is_asked_for(const struct target *target, uint64_t id, const char *bad_name, const struct pawl_info *info)
{
	if (target->selector == NULL && !target->single)
		return (info->marks & PAWL_MARK_UNFINISHED) == 0;
	if (bad_name != NULL)
		return strcmp(info->name, bad_name) == 0;
	return (info->marks & PAWL_MARK_BAD) == 0 && info->id == id;
}

static int
verify_all(struct cli *cli, struct pawl *run, const struct pawl_info **infos, size_t n, struct verdicts *all)
{
	struct pawl_meter meter;
	int rc = 0;

	all->items = keep_alloc(&cli->keep, n + 1, sizeof(*all->items));
	for (size_t i = 0; i < n; i++) {
		size_t width = term_width(term_clean(&cli->keep, infos[i]->name));

		all->total_bytes += infos[i]->bytes;
		all->name_width = width > all->name_width ? width : all->name_width;
	}
	work_begin(cli->work, "verifying", &meter, all->total_bytes);
	for (size_t i = 0; i < n && rc == 0; i++)
		rc = work_signal(cli->work) != 0 ? PAWL_ECANCELLED : verify_one(cli, run, infos[i], &meter, all);
	work_end(cli->work);
	return rc;
}

/* The members of a document: of the complete one, or of one of several places. */
static void
put_json(struct jsonout *j, struct pawl *run, const struct verdicts *all, double seconds)
{
	jsonout_text(j, "root", pawl_root(run));
	jsonout_bool(j, "ok", all->n_bad + all->n_unknown == 0);
	jsonout_uint(j, "bytes", all->bytes);
	jsonout_real(j, "seconds", seconds);
	jsonout_begin_array(j, "checkpoints");
	for (size_t i = 0; i < all->n; i++) {
		const struct verdict *v = &all->items[i];
		size_t n = v->findings != NULL ? pawl_findings_count(v->findings) : 0;

		jsonout_begin_object(j, NULL);
		jsonout_uint(j, "id", v->id);
		jsonout_text(j, "name", v->name);
		jsonout_uint(j, "bytes", v->bytes);
		jsonout_bool(j, "ok", v->code == 0);
		jsonout_bool(j, "sums", v->has_sums);
		if (v->code != 0)
			jsonout_text(j, "problem", v->message);
		jsonout_begin_array(j, "findings");
		for (size_t k = 0; k < n; k++) {
			const struct pawl_finding *f = pawl_findings_get(v->findings, k);

			jsonout_begin_object(j, NULL);
			jsonout_text(j, "file", f->file);
			jsonout_uint(j, "begin", f->begin);
			jsonout_uint(j, "end", f->end);
			jsonout_text(j, "tensor", *f->tensor != '\0' ? f->tensor : NULL);
			jsonout_text(j, "message", f->message);
			jsonout_end(j);
		}
		jsonout_end(j);
		jsonout_end(j);
	}
	jsonout_end(j);
}

static void
print_totals(struct cli *cli, struct pawl *run, const struct verdicts *all, double seconds)
{
	struct keep *keep = &cli->keep;
	const char *what = human_count(keep, all->n, "checkpoint", "checkpoints");

	if (all->n == 0)
		cli_note(cli, "%s: no checkpoints", pawl_root(run));
	else if (all->n_bad > 0)
		cli_warn(cli, "%s of %s %s not as written", human_count(keep, all->n_bad, "", ""), what,
		         all->n_bad == 1 ? "is" : "are");
	else if (all->n_unknown > 0)
		cli_warn(cli, "%s of %s could not be verified", human_count(keep, all->n_unknown, "", ""), what);
	else if (!all->items[0].has_sums && !all->items[0].is_safetensors) /* a single foreign checkpoint */
		cli_note(cli, "%s, %s: every byte can be read, and every part with a CRC is as it was written",
		         term_clean(keep, all->items[0].name), human_bytes(keep, (double)all->bytes));
	else if (!all->items[0].has_sums)
		cli_note(cli,
		         "%s, %s: the header fits the file and every byte can be read; the file has no checksums, so "
		         "changed bytes in a tensor cannot be found",
		         term_clean(keep, all->items[0].name), human_bytes(keep, (double)all->bytes));
	else
		cli_note(cli, "%s, %s in %s (%s): every byte is as it was written", what,
		         human_bytes(keep, (double)all->bytes), human_seconds(keep, seconds),
		         human_rate(keep, (double)all->bytes / seconds));
}

/* Verifies what the argument names in the list as it is now. 1: all of it was deleted meanwhile. */
static int
verify_listed(struct cli *cli, struct taken *from, struct verdicts *all, size_t *ret_n_unfinished,
              struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	const struct pawl_info **infos;
	const char *bad_name = NULL;
	size_t n = 0;
	int rc = 0;

	if (from->target.selector != NULL || from->target.single)
		rc = target_hold(cli, from->run, &from->target, &from->info, &from->hold, err);
	if (rc == PAWL_ECORRUPT)
		bad_name = target_bad_name(cli, from->run, &from->target);
	if (rc == 0 || bad_name != NULL)
		rc = pawl_list_open(from->run, 2, &list, err);

	if (rc < 0)
		return rc;
	*ret_n_unfinished = 0;
	all->total_bytes = 0;
	infos = keep_alloc(&cli->keep, pawl_list_count(list) + 1, sizeof(struct pawl_info *));
	for (size_t i = 0; i < pawl_list_count(list); i++)
		if (is_asked_for(&from->target, from->info != NULL ? from->info->id : 0, bad_name,
		                 pawl_list_get(list, i)))
			infos[n++] = target_copy_info(cli, pawl_list_get(list, i));
		else
			*ret_n_unfinished += (pawl_list_get(list, i)->marks & PAWL_MARK_UNFINISHED) != 0;
	rc = verify_all(cli, from->run, infos, n, all);
	if (rc == PAWL_ECANCELLED)
		return err_set(err, rc, "interrupted");
	target_close_hold(&from->hold);
	return all->n == 0 && n > 0;
}

/* Reports why a place could not be verified. */
static int
fail_place(struct cli *cli, struct jsonout *j, const char *place, const struct pawl_error *err)
{
	if (j != NULL)
		jsonout_text(j, "root", place);
	return cli_fail_in(cli, j, err);
}

/* Verifies what one argument names; j: the open document, or NULL. Returns the exit status. */
static int
verify_place(struct cli *cli, const char *place, const struct verify_args *args, struct jsonout *j)
{
	PAWL_CLEAN(target_release) struct taken from = {0};
	PAWL_CLEAN(clear_verdicts) struct verdicts all = {0};
	struct pawl_error err = {0};
	size_t n_unfinished = 0;
	double began = info_now(), seconds;
	int rc;

	rc = target_parse(cli, place, &from.target, &err);
	if (rc == PAWL_ENOTFOUND && search_is(cli, place)) {
		cli_note(cli, "%s: no trial has a checkpoint with checksums", place);
		if (j != NULL)
			jsonout_text(j, "search", place);
		return 0;
	}
	if (rc < 0 || target_open(cli, &from.target, false, &args->score, &from.run, &err) < 0)
		return fail_place(cli, j, place, &err);
	/* then newer ones were saved before the old ones were deleted */
	while ((rc = verify_listed(cli, &from, &all, &n_unfinished, &err)) == 1 &&
	       (rc = pawl_reload(from.run, &err)) == 0)
		;
	if (rc < 0)
		return fail_place(cli, j, place, &err);
	seconds = info_now() - began;
	if (j != NULL)
		put_json(j, from.run, &all, seconds);
	else
		print_totals(cli, from.run, &all, seconds);
	if (n_unfinished > 0 && from.target.selector == NULL)
		target_note_unfinished(cli, n_unfinished);
	return pawl_code_exit_status(all.code);
}

/* Damage is worse than what could not be verified. */
static int
worse_of(int a, int b)
{
	const int damaged = pawl_code_exit_status(PAWL_ECORRUPT);

	return a == damaged || b == 0 ? a : b;
}

/* A local folder is looked into in any case; a URL, if it is neither a run nor a checkpoint. */
static bool
is_folder(struct cli *cli, const char *place)
{
	struct target target;

	return !target_is_url(place) || target_parse(cli, place, &target, NULL) == PAWL_ENOTFOUND;
}

/* A folder of several places gets one document with an array of them. */
static int
run_verify(struct cli *cli, const void *args)
{
	const char *place = cli->n_operands > 0 ? cli->operands[0] : ".", **places = &place;
	const size_t n = is_folder(cli, place) ? folder_find(cli, place, &places) : 0, n_places = n > 0 ? n : 1;
	struct jsonout *doc = cli->common.json ? keep_alloc(&cli->keep, 1, sizeof(*doc)) : NULL;
	int status = 0;

	if (n == 0 && doc == NULL)
		return verify_place(cli, place, args, NULL);
	if (doc != NULL) {
		cli->wrote_json = true;
		jsonout_init(doc, stdout);
		jsonout_begin_object(doc, NULL);
		jsonout_text(doc, "command", "verify");
	}
	if (doc != NULL && n > 0)
		jsonout_begin_array(doc, "places");
	for (size_t i = 0; i < n_places; i++) {
		if (doc == NULL)
			(void)printf("%s%s:\n", i > 0 ? "\n" : "", term_clean(&cli->keep, places[i]));
		else if (n > 0)
			jsonout_begin_object(doc, NULL);
		status = worse_of(status, verify_place(cli, places[i], args, doc));
		if (doc != NULL && n > 0)
			jsonout_end(doc);
		if (work_signal(cli->work) != 0)
			break;
	}
	if (doc != NULL && n > 0)
		jsonout_end(doc);
	if (doc != NULL)
		jsonout_end(doc);
	return status;
}

const struct command cmd_verify = {
	.name = "verify",
	.group = GROUP_LOOK,
	.summary = "read every byte and check it",
	.about =
		"Reads all files of TARGET and compares them with the checksums taken when the training's memory was "
		"copied. For a run, all its checkpoints are verified; for RUN@SELECTOR, only that one; for a folder, all "
		"runs, checkpoints and checkpoint files below it. Damage is "
		"reported as file, range of bytes, and first tensor in it. A safetensors file of another program has "
		"no checksums: its header must fit the file, and every byte must be readable. Files of torch.save "
		"and torch.distributed.checkpoint have a CRC-32 of every storage, unless that was turned off.\n\n"
		"Exit status 4 means that some bytes are not as they were written; 'pawl repair' rebuilds a lost "
		"manifest.",
	.operands = operands,
	.options = options,
	.examples = examples,
	.args_size = sizeof(struct verify_args),
	.run = run_verify,
};
