/* SPDX-License-Identifier: Apache-2.0 */
/*
 * save: the coordinator of one save (state diagram in save.h). save_new runs on the caller's
 * thread, save_run on the run's saver thread: it writes, commits, and applies retention.
 */
#include "save/save.h"

#include <math.h>
#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/json.h"
#include "base/mem.h"
#include "catalog/mirrors.h"
#include "ranks/agree.h"
#include "save/commit.h"
#include "save/compress.h"
#include "save/from_device.h"
#include "save/lazy.h"
#include "save/role.h"
#include "save/writer.h"
#include "state/walk.h"

static int
copy_metrics(struct save *s, const struct pawl_save_opts *opts, struct pawl_error *err)
{
	s->request.metrics = bump_array(&s->image.memory, (uint64_t)opts->n_metrics + 1, sizeof(*s->request.metrics));
	if (!s->request.metrics)
		return err_nomem(err, "save");
	for (size_t i = 0; i < opts->n_metrics; i++) {
		const struct pawl_metric *from = &opts->metrics[i];

		if (from->not_a_number)
			continue; /* the caller's metadata holds it, not the table of numbers */
		char *name = bump_strndup(&s->image.memory, from->name, strlen(from->name));

		if (!name)
			return err_nomem(err, "save");
		s->request.metrics[s->request.n_metrics++] = (struct pawl_metric){.name = name, .value = from->value};
	}
	return 0;
}

/* One rank writes a long value that all have. The others prove by its checksum that theirs is
 * equal. */
static int
add_value_sum(struct save *s, const struct state_tensor *t, struct manifest_tensor *ret, struct pawl_error *err)
{
	struct sum128 *sum;

	if (!t->is_blob || !ret->whole)
		return 0;
	sum = bump_alloc(&s->image.memory, sizeof(*sum));
	if (!sum)
		return err_nomem(err, "save");
	*sum = sum_bytes(t->src.data, (size_t)t->local_nbytes);
	ret->sum = sum;
	return 0;
}

static int
copy_tensors(struct save *s, const struct pawl_state *state, struct pawl_error *err)
{
	struct bump *memory = &s->image.memory;
	struct manifest_piece *boxes = bump_array(memory, (uint64_t)state->n_tensors + 1, sizeof(*boxes));

	s->request.tensors = bump_array(memory, (uint64_t)state->n_tensors + 1, sizeof(*s->request.tensors));
	if (!boxes || !s->request.tensors)
		return err_nomem(err, "save");
	s->request.n_tensors = state->n_tensors;
	for (size_t i = 0; i < state->n_tensors; i++) {
		const struct state_tensor *t = &state->tensors[i];
		struct manifest_tensor *m = &s->request.tensors[i];

		const struct pawl_tensor *box = &s->image.share.tensors[i].src;

		*m = (struct manifest_tensor){.dtype = t->info.dtype,
		                              .ndim = t->info.ndim,
		                              .nbytes = t->info.nbytes,
		                              .whole = s->image.share.tensors[i].common,
		                              .n_pieces = 1,
		                              .pieces = &boxes[i]};
		m->name = bump_strndup(memory, t->info.name, strlen(t->info.name));
		m->shape = bump_copy(memory, t->info.shape, m->ndim, sizeof(uint64_t));
		boxes[i].lengths = box->offsets ? bump_copy(memory, box->shape, m->ndim, sizeof(uint64_t)) : m->shape;
		boxes[i].offsets = bump_copy(memory, box->offsets, m->ndim, sizeof(uint64_t));
		if (!m->name || !m->shape || !boxes[i].lengths || !boxes[i].offsets)
			return err_nomem(err, "save");
		TRY(add_value_sum(s, t, m, err));
	}
	return 0;
}

/* The checkpoint's name, by the run's template, and the keys that it is committed and written
 * under. */
static int
make_names(struct save *s, struct pawl_error *err)
{
	const struct run_modes *modes = &s->run->modes;
	PAWL_CLEAN(buf_clear) struct buf name = {0};
	const char *base = s->run->catalog->kind->folder;
	char hidden[HIDDEN_NAME_BYTES];

	TRY(modes->role->name(s, &name, err));
	s->name = bump_strndup(&s->image.memory, buf_str(&name), name.len);
	s->folder = bump_printf(&s->image.memory, "%s%s", base, buf_str(&name));
	modes->role->hidden_name(s, buf_str(&name), hidden);
	s->image.partial = modes->commit->is_hidden ? bump_printf(&s->image.memory, "%s%s", base, hidden) : s->folder;
	if (!s->name || !s->folder || !s->image.partial)
		return err_nomem(err, "save");
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
	return state_decode("metadata", root, &s->request.metadata, err);
}

PAWL_DEFINE_CLEAN(struct save, save_unref);

/* The id, token and names. */
static int
make_identity(struct save *s, uint64_t id, struct pawl_error *err)
{
	struct pawl *run = s->run;

	s->request.id = run_file_give_id(run, id);
	TRY(run->modes.agree->save_token(run, s->request.id, s->image.token, err));
	return make_names(s, err);
}

static int
visit_value(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct save *s = arg;

	if (leaf->node->type != PAWL_FLOAT || isfinite(leaf->node->scalar.f))
		return 0;
	s->request.value_not_finite = true;
	if (s->run->opts.nonfinite == 2)
		return err_set(err, PAWL_EUSAGE, "the value '%s' is %g, and the run refuses states with NaN or Inf",
		               leaf->path, leaf->node->scalar.f);
	return 0;
}

static const struct codec *
choose_codec(struct pawl *run)
{
	if (!run->settings.compress_by_rule)
		return run->settings.codec;
	run_lock(run);
	const bool on = compress_decide(&run->saves.compress_rule);
	run_unlock(run);
	return on ? run->settings.codec : NULL;
}

/* For the next decision. Disks of this host are not measured: they are not links. */
static void
note_rates(struct save *s)
{
	struct compress_rule *rule = &s->run->saves.compress_rule;
	const uint64_t coded = atomic_load(&s->progress.coded_bytes), written = atomic_load(&s->progress.written_bytes);

	run_lock(s->run);
	if (!s->run->home.caps.local)
		compress_measure(&rule->store, written, (double)s->progress.sending_ns / 1e9);
	compress_measure(&rule->coder, coded, (double)atomic_load(&s->progress.coded_ns) / 1e9);
	compress_saw(rule, coded, written);
	run_unlock(s->run);
}

#define NOTE_NS 1000000000 /* between "saving" events */

static void
note_progress(void *arg, uint64_t nbytes)
{
	struct save *s = arg;
	const uint64_t done = atomic_fetch_add(&s->progress.compressed_bytes, nbytes) + nbytes;
	const int64_t now = clock_mono_ns();
	int_fast64_t due = atomic_load(&s->progress.next_note_ns);
	PAWL_CLEAN(buf_clear) struct buf fields = {0};

	if (now < (due ? due : s->progress.begin_ns + NOTE_NS) ||
	    !atomic_compare_exchange_strong(&s->progress.next_note_ns, &due, now + NOTE_NS))
		return;
	buf_printf(&fields,
	           "\"id\":%llu,\"name\":\"%s\",\"step\":%lld,\"plain_bytes\":%llu,\"done_bytes\":%llu,"
	           "\"written_bytes\":%llu",
	           (unsigned long long)s->request.id, s->name, (long long)s->request.step,
	           (unsigned long long)s->plain_nbytes, (unsigned long long)done,
	           (unsigned long long)atomic_load(&s->progress.written_bytes));
	if (!fields.failed)
		events_add(&s->run->events, "saving", buf_str(&fields));
}

int
save_new(struct writer *w, const struct pawl_save_opts *opts, const struct pawl_state *state, uint64_t id,
         struct save **ret, struct pawl_error *err)
{
	PAWL_CLEAN(save_unref_clean) struct save *s = mem_zalloc(1, sizeof(*s));

	if (!s)
		return err_nomem(err, "save");
	atomic_store(&s->refs, 1);
	s->run = w->run;
	s->writer = w;
	s->image.env = &w->env;
	s->image.request = &s->request;
	s->image.progress = &s->progress;
	s->image.note_progress = note_progress;
	s->image.note_arg = s;
	pthread_mutex_init(&s->progress.lock, NULL);
	pthread_mutex_init(&s->image.lazy.asking, NULL);
	pool_cond_init(&s->progress.changed);
	pool_group_init(&s->progress.writing);
	atomic_store(&s->progress.not_finite, SIZE_MAX);
	s->progress.begin_ns = clock_mono_ns();
	s->request.unix_ns = clock_unix_ns();
	s->request.step = opts->step;
	s->request.counters = opts->progress;
	s->image.mode = opts->mode ? opts->mode - 1 : w->run->opts.staging.mode;
	s->image.codec = choose_codec(w->run);
	TRY(ticket_new(&s->progress.ticket, err));
	TRY(s->run->modes.role->share(s->run, state, &s->image.memory, &s->image.share, err));
	s->image.rests = opts->rests;
	TRY(from_device_open(&s->image, err));
	TRY(lazy_decide(&s->image, &s->request, opts, err));
	TRY(from_device_stage(&s->image, err));
	if (w->run->opts.nonfinite)
		TRY(walk_leaves(state->root, visit_value, s, err)); /* tensors are checked while they are copied */
	TRY(copy_metrics(s, opts, err));
	TRY(copy_metadata(s, opts->metadata, err));
	TRY(copy_tensors(s, state, err));
	TRY(state_encode(state, &s->request.state_json, err));
	TRY(make_identity(s, id, err));
	*ret = steal(&s);
	return 0;
}

void
save_unref(struct save *s)
{
	if (!s || atomic_fetch_sub(&s->refs, 1) > 1)
		return;
	for (size_t k = 0; s->image.packs && s->image.plan && k < s->image.plan->n_packs; k++) {
		pthread_mutex_destroy(&s->image.packs[k].lock);
		compress_free(s->image.packs[k].compress);
	}
	from_device_close(&s->image);
	device_turns_clear(&s->image.turns);
	arena_give(s->run->saves.arena, &s->image.region);
	arena_give(s->run->saves.arena, &s->image.fill_region);
	plan_free(s->image.plan);
	pawl_ticket_free(s->progress.ticket);
	pawl_state_free(s->request.metadata);
	buf_clear(&s->request.state_json);
	buf_clear(&s->manifest);
	pool_group_clear(&s->progress.writing);
	pthread_cond_destroy(&s->progress.changed);
	pthread_mutex_destroy(&s->progress.lock);
	pthread_mutex_destroy(&s->image.lazy.asking);
	bump_clear(&s->image.memory);
	mem_free(s);
}

double
save_blocked_seconds(const struct save *s)
{
	struct pawl_save_stats stats = PAWL_SAVE_STATS_INIT;
	int64_t until = s->image.mode == PAWL_MODE_DIRECT ? s->progress.written_ns : s->progress.staged_ns;

	pawl_ticket_stats(s->progress.ticket, &stats);
	if (stats.blocked_seconds > 0 || s->image.lazy.is_on)
		return stats.blocked_seconds;
	return (double)(until - s->progress.begin_ns) / 1e9;
}

static void
fill_stats(struct save *s)
{
	struct pawl_save_stats *st = &s->progress.ticket->stats;
	double blocked = save_blocked_seconds(s);
	int64_t now = clock_mono_ns();

	pthread_mutex_lock(&s->progress.ticket->lock);
	st->id = s->request.id;
	st->bytes = s->nbytes;
	st->plain_bytes = s->plain_nbytes;
	st->written_bytes = atomic_load(&s->progress.written_bytes);
	st->reused_bytes = atomic_load(&s->progress.reused_bytes);
	st->blocked_seconds = blocked;
	st->stage_seconds = (double)(s->progress.staged_ns - s->progress.begin_ns) / 1e9;
	st->write_seconds = (double)(s->progress.written_ns - s->progress.begin_ns) / 1e9;
	st->commit_seconds =
		s->progress.committed_ns ? (double)(s->progress.committed_ns - s->progress.written_ns) / 1e9 : 0;
	st->total_seconds = (double)(now - s->progress.begin_ns) / 1e9;
	st->minor_faults = atomic_load(&s->progress.minor_faults);
	st->registered_bytes = s->progress.registered_bytes;
	pthread_mutex_unlock(&s->progress.ticket->lock);
}

static void
report_event(struct save *s, const char *what, const struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf fields = {0};
	struct pawl_save_stats st = PAWL_SAVE_STATS_INIT;

	pawl_ticket_stats(s->progress.ticket, &st);
	buf_printf(
		&fields,
		"\"id\":%llu,\"name\":\"%s\",\"step\":%lld,\"bytes\":%llu,\"plain_bytes\":%llu,\"written_bytes\":%llu,"
		"\"reused_bytes\":%llu,"
		"\"blocked_seconds\":%.6f,\"stage_seconds\":%.6f,\"write_seconds\":%.6f,\"commit_seconds\":%.6f,\"total_seconds\":%.6f",
		(unsigned long long)s->request.id, s->name, (long long)s->request.step, (unsigned long long)st.bytes,
		(unsigned long long)st.plain_bytes, (unsigned long long)st.written_bytes,
		(unsigned long long)st.reused_bytes, st.blocked_seconds, st.stage_seconds, st.write_seconds,
		st.commit_seconds, st.total_seconds);
	if (err)
		events_put_error(&fields, err);
	events_add(&s->run->events, what, buf_str(&fields));
}

/* Everything up to the commit; a failure leaves nothing behind (P4). */
static int
write_and_commit(struct save *s, struct pawl_error *err)
{
	stage_wait_released(&s->image);
	int rc = write_settle(&s->image, err);

	if (rc < 0)
		return s->run->modes.role->unwritten(s, rc, err);
	ticket_stage(s->progress.ticket, PAWL_STAGE_WRITTEN);
	TRY(s->run->modes.role->commit(s, err));
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
	interval_note_cost(&s->run->interval, save_blocked_seconds(s));
	buf_clear(&s->manifest);
	mirrors_wake(s->run);
	if (rc < 0)
		report_event(s, "warning", &err);
}

/* After the commit: errors here are reported by an event; the checkpoint stays. */
static void
settle_save(struct save *s)
{
	struct pawl_error err = {0};
	const int rc = s->run->modes.role->settle(s->run, &err);

	fill_stats(s);
	report_event(s, "save", NULL);
	if (rc < 0)
		report_event(s, "warning", &err);
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
		write_abandon(&s->image, s->in_doubt);
		s->run->modes.role->note_failed(s);
		mark_outcome(s->run, s, false);
		fill_stats(s);
		report_event(s, "save failed", &err);
		ticket_fail(s->progress.ticket, rc, &err);
		run_saves_set_failed(&s->run->saves, s->progress.ticket);
	} else {
		note_rates(s);
		note_committed(s);
		mark_outcome(s->run, s, true);
		ticket_stage(s->progress.ticket, PAWL_STAGE_COMMITTED);
		if (run_links_packs(s->run))
			reuse_of_save(s, &reuse, NULL); /* without it the next save writes everything */
	}
	writer_release(s->writer, s, reuse); /* the next save may begin while this one settles */
	if (rc == 0)
		settle_save(s);
	ticket_stage(s->progress.ticket, rc < 0 ? PAWL_STAGE_FAILED : PAWL_STAGE_SETTLED);
	writer_settled(s->writer);
	save_unref(s);
}
