/* SPDX-License-Identifier: Apache-2.0 */
/* grid: rows under headings, aligned; on a terminal fitted to its width, elsewhere printed in full. */
#ifndef PAWL_CLI_GRID_H
#define PAWL_CLI_GRID_H

#include <stdbool.h>
#include <stddef.h>

#include "keep.h"
#include "term.h"

/* What happens to a text when the terminal is too narrow: nothing, it loses its end or its start, or (in the last
 * column) it runs over into the next line. */
enum flex { RIGID, CUT_END, CUT_START, RUN_OVER };

struct column {
	const char *title;
	bool right; /* numbers */
	enum flex flex;
	int drop; /* 0 = always shown; the highest goes first when the terminal is too narrow */
};

/* A piece of text in one style; more pieces may follow, with a blank between them. Text must be clean; NULL = empty. */
struct cell {
	const char *text;
	enum style style;
	const struct cell *more;
};

struct grid;
struct grid *grid_new(struct keep *keep, const struct column *columns, size_t n);
/* A new row of n empty cells, to be filled in by the caller before the next call. */
struct cell *grid_row(struct grid *grid);
/* Columns that are empty in every row are left out. */
void grid_print(struct grid *grid, const struct term *term);

#endif
