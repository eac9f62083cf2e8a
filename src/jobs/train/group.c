/* SPDX-License-Identifier: Apache-2.0 */
/*
 * group: what the driver of a group of workers decides. Pure functions of what it has been told: is a worker gone, do
 * they disagree, does nobody get on, is the group to be started again, do two workers give one file. Called by programs
 * that start workers (pawl.train); calls err, mem. Whoever asks has the clock, the processes and the messages.
 *
 * Promises: P11 (all ranks or none, the missing ones named), P16 (every wait has a deadline).
 */
#include "pawl.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

#define NAMED 8 /* ranks that one line names */

/* Text that is cut off where it does not fit. */
struct line {
	char *text;
	size_t cap, len;
};

__attribute__((format(printf, 2, 3))) static void
add(struct line *line, const char *format, ...)
{
	va_list args;

	if (line->len + 1 >= line->cap)
		return;
	va_start(args, format);
	int n = vsnprintf(line->text + line->len, line->cap - line->len, format, args);

	va_end(args);
	line->len += n > 0 ? (size_t)n : 0;
	line->len = line->len < line->cap ? line->len : line->cap - 1;
}

static struct line
line_begin(char *text, size_t cap)
{
	if (cap)
		text[0] = '\0';
	return (struct line){.text = text, .cap = cap};
}

/* ---- who is where ---- */

/* "rank 1 is at 2; rank 3 has ended after 0", of those that have not come to a report; how many there are. */
static size_t
list_late(struct line *line, const struct pawl_group_worker *workers, size_t n, uint64_t report)
{
	size_t found = 0;

	for (size_t rank = 0; rank < n; rank++) {
		const struct pawl_group_worker *worker = &workers[rank];

		if (worker->n_reports >= report)
			continue;
		if (found++ < NAMED)
			add(line, "%srank %zu %s %" PRIu64, found > 1 ? "; " : "", rank,
			    worker->has_ended ? "has ended after" : "is at", worker->n_reports);
	}
	if (found > NAMED)
		add(line, "; and %zu more", found - NAMED);
	return found;
}

size_t
pawl_group_late(const struct pawl_group_worker *workers, size_t n, uint64_t report, char *text, size_t cap)
{
	struct line line = line_begin(text, cap);

	return list_late(&line, workers, n, report);
}

/* ---- what is wrong ---- */

/* One that was alive and is not heard of any more. */
static bool
find_silent(const struct pawl_group_worker *workers, size_t n, int64_t limit, int32_t *ret_rank, struct line *line)
{
	for (size_t rank = 0; rank < n; rank++) {
		if (workers[rank].has_ended || workers[rank].silent_ms <= limit)
			continue;
		*ret_rank = (int32_t)rank;
		add(line, "rank %zu gave no sign of life for %g s", rank, (double)limit / 1e3);
		return true;
	}
	return false;
}

/* One has ended with fewer reports than another has come to: the other one will wait in vain. */
static bool
find_unequal(const struct pawl_group_worker *workers, size_t n, struct line *line)
{
	size_t least = n;

	for (size_t rank = 0; rank < n; rank++)
		if (workers[rank].has_ended && (least == n || workers[rank].n_reports < workers[least].n_reports))
			least = rank;
	for (size_t rank = 0; least < n && rank < n; rank++) {
		if (workers[rank].n_reports <= workers[least].n_reports)
			continue;
		add(line,
		    "report %" PRIu64
		    ": rank %zu has come to it, but the train function of rank %zu has ended after %" PRIu64
		    "; all workers must report equally often",
		    workers[least].n_reports + 1, rank, least, workers[least].n_reports);
		return true;
	}
	return false;
}

/* All that still run have been where they are for too long. One that gets on is enough: the others may wait for it. */
static bool
find_stuck(const struct pawl_group_worker *workers, size_t n, int64_t limit, struct line *line)
{
	size_t running = 0;
	uint64_t most = 0;

	for (size_t rank = 0; rank < n; rank++) {
		if (workers[rank].n_reports > most)
			most = workers[rank].n_reports;
		if (workers[rank].has_ended)
			continue;
		if (workers[rank].still_ms <= limit)
			return false;
		running++;
	}
	if (!running)
		return false;
	add(line, "no worker came to a report for %g s: ", (double)limit / 1e3);
	list_late(line, workers, n, most + 1);
	return true;
}

enum pawl_group_trouble
pawl_group_look(const struct pawl_group_worker *workers, size_t n, const struct pawl_group_limits *limits,
                int32_t *ret_rank, char *text, size_t cap)
{
	struct line line = line_begin(text, cap);

	*ret_rank = -1;
	if (limits->silent_ms > 0 && find_silent(workers, n, limits->silent_ms, ret_rank, &line))
		return PAWL_GROUP_SILENT;
	if (find_unequal(workers, n, &line))
		return PAWL_GROUP_UNEQUAL;
	if (limits->still_ms > 0 && find_stuck(workers, n, limits->still_ms, &line))
		return PAWL_GROUP_STUCK;
	return PAWL_GROUP_WELL;
}

int
pawl_group_again(enum pawl_group_end end, uint64_t n_failures, int64_t max_failures)
{
	return end == PAWL_GROUP_FAILED && (max_failures < 0 || n_failures <= (uint64_t)max_failures);
}

/* ---- one file from two workers ---- */

/* By name, then by rank. */
static int
compare_files(const void *a, const void *b)
{
	const struct pawl_group_file *x = *(const struct pawl_group_file *const *)a;
	const struct pawl_group_file *y = *(const struct pawl_group_file *const *)b;
	int by_name = strcmp(x->name, y->name);

	return by_name ? by_name : (x->rank > y->rank) - (x->rank < y->rank);
}

int
pawl_group_clash(const struct pawl_group_file *files, size_t n, char *text, size_t cap, struct pawl_error *err)
{
	PAWL_FREE const struct pawl_group_file **order = mem_zalloc(n, sizeof(*order));

	if (!order)
		return err_set(err, PAWL_ENOMEM, "no memory to compare %zu files of workers", n);
	struct line line = line_begin(text, cap);

	for (size_t i = 0; i < n; i++)
		order[i] = &files[i];
	if (n)
		qsort(order, n, sizeof(*order), compare_files);
	for (size_t i = 1, first = 0; i < n; i++) {
		if (strcmp(order[i]->name, order[first]->name) != 0)
			first = i;
		if (order[i]->nbytes == order[first]->nbytes && order[i]->sum == order[first]->sum)
			continue;
		add(&line, "ranks %" PRId32 " and %" PRId32 " both give the file '%s' with different contents",
		    order[first]->rank, order[i]->rank, order[i]->name);
		return 1;
	}
	return 0;
}
