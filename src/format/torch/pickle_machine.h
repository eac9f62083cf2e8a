/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_machine: what pickle.c and pickle_text.c share. Only for them. */
#ifndef PAWL_FORMAT_PICKLE_MACHINE_H
#define PAWL_FORMAT_PICKLE_MACHINE_H

#include "format/torch/pickle.h"

struct pickle_slot {
	uint64_t index;
	struct pickle_node *node; /* NULL = free */
};

struct pickle_machine {
	const char *what;
	const unsigned char *bytes;
	size_t len, at, op_at; /* op_at: of the operation at hand */
	size_t frame_end;      /* 0 = in no frame */
	const struct pickle_global *globals;
	size_t n_globals;
	struct bump *memory;
	size_t spent, longs_bytes;
	struct pickle_node **stack;
	size_t n_stack, cap_stack;
	size_t *marks; /* depths of the stack */
	size_t n_marks, cap_marks;
	struct pickle_slot *memo; /* open addressing; cap a power of two */
	size_t n_memo, cap_memo;
	struct pickle_node *none, *yes, *no;
	const struct pickle_node *last_text; /* for messages: most often the key of what follows */
	struct pawl_error *err;
};

/* PAWL_ECORRUPT, PAWL_ELIMIT at the operation at hand; PAWL_ENOMEM. */
int pickle_wrong(struct pickle_machine *m, const char *why);
int pickle_too_much(struct pickle_machine *m, const char *why);
int pickle_out_of_memory(struct pickle_machine *m);
/* Memory of the tree, zeroed, counted against the limit. */
int pickle_take_memory(struct pickle_machine *m, size_t nbytes, void **ret);
int pickle_new(struct pickle_machine *m, int type, struct pickle_node **ret);
int pickle_push(struct pickle_machine *m, struct pickle_node *node);
int pickle_pop(struct pickle_machine *m, struct pickle_node **ret);
int pickle_push_mark(struct pickle_machine *m);
/* The number of values above the last mark. */
size_t pickle_above_mark(const struct pickle_machine *m);
/* Removes the last mark and the values above it; they stay readable until the next push. */
int pickle_pop_mark(struct pickle_machine *m, struct pickle_node ***ret, size_t *ret_n);
int pickle_push_int(struct pickle_machine *m, int64_t value);
int pickle_push_float(struct pickle_machine *m, double value);
int pickle_push_bool(struct pickle_machine *m, bool value);
/* text must stay as long as the tree. */
int pickle_push_text(struct pickle_machine *m, int type, const char *text, size_t len);
int pickle_push_global(struct pickle_machine *m, const char *module, size_t module_len, const char *name,
                       size_t name_len);
/* Counts a whole number beyond 64 bits against the limits. */
int pickle_spend_long(struct pickle_machine *m, uint64_t n);
int pickle_put(struct pickle_machine *m, uint64_t index);
int pickle_get_memo(struct pickle_machine *m, uint64_t index);
/* The next n bytes of the stream; as a little-endian number. */
int pickle_take(struct pickle_machine *m, uint64_t n, const unsigned char **ret);
int pickle_take_number(struct pickle_machine *m, unsigned n, uint64_t *ret);
/* A text or bytes after their length, a number of n_len bytes; or an integer in that form. */
int pickle_push_counted(struct pickle_machine *m, int type, unsigned n_len);
int pickle_push_long(struct pickle_machine *m, unsigned n_len);

/* The operations whose argument is a line of text. 1 = done, 0 = not one of these. */
int pickle_line_op(struct pickle_machine *m, unsigned char op);

#endif
