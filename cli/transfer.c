/* SPDX-License-Identifier: Apache-2.0 */
/* transfer: see transfer.h. */
#include "transfer.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "copy.h"
#include "grid.h"
#include "human.h"
#include "info.h"

#define TRANSFER_LONGEST_MS 1e12 /* 30 years; can be added to any time */

struct sums {
	uint64_t copied, there, damaged;
	uint64_t bytes, sent_bytes; /* of the copied checkpoints */
};

static size_t
count_rows(const struct transfer *t)
{
	if (t->info != NULL)
		return t->code == 0;
	return t->copies != NULL ? pawl_copies_count(t->copies) : 0;
}

static struct pawl_copied
get_row(const struct transfer *t, size_t i)
{
	if (t->copies != NULL)
		return *pawl_copies_get(t->copies, i);
	return (struct pawl_copied){.id = t->info->id,
	                            .name = t->info->name,
	                            .bytes = t->info->bytes,
	                            .was_there = t->was_there,
	                            .problem = ""};
}

static struct sums
add_up(const struct transfer *t)
{
	struct sums ret = {0};

	for (size_t i = 0; i < count_rows(t); i++) {
		const struct pawl_copied row = get_row(t, i);

		if (row.problem[0] != '\0') {
			ret.damaged++;
		} else if (row.was_there) {
			ret.there++;
		} else {
			ret.copied++;
			ret.bytes += row.bytes;
			ret.sent_bytes += row.sent_bytes;
		}
	}
	return ret;
}

void
transfer_clear(struct transfer *t)
{
	pawl_copies_free(t->copies);
	t->copies = NULL;
}

int
transfer_check_place(struct cli *cli, const char *to, struct pawl_error *err)
{
	return target_is_url(to) ? 0 : copy_check_place(cli, to, err);
}

/* Checks whether the destination of one checkpoint is free, or already has it (*ret_there). */
static int
check_place(struct cli *cli, struct transfer *t, bool *ret_there, struct pawl_error *err)
{
	struct target target = {.text = t->to, .root = t->to, .single = true};
	PAWL_CLEAN(cli_close) struct pawl *there = NULL;
	const struct pawl_info *info = NULL;
	uint64_t id;
	int kind = pawl_kind_of(t->to, NULL, err);

	*ret_there = false;
	if (kind < 0 || kind == PAWL_KIND_NOTHING)
		return kind;
	if (kind == PAWL_KIND_OTHER && target_is_url(t->to))
		return 0; /* perhaps the rest of an earlier copy */
	if (kind == PAWL_KIND_CHECKPOINT) {
		TRY(target_open(cli, &target, false, NULL, &there, err));
		TRY(target_find(cli, there, &target, &id, err));
		TRY(target_info(cli, there, id, &info, err));
	}
	*ret_there = info != NULL && info->id == t->info->id && info->bytes == t->info->bytes &&
	             info->unix_seconds == t->info->unix_seconds && strcmp(info->run_id, t->info->run_id) == 0;
	return *ret_there ? 0 : err_set(err, PAWL_EEXISTS, "%s already exists and is a different one", t->to);
}

static int
copy_one(struct cli *cli, struct pawl *from, const struct pawl_copy_opts *opts, struct transfer *t,
         struct pawl_error *err)
{
	struct pawl_meter meter = {0};
	int rc;

	TRY(check_place(cli, t, &t->was_there, err));
	if (t->was_there || t->dry_run)
		return 0;
	work_begin(cli->work, "copying", &meter, t->info->bytes);
	rc = pawl_copy(from, t->info->id, t->to, opts, &meter, &t->copies, err);
	work_end(cli->work);
	return rc;
}

static int
copy_run(struct cli *cli, struct pawl *from, struct pawl_copy_opts *opts, struct transfer *t, struct pawl_error *err)
{
	struct pawl_meter meter = {0};
	int rc;

	opts->ids = t->ids;
	opts->n_ids = t->n_ids;
	opts->dry_run = 1;
	/* compute the amount of work for the progress line */
	rc = pawl_copy_run(from, t->to, opts, NULL, &t->copies, err);
	if ((rc == 0 || rc == PAWL_ECORRUPT) && !t->dry_run) {
		uint64_t bytes = add_up(t).bytes;

		transfer_clear(t);
		opts->dry_run = 0;
		work_begin(cli->work, "copying", &meter, bytes);
		rc = pawl_copy_run(from, t->to, opts, &meter, &t->copies, err);
		work_end(cli->work);
	}
	return rc;
}

uint32_t
transfer_streams(const struct transfer_args *args)
{
	return args->streams < UINT32_MAX ? (uint32_t)args->streams : UINT32_MAX;
}

int64_t
transfer_timeout_ms(const struct transfer_args *args)
{
	return (int64_t)ceil(fmin(args->timeout_seconds * 1e3, TRANSFER_LONGEST_MS));
}

void
transfer_run(struct cli *cli, struct pawl *from, const struct transfer_args *args, struct transfer *t)
{
	struct pawl_copy_opts opts = PAWL_COPY_OPTS_INIT;
	struct pawl_error err = {0};
	double began = info_now();

	opts.n_streams = transfer_streams(args);
	opts.memory_bytes = args->memory_bytes;
	opts.bytes_per_second = args->bandwidth;
	opts.timeout_ms = transfer_timeout_ms(args);
	opts.on_lease_wait = target_note_wait;
	opts.on_lease_wait_arg = cli;
	t->dry_run = args->dry_run;
	t->message = NULL;
	t->code = t->info != NULL ? copy_one(cli, from, &opts, t, &err) : copy_run(cli, from, &opts, t, &err);
	if (t->code < 0)
		t->message = keep_printf(&cli->keep, "%s", err.message);
	t->seconds = info_now() - began;
}

static struct cell
outcome_cell(const struct transfer *t, const struct pawl_copied *row)
{
	if (row->problem[0] != '\0')
		return (struct cell){"damaged", STYLE_BAD, NULL};
	if (row->was_there)
		return (struct cell){"up to date", STYLE_DIM, NULL};
	return (struct cell){t->dry_run ? "to be copied" : "copied", STYLE_GOOD, NULL};
}

void
transfer_print(struct cli *cli, const struct transfer *t)
{
	static const struct column columns[] = {{"checkpoint", false, CUT_START, 0},
	                                        {"size", true, RIGID, 1},
	                                        {"", false, RIGID, 0},
	                                        {"", false, RUN_OVER, 0}};
	struct grid *grid = grid_new(&cli->keep, columns, 4);
	struct keep *keep = &cli->keep;
	struct sums sums = add_up(t);
	size_t n = count_rows(t);

	for (size_t i = n; i-- > 0;) { /* oldest first, as everywhere */
		const struct pawl_copied row = get_row(t, i);
		struct cell *cells = grid_row(grid);

		cells[0].text = term_clean(keep, row.name);
		cells[1].text = human_bytes(keep, (double)row.bytes);
		cells[2] = outcome_cell(t, &row);
		cells[3].text = term_clean(keep, row.problem);
	}
	if (n > 0)
		grid_print(grid, &cli->out);
	if (t->code < 0 && n == 0)
		return;
	if (sums.copied == 0)
		cli_note(cli, "%s: nothing to copy", t->to);
	else if (t->dry_run)
		cli_note(cli, "%s: %s to copy, %s", t->to, human_count(keep, sums.copied, "checkpoint", "checkpoints"),
		         human_bytes(keep, (double)sums.bytes));
	else
		cli_note(cli, "%s: %s, %s, verified; %s sent in %s (%s)", t->to,
		         human_count(keep, sums.copied, "checkpoint", "checkpoints"),
		         human_bytes(keep, (double)sums.bytes), human_bytes(keep, (double)sums.sent_bytes),
		         human_seconds(keep, t->seconds),
		         human_rate(keep, t->seconds > 0 ? (double)sums.sent_bytes / t->seconds : 0));
}

void
transfer_json(struct jsonout *j, const struct transfer *t)
{
	struct sums sums = add_up(t);

	jsonout_text(j, "to", t->to);
	jsonout_bool(j, "dry_run", t->dry_run);
	jsonout_begin_array(j, "checkpoints");
	for (size_t i = count_rows(t); i-- > 0;) {
		const struct pawl_copied row = get_row(t, i);

		jsonout_begin_object(j, NULL);
		jsonout_uint(j, "id", row.id);
		jsonout_text(j, "name", row.name);
		jsonout_uint(j, "bytes", row.bytes);
		jsonout_bool(j, "was_there", row.was_there != 0);
		jsonout_uint(j, "sent_bytes", row.sent_bytes);
		jsonout_uint(j, "found_bytes", row.found_bytes);
		jsonout_uint(j, "linked_bytes", row.linked_bytes);
		jsonout_text(j, "problem", row.problem[0] != '\0' ? row.problem : NULL);
		jsonout_end(j);
	}
	jsonout_end(j);
	jsonout_uint(j, "bytes", sums.bytes);
	jsonout_uint(j, "sent_bytes", sums.sent_bytes);
	jsonout_real(j, "seconds", t->seconds);
	jsonout_text(j, "code", t->code < 0 ? pawl_code_name(t->code) : NULL);
	jsonout_text(j, "message", t->message);
}
