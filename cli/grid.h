/* SPDX-License-Identifier: Apache-2.0 */
/* grid: rows under headings, aligned. On a terminal the table is fitted to its width; elsewhere it
 * is printed in full. */
#ifndef PAWL_CLI_GRID_H
#define PAWL_CLI_GRID_H

#include <stdbool.h>
#include <stddef.h>

#include "keep.h"
#include "term.h"

/* What happens to a text if the terminal is too narrow. Nothing; its end or its start is cut; or it
 * continues on the next line, which only the last column can. */
enum flex { RIGID, CUT_END, CUT_START, RUN_OVER };

struct column {
	const char *title;
	bool right; /* numbers */
	enum flex flex;
	int drop; /* 0 = always shown; if the terminal is too narrow, the highest is dropped first */
};

/* A piece of text in one style. More pieces may follow, separated by a blank. Text must be clean;
 * NULL = empty. */
struct cell {
	const char *text;
	enum style style;
	const struct cell *more;
};

struct grid;
struct grid *grid_new(struct keep *keep, const struct column *columns, size_t n);
/* A new row of n empty cells; the caller fills it before the next call. */
struct cell *grid_row(struct grid *grid);
/* Prints the table without columns that are empty in every row. */
void grid_print(struct grid *grid, const struct term *term);

#endif
