/* SPDX-License-Identifier: Apache-2.0 */
/* trials: see trials.h. */
#include "base/clock.h"
#include "base/value.h"
#include "trials.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "grid.h"
#include "human.h"
#include "target.h"

#define LIVE_EVERY_MS 200
#define LIVE_ROWS_MAX 30

static const struct column columns[] = {
	{"trial", false, CUT_END, 0}, {"state", false, RIGID, 0},      {"iter", true, RIGID, 0},
	{"time", true, RIGID, 2},     {"metric", true, RIGID, 0},      {"best", true, RIGID, 3},
	{"fails", true, RIGID, 4},    {"checkpoint", false, RIGID, 1}, {"host", false, CUT_END, 5},
};
enum { N_COLUMNS = sizeof(columns) / sizeof(columns[0]) };

static enum style
state_style(enum tune_state state)
{
	static const enum style styles[] = {STYLE_DIM, STYLE_ACCENT, STYLE_WARN, STYLE_GOOD, STYLE_BAD};

	return styles[state];
}

static const char *
number_of(struct keep *keep, double value)
{
	return isnan(value) ? NULL : human_number(keep, value, 5);
}

/* The path of a trial's checkpoint; NULL: it has none. */
static const char *
trials_checkpoint(struct cli *cli, const char *folder, const struct tune_trial *trial)
{
	if (trial->checkpoint == NULL)
		return NULL;
	return target_join(cli, folder, keep_printf(&cli->keep, "%s/%s", trial->name, trial->checkpoint));
}

static void
fill_row(struct keep *keep, struct cell *cells, const struct tune_trial *t)
{
	cells[0].text = term_clean(keep, keep_printf(keep, "%s", t->name));
	cells[1] = (struct cell){tune_state_name(t->state), state_style(t->state), NULL};
	cells[2].text = t->iteration > 0 ? keep_printf(keep, "%" PRIu64, t->iteration) : NULL;
	cells[3].text = t->time_s > 0 ? human_seconds(keep, t->time_s) : NULL;
	cells[4].text = number_of(keep, t->metric);
	cells[5].text = number_of(keep, t->best);
	cells[6].text = t->failures > 0 ? keep_printf(keep, "%" PRIu32, t->failures) : NULL;
	cells[7].text = t->checkpoint != NULL ? term_clean(keep, keep_printf(keep, "%s", t->checkpoint)) : NULL;
	cells[8].text = t->host != NULL ? term_clean(keep, keep_printf(keep, "%s", t->host)) : NULL;
}

/* The position of a trial in the table. */
struct place {
	uint32_t trial;
	double key; /* smaller first */
};

static int
compare_places(const void *a, const void *b)
{
	const struct place *x = a, *y = b;

	if (x->key != y->key)
		return x->key < y->key ? -1 : 1;
	return x->trial < y->trial ? -1 : x->trial > y->trial;
}

static bool
is_maximized(const struct tune_experiment *e)
{
	struct value *spec = value_from_text(tune_experiment_spec(e));
	const char *mode = value_text(value_get(spec, "mode"));
	bool ret = mode != NULL && strcmp(mode, "max") == 0;

	value_free(spec);
	return ret;
}

/* All trials in the order of the table. live: running ones first, then failed ones, then the rest.
 * Otherwise: the best first. */
static struct place *
order_trials(struct keep *keep, const struct tune_experiment *e, bool live, size_t *ret_n)
{
	static const double ranks[] = {3, 0, 1, 4, 2};
	struct tune_counts counts;
	struct tune_trial t;
	struct place *places;
	bool max = is_maximized(e);
	size_t n = 0;

	tune_experiment_counts(e, &counts);
	places = keep_alloc(keep, (size_t)counts.trials + 1, sizeof(*places));
	for (uint32_t i = 0; i < counts.trials && tune_trial_info(e, i, &t, NULL) == 0; i++)
		places[n++] = (struct place){i, live                  ? ranks[t.state]
		                                : !isfinite(t.metric) ? INFINITY
		                                : max                 ? -t.metric
		                                                      : t.metric};
	qsort(places, n, sizeof(*places), compare_places);
	*ret_n = n;
	return places;
}

/* places NULL: by number, from `first` on. */
static void
print_rows(struct keep *keep, const struct tune_experiment *e, const struct term *term, const struct place *places,
           uint32_t first, size_t n)
{
	struct grid *grid = grid_new(keep, columns, N_COLUMNS);
	struct tune_trial t;

	for (size_t i = 0; i < n; i++)
		if (tune_trial_info(e, places != NULL ? places[i].trial : first + (uint32_t)i, &t, NULL) == 0)
			fill_row(keep, grid_row(grid), &t);
	grid_print(grid, term);
}

void
trials_print(struct cli *cli, const struct tune_experiment *e, const struct term *term, size_t n)
{
	size_t all;
	struct place *places = order_trials(&cli->keep, e, false, &all);

	print_rows(&cli->keep, e, term, places, 0, all < n ? all : n);
}

void
trials_print_from(struct cli *cli, const struct tune_experiment *e, const struct term *term, uint32_t first)
{
	struct tune_counts counts;

	tune_experiment_counts(e, &counts);
	print_rows(&cli->keep, e, term, NULL, first, counts.trials - first);
}

const char *
trials_summary(struct keep *keep, const struct tune_experiment *e)
{
	static const struct {
		enum tune_state state;
		const char *word;
	} parts[] = {{TUNE_TERMINATED, "finished"},
	             {TUNE_RUNNING, "running"},
	             {TUNE_PAUSED, "paused"},
	             {TUNE_PENDING, "waiting"},
	             {TUNE_ERROR, "failed"}};
	struct tune_counts counts;
	const char *ret, *comma = ": ";

	tune_experiment_counts(e, &counts);
	ret = counts.expected > counts.trials
	              ? keep_printf(keep, "%" PRIu32 " of %" PRIu64 " trials", counts.trials, counts.expected)
	              : human_count(keep, counts.trials, "trial", "trials");
	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++)
		if (counts.state[parts[i].state] > 0) {
			ret = keep_printf(keep, "%s%s%" PRIu32 " %s", ret, comma, counts.state[parts[i].state],
			                  parts[i].word);
			comma = ", ";
		}
	return ret;
}

void
trials_print_best(struct cli *cli, const struct tune_experiment *e, const char *metric, const char *mode,
                  const char *scope)
{
	struct keep *keep = &cli->keep;
	struct pawl_error err = {0};
	struct tune_trial t;
	uint32_t best;
	double value;
	const char *name, *path = NULL;

	if (tune_best(e, metric, mode, scope, &best, &value, &err) < 0 || tune_trial_info(e, best, &t, &err) < 0) {
		cli_note(cli, "no best trial: %s", err.message);
		return;
	}
	(void)printf("best        %s\n", term_clean(keep, keep_printf(keep, "%s", t.name)));
	(void)printf("value       %s\n", human_number(keep, value, 6));
	(void)printf("config      %s\n", term_clean(keep, keep_printf(keep, "%s", t.config_json)));
	if (tune_best_checkpoint(e, best, metric, mode, &name, NULL) == 0)
		path = keep_printf(keep, "%s/%s/%s", tune_experiment_folder(e), t.name, name);
	(void)printf("checkpoint  %s\n", path != NULL ? term_clean(keep, path) : "none");
}

static void
put_raw(struct jsonout *j, const char *key, const char *json)
{
	if (json != NULL)
		jsonout_literal(j, key, json);
	else
		jsonout_null(j, key);
}

static void
put_number(struct jsonout *j, const char *key, double value)
{
	if (isnan(value))
		jsonout_null(j, key);
	else
		jsonout_real(j, key, value);
}

static void
checkpoints_json(struct jsonout *j, const struct tune_experiment *e, uint32_t trial)
{
	struct tune_checkpoint c;

	jsonout_begin_array(j, "checkpoints");
	for (uint32_t i = 0; tune_trial_checkpoint(e, trial, i, &c, NULL) == 0; i++) {
		jsonout_begin_object(j, NULL);
		jsonout_text(j, "name", c.name);
		jsonout_uint(j, "iteration", c.iteration);
		put_number(j, "score", c.score);
		put_number(j, "metric", c.metric);
		jsonout_end(j);
	}
	jsonout_end(j);
}

void
trials_json(struct cli *cli, struct jsonout *j, const char *key, const struct tune_experiment *e, const char *folder,
            uint32_t trial)
{
	struct tune_trial t;

	if (tune_trial_info(e, trial, &t, NULL) < 0) {
		jsonout_null(j, key);
		return;
	}
	jsonout_begin_object(j, key);
	jsonout_uint(j, "number", t.number);
	jsonout_text(j, "name", t.name);
	jsonout_text(j, "id", t.id);
	jsonout_text(j, "state", tune_state_name(t.state));
	jsonout_uint(j, "iteration", t.iteration);
	jsonout_real(j, "time_s", t.time_s);
	put_number(j, "metric", t.metric);
	put_number(j, "best", t.best);
	put_raw(j, "config", t.config_json);
	put_raw(j, "result", t.result_json);
	jsonout_text(j, "checkpoint", trials_checkpoint(cli, folder, &t));
	checkpoints_json(j, e, trial);
	jsonout_uint(j, "attempts", t.attempts);
	jsonout_uint(j, "failures", t.failures);
	jsonout_text(j, "error", t.error);
	jsonout_text(j, "host", t.host);
	jsonout_end(j);
}

/* ---- the live table ---- */

static size_t
rows_of_terminal(const struct term *term)
{
	struct winsize size;

	return ioctl(fileno(term->file), TIOCGWINSZ, &size) == 0 && size.ws_row > 4 ? size.ws_row : 24;
}

void
trials_erase(struct live *live)
{
	if (live->term == NULL || live->lines == 0)
		return;
	(void)fprintf(live->term->file, "\033[%zuA\r\033[J", live->lines);
	(void)fflush(live->term->file);
	live->lines = 0;
}

void
trials_draw(struct live *live, struct cli *cli, const struct tune_experiment *e, bool now)
{
	struct keep keep = {0};
	struct term memory;
	char *text = NULL;
	size_t len = 0, n, room;
	struct place *places;

	(void)cli;
	if (live->term == NULL || (!now && clock_mono_ms() - live->drawn_ms < LIVE_EVERY_MS))
		return;
	memory = *live->term;
	memory.file = open_memstream(&text, &len);
	if (memory.file == NULL)
		return;
	places = order_trials(&keep, e, true, &n);
	room = rows_of_terminal(live->term) - 4;
	room = room < LIVE_ROWS_MAX ? room : LIVE_ROWS_MAX;
	print_rows(&keep, e, &memory, places, 0, n < room ? n : room);
	(void)fprintf(memory.file, "%s\n",
	              term_cut(&keep, trials_summary(&keep, e), (size_t)live->term->width - 1, live->term->utf8));
	(void)fclose(memory.file);
	trials_erase(live);
	(void)fwrite(text, 1, len, live->term->file);
	(void)fflush(live->term->file);
	for (size_t i = 0; i < len; i++)
		live->lines += text[i] == '\n';
	live->drawn_ms = clock_mono_ms();
	free(text);
	keep_clear(&keep);
}
