/* SPDX-License-Identifier: Apache-2.0 */
/* info: see info.h. */
#include "info.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "human.h"

struct counter {
	const char *name, *text;
	size_t at;
};

static const struct counter counters[] = {
	{"epoch", "epoch", offsetof(struct pawl_progress, epoch)},
	{"batch", "batch", offsetof(struct pawl_progress, batch)},
	{"batch_in_epoch", "batch in epoch", offsetof(struct pawl_progress, batch_in_epoch)},
	{"sample", "sample", offsetof(struct pawl_progress, sample)},
	{"sample_in_epoch", "sample in epoch", offsetof(struct pawl_progress, sample_in_epoch)},
	{"token", "token", offsetof(struct pawl_progress, token)},
	{"token_in_epoch", "token in epoch", offsetof(struct pawl_progress, token_in_epoch)},
	{"iteration", "iteration", offsetof(struct pawl_progress, iteration)},
};

static const struct counter clocks[] = {
	{"total_wct", "trained for", offsetof(struct pawl_progress, total_wct)},
	{"epoch_wct", "epoch so far", offsetof(struct pawl_progress, epoch_wct)},
	{"batch_wct", "last batch", offsetof(struct pawl_progress, batch_wct)},
	{"fraction", "fraction", offsetof(struct pawl_progress, fraction)},
};

static const struct {
	unsigned mark;
	const char *name;
	enum style style;
} mark_names[] = {
	{PAWL_MARK_LATEST, "latest", STYLE_ACCENT},
	{PAWL_MARK_BEST, "best", STYLE_GOOD},
	{PAWL_MARK_PINNED, "pinned", STYLE_WARN},
	{PAWL_MARK_HELD, "held", STYLE_DIM},
};
#define N_MARKS (sizeof(mark_names) / sizeof(mark_names[0]))

static int64_t
counter_value(const struct pawl_progress *progress, const struct counter *counter)
{
	return *(const int64_t *)((const char *)progress + counter->at);
}

static double
clock_value(const struct pawl_progress *progress, const struct counter *counter)
{
	return *(const double *)((const char *)progress + counter->at);
}

static void
progress_json(struct jsonout *j, const struct pawl_progress *progress)
{
	jsonout_begin_object(j, "progress");
	for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++)
		if (counter_value(progress, &counters[i]) >= 0)
			jsonout_int(j, counters[i].name, counter_value(progress, &counters[i]));
	for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++)
		if (clock_value(progress, &clocks[i]) >= 0)
			jsonout_real(j, clocks[i].name, clock_value(progress, &clocks[i]));
	jsonout_end(j);
}

static const char *
state_name(const struct pawl_info *info)
{
	return (info->marks & PAWL_MARK_DENIED) != 0      ? "denied"
	       : (info->marks & PAWL_MARK_BAD) != 0       ? "bad"
	       : (info->marks & PAWL_MARK_NONFINITE) != 0 ? "nonfinite"
	                                                  : "saved";
}

void
info_json(struct jsonout *j, const char *key, const struct pawl_info *info)
{
	bool bad = (info->marks & PAWL_MARK_BAD) != 0;

	jsonout_begin_object(j, key);
	jsonout_uint(j, "id", info->id);
	jsonout_text(j, "name", info->name);
	jsonout_text(j, "path", info->path);
	jsonout_text(j, "state", state_name(info));
	jsonout_begin_flat_array(j, "marks");
	for (size_t i = 0; i < N_MARKS; i++)
		if ((info->marks & mark_names[i].mark) != 0)
			jsonout_text(j, NULL, mark_names[i].name);
	jsonout_end(j);
	if (bad) {
		jsonout_text(j, "problem", info->problem);
		jsonout_end(j);
		return;
	}
	if (info_is_foreign(info)) /* only pawl writes it down; blocked_seconds and new_bytes, too */
		jsonout_null(j, "step");
	else
		jsonout_int(j, "step", info->step);
	jsonout_text(j, "run_id", info->run_id);
	jsonout_uint(j, "attempt", info->attempt);
	jsonout_real(j, "unix_seconds", info->unix_seconds);
	progress_json(j, &info->progress);
	jsonout_begin_object(j, "metrics");
	for (size_t i = 0; i < info->n_metrics; i++) {
		if (info->metrics[i].not_a_number)
			jsonout_null(j, info->metrics[i].name);
		else
			jsonout_real(j, info->metrics[i].name, info->metrics[i].value);
	}
	jsonout_end(j);
	if (info->has_score)
		jsonout_real(j, "score", info->score);
	else
		jsonout_null(j, "score");
	jsonout_uint(j, "bytes", info->bytes);
	if (info_is_foreign(info))
		jsonout_null(j, "new_bytes");
	else
		jsonout_uint(j, "new_bytes", info->new_bytes);
	jsonout_uint(j, "plain_bytes", info->plain_bytes);
	jsonout_uint(j, "tensors", info->n_tensors);
	jsonout_uint(j, "files", info->n_files);
	jsonout_uint(j, "world_size", info->world_size);
	jsonout_text(j, "format", info->format);
	if (info_is_foreign(info))
		jsonout_null(j, "blocked_seconds");
	else
		jsonout_real(j, "blocked_seconds", info->blocked_seconds);
	jsonout_text(j, "level",
	             info->level == PAWL_LEVEL_REMOTE  ? "remote"
	             : info->level == PAWL_LEVEL_LOCAL ? "local"
	                                               : "none");
	jsonout_uint(j, "mirrors", info->n_mirrors);
	jsonout_end(j);
}

struct cell
info_state(const struct pawl_info *info)
{
	unsigned marks = info->marks;
	enum style style = (marks & PAWL_MARK_BAD) != 0         ? STYLE_BAD
	                   : (marks & PAWL_MARK_NONFINITE) != 0 ? STYLE_WARN
	                                                        : STYLE_DIM;

	return (struct cell){state_name(info), style, NULL};
}

struct cell
info_marks(struct keep *keep, const struct pawl_info *info)
{
	struct cell first = {NULL, STYLE_PLAIN, NULL}, *last = &first;
	struct cell *cells = keep_alloc(keep, N_MARKS, sizeof(*cells));

	/* linked after an empty first cell, which prints nothing */
	for (size_t i = 0; i < N_MARKS; i++) {
		if ((info->marks & mark_names[i].mark) == 0)
			continue;
		cells[i] = (struct cell){mark_names[i].name, mark_names[i].style, NULL};
		last->more = &cells[i];
		last = &cells[i];
	}
	return first;
}

const char *
info_progress(struct keep *keep, const struct pawl_progress *progress)
{
	const char *ret = "";

	for (size_t i = 0; i < sizeof(counters) / sizeof(counters[0]); i++) {
		int64_t value = counter_value(progress, &counters[i]);

		if (value >= 0)
			ret = keep_printf(keep, "%s%s%s %" PRId64, ret, *ret != '\0' ? ", " : "", counters[i].text,
			                  value);
	}
	for (size_t i = 0; i < sizeof(clocks) / sizeof(clocks[0]); i++) {
		double value = clock_value(progress, &clocks[i]);
		bool is_fraction = clocks[i].at == offsetof(struct pawl_progress, fraction);

		if (!(value >= 0))
			continue;
		ret = keep_printf(keep, "%s%s", ret, *ret != '\0' ? ", " : "");
		if (is_fraction)
			ret = keep_printf(keep, "%s%.1f%% of the training", ret, value * 100);
		else
			ret = keep_printf(keep, "%s%s %s", ret, clocks[i].text, human_seconds(keep, value));
	}
	return ret;
}

bool
info_is_foreign(const struct pawl_info *info)
{
	return strcmp(info->format, "pawl") != 0;
}

double
info_now(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_REALTIME, &now);
	return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

bool
info_has_no_sums(const struct pawl_info *info)
{
	return strncmp(info->format, "safetensors", strlen("safetensors")) == 0 ||
	       strcmp(info->format, "numpy.save") == 0;
}
