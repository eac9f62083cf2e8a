/* SPDX-License-Identifier: Apache-2.0 */
/* role_alone: one process writes everything, a run or a single checkpoint. */
#include "base/err.h"
#include "base/text.h"
#include "catalog/mirrors.h"
#include "keep/apply_retention.h"
#include "keep/pointers.h"
#include "policy/name.h"
#include "save/commit.h"
#include "save/role.h"
#include "save/save.h"
#include "save/writer.h"

static int
save_checked(struct pawl *run, int code, const struct pawl_save_opts *opts, const struct pawl_state *state,
             struct pawl_ticket **ret, struct pawl_error *err)
{
	return code < 0 ? code : writer_save(run->saves.writer, opts, state, ret, err);
}

static int
skip_nothing(struct pawl *run, const struct pawl_save_opts *opts, int code, const char *why)
{
	(void)run, (void)opts, (void)why;
	return code;
}

static int
decide_alone(struct pawl *run, int due, struct pawl_error *err)
{
	(void)run, (void)err;
	return due;
}

static int
share_everything(const struct pawl *run, const struct pawl_state *state, struct bump *memory, struct pawl_state *ret,
                 struct pawl_error *err)
{
	(void)run, (void)memory, (void)err;
	*ret = (struct pawl_state){.tensors = state->tensors, .n_tensors = state->n_tensors};
	return 0;
}

int
role_name_by_template(const struct save *s, struct buf *ret, struct pawl_error *err)
{
	const struct pawl *run = s->run;
	const struct name_values values = {.run_name = run->self.run_id,
	                                   .rank = 0,
	                                   .local_rank = 0,
	                                   .world_size = run->group.world,
	                                   .local_world_size = 1,
	                                   .node_rank = 0,
	                                   .id = s->request.id,
	                                   .step = s->request.step,
	                                   .progress = s->request.counters};

	TRY(name_format(run->opts.naming.name_template, &values, false, ret, err));
	TRY(buf_check(ret, "save", err));
	if (text_is_component(buf_str(ret)))
		return 0;
	/* the catalog would ignore it */
	return err_set(err, PAWL_EUSAGE,
	               "naming.name_template: '%s' makes the name '%s' at step %lld; a name has at most 128 letters, "
	               "digits and '._=-', and begins with neither '-' nor '.'",
	               run->opts.naming.name_template, buf_str(ret), (long long)s->request.step);
}

static int
name_of_single(const struct save *s, struct buf *ret, struct pawl_error *err)
{
	buf_puts(ret, s->run->home.single_name);
	return buf_check(ret, "save", err);
}

static void
hide_name(const struct save *s, const char *name, char ret[HIDDEN_NAME_BYTES])
{
	hidden_name_of(name, s->image.token, HIDDEN_PARTIAL, ret);
}

static int
keep_reason(struct save *s, int code, struct pawl_error *err)
{
	(void)s, (void)err;
	return code;
}

void
role_note_nothing(struct save *s)
{
	(void)s;
}

int
role_settle_run(struct pawl *run, struct pawl_error *err)
{
	pointers_update(run, NULL); /* before the checkpoint that they point to may be deleted */
	const int rc = apply_retention(run, &run->settings.retention, false, NULL, err);
	const int updated = pointers_update(run, rc < 0 ? NULL : err);

	return rc < 0 ? rc : updated;
}

int
role_settle_nothing(struct pawl *run, struct pawl_error *err)
{
	(void)run, (void)err;
	return 0;
}

const struct role_ops role_alone = {.is_keeper = true,
                                    .regroups = true,
                                    .admit = mirrors_take_pending,
                                    .save = save_checked,
                                    .skip = skip_nothing,
                                    .agree_due = decide_alone,
                                    .share = share_everything,
                                    .name = role_name_by_template,
                                    .hidden_name = hide_name,
                                    .commit = commit_publish,
                                    .unwritten = keep_reason,
                                    .note_failed = role_note_nothing,
                                    .settle = role_settle_run};

const struct role_ops role_single = {.is_keeper = true,
                                     .admit = mirrors_take_pending,
                                     .save = save_checked,
                                     .skip = skip_nothing,
                                     .agree_due = decide_alone,
                                     .share = share_everything,
                                     .name = name_of_single,
                                     .hidden_name = hide_name,
                                     .commit = commit_publish,
                                     .unwritten = keep_reason,
                                     .note_failed = role_note_nothing,
                                     .settle = role_settle_nothing};
