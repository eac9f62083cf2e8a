/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save: the coordinator of one save (state diagram in save.h). save_new and the caller's half run on the caller's
 * thread (writer.c), save_run on the run's saver thread. Calls stage, write, commit, then the run's retention and
 * pointers.
 */
#include "save/save.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "catalog/far.h"
#include "layout/share.h"
#include "policy/name.h"
#include "ranks/meet.h"
#include "save/lazy.h"
#include "save/press.h"
#include "save/writer.h"
#include "state/walk.h"

static int
copy_metrics(struct save *s, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	s->metrics = bump_array(&s->memory, (uint64_t)opts->n_metrics + 1, sizeof(*s->metrics));
	if (!s->metrics)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	for (size_t i = 0; i < opts->n_metrics; i++) {
		const struct pawl_metric *from = &opts->metrics[i];

		if (from->not_a_number)
			continue; /* kept by the caller's own metadata, not by a table of numbers */
		char *name = bump_strndup(&s->memory, from->name, strlen(from->name));

		if (!name)
			return err_set(err, PAWL_ENOMEM, "save: out of memory");
		s->metrics[s->n_metrics++] = (struct pawl_metric){.name = name, .value = from->value};
	}
	return 0;
}

static const uint64_t *
copy_extents(struct save *s, const uint64_t *from, uint32_t ndim)
{
	uint64_t *copy = bump_array(&s->memory, (uint64_t)ndim + 1, sizeof(*copy));

	if (copy && from)
		memcpy(copy, from, ndim * sizeof(*copy));
	return copy; /* zeros where there are no offsets */
}

static int
copy_tensors(struct save *s, const struct pawl_state *state, struct pawl_error *err)
{
	struct manifest_piece *boxes = bump_array(&s->memory, (uint64_t)state->n_tensors + 1, sizeof(*boxes));

	s->tensors = bump_array(&s->memory, (uint64_t)state->n_tensors + 1, sizeof(*s->tensors));
	if (!boxes || !s->tensors)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	s->n_tensors = state->n_tensors;
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];
		struct manifest_tensor *m = &s->tensors[i];

		const struct pawl_tensor *box = &s->share.tensors[i].src;

		*m = (struct manifest_tensor){.dtype = t->info.dtype,
		                              .ndim = t->info.ndim,
		                              .nbytes = t->info.nbytes,
		                              .whole = s->share.tensors[i].common,
		                              .n_pieces = 1,
		                              .pieces = &boxes[i]};
		m->name = bump_strndup(&s->memory, t->info.name, strlen(t->info.name));
		m->shape = copy_extents(s, t->info.shape, m->ndim);
		boxes[i].lengths = box->offsets ? copy_extents(s, box->shape, m->ndim) : m->shape;
		boxes[i].offsets = copy_extents(s, box->offsets, m->ndim);
		if (!m->name || !m->shape || !boxes[i].lengths || !boxes[i].offsets)
			return err_set(err, PAWL_ENOMEM, "save: out of memory");
	}
	return 0;
}

/* Checkpoint name from the run's template, and the keys it is committed and written under. */
static int
make_names(struct save *s, struct pawl_error *err)
{
	struct pawl *run = s->run;
	PAWL_CLEAN(buf_clear) struct buf name = {0};
	struct name_values values = {.run_name = run->run_id,
	                             .rank = 0,
	                             .local_rank = 0,
	                             .world_size = run->world,
	                             .local_world_size = 1,
	                             .node_rank = 0,
	                             .id = s->id,
	                             .step = s->step,
	                             .progress = s->progress};
	const char *base = run->single_name ? "" : CATALOG_FOLDER "/";

	if (run->single_name)
		buf_puts(&name, run->single_name);
	else
		TRY(name_format(run->opts.name_template, &values, false, &name, err));
	TRY(buf_check(&name, "save", err));
	s->name = bump_strndup(&s->memory, buf_str(&name), name.len);
	s->folder = bump_printf(&s->memory, "%s%s", base, buf_str(&name));
	if (!run->caps.rename_folder)
		s->partial = s->folder;
	else if (run->meet) /* all ranks must come to the same, whatever they think the step is */
		s->partial =
			bump_printf(&s->memory, "%s.id%06llu.%s.partial", base, (unsigned long long)s->id, s->token);
	else
		s->partial = bump_printf(&s->memory, "%s.%s.%s.partial", base, buf_str(&name), s->token);
	if (!s->name || !s->folder || !s->partial)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	return 0;
}

static int
copy_metadata(struct save *s, const struct pawl_state *metadata, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *root;

	if (!metadata)
		return 0;
	if (metadata->n_tensors)
		return err_set(
			err, PAWL_EUSAGE,
			"metadata: '%s' is a tensor or a string or bytes of more than %d bytes; these belong in the state",
			metadata->tensors[0].info.name, STATE_LONG_BYTES);
	TRY(state_encode(metadata, &text, err));
	TRY(json_parse("metadata", text.ptr, text.len, &(struct json_limits){.max_depth = 1024}, &memory, &root, err));
	return state_decode("metadata", root, &s->metadata, err);
}

static void
save_clean(struct save **s)
{
	save_unref(*s);
}

/* The id, and what follows from it. */
static int
make_identity(struct save *s, uint64_t id, struct pawl_error *err)
{
	struct pawl *run = s->run;

	run_lock(run);
	s->id = id ? id : run->single_name ? 1 : run->last_id + 1;
	if (s->id > run->last_id && !run->single_name)
		run->last_id = s->id;
	run_unlock(run);
	if (run->meet)
		meet_save_token(run->meet, s->id, s->token);
	else
		TRY(clock_token(s->token, err));
	return make_names(s, err);
}

/* What this rank writes; alone, everything. */
static int
take_share(struct save *s, const struct pawl_state *state, struct pawl_error *err)
{
	struct pawl *run = s->run;

	if (!run->meet) {
		s->share.tensors = state->tensors;
		s->share.n_tensors = state->n_tensors;
		return 0;
	}
	if (state->has_ranks && (state->rank != run->rank || state->world != run->world))
		return err_set(err, PAWL_EUSAGE,
		               "the state was built for rank %u of %u (pawl_state_set_rank), but this is rank %u of %u",
		               state->rank, state->world ? state->world : 1, run->rank, run->world);
	return share_of_rank(state, run->rank, run->world, &s->memory, &s->share, err);
}

static int
see_value(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct save *s = arg;

	if (leaf->node->type != PAWL_FLOAT || isfinite(leaf->node->scalar.f))
		return 0;
	s->value_not_finite = true;
	if (s->run->opts.nonfinite == 2)
		return err_set(err, PAWL_EUSAGE, "the value '%s' is %g, and the run refuses states with NaN or Inf",
		               leaf->path, leaf->node->scalar.f);
	return 0;
}

static const struct codec *
choose_codec(struct pawl *run)
{
	if (!run->compress_by_rule)
		return run->codec;
	run_lock(run);
	const bool on = compress_decide(&run->compress_rule);
	run_unlock(run);
	return on ? run->codec : NULL;
}

/* For the next decision. Of stores on this host's own disks nothing is learnt: these are no links. */
static void
note_rates(struct save *s)
{
	struct compress_rule *rule = &s->run->compress_rule;
	const uint64_t coded = atomic_load(&s->coded_bytes), written = atomic_load(&s->written_bytes);

	run_lock(s->run);
	if (!s->run->caps.local)
		compress_measure(&rule->store, written, (double)s->sending_ns / 1e9);
	compress_measure(&rule->coder, coded, (double)atomic_load(&s->coded_ns) / 1e9);
	compress_saw(rule, coded, written);
	run_unlock(s->run);
}

int
save_new(struct writer *w, const struct pawl_save_opts *opts, const struct pawl_state *state, uint64_t id,
         struct save **ret, struct pawl_error *err)
{
	PAWL_CLEAN(save_clean) struct save *s = mem_zalloc(1, sizeof(*s));

	if (!s)
		return err_set(err, PAWL_ENOMEM, "save: out of memory");
	atomic_store(&s->refs, 1);
	s->run = w->run;
	s->writer = w;
	pthread_mutex_init(&s->lock, NULL);
	cond_init(&s->changed);
	group_init(&s->writing);
	atomic_store(&s->not_finite, SIZE_MAX);
	s->begin_ns = clock_mono_ns();
	s->unix_ns = clock_unix_ns();
	s->step = opts->step;
	s->progress = opts->progress;
	s->mode = opts->mode ? opts->mode - 1 : w->run->opts.mode;
	s->codec = choose_codec(w->run);
	TRY(ticket_new(&s->ticket, err));
	TRY(take_share(s, state, err));
	TRY(lazy_decide(s, opts, err));
	if (w->run->opts.nonfinite)
		TRY(walk_leaves(state->root, see_value, s, err)); /* tensors are looked at while they are copied */
	TRY(copy_metrics(s, opts, err));
	TRY(copy_metadata(s, opts->metadata, err));
	TRY(copy_tensors(s, state, err));
	TRY(state_encode(state, &s->state_json, err));
	TRY(make_identity(s, id, err));
	*ret = steal(&s);
	return 0;
}

void
save_unref(struct save *s)
{
	if (!s || atomic_fetch_sub(&s->refs, 1) > 1)
		return;
	for (size_t k = 0; s->packs && s->plan && k < s->plan->n_packs; k++) {
		pthread_mutex_destroy(&s->packs[k].lock);
		press_free(s->packs[k].press);
	}
	arena_give(s->run->arena, &s->region);
	arena_give(s->run->arena, &s->fill_region);
	plan_free(s->plan);
	pawl_ticket_free(s->ticket);
	pawl_state_free(s->metadata);
	buf_clear(&s->state_json);
	buf_clear(&s->manifest);
	group_clear(&s->writing);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	bump_clear(&s->memory);
	mem_free(s);
}

double
save_blocked_seconds(const struct save *s)
{
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	int64_t until = s->mode == PAWL_MODE_DIRECT ? s->written_ns : s->staged_ns;

	pawl_ticket_stats(s->ticket, &stats);
	if (stats.blocked_seconds > 0 || s->lazy)
		return stats.blocked_seconds;
	return (double)(until - s->begin_ns) / 1e9;
}

static void
fill_stats(struct save *s)
{
	struct pawl_save_stats *st = &s->ticket->stats;
	double blocked = save_blocked_seconds(s);
	int64_t now = clock_mono_ns();

	pthread_mutex_lock(&s->ticket->lock);
	st->id = s->id;
	st->bytes = s->nbytes;
	st->plain_bytes = s->plain_nbytes;
	st->written_bytes = atomic_load(&s->written_bytes);
	st->reused_bytes = atomic_load(&s->reused_bytes);
	st->blocked_seconds = blocked;
	st->stage_seconds = (double)(s->staged_ns - s->begin_ns) / 1e9;
	st->write_seconds = (double)(s->written_ns - s->begin_ns) / 1e9;
	st->commit_seconds = s->committed_ns ? (double)(s->committed_ns - s->written_ns) / 1e9 : 0;
	st->total_seconds = (double)(now - s->begin_ns) / 1e9;
	st->minor_faults = atomic_load(&s->minor_faults);
	pthread_mutex_unlock(&s->ticket->lock);
}

#define TELL_NS 1000000000 /* between words on how far compressing is */

static void
tell(struct save *s, const char *what, const struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};
	struct pawl_save_stats st = PAWL_SAVE_STATS_INIT;

	pawl_ticket_stats(s->ticket, &st);
	buf_printf(
		&fields,
		"\"id\":%llu,\"name\":\"%s\",\"step\":%lld,\"bytes\":%llu,\"plain_bytes\":%llu,\"written_bytes\":%llu,"
		"\"reused_bytes\":%llu,"
		"\"blocked_seconds\":%.6f,\"stage_seconds\":%.6f,\"write_seconds\":%.6f,\"commit_seconds\":%.6f,\"total_seconds\":%.6f",
		(unsigned long long)s->id, s->name, (long long)s->step, (unsigned long long)st.bytes,
		(unsigned long long)st.plain_bytes, (unsigned long long)st.written_bytes,
		(unsigned long long)st.reused_bytes, st.blocked_seconds, st.stage_seconds, st.write_seconds,
		st.commit_seconds, st.total_seconds);
	if (err) {
		buf_printf(&fields, ",\"code\":\"%s\",\"error\":", pawl_code_name(err->code));
		json_put_string(&fields, err->message, strlen(err->message));
	}
	run_event(s->run, what, buf_str(&fields));
}

void
save_note_progress(struct save *s, uint64_t nbytes)
{
	const uint64_t done = atomic_fetch_add(&s->pressed_bytes, nbytes) + nbytes;
	const int64_t now = clock_mono_ns();
	int_fast64_t due = atomic_load(&s->tell_ns);
	PAWL_CLEAN(buf_clear) struct buf fields = {0};

	if (now < (due ? due : s->begin_ns + TELL_NS) ||
	    !atomic_compare_exchange_strong(&s->tell_ns, &due, now + TELL_NS))
		return;
	buf_printf(&fields,
	           "\"id\":%llu,\"name\":\"%s\",\"step\":%lld,\"plain_bytes\":%llu,\"done_bytes\":%llu,"
	           "\"written_bytes\":%llu",
	           (unsigned long long)s->id, s->name, (long long)s->step, (unsigned long long)s->plain_nbytes,
	           (unsigned long long)done, (unsigned long long)atomic_load(&s->written_bytes));
	if (!fields.failed)
		run_event(s->run, "saving", buf_str(&fields));
}

/* Everything up to the commit; a failure leaves nothing behind (P4). */
static int
write_and_commit(struct save *s, struct pawl_error *err)
{
	stage_wait_released(s);
	int rc = write_settle(s, err);

	if (rc < 0) {
		commit_report_failure(s->run, s->id, &s->error);
		return rc;
	}
	ticket_stage(s->ticket, PAWL_STAGE_WRITTEN);
	TRY(s->run->meet ? commit_ranks(s, err) : commit_publish(s, err));
	fill_stats(s);
	return 0;
}

/* Makes a committed checkpoint known to this process. */
static void
note_committed(struct save *s)
{
	struct pawl_error err = {0};

	run_edit(s->run);
	int rc = catalog_add(s->run->catalog, s->name, &s->manifest, &err);

	run_edited(s->run);
	run_lock(s->run);
	s->run->save_cost_seconds = save_blocked_seconds(s);
	run_unlock(s->run);
	buf_clear(&s->manifest);
	mirrors_wake(s->run);
	if (rc < 0)
		tell(s, "warning", &err);
}

/* After the commit: troubles here are told by an event, the checkpoint stands. */
static void
settle(struct save *s)
{
	struct pawl *run = s->run;
	struct pawl_error err = {0};
	int rc = 0;

	if (!run->single_name && run->rank == 0) {
		run_point(run, NULL); /* before what they pointed to may go */
		rc = run_retain(run, &run->retention, false, NULL, &err);
		if (run_point(run, rc < 0 ? NULL : &err) < 0)
			rc = err.code;
	}
	fill_stats(s);
	tell(s, "save", NULL);
	if (rc < 0)
		tell(s, "warning", &err);
}

void
save_run(void *arg)
{
	struct save *s = arg;
	struct pawl_error err = {0};
	struct reuse *reuse = NULL;
	int rc = write_and_commit(s, &err);

	if (rc < 0) {
		err.code = rc;
		write_abandon(s);
		run_mark_outcome(s->run, s, false);
		fill_stats(s);
		tell(s, "save failed", &err);
		ticket_fail(s->ticket, rc, &err);
		run_set_pending(s->run, s->ticket);
	} else {
		note_rates(s);
		note_committed(s);
		run_mark_outcome(s->run, s, true);
		ticket_stage(s->ticket, PAWL_STAGE_COMMITTED);
		if (run_links_packs(s->run))
			reuse_of_save(s, &reuse, NULL); /* without it the next save writes everything */
	}
	writer_release(s->writer, s, reuse); /* the next save may begin while this one settles */
	if (rc == 0)
		settle(s);
	ticket_stage(s->ticket, rc < 0 ? PAWL_STAGE_FAILED : PAWL_STAGE_SETTLED);
	writer_settled(s->writer);
	save_unref(s);
}
