/* SPDX-License-Identifier: Apache-2.0 */
/*
 * missing_ranks: see missing_ranks.h. Promises P11 (missing ranks are named), P16. A rank that has
 * never opened the run is reported apart from one that hangs: usually only one process was meant to
 * save.
 */
#include "ranks/missing_ranks.h"

#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "ranks/rendezvous_text.h"

#define NAMED_RANKS 8

static uint32_t
count_named(const bool *is_named, uint32_t world)
{
	uint32_t n = 0;

	for (uint32_t r = 0; r < world; r++)
		n += is_named[r];
	return n;
}

/* "ranks 1, 2, 5 and 7 more of 16" */
static void
put_ranks(struct buf *out, const bool *is_named, uint32_t world)
{
	uint32_t n = 0, total = count_named(is_named, world);

	buf_puts(out, total == 1 ? "rank " : "ranks ");
	for (uint32_t r = 0; r < world && n < NAMED_RANKS; r++)
		if (is_named[r])
			buf_printf(out, "%s%u", n++ ? ", " : "", r);
	if (total > n)
		buf_printf(out, " and %u more", total - n);
	buf_printf(out, " of %u", world);
}

static void
put_unopened(struct buf *out, const struct gather_round *round, const bool *unseen, int64_t waited_ms)
{
	const uint32_t world = rendezvous_world(round->m);
	const char *verb = round->kind == GATHER_SAVE ? "save" : "restore";

	put_ranks(out, unseen, world);
	buf_printf(out,
	           " %s not opened this run within %.1f s; every rank must open it and %s. If only this process "
	           "%ss, it must be opened with a world size of 1",
	           count_named(unseen, world) == 1 ? "has" : "have", (double)waited_ms / 1000, verb, verb);
}

/* The ranks of `missing`, those that have not opened the run (`unseen`) apart. At least one is
 * missing. */
static void
put_missing(struct buf *out, const struct gather_round *round, bool *missing, const bool *unseen, int64_t waited_ms)
{
	const uint32_t world = rendezvous_world(round->m);
	bool any = false;

	for (uint32_t r = 0; r < world; r++) {
		any = any || (missing[r] && unseen[r]);
		missing[r] = missing[r] && !unseen[r];
	}
	if (any)
		put_unopened(out, round, unseen, waited_ms);
	if (count_named(missing, world) == 0)
		return;
	buf_puts(out, any ? "; " : "");
	put_ranks(out, missing, world);
	if (round->kind == GATHER_SAVE)
		buf_printf(out, " gave no part within %.1f s", (double)waited_ms / 1000);
	else
		buf_printf(out,
		           " did not join the restore within %.1f s, or %s in it; every rank must call restore, as "
		           "often as the others",
		           (double)waited_ms / 1000, count_named(missing, world) == 1 ? "hangs" : "hang");
}

static int
report_missing(struct buf *text, struct pawl_error *err)
{
	TRY(buf_check(text, "the ranks that are missing", err));
	return err_set(err, PAWL_ETIMEOUT, "%s", buf_str(text));
}

int
missing_ranks_in_parts(const struct gather_round *round, const bool *seen, int64_t waited_ms, struct pawl_error *err)
{
	const uint32_t world = rendezvous_world(round->m);
	PAWL_FREE bool *missing = mem_zalloc(world, sizeof(*missing));
	PAWL_FREE bool *unseen = mem_zalloc(world, sizeof(*unseen));
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	if (!missing || !unseen)
		return err_nomem(err, "save");
	for (uint32_t r = 1; r < world; r++)
		missing[r] = !seen[r];
	rendezvous_find_unopened(round->m, unseen);
	put_missing(&text, round, missing, unseen, waited_ms);
	return report_missing(&text, err);
}

int
missing_ranks_in_opening(const struct gather_round *round, const bool *unseen, int64_t waited_ms,
                         struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	put_unopened(&text, round, unseen, waited_ms);
	return report_missing(&text, err);
}

struct sight {
	bool *missing;
	uint32_t world;
};

static int
visit_file(void *arg, const struct store_entry *entry)
{
	struct sight *s = arg;
	char nonce[33];
	uint32_t rank;

	if ((rendezvous_parse_name(entry->name, "part", &rank, nonce) ||
	     rendezvous_parse_name(entry->name, "fault", &rank, nonce)) &&
	    rank < s->world)
		s->missing[rank] = false;
	return 0;
}

/* Rank 0 may be waiting for another rank, or hang. */
int
missing_ranks_in_verdict(const struct gather_round *round, int64_t waited_ms, struct pawl_error *err)
{
	const uint32_t world = rendezvous_world(round->m);
	PAWL_FREE bool *missing = mem_zalloc(world, sizeof(*missing));
	PAWL_FREE bool *unseen = mem_zalloc(world, sizeof(*unseen));
	PAWL_CLEAN(buf_clear) struct buf text = {0}, folder = {0};
	struct sight sight = {.missing = missing, .world = world};
	bool is_known = false;

	if (missing && unseen && round->kind != GATHER_CHOICE) {
		for (uint32_t r = 1; r < world; r++)
			missing[r] = r != rendezvous_rank(round->m);
		buf_printf(&folder, RENDEZVOUS_FOLDER "/%s", round->token);
		is_known = !folder.failed && store_list(round->store, buf_str(&folder), visit_file, &sight, NULL) == 0;
	}
	if (is_known && count_named(missing, world) > 0) {
		rendezvous_find_unopened(round->m, unseen);
		put_missing(&text, round, missing, unseen, waited_ms);
		buf_puts(&text, "; and rank 0 gave no verdict");
	} else if (round->kind == GATHER_SAVE) {
		buf_printf(&text, "rank 0 gave no verdict within %.1f s", (double)waited_ms / 1000);
	} else {
		buf_printf(
			&text,
			"rank 0 did not join the restore within %.1f s, or hangs in it; every rank must call restore, as "
			"often as the others",
			(double)waited_ms / 1000);
	}
	report_missing(&text, err);
	return PAWL_ETIMEOUT;
}

void
missing_ranks_note(const struct gather_round *round, const bool *seen, const bool *unseen)
{
	const uint32_t world = rendezvous_world(round->m);
	PAWL_FREE bool *missing = mem_zalloc(world, sizeof(*missing));
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	const bool any = count_named(unseen, world) > 0;

	if (!round->ticket || !missing)
		return;
	for (uint32_t r = 1; r < world; r++)
		missing[r] = any ? unseen[r] : !seen[r];
	put_ranks(&text, missing, world);
	if (any)
		buf_printf(&text, ", which %s not opened this run", count_named(missing, world) == 1 ? "has" : "have");
	if (!text.failed)
		ticket_note(round->ticket, buf_str(&text));
}
