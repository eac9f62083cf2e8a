/* SPDX-License-Identifier: Apache-2.0 */
/* api: the public calls of saving. They check arguments and hand the work to the writer. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "catalog/mirrors.h"
#include "policy/retain.h"
#include "policy/trigger.h"
#include "ranks/agree.h"
#include "run/run.h"
#include "save/role.h"
#include "save/save.h"
#include "save/writer.h"
#include "state/state.h"

/* Without counters, the step counts batches. Without the caller's clock, the run's own clock
 * continues from the checkpoint restored last, or from the newest one at open. */
static void
complete_progress(struct pawl *run, struct pawl_progress *p, int64_t step)
{
	interval_add_wct(&run->interval, p);
	bool unknown = p->epoch < 0 && p->batch < 0 && p->sample < 0 && p->token < 0 && p->iteration < 0;

	if (unknown || p->batch < 0)
		p->batch = step;
	if (p->iteration < 0)
		p->iteration = p->batch;
}

static int
check_metrics(const struct pawl *run, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	TRY(retain_check_names("save", opts->metrics, opts->n_metrics, err));
	/* Attributes of an earlier training require no metrics (E5). The checkpoint has rank 0's
	 * metrics. */
	if (!run->opts.retention.n_scores || run->modes.agree->is_led)
		return 0;
	return retain_check_metrics(&run->settings.retention, opts->metrics, opts->n_metrics, err);
}

static int
check_save(const struct pawl *run, const struct pawl_save_opts *o, const struct pawl_state *state,
           struct pawl_error *err)
{
	TRY(state_check_complete(state, err));
	if (o->n_metrics && !o->metrics)
		return err_set(err, PAWL_EUSAGE, "save: expected %zu metrics, found NULL", o->n_metrics);
	if (o->mode < 0 || o->mode > PAWL_MODE_DIRECT + 1)
		return err_set(err, PAWL_EUSAGE, "save: expected mode 0 to %d, found %d", PAWL_MODE_DIRECT + 1,
		               o->mode);
	if (o->on_busy < 0 || o->on_busy > PAWL_BUSY_REPLACE + 1)
		return err_set(err, PAWL_EUSAGE, "save: expected on_busy 0 to %d, found %d", PAWL_BUSY_REPLACE + 1,
		               o->on_busy);
	return check_metrics(run, o, err);
}

static void
copy_opts(struct pawl_save_opts *to, const struct pawl_save_opts *opts)
{
	memcpy(to, opts, opts->size < sizeof(*to) ? opts->size : sizeof(*to));
}

static int
save_state(struct pawl *run, const struct pawl_save_opts *opts, const struct pawl_state *state,
           struct pawl_ticket **ret_ticket, struct pawl_error *err)
{
	struct pawl_save_opts o = PAWL_SAVE_OPTS_INIT;

	if (!run || !opts || !state)
		return err_set(err, PAWL_EUSAGE, "save: expected a run, options and a state, found NULL");
	if (!opts->size)
		return err_set(err, PAWL_EUSAGE, "save: the options have no size; start from PAWL_SAVE_OPTS_INIT");
	copy_opts(&o, opts);
	TRY(run_check_writable(run, err));
	TRY(run->modes.role->admit(run, err));
	const int rc = check_save(run, &o, state, err);

	complete_progress(run, &o.progress, o.step);
	return run->modes.role->save(run, rc, &o, state, ret_ticket, err);
}

int
pawl_save(struct pawl *run, const struct pawl_save_opts *opts, const struct pawl_state *state,
          struct pawl_ticket **ret_ticket, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, save_state(run, opts, state, ret_ticket, &own), &own);
}

static int
prepare_memory(struct pawl *run, const struct pawl_state *state, struct pawl_error *err)
{
	if (!run || !state)
		return err_set(err, PAWL_EUSAGE, "prepare: expected a run and a state, found NULL");
	TRY(run_check_writable(run, err));
	TRY(state_check_complete(state, err));
	return writer_prepare_state(run->saves.writer, state, err);
}

int
pawl_prepare(struct pawl *run, const struct pawl_state *state, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, prepare_memory(run, state, &own), &own);
}

/* PAWL_ETIMEOUT, with what the save waits for if that is known. */
static int
explain_wait(struct pawl *run, const char *what, int64_t timeout_ms, struct pawl_error *err)
{
	char waits_for[256];

	writer_waits_for(run->saves.writer, waits_for, sizeof(waits_for));
	return err_waited(err, "%s after %lld ms%s", what, (long long)timeout_ms, waits_for);
}

int
pawl_wait_turn(struct pawl *run, int64_t timeout_ms, struct pawl_error *err)
{
	if (!run || !run->saves.writer)
		return 0;
	if (writer_wait_turn(run->saves.writer, clock_deadline_ms(timeout_ms)) == ETIMEDOUT)
		return explain_wait(run, "a save is still being written", timeout_ms, err);
	return 0;
}

int
pawl_wait_committed(struct pawl *run, int64_t timeout_ms, struct pawl_error *err)
{
	if (run && run_wait_committed(run, clock_deadline_ms(timeout_ms)) == ETIMEDOUT)
		return explain_wait(run, "a save was not committed", timeout_ms, err);
	return 0;
}

int
pawl_save_failed(struct pawl *run, const struct pawl_save_opts *opts, int code, const char *why)
{
	struct pawl_save_opts o = PAWL_SAVE_OPTS_INIT;
	const bool is_given = opts && opts->size;

	if (!run)
		return code;
	if (is_given) {
		copy_opts(&o, opts);
		complete_progress(run, &o.progress, o.step);
	}
	return run->modes.role->skip(run, is_given ? &o : NULL, code, why);
}

int
pawl_fence(struct pawl *run, int64_t timeout_ms, struct pawl_error *err)
{
	if (!run || !run->saves.writer)
		return 0;
	if (writer_fence(run->saves.writer, clock_deadline_ms(timeout_ms)) == ETIMEDOUT)
		return err_waited(err, "tensors are still being copied after %lld ms", (long long)timeout_ms);
	return 0;
}

static int
wait_for_saves(struct pawl *run, int64_t timeout_ms, struct pawl_error *err)
{
	if (!run || !run->saves.writer)
		return 0;
	if (writer_wait(run->saves.writer, clock_deadline_ms(timeout_ms)) == ETIMEDOUT)
		return explain_wait(run, "a save is still running", timeout_ms, err);
	return mirrors_take_pending(run, err);
}

int
pawl_wait(struct pawl *run, int64_t timeout_ms, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, wait_for_saves(run, timeout_ms, &own), &own);
}

int
pawl_check(struct pawl *run, struct pawl_error *err)
{
	int rc = pawl_check_saves(run, err);

	return run && rc == 0 ? mirrors_take_error(run, err) : rc;
}

int
pawl_check_saves(struct pawl *run, struct pawl_error *err)
{
	return run ? mirrors_take_pending(run, err) : 0;
}

int
pawl_is_saving(const struct pawl *run)
{
	return run && run->saves.writer && run->saves.queue_ops->is_busy(run->saves.writer);
}

static int
is_save_due(struct pawl *run, int64_t step, const struct pawl_progress *progress, struct pawl_error *err)
{
	struct pawl_progress now = PAWL_PROGRESS_INIT, last;
	double cost;
	bool has_saved;

	if (!run)
		return err_set(err, PAWL_EUSAGE, "should_save: expected a run, found NULL");
	if (!run->settings.triggers.n)
		return 1;
	if (progress)
		now = *progress;
	complete_progress(run, &now, step);
	has_saved = interval_read(&run->interval, &last, &cost);
	/* a cost of 0 is not known yet: the first save measures it */
	int due =
		triggers_due(&run->settings.triggers, has_saved ? &last : NULL, &now,
	                     has_saved ? pawl_optimal_interval_seconds(cost, run->opts.timeouts.mtbf_seconds) : 0, err);
	return run->modes.role->agree_due(run, due, err);
}

int
pawl_should_save(struct pawl *run, int64_t step, const struct pawl_progress *progress, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, is_save_due(run, step, progress, &own), &own);
}
