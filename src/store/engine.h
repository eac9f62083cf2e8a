/* SPDX-License-Identifier: Apache-2.0 */
/*
 * engine: what the border (store.c) keeps with an open object. Engines embed these first and fill them in
 * create and open; layers pass them through untouched. Private to src/store.
 */
#ifndef PAWL_STORE_ENGINE_H
#define PAWL_STORE_ENGINE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "store/store.h"

struct store_file {
	char *key;                /* owned by the engine */
	uint64_t nbytes;          /* final size */
	uint32_t offset_align;    /* of this object's writes; may be less than in the caps */
	_Atomic uint64_t written; /* bytes written so far, padding left out */
	bool is_cut;              /* store_cut has set nbytes */
	atomic_bool failed;       /* a write has failed: only abort is left (P5) */
};

struct store_reader {
	char *key;       /* owned by the engine */
	uint64_t nbytes; /* size when it was opened */
};

#endif
