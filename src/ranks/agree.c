/* SPDX-License-Identifier: Apache-2.0 */
/* agree: see agree.h. Promises P11, P16. */
#include "ranks/agree.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bump.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"

#define ROUNDS_BEFORE 8 /* files of so many earlier rounds may remain: of a fallback, and of the restore before */
#define ROUNDS ((uint64_t)1 << 63) /* keeps rounds apart from saves, whose ids also make tokens */

/* The token of the next round. */
static void
next_round(struct pawl *run, char token[33])
{
	rendezvous_save_token(run->group.rendezvous, ROUNDS | run_group_next_round(&run->group), token);
}

static struct gather_round
round_of(const struct pawl *run, const char *token, enum gather_kind kind)
{
	return (struct gather_round){.store = run->store,
	                             .m = run->group.rendezvous,
	                             .token = token,
	                             .kind = kind,
	                             .timeout_ms = run->opts.timeouts.commit_ms};
}

/* Rank 0, when all ranks have reached this round and so have left the earlier ones. */
static void
clear_rounds(struct pawl *run)
{
	const uint64_t n = run_group_round(&run->group);
	char token[33];

	for (uint64_t k = n > ROUNDS_BEFORE ? n - ROUNDS_BEFORE : 1; k < n; k++) {
		rendezvous_save_token(run->group.rendezvous, ROUNDS | k, token);
		gather_clear(run->store, token);
	}
}

static void
announce_choice(struct pawl *run, uint64_t id, int code, const struct pawl_error *why)
{
	char token[33], name[24];

	next_round(run, token);
	snprintf(name, sizeof(name), "%" PRIu64, id);
	struct pawl_error error = why ? *why : (struct pawl_error){0};

	error.code = code;
	gather_put_verdict(run->store, token, code, name, &error);
}

/* Waits for rank 0's verdict in a round: 0 and *ret (mem_free), or the error that it reports. */
static int
hear_verdict(const struct gather_round *round, char **ret, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = gather_verdict(round, ret, &why);

	if (rc == 1)
		return 0;
	rc = rc < 0 ? rc : why.code;
	return err_set(err, rc, "%s", why.message);
}

int
agree_listen(struct pawl *run, uint64_t *ret_id, struct pawl_error *err)
{
	PAWL_FREE char *name = NULL;
	char token[33];

	next_round(run, token);
	const struct gather_round round = round_of(run, token, GATHER_CHOICE);

	TRY(hear_verdict(&round, &name, err));
	*ret_id = strtoull(name, NULL, 10);
	return 0;
}

static uint64_t
count_save(struct pawl *run)
{
	const uint64_t id = run_group_next_save(&run->group);

	rendezvous_note_id(run->group.rendezvous, id);
	return id;
}

static int
shared_token(const struct pawl *run, uint64_t id, char ret[33], struct pawl_error *err)
{
	(void)err;
	rendezvous_save_token(run->group.rendezvous, id, ret);
	return 0;
}

static bool
has_next_token(struct pawl *run, const char *token)
{
	char next[33];

	rendezvous_save_token(run->group.rendezvous, run_group_save(&run->group) + 1, next);
	return strncmp(next, token, 32) == 0;
}

static bool
is_job_current(const struct pawl *run)
{
	return rendezvous_is_current(run->group.rendezvous);
}

/* ---- rank 0 */

static int
collect_texts(struct pawl *run, int code, const struct buf *text, gather_fn *fn, void *arg, struct pawl_error *err)
{
	struct pawl_error why = {0};
	char token[33];

	(void)text;
	next_round(run, token);
	const struct gather_round round = round_of(run, token, GATHER_RESTORE);

	if (code < 0 && err)
		why = *err;
	if (code == 0)
		code = gather_parts(&round, fn, arg, &why);
	if (code == 0)
		clear_rounds(run);
	why.code = code;
	gather_put_verdict(run->store, token, code, "restored", &why);
	return code < 0 ? err_set(err, code, "%s", why.message) : 0;
}

static void
refuse_save(struct pawl *run, uint64_t id, const struct pawl_error *why)
{
	char token[33];

	rendezvous_save_token(run->group.rendezvous, id, token);
	gather_put_verdict(run->store, token, why->code, NULL, why);
}

static void
refuse_for_all(struct pawl *run, const struct pawl_error *why)
{
	refuse_save(run, ROUNDS | run_group_next_round(&run->group), why);
}

const struct agree_ops agree_host = {.is_shared = true,
                                     .announce = announce_choice,
                                     .on = collect_texts,
                                     .give_up = refuse_for_all,
                                     .next_save = count_save,
                                     .save_token = shared_token,
                                     .is_next_save = has_next_token,
                                     .report_save = refuse_save,
                                     .is_current = is_job_current};

/* ---- another rank */

static void
announce_nothing(struct pawl *run, uint64_t id, int code, const struct pawl_error *why)
{
	(void)run, (void)id, (void)code, (void)why;
}

static int
hand_in(struct pawl *run, int code, const struct buf *text, gather_fn *fn, void *arg, struct pawl_error *err)
{
	PAWL_FREE char *word = NULL;
	struct pawl_error why = {0};
	char token[33];

	(void)fn, (void)arg;
	next_round(run, token);
	const struct gather_round round = round_of(run, token, GATHER_RESTORE);

	if (code < 0 && err)
		why = *err;
	if (code == 0)
		code = gather_put_part(run->store, run->group.rendezvous, token, text, &why);
	why.code = code;
	if (code < 0)
		gather_put_fault(run->store, run->group.rendezvous, token, &why);
	return hear_verdict(&round, &word, err);
}

static void
report_save_fault(struct pawl *run, uint64_t id, const struct pawl_error *why)
{
	char token[33];

	rendezvous_save_token(run->group.rendezvous, id, token);
	gather_put_fault(run->store, run->group.rendezvous, token, why);
}

static void
report_fault(struct pawl *run, const struct pawl_error *why)
{
	report_save_fault(run, ROUNDS | run_group_next_round(&run->group), why);
}

const struct agree_ops agree_guest = {.is_shared = true,
                                      .is_led = true,
                                      .announce = announce_nothing,
                                      .on = hand_in,
                                      .give_up = report_fault,
                                      .next_save = count_save,
                                      .save_token = shared_token,
                                      .is_next_save = has_next_token,
                                      .report_save = report_save_fault,
                                      .is_current = is_job_current};

/* ---- alone */

static int
keep_code(struct pawl *run, int code, const struct buf *text, gather_fn *fn, void *arg, struct pawl_error *err)
{
	(void)run, (void)text, (void)fn, (void)arg, (void)err;
	return code;
}

static void
give_up_alone(struct pawl *run, const struct pawl_error *why)
{
	(void)run, (void)why;
}

static uint64_t
count_no_save(struct pawl *run)
{
	(void)run;
	return 0;
}

static int
own_token(const struct pawl *run, uint64_t id, char ret[33], struct pawl_error *err)
{
	(void)run, (void)id;
	return clock_token(ret, err);
}

static bool
has_no_next_token(struct pawl *run, const char *token)
{
	(void)run, (void)token;
	return false;
}

static void
report_to_none(struct pawl *run, uint64_t id, const struct pawl_error *why)
{
	(void)run, (void)id, (void)why;
}

static bool
is_always_current(const struct pawl *run)
{
	(void)run;
	return true;
}

const struct agree_ops agree_alone = {.announce = announce_nothing,
                                      .on = keep_code,
                                      .give_up = give_up_alone,
                                      .next_save = count_no_save,
                                      .save_token = own_token,
                                      .is_next_save = has_no_next_token,
                                      .report_save = report_to_none,
                                      .is_current = is_always_current};

/* ---- all kinds */

void
agree_announce(struct pawl *run, uint64_t id, int code, const struct pawl_error *why)
{
	run->modes.agree->announce(run, id, code, why);
}

int
agree_on(struct pawl *run, int code, const struct buf *text, gather_fn *fn, void *arg, struct pawl_error *err)
{
	return run->modes.agree->on(run, code, text, fn, arg, err);
}

/* Rank 0: another has restored. */
static int
take_outcome(void *arg, uint32_t rank, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	uint64_t *total = arg, nbytes = 0;
	struct json *root;

	if (text->len && text->ptr[0] != '{')
		return err_set(err, PAWL_EMISMATCH, "rank %u: share_reads is set there, and not on rank 0", rank);
	if (json_parse("outcome", text->ptr, text->len, NULL, &memory, &root, NULL) < 0 ||
	    json_get_u64("outcome", root, "read_bytes", &nbytes, NULL) < 0 || !mem_add_ok(*total, nbytes, total))
		return err_set(err, PAWL_ECONFLICT, "rank %u: its report about the restore is malformed", rank);
	return 0;
}

int
agree_outcome(struct pawl *run, int code, uint64_t *nbytes, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	uint64_t total = nbytes ? *nbytes : 0;

	buf_printf(&text, "{\"read_bytes\":%" PRIu64 "}\n", total);
	code = agree_on(run, code, &text, take_outcome, &total, err);
	if (nbytes)
		*nbytes = total;
	return code;
}

void
agree_give_up(struct pawl *run, const struct pawl_error *why)
{
	run->modes.agree->give_up(run, why);
}
