/* SPDX-License-Identifier: Apache-2.0 */
/* role_ranks: one of many ranks, rank 0 or another. The commit itself is in commit_ranks.c. */
#include <stdio.h>

#include "base/err.h"
#include "base/mem.h"
#include "catalog/mirrors.h"
#include "layout/rank_share.h"
#include "policy/trigger.h"
#include "ranks/agree.h"
#include "save/commit.h"
#include "save/role.h"
#include "save/save.h"
#include "save/writer.h"

/* An earlier error does not stop a save, since perhaps only some ranks have reported it. */
static int
admit_always(struct pawl *run, struct pawl_error *err)
{
	(void)run, (void)err;
	return 0;
}

static int
check_waits(const struct pawl *run, const struct pawl_save_opts *o, struct pawl_error *err)
{
	if (o->on_busy <= PAWL_BUSY_WAIT + 1)
		return 0;
	return err_set(err, PAWL_EUSAGE,
	               "save: with %u ranks, on_busy: expected wait, since all ranks must take part in the same saves",
	               run->group.world);
}

/* Every rank begins the save. A rank with an earlier error reports it only then. All must agree on
 * when the next save is due, so this one counts although it fails here. */
static int
save_with_others(struct pawl *run, int code, const struct pawl_save_opts *o, const struct pawl_state *state,
                 struct pawl_ticket **ret, struct pawl_error *err)
{
	struct pawl_ticket *ticket = NULL;

	if (code == 0)
		code = check_waits(run, o, err);
	interval_mark(&run->interval, &o->progress);
	if (code < 0)
		return writer_skip(run->saves.writer, code, err);
	TRY(writer_save(run->saves.writer, o, state, &ticket, err));
	const int rc = mirrors_take_pending(run, err);

	if (rc < 0 && o->lazy) /* after a failure the caller may free its tensors */
		pawl_ticket_wait_for(ticket, PAWL_STAGE_STAGED, -1, NULL);
	if (rc == 0 && ret)
		*ret = ticket;
	else
		pawl_ticket_free(ticket);
	return rc;
}

static int
skip_for_all(struct pawl *run, const struct pawl_save_opts *opts, int code, const char *why)
{
	struct pawl_error err = {0};

	if (code >= 0 || run_check_writable(run, NULL) < 0)
		return code;
	if (opts)
		interval_mark(&run->interval, &opts->progress);
	err_set(&err, code, "%s", why ? why : "it could not make its state");
	return writer_skip(run->saves.writer, code, &err);
}

/* Rank 0's clock decides, where a clock does. Every rank takes part in the broadcast, also one that
 * fails: the others would wait for it. */
static int
hear_due(struct pawl *run, int own, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int due = own;

	if (!run->opts.ranks.broadcast || !triggers_use_clock(&run->settings.triggers))
		return own;
	int rc = run->opts.ranks.broadcast(run->opts.ranks.broadcast_arg, &due, sizeof(due), &why);

	if (run->group.rank == 0 && own < 0)
		return own;
	if (err_of_caller(err, rc, &why, "the function") < 0)
		return err_prefix(err, rc, "the broadcast of rank 0's decision to save");
	return due < 0 ? err_set(err, due, "rank 0 could not tell whether a save is due") : due;
}

static int
share_of_rank(const struct pawl *run, const struct pawl_state *state, struct bump *memory, struct pawl_state *ret,
              struct pawl_error *err)
{
	if (state->has_ranks && (state->rank != run->group.rank || state->world != run->group.world))
		return err_set(err, PAWL_EUSAGE,
		               "the state was built for rank %u of %u (pawl_state_set_rank), but this is rank %u of %u",
		               state->rank, state->world ? state->world : 1, run->group.rank, run->group.world);
	*ret = (struct pawl_state){.tensors = state->tensors, .n_tensors = state->n_tensors};
	return rank_share_of(state, run->group.rank, run->group.world, memory, ret, err);
}

/* All ranks need the same folder, even if they give different steps. */
static void
hide_id(const struct save *s, const char *name, char ret[HIDDEN_NAME_BYTES])
{
	char id[32];

	(void)name;
	snprintf(id, sizeof(id), "id%06llu", (unsigned long long)s->request.id);
	hidden_name_of(id, s->image.token, HIDDEN_PARTIAL, ret);
}

static int
report_unwritten(struct save *s, int code, struct pawl_error *err)
{
	(void)err;
	s->run->modes.agree->report_save(s->run, s->request.id, &s->progress.error);
	return code;
}

/* A slow rank may create the folder of a failed save again. */
static void
note_left_behind(struct save *s)
{
	struct run_group *group = &s->run->group;

	if (s->image.env->owns_partial && !group->left_behind)
		group->left_behind = mem_strdup(s->image.partial);
}

const struct role_ops role_host = {.is_keeper = true,
                                   .keeps_mark = true,
                                   .regroups = true,
                                   .admit = admit_always,
                                   .save = save_with_others,
                                   .skip = skip_for_all,
                                   .agree_due = hear_due,
                                   .share = share_of_rank,
                                   .name = role_name_by_template,
                                   .hidden_name = hide_id,
                                   .commit = commit_as_host,
                                   .unwritten = report_unwritten,
                                   .note_failed = note_left_behind,
                                   .settle = role_settle_run};

const struct role_ops role_guest = {.keeps_mark = true,
                                    .regroups = true,
                                    .admit = admit_always,
                                    .save = save_with_others,
                                    .skip = skip_for_all,
                                    .agree_due = hear_due,
                                    .share = share_of_rank,
                                    .name = role_name_by_template,
                                    .hidden_name = hide_id,
                                    .commit = commit_as_guest,
                                    .unwritten = commit_guest_unwritten,
                                    .note_failed = role_note_nothing,
                                    .settle = role_settle_nothing};
