/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tune_bed: a folder for experiments, and a driver that plays trials without processes. A trial's
 * state is one number, which its checkpoints hold: each iteration adds the configuration's "lr".
 * Its report is {"loss": (state - 1)^2 + a value of the trial}.
 */
#ifndef TUNE_BED_H
#define TUNE_BED_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/value.h"
#include "tune.h"

struct tune_bed {
	char root[64];
	double now;
};

static double
bed_now(void *arg)
{
	struct tune_bed *bed = arg;

	bed->now += 0.25;
	return bed->now;
}

static void
bed_run(const char *format, const char *a, const char *b)
{
	char command[1500];

	snprintf(command, sizeof(command), format, a, b);
	assert_int_equal(system(command), 0);
}

static int
bed_setup(void **state)
{
	struct tune_bed *bed = calloc(1, sizeof(*bed));

	assert_non_null(bed);
	snprintf(bed->root, sizeof(bed->root), "%s/pawl-tune-XXXXXX",
	         access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	assert_non_null(mkdtemp(bed->root));
	bed->now = 1.7e9;
	*state = bed;
	return 0;
}

static int
bed_teardown(void **state)
{
	struct tune_bed *bed = *state;

	bed_run("rm -rf '%s'%s", bed->root, "");
	free(bed);
	return 0;
}

static int
bed_try_open(struct tune_bed *bed, const char *spec, const char *folder, enum tune_resume resume,
             struct tune_experiment **ret, struct pawl_error *err)
{
	char path[128];
	struct tune_open_opts opts = {.folder = path, .resume = resume, .now_s = bed_now, .now_arg = bed};

	snprintf(path, sizeof(path), "%s/%s", bed->root, folder);
	return tune_experiment_open(spec, &opts, ret, err);
}

static struct tune_experiment *
bed_open(struct tune_bed *bed, const char *spec, const char *folder, enum tune_resume resume)
{
	struct tune_experiment *e = NULL;
	struct pawl_error err = {0};

	if (bed_try_open(bed, spec, folder, resume, &e, &err) < 0)
		fail_msg("open: %s", err.message);
	return e;
}

/* ---- a driver ---- */

#define BED_SLOTS 8
#define BED_TRIALS 64

struct bed_job {
	bool used;
	uint32_t trial;
	char folder[512];
	double lr, value;
	uint64_t iteration;
};

struct bed_driver {
	struct tune_experiment *e;
	struct bed_job jobs[BED_SLOTS];
	size_t slots;
	uint64_t save_every; /* 0 = only when asked */
	uint64_t n_exploits, n_pauses, n_stops, steps;
	uint64_t stop_after; /* steps; 0 = to the end */
	bool deaf;           /* the last step reports, and ignores the answer */
	/* For tests in which calls fail: the error of the first one that failed. Nothing is done
	 * after it. */
	bool may_fail;
	int rc;
	struct pawl_error err;
	void (*around)(bool begins); /* called before and after each call of the experiment; NULL = not */
	/* Of each trial, what the experiment has acknowledged: the iteration of its last report and
	 * of its newest checkpoint. */
	uint64_t reported[BED_TRIALS], saved[BED_TRIALS];
};

static void
bed_before(const struct bed_driver *d)
{
	if (d->around)
		d->around(true);
}

/* Has it worked? */
static bool
bed_after(struct bed_driver *d, const char *what, int rc, const struct pawl_error *err)
{
	if (d->around)
		d->around(false);
	if (rc == 0)
		return true;
	if (!d->may_fail)
		fail_msg("%s: %s", what, err->message);
	d->rc = rc;
	d->err = *err;
	return false;
}

static double
bed_read(const char *folder, const char *checkpoint)
{
	char path[1200];
	double value = 0;
	FILE *file;

	snprintf(path, sizeof(path), "%s/%s/value", folder, checkpoint);
	file = fopen(path, "r");
	assert_non_null(file);
	assert_int_equal(fscanf(file, "%lf", &value), 1);
	fclose(file);
	return value;
}

static void
bed_save(const struct bed_job *job, char name[64])
{
	char path[1200], hidden[1100];
	FILE *file;

	snprintf(name, 64, "checkpoint_%06llu", (unsigned long long)job->iteration);
	snprintf(path, sizeof(path), "%s/%s", job->folder, name);
	if (access(path, F_OK) == 0)
		bed_run("rm -rf '%s'%s", path, "");
	snprintf(hidden, sizeof(hidden), "%s/.checkpoint_x", job->folder);
	assert_int_equal(mkdir(hidden, 0777), 0);
	snprintf(path, sizeof(path), "%s/.checkpoint_x/value", job->folder);
	file = fopen(path, "w");
	assert_non_null(file);
	fprintf(file, "%.17g\n", job->value);
	fclose(file);
	snprintf(path, sizeof(path), "%s/%s", job->folder, name);
	assert_int_equal(rename(hidden, path), 0);
}

static bool
bed_start(struct bed_driver *d, struct bed_job *job, enum tune_next *next)
{
	struct pawl_error err = {0};
	struct tune_start start;
	struct value *config;
	int rc;

	bed_before(d);
	rc = tune_experiment_next(d->e, next, &start, &err);
	if (!bed_after(d, "next", rc, &err) || *next != TUNE_START)
		return false;
	config = value_from_text(start.config_json);
	assert_non_null(config);
	*job = (struct bed_job){.used = true, .trial = start.trial, .iteration = start.iteration};
	job->lr = value_number(value_get(config, "lr"));
	snprintf(job->folder, sizeof(job->folder), "%s", start.folder);
	if (start.checkpoint)
		job->value = bed_read(start.folder, start.checkpoint);
	else
		assert_int_equal(start.iteration, 0);
	value_free(config);
	assert_true(start.trial < BED_TRIALS);
	d->reported[start.trial] = d->saved[start.trial] = start.iteration;
	return true;
}

static void
bed_end(struct bed_driver *d, struct bed_job *job, enum tune_end how, const char *why)
{
	struct pawl_error err = {0};
	int rc;

	bed_before(d);
	rc = tune_experiment_ended(d->e, job->trial, how, why, NULL, &err);
	if (bed_after(d, "ended", rc, &err))
		job->used = false;
}

/* One iteration of a trial: reports, obeys. */
static void
bed_step(struct bed_driver *d, struct bed_job *job)
{
	struct pawl_error err = {0};
	struct tune_verdict verdict;
	char metrics[128], checkpoint[64];
	bool saves;
	int rc;

	job->iteration++;
	job->value += job->lr;
	saves = d->save_every && job->iteration % d->save_every == 0;
	if (saves)
		bed_save(job, checkpoint);
	snprintf(metrics, sizeof(metrics), "{\"loss\": %.17g, \"value\": %.17g}", pow(job->value - 1, 2), job->value);
	bed_before(d);
	rc = tune_experiment_report(d->e, job->trial, metrics, saves ? checkpoint : NULL, &verdict, &err);
	if (!bed_after(d, "report", rc, &err))
		return;
	d->reported[job->trial] = job->iteration;
	if (saves)
		d->saved[job->trial] = job->iteration;
	if (d->deaf && d->steps == d->stop_after)
		return;
	d->n_exploits += verdict.kind == TUNE_EXPLOIT;
	d->n_pauses += verdict.kind == TUNE_PAUSE;
	d->n_stops += verdict.kind == TUNE_STOP;
	if (verdict.save) {
		bed_save(job, checkpoint);
		bed_before(d);
		rc = tune_experiment_checkpoint(d->e, job->trial, checkpoint, &err);
		if (!bed_after(d, "checkpoint", rc, &err))
			return;
		d->saved[job->trial] = job->iteration;
	}
	if (verdict.kind != TUNE_CONTINUE)
		bed_end(d, job, TUNE_FINISHED, NULL);
}

/* To the end, or until stop_after steps are done: then it leaves everything unchanged, as if it
 * were killed. */
static inline void
bed_drive(struct bed_driver *d)
{
	enum tune_next next = TUNE_WAIT;
	size_t n_idle;

	for (;;) {
		n_idle = 0;
		for (size_t i = 0; i < d->slots; i++) {
			if (!d->jobs[i].used && next != TUNE_DONE)
				bed_start(d, &d->jobs[i], &next);
			if (d->rc < 0)
				return;
			if (!d->jobs[i].used) {
				n_idle++;
				continue;
			}
			if (d->stop_after && d->steps == d->stop_after)
				return;
			d->steps++;
			bed_step(d, &d->jobs[i]);
			if (d->rc < 0)
				return;
			next = TUNE_WAIT;
		}
		if (n_idle == d->slots && next == TUNE_DONE)
			return;
		assert_true(n_idle < d->slots || next != TUNE_WAIT); /* no trial runs, and none may start: it hangs */
	}
}

/* The result of an experiment: of each trial its configuration, state, iteration, metric; to be
 * freed. */
static inline char *
bed_summary(const struct tune_experiment *e)
{
	struct pawl_error err = {0};
	struct tune_counts counts;
	size_t len = 0;
	char *text = NULL;
	FILE *file = open_memstream(&text, &len);

	tune_experiment_counts(e, &counts);
	for (uint32_t i = 0; i < counts.trials; i++) {
		struct tune_trial t;
		assert_int_equal(tune_trial_info(e, i, &t, &err), 0);
		fprintf(file, "%s %s %llu %.17g %s%s\n", t.name, tune_state_name(t.state),
		        (unsigned long long)t.iteration, t.metric, t.config_json,
		        t.state == TUNE_ERROR && t.error ? t.error : "");
	}
	fclose(file);
	return text;
}

#endif
