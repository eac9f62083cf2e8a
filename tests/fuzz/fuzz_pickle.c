/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a pickle: refused with a message, or a tree all of whose nodes can be read. Also the
 * same bytes as the metadata of a distributed checkpoint. The names that may be used are those of
 * torch. Promises P16, P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/bump.h"
#include "format/torch/dcp.h"
#include "format/torch/pickle.h"
#include "format/torch/pt_names.h"
#include "fuzz.h"

/* Touches all of a node but what it refers to. */
static size_t
look(const struct pickle_node *n)
{
	size_t sum = 0;

	switch (n->type) {
	case PICKLE_STR:
	case PICKLE_BYTES:
	case PICKLE_INT:
		for (size_t i = 0; n->text && i < n->len; i++)
			sum += (unsigned char)n->text[i];
		break;
	case PICKLE_LIST:
	case PICKLE_TUPLE:
	case PICKLE_DICT:
	case PICKLE_ODICT:
		check(n->type < PICKLE_DICT || n->len % 2 == 0);
		for (size_t i = 0; i < n->len; i++)
			sum += n->items[i]->type;
		break;
	case PICKLE_CALL:
		check(n->args->type == PICKLE_TUPLE && n->global->uses != 0);
		break;
	case PICKLE_PERSID:
		sum += n->args->type;
		break;
	default:
		check(n->type != PICKLE_GLOBAL || n->global->name);
	}
	return sum;
}

/* Down to some depth, so that circles end. */
static size_t
walk(const struct pickle_node *n, unsigned depth)
{
	size_t sum = look(n);

	if (depth == 0)
		return sum;
	if (n->type >= PICKLE_LIST && n->type <= PICKLE_ODICT) {
		for (size_t i = 0; i < n->len && i < 8; i++)
			sum += walk(n->items[i], depth - 1);
	} else if (n->type == PICKLE_CALL) {
		sum += walk(n->args, depth - 1);
		sum += n->call_state ? walk(n->call_state, depth - 1) : 0;
	}
	return sum;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct bump memory = {.limit_bytes = (size_t)1 << 30};
	struct pickle_node *root = NULL;
	struct pawl_error err = {0};
	struct dcp dcp;

	int rc = pickle_decode("f", data, size, pt_globals, pt_n_globals, &memory, &root, &err);
	if (rc == 0) {
		check(root != NULL);
		(void)walk(root, 5);
	} else {
		check(rc == err.code && err.message[0] &&
		      (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED));
	}
	bump_clear(&memory);
	rc = dcp_decode("f", data, size, &memory, &dcp, &err);
	for (size_t i = 0; rc == 0 && i < dcp.n; i++) {
		const struct dcp_item *item = &dcp.items[i];
		check(item->is_tensor || item->range.file < dcp.n_files);
		for (size_t k = 0; k < item->n_chunks; k++)
			check(item->chunks[k].range.file < dcp.n_files);
	}
	check(rc == 0 || rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EUNSUPPORTED);
	bump_clear(&memory);
	return 0;
}
