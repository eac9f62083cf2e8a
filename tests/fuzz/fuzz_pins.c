/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the file of a mark, a hold and a lease, read through a store in memory. None of them
 * may make a run unreadable: a bad mark is a pin, a bad hold has no owner, a bad lease is taken
 * over. The contents of a mark come back the same. The first byte chooses which. Promises P6, P10,
 * P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "catalog/holds.h"
#include "run/lease.h"
#include "catalog/pins.h"
#include "fuzz.h"

static const char *const names[] = {"checkpoint_000007"};

static bool
same_mark(const struct pin_mark *a, const struct pin_mark *b)
{
	if (a->pinned != b->pinned || a->n_metrics != b->n_metrics)
		return false;
	for (size_t i = 0; i < a->n_metrics; i++) {
		const struct pawl_metric *m = &a->metrics[i], *n = &b->metrics[i];

		if (strcmp(m->name, n->name) != 0 || m->not_a_number != n->not_a_number ||
		    memcmp(&m->value, &n->value, sizeof(m->value)) != 0)
			return false;
	}
	return true;
}

/* Saved metrics with the late ones over them: the late ones can be found again. */
static void
check_late(const struct pin_mark *mark)
{
	const struct pawl_metric saved[] = {{.name = "loss", .value = 1}, {.name = "acc", .not_a_number = 1}};
	size_t n = 0;
	struct pawl_metric *all = pins_overlay(saved, 2, mark->metrics, mark->n_metrics, &n);

	check(all && n >= mark->n_metrics && n >= 2 && n <= mark->n_metrics + 2);
	struct pawl_metric *late = calloc(n, sizeof(*late));
	check(late && pins_late(saved, 2, all, n, late) <= mark->n_metrics);
	free(late);
	mem_free(all);
}

static void
try_mark(struct store *s, const uint8_t *data, size_t size)
{
	struct bump memory = {0};
	struct pin_mark *first, *second;
	size_t n = 0, again = 0;

	check(store_put_bytes(s, PINS_FOLDER "/checkpoint_000007.json", data, size, 0, NULL) == 0);
	check(pins_read(s, names, 1, &memory, &first, &n, NULL) == 0 && n == 1);
	check(strcmp(first->name, names[0]) == 0);
	for (size_t i = 0; i < first->n_metrics; i++)
		check(first->metrics[i].name && text_is_utf8(first->metrics[i].name, strlen(first->metrics[i].name)));
	check_late(first);
	check(pins_write(s, first, NULL) == 0);
	check(pins_read(s, names, 1, &memory, &second, &again, NULL) == 0);
	check(again == 1 ? same_mark(first, second) : !first->pinned && first->n_metrics == 0);
	bump_clear(&memory);
}

static void
try_hold(struct store *s, const uint8_t *data, size_t size)
{
	struct bump memory = {0};
	struct hold *holds;
	size_t n = 0;

	check(store_put_bytes(s, HOLDS_FOLDER "/00112233445566778899aabbccddeeff.json", data, size, 0, NULL) == 0);
	check(holds_read(s, &memory, &holds, &n, NULL) == 0 && n == 1 && holds->nbytes == size);
	check(holds->name[0] || !holds->alive || size > 0);
	check(text_is_utf8(holds->name, strlen(holds->name)));
	bump_clear(&memory);
}

/* A clock that advances by a second with each look: no wait is long. */
static int64_t
count_seconds(void *arg)
{
	return *(int64_t *)arg += 1000;
}

static void
sleep_not(void *arg, int64_t ms)
{
	(void)arg;
	check(ms > 0);
}

/* One that was taken is given back, with its file. */
static void
try_lease(struct store *s, const uint8_t *data, size_t size)
{
	struct lease *lease = NULL;
	struct pawl_error err = {0};
	struct store_entry entry;

	check(store_put_bytes(s, LEASE_KEY, data, size, 0, NULL) == 0);
	int64_t now_ms = 0;
	const struct lease_opts opts = {
		.timeout_ms = 1000, .now_ms = count_seconds, .sleep_ms = sleep_not, .clock_arg = &now_ms};
	int rc = lease_take(s, &opts, &lease, &err);
	if (rc < 0) {
		check(rc == PAWL_EBUSY && err.code == rc && strstr(err.message, "on host '") && !lease);
		return;
	}
	check(lease_check(lease, NULL) == 0);
	lease_drop(lease);
	check(store_stat(s, LEASE_KEY, &entry, NULL) == PAWL_ENOTFOUND);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const tries[])(struct store *, const uint8_t *, size_t) = {try_mark, try_hold, try_lease};
	struct store *s = NULL;

	if (size == 0)
		return 0;
	check(store_open("mem:", true, false, &s, NULL) == 0);
	tries[data[0] % 3](s, data + 1, size - 1);
	store_close(s);
	return 0;
}
