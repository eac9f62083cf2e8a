/* SPDX-License-Identifier: Apache-2.0 */
/* experiment_next: chooses the trial that starts now, its checkpoint and its values. */
#include "experiment.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/value.h"
#include "space.h"
#include "trial_checkpoints.h"
#include "trial_files.h"

/* ---- further trials ---- */

static void
name_trial(const struct tune_experiment *e, size_t number, const struct value *config, char name[TUNE_NAME_BYTES])
{
	char tag[TUNE_NAME_BYTES - 24];

	space_tag(e->spec.given ? NULL : e->spec.space, config, tag, sizeof(tag));
	snprintf(name, TUNE_NAME_BYTES, "trial_%05zu%s%s", number, tag[0] ? "_" : "", tag);
}

int
experiment_draw(struct tune_experiment *e, uint32_t number, char name[TUNE_NAME_BYTES], struct value **ret,
                struct pawl_error *err)
{
	TRY(space_config(e->spec.space, e->spec.seed, number, ret, err));
	TRY(spec_fill(&e->spec, number, *ret, err));
	name_trial(e, number, *ret, name);
	return 0;
}

static int
put_trial(struct tune_experiment *e, const char *name, struct value *config, struct pawl_error *err)
{
	return experiment_put(e,
	                      VALUE_OBJECT({"e", value_new_text("add")}, {"t", value_new_int((int64_t)e->n_trials)},
	                                   {"name", value_new_text(name)}, {"config", value_ref(config)}),
	                      false, err);
}

static int
add_trial(struct tune_experiment *e, struct value *config, struct pawl_error *err)
{
	char name[TUNE_NAME_BYTES];

	TRY(spec_fill(&e->spec, e->n_trials, config, err));
	name_trial(e, e->n_trials, config, name);
	return put_trial(e, name, config, err);
}

int
tune_experiment_add(struct tune_experiment *e, const char *config_json, uint32_t *ret_trial, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;

	if (!e->spec.given || e->closed)
		return err_set(err, PAWL_EUSAGE,
		               "%s: a configuration can be added where 'search' is 'given' and not closed yet",
		               e->folder);
	TRY(value_parse(config_json, SIZE_MAX, "configuration", &config, err));
	if (!value_is(config, JSON_OBJECT))
		return err_set(err, PAWL_EUSAGE, "configuration: expected an object");
	if (e->n_trials >= SPACE_MAX_TRIALS)
		return err_set(err, PAWL_ELIMIT, "%s: expected at most %u trials", e->folder, SPACE_MAX_TRIALS);
	TRY(add_trial(e, config, err));
	if (ret_trial)
		*ret_trial = (uint32_t)e->n_trials - 1;
	return 0;
}

int
tune_experiment_close_search(struct tune_experiment *e, struct pawl_error *err)
{
	if (!e->spec.given)
		return err_set(err, PAWL_EUSAGE, "%s: only a 'given' search is closed by the driver", e->folder);
	return e->closed ? 0 : experiment_put(e, VALUE_OBJECT({"e", value_new_text("close")}), false, err);
}

static int
add_next(struct tune_experiment *e, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;
	char name[TUNE_NAME_BYTES];

	TRY(experiment_draw(e, (uint32_t)e->n_trials, name, &config, err));
	return put_trial(e, name, config, err);
}

/* ---- exploits ---- */

/* The newest checkpoint of the trial that exists; NULL = none. */
static int
find_newest(const struct tune_experiment *e, const struct trial *t, const struct checkpoint **ret,
            struct pawl_error *err)
{
	*ret = NULL;
	for (size_t i = t->n_checkpoints; i-- > 0;) {
		const int rc = trial_checkpoint_find(e->dirfd, t->name, t->checkpoints[i].name, err);
		if (rc == PAWL_ENOTFOUND)
			continue;
		TRY(rc);
		*ret = &t->checkpoints[i];
		break;
	}
	return 0;
}

/* Writes the trial's policy file: the donor's history, then this line. */
static int
note_policy(struct tune_experiment *e, const struct trial *t, const struct trial *donor, const char *line,
            struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char from[64], to[64];

	snprintf(from, sizeof(from), "pbt_policy_%s.txt", donor->id);
	snprintf(to, sizeof(to), "pbt_policy_%s.txt", t->id);
	const int rc = trial_file_text(e->dirfd, "", from, &text, err);
	if (rc != PAWL_ENOTFOUND)
		TRY(rc);
	buf_printf(&text, "%s\n", line);
	TRY(buf_check(&text, to, err));
	return trial_file_write(e->dirfd, "", to, buf_str(&text), false, err);
}

/* Records the exploit in the format of other tools' replay files: target, donor, their times, old
 * and new values. */
static int
note_exploit(struct tune_experiment *e, const struct trial *t, const struct trial *donor, uint64_t donor_iteration,
             const struct value *config, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean)
	struct value *line =
		VALUE_ARRAY(value_new_text(t->id), value_new_text(donor->id), value_new_int((int64_t)t->iteration),
	                    value_new_int((int64_t)donor_iteration), value_ref(donor->config), value_ref(config));
	PAWL_FREE char *text = line ? value_print(line) : NULL;

	if (!text)
		return err_nomem(err, NULL);
	TRY(trial_files_append(e->dirfd, "", "pbt_global.txt", text, err));
	return note_policy(e, t, donor, text, err);
}

static int
decline_trial(struct tune_experiment *e, struct trial *t, struct pawl_error *err)
{
	return experiment_put(e, VALUE_OBJECT({"e", value_new_text("decline")}, {"t", value_new_int(t->number)}), false,
	                      err);
}

/* Makes the clone first, then writes the entry. A crash between them leaves a folder that no entry
 * names; the clone is then made again. */
static int
exploit_trial(struct tune_experiment *e, struct trial *t, uint32_t number, struct value *config, struct pawl_error *err)
{
	const struct trial *donor = &e->trials[number];
	const struct checkpoint *from;
	char as[300];

	TRY(find_newest(e, donor, &from, err));
	if (!from)
		return decline_trial(e, t, err);
	const uint64_t iteration = from->iteration;
	PAWL_FREE char *from_name = mem_strdup(from->name);
	if (!from_name)
		return err_nomem(err, NULL);
	snprintf(as, sizeof(as), "%.180s_of_%05u_%llu", from_name, number, (unsigned long long)t->iteration);
	int rc = trial_checkpoint_remove(e->dirfd, t->name, as, err);
	if (rc == 0)
		rc = trial_checkpoint_clone(e->dirfd, donor->name, from_name, e->dirfd, t->name, as, err);
	if (rc == PAWL_ENOTFOUND)
		return decline_trial(e, t, err); /* the checkpoint was removed from outside */
	TRY(rc);
	TRY(note_exploit(e, t, donor, iteration, config, err));
	TRY(experiment_put(e,
	                   VALUE_OBJECT({"e", value_new_text("exploit")}, {"t", value_new_int(t->number)},
	                                {"donor", value_new_int(number)}, {"from", value_new_text(from_name)},
	                                {"as", value_new_text(as)}, {"config", value_ref(config)}),
	                   true, err));
	TRY(trial_files_params(e->dirfd, t->name, t->config, err));
	return experiment_note_state(e, t, err);
}

int
experiment_exploit(struct tune_experiment *e, struct trial *t, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *config = value_ref(t->new_config);

	return exploit_trial(e, t, t->donor, config, err);
}

/* Lets the caller change the new values. */
static int
ask_explorer(struct tune_experiment *e, struct value **config, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *found = NULL;

	if (!e->opts.explore)
		return 0;
	PAWL_FREE char *text = value_print(*config);
	if (!text)
		return err_nomem(err, NULL);
	PAWL_FREE char *answer = e->opts.explore(e->opts.explore_arg, text);
	if (!answer)
		return 0;
	TRY(value_parse(answer, SIZE_MAX, "explored configuration", &found, err));
	if (!value_is(found, JSON_OBJECT))
		return err_set(err, PAWL_EUSAGE, "explored configuration: expected an object");
	value_free(*config);
	*config = steal(&found);
	return 0;
}

int
experiment_exploit_config(struct tune_experiment *e, const struct sched_decision *what, struct value **ret,
                          struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *config = value_copy_deep(e->trials[what->donor].config);

	if (!config)
		return err_nomem(err, NULL);
	TRY(spec_apply(&e->spec, what->values, config, err));
	TRY(ask_explorer(e, &config, err));
	*ret = steal(&config);
	return 0;
}

/* Handles paused trials that the scheduler lets continue from another trial's checkpoint
 * (synchronous PBT). All are cloned at once, before a donor starts and moves on. */
static int
exploit_paused(struct tune_experiment *e, struct pawl_error *err)
{
	struct sched_decision what;

	for (size_t i = 0; i < e->n_trials; i++) {
		PAWL_CLEAN(value_free_clean) struct value *config = NULL;
		struct trial *t = &e->trials[i];
		if (t->state != TUNE_PAUSED)
			continue;
		sched_paused(e->sched, t->number, &what);
		if (what.verdict != SCHED_EXPLOIT)
			continue;
		TRY(experiment_exploit_config(e, &what, &config, err));
		TRY(exploit_trial(e, t, what.donor, config, err));
	}
	return 0;
}

/* Is some trial still on its way to the point where the others wait? */
static bool
is_gathering(const struct tune_experiment *e)
{
	struct sched_decision what;

	for (size_t i = 0; e->spec.synchronous && i < e->n_trials; i++) {
		const struct trial *t = &e->trials[i];
		if (!t->catch_up && !(t->state == TUNE_RUNNING && t->verdict == TUNE_PAUSE))
			continue;
		sched_paused(e->sched, t->number, &what);
		if (what.verdict != SCHED_PAUSE)
			return true;
	}
	return false;
}

/* ---- starting ---- */

static int
begin_files(struct tune_experiment *e, struct trial *t, struct pawl_error *err)
{
	if (mkdirat(e->dirfd, t->name, 0777) < 0 && errno != EEXIST)
		return err_sys(err, errno, "%s/%s: make folder", e->folder, t->name);
	trial_checkpoint_sweep(e->dirfd, t->name);
	if (!t->repaired)
		TRY(experiment_repair(e, t, err));
	t->repaired = true;
	return t->owes_exploit ? experiment_exploit(e, t, err) : 0;
}

static int
start_trial(struct tune_experiment *e, struct trial *t, struct tune_start *ret, struct pawl_error *err)
{
	const struct checkpoint *from;

	TRY(begin_files(e, t, err));
	TRY(find_newest(e, t, &from, err));
	struct value *entry = VALUE_OBJECT({"e", value_new_text("start")}, {"t", value_new_int(t->number)});
	TRY(experiment_put(e, value_with_text(entry, "from", from ? from->name : NULL), false, err));
	TRY(trial_files_params(e->dirfd, t->name, t->config, err));
	TRY(experiment_note_state(e, t, err));
	char *path = mem_printf("%s/%s", e->folder, t->name);
	if (!path)
		return err_nomem(err, NULL);
	mem_free(e->path);
	e->path = path;
	t->stamp = experiment_now(e);
	t->pid = 0;
	*ret = (struct tune_start){
		.trial = t->number,
		.attempt = t->attempts,
		.name = t->name,
		.folder = e->path,
		.config_json = t->config_text,
		.checkpoint = t->n_checkpoints ? t->checkpoints[t->n_checkpoints - 1].name : NULL,
		.iteration = t->from_iteration,
	};
	return 0;
}

/* Ends paused trials that the scheduler has dropped meanwhile. */
static int
end_dropped(struct tune_experiment *e, struct pawl_error *err)
{
	struct sched_decision what;

	for (size_t i = 0; i < e->n_trials; i++) {
		if (e->trials[i].state != TUNE_PAUSED)
			continue;
		sched_paused(e->sched, (uint32_t)i, &what);
		if (what.verdict == SCHED_STOP)
			TRY(experiment_end(e, &e->trials[i], "dropped", NULL, err));
	}
	return 0;
}

struct choice {
	struct sched_candidate *candidates; /* room for all trials */
	size_t n, n_paused;
	int64_t furthest;
};

static void
list_candidates(const struct tune_experiment *e, struct choice *ret)
{
	const bool gathers = is_gathering(e);

	for (size_t i = 0; i < e->n_trials; i++) {
		const struct trial *t = &e->trials[i];
		if (t->state != TUNE_PENDING && (t->state != TUNE_PAUSED || gathers))
			continue;
		if (t->state == TUNE_PAUSED && (ret->furthest < 0 || t->iteration > e->trials[ret->furthest].iteration))
			ret->furthest = (int64_t)i;
		ret->n_paused += t->state == TUNE_PAUSED;
		ret->candidates[ret->n++] = (struct sched_candidate){t->number, t->state == TUNE_PAUSED,
		                                                     t->state == TUNE_PENDING && t->attempts > 0};
	}
}

/* Chooses the trial to start; -1 = none. */
static int
choose_trial(struct tune_experiment *e, int64_t *ret, struct pawl_error *err)
{
	const bool may_add = !e->spec.given && !e->closed && e->n_trials < e->spec.n_trials;
	PAWL_FREE struct sched_candidate *candidates = mem_zalloc(e->n_trials + 1, sizeof(*candidates));
	struct choice c = {.candidates = candidates, .furthest = -1};

	*ret = -1;
	if (!candidates)
		return err_nomem(err, NULL);
	list_candidates(e, &c);
	const int64_t at = sched_next(e->sched, candidates, c.n, may_add);
	if (at >= 0 && (size_t)at == c.n) {
		TRY(add_next(e, err));
		*ret = (int64_t)e->n_trials - 1;
	} else if (at >= 0) {
		*ret = candidates[at].trial;
	} else if (c.n_paused && e->n_running == 0 && e->closed) {
		*ret = c.furthest; /* no trial runs that it could wait for */
	}
	return 0;
}

bool
experiment_is_over_time(const struct tune_experiment *e)
{
	return e->spec.time_budget_s > 0 && experiment_now(e) - e->opened_s >= e->spec.time_budget_s;
}

int
tune_experiment_next(struct tune_experiment *e, enum tune_next *ret, struct tune_start *ret_start,
                     struct pawl_error *err)
{
	const bool is_over = experiment_is_over_time(e);
	int64_t chosen = -1;
	bool waits = false;

	*ret = TUNE_WAIT;
	if (e->read_only)
		return err_set(err, PAWL_EREADONLY, "%s was opened to be read only", e->folder);
	TRY(end_dropped(e, err));
	if (e->spec.synchronous && !is_gathering(e))
		TRY(exploit_paused(e, err));
	if (e->spec.max_concurrent && e->n_running >= e->spec.max_concurrent)
		return 0;
	if (!is_over)
		TRY(choose_trial(e, &chosen, err));
	if (chosen >= 0) {
		TRY(start_trial(e, &e->trials[chosen], ret_start, err));
		*ret = TUNE_START;
		return 0;
	}
	for (size_t i = 0; i < e->n_trials && !is_over; i++)
		waits |= e->trials[i].state == TUNE_PAUSED || e->trials[i].state == TUNE_PENDING;
	if (e->n_running == 0 && !waits && (is_over || e->closed))
		*ret = TUNE_DONE;
	return 0;
}
