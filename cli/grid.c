/* SPDX-License-Identifier: Apache-2.0 */
/* grid: see grid.h. Linear in the number of cells. */
#include "grid.h"

#include <string.h>

#define GRID_GAP 2
#define GRID_LEAST 12 /* narrower columns are not made for a text */

struct row {
	struct row *next;
	struct cell cells[];
};

struct grid {
	struct keep *keep;
	struct column *columns;
	size_t n, *widths;
	bool *hidden;
	struct row *first, *last;
};

struct grid *
grid_new(struct keep *keep, const struct column *columns, size_t n)
{
	struct grid *grid = keep_alloc(keep, 1, sizeof(*grid));

	grid->keep = keep;
	grid->n = n;
	grid->columns = keep_alloc(keep, n, sizeof(*columns));
	memcpy(grid->columns, columns, n * sizeof(*columns));
	grid->widths = keep_alloc(keep, n, sizeof(*grid->widths));
	grid->hidden = keep_alloc(keep, n, sizeof(*grid->hidden));
	return grid;
}

struct cell *
grid_row(struct grid *grid)
{
	struct row *row = keep_alloc(grid->keep, 1, sizeof(*row) + grid->n * sizeof(row->cells[0]));

	if (grid->last != NULL)
		grid->last->next = row;
	else
		grid->first = row;
	grid->last = row;
	return row->cells;
}

static size_t
cell_width(const struct cell *cell)
{
	size_t width = 0;

	for (; cell != NULL; cell = cell->more)
		if (cell->text != NULL)
			width += (width > 0) + term_width(cell->text);
	return width;
}

static void
measure_columns(struct grid *grid)
{
	for (size_t c = 0; c < grid->n; c++)
		grid->hidden[c] = true;
	for (const struct row *row = grid->first; row != NULL; row = row->next) {
		for (size_t c = 0; c < grid->n; c++) {
			size_t width = cell_width(&row->cells[c]);

			if (width > 0)
				grid->hidden[c] = false;
			if (width > grid->widths[c])
				grid->widths[c] = width;
		}
	}
	for (size_t c = 0; c < grid->n; c++) {
		size_t width = term_width(grid->columns[c].title);

		if (width > grid->widths[c])
			grid->widths[c] = width;
	}
}

static size_t
total_width(const struct grid *grid)
{
	size_t total = 0;

	for (size_t c = 0; c < grid->n; c++) {
		size_t width = grid->widths[c];

		if (grid->hidden[c])
			continue;
		if (grid->columns[c].flex == RUN_OVER && width > GRID_LEAST)
			width = GRID_LEAST;
		total += (total > 0 ? GRID_GAP : 0) + width;
	}
	return total;
}

/* Drops columns, then narrows the flexible ones, until the table fits. */
static void
fit_columns(struct grid *grid, size_t width)
{
	while (total_width(grid) > width) {
		size_t pick = grid->n;

		for (size_t c = 0; c < grid->n; c++)
			if (!grid->hidden[c] && grid->columns[c].drop > 0 &&
			    (pick == grid->n || grid->columns[c].drop >= grid->columns[pick].drop))
				pick = c;
		if (pick == grid->n)
			break;
		grid->hidden[pick] = true;
	}
	for (size_t c = 0; c < grid->n; c++) {
		size_t total = total_width(grid), least = term_width(grid->columns[c].title), over;

		if (total <= width || grid->hidden[c] || grid->columns[c].flex == RIGID ||
		    grid->columns[c].flex == RUN_OVER)
			continue;
		least = least < GRID_LEAST ? GRID_LEAST : least;
		over = total - width;
		if (grid->widths[c] > least)
			grid->widths[c] -= over < grid->widths[c] - least ? over : grid->widths[c] - least;
	}
}

static void
put_cell(const struct grid *grid, size_t c, const struct cell *cell, const struct term *term, bool last)
{
	size_t room = grid->widths[c], width = cell_width(cell), pad, used = 0;
	enum flex flex = term->width > 0 && width > room ? grid->columns[c].flex : RIGID;

	pad = width < room ? room - width : 0;
	if (grid->columns[c].right)
		term_repeat(term, STYLE_PLAIN, " ", pad);
	for (; cell != NULL && used <= room; cell = cell->more) {
		const char *text = cell->text;

		if (text == NULL)
			continue;
		if (used > 0 && used++ < room)
			(void)fputc(' ', term->file);
		if (flex == CUT_END || (flex == CUT_START && cell->more != NULL))
			text = term_cut(grid->keep, text, used < room ? room - used : 0, term->utf8);
		else if (flex == CUT_START)
			text = term_cut_start(grid->keep, text, used < room ? room - used : 0, term->utf8);
		term_put(term, cell->style, text);
		used += term_width(text);
	}
	if (!grid->columns[c].right && !last)
		term_repeat(term, STYLE_PLAIN, " ", pad);
}

static void
put_row(const struct grid *grid, const struct cell *cells, const struct term *term)
{
	size_t last = 0;
	bool first = true;

	/* no blanks at the end of a line */
	for (size_t c = 0; c < grid->n; c++)
		if (!grid->hidden[c] && cell_width(&cells[c]) > 0)
			last = c;
	for (size_t c = 0; c <= last; c++) {
		if (grid->hidden[c])
			continue;
		if (!first)
			term_repeat(term, STYLE_PLAIN, " ", GRID_GAP);
		first = false;
		put_cell(grid, c, &cells[c], term, c == last);
	}
	(void)fputc('\n', term->file);
}

void
grid_print(struct grid *grid, const struct term *term)
{
	struct cell *titles = keep_alloc(grid->keep, grid->n, sizeof(*titles));

	measure_columns(grid);
	if (term->width > 0)
		fit_columns(grid, (size_t)term->width);
	for (size_t c = 0; c < grid->n; c++)
		titles[c] = (struct cell){grid->columns[c].title, STYLE_DIM, NULL};
	put_row(grid, titles, term);
	for (const struct row *row = grid->first; row != NULL; row = row->next)
		put_row(grid, row->cells, term);
}
