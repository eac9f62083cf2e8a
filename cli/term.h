/* SPDX-License-Identifier: Apache-2.0 */
/*
 * term: an output stream and its capabilities. Colour, width and progress are used only on a
 * terminal. Names from files are stripped of all characters that could control a terminal before
 * they are printed.
 */
#ifndef PAWL_CLI_TERM_H
#define PAWL_CLI_TERM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

#include "keep.h"

enum style { STYLE_PLAIN, STYLE_BOLD, STYLE_DIM, STYLE_GOOD, STYLE_WARN, STYLE_BAD, STYLE_ACCENT };

struct term {
	FILE *file;
	bool tty; /* a terminal that can move its cursor (not TERM=dumb) */
	bool colour;
	bool utf8; /* may draw lines and ellipses; names are UTF-8 in any case */
	int width; /* columns; 0 = not a terminal: text is neither cut nor wrapped */
};

/* Determines colour and width from `when` (auto, always, never; NULL = auto), NO_COLOR,
 * CLICOLOR_FORCE, CLICOLOR, TERM, the window size, COLUMNS. utf8: from term_locale. */
void term_open(struct term *term, FILE *file, bool utf8, const char *when);
/* Prepares wide characters, once per process. Returns true if the locale is UTF-8. */
bool term_locale(void);
/* Prints text in a style. The text must be clean. */
void term_put(const struct term *term, enum style style, const char *text);
/* Prints n copies of a glyph. */
void term_repeat(const struct term *term, enum style style, const char *glyph, size_t n);

/* A copy of text (valid as long as keep) that is safe to print. Control characters, deletes, C1
 * controls, bidirectional overrides and broken UTF-8 become '?'. Returns text itself if it is
 * clean. */
const char *term_clean(struct keep *keep, const char *text);
const char *term_clean_n(struct keep *keep, const char *text, size_t len);
/* Width of clean text in columns of a terminal. */
size_t term_width(const char *text);
/* The longest start of clean text that fits into `width` columns, with an ellipsis if it was
 * cut. */
const char *term_cut(struct keep *keep, const char *text, size_t width, bool utf8);
/* The same, but keeps the end of the text; used for paths. */
const char *term_cut_start(struct keep *keep, const char *text, size_t width, bool utf8);

#endif
