/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pgm: the decoder of docs/how-to/extending.md: a grey image as Netpbm writes it.
 *
 *   "P5\n" width " " height "\n255\n" | height * width bytes
 */
#ifndef PAWL_TESTS_PGM_H
#define PAWL_TESTS_PGM_H

#include "format/source.h"

struct pgm {
	uint64_t shape[2]; /* height, width */
	uint64_t begin;    /* of the data */
};

bool pgm_looks(const unsigned char *first, size_t n);
/* PAWL_ECORRUPT: its parts do not fill the source exactly. */
int pgm_open(const struct source *source, struct pgm *ret, struct pawl_error *err);

#endif
