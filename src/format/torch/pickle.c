/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle: see pickle.h. One loop over the operations with a stack, marks and a memo, like Python's
 * own machine. Only values make nodes. The operations of protocol 0, which are lines of text, are
 * in pickle_text.c. Promises P16 (limits), P17 (nothing is run, and nothing outside the stream is
 * read).
 */
#include "format/torch/pickle.h"

#include <string.h>

#include "base/err.h"
#include "format/torch/pickle_machine.h"

/* -------------------------------------------------------------- containers */

#define FIRST_STACK 256u

static int
append_items(struct pickle_machine *m, struct pickle_node *list, struct pickle_node *const *items, size_t n)
{
	if (n > list->cap - list->len) {
		size_t cap = list->len + n > 2 * list->cap ? list->len + n : 2 * list->cap;
		void *bigger;

		TRY(pickle_take_memory(m, cap * sizeof(*items), &bigger));
		if (list->len > 0)
			memcpy(bigger, list->items, list->len * sizeof(*items));
		list->items = bigger;
		list->cap = cap;
	}
	if (n > 0)
		memcpy(list->items + list->len, items, n * sizeof(*items));
	list->len += n;
	return 0;
}

static int
push_container(struct pickle_machine *m, int type, struct pickle_node *const *items, size_t n)
{
	struct pickle_node *node;

	if (type == PICKLE_DICT && n % 2 != 0)
		return pickle_wrong(m, "a dict with a key that has no value");
	TRY(pickle_new(m, type, &node));
	TRY(append_items(m, node, items, n));
	return pickle_push(m, node);
}

static int
push_marked(struct pickle_machine *m, int type)
{
	struct pickle_node **items;
	size_t n;

	TRY(pickle_pop_mark(m, &items, &n));
	return push_container(m, type, items, n);
}

static int
push_tuple(struct pickle_machine *m, size_t n)
{
	if (pickle_above_mark(m) < n)
		return pickle_wrong(m, "takes a value, but the stack is empty");
	m->n_stack -= n;
	return push_container(m, PICKLE_TUPLE, m->stack + m->n_stack, n);
}

/* Puts items into the list or dict below them. */
static int
extend_below(struct pickle_machine *m, bool pairs, struct pickle_node *const *items, size_t n)
{
	if (pickle_above_mark(m) == 0)
		return pickle_wrong(m, "takes a value, but the stack is empty");
	struct pickle_node *into = m->stack[m->n_stack - 1];
	if (pairs ? into->type != PICKLE_DICT && into->type != PICKLE_ODICT : into->type != PICKLE_LIST)
		return err_set(m->err, PAWL_EUNSUPPORTED, "%s: byte %zu: puts items into a value that is not a %s",
		               m->what, m->op_at, pairs ? "dict" : "list");
	if (pairs && n % 2 != 0)
		return pickle_wrong(m, "a dict with a key that has no value");
	return append_items(m, into, items, n);
}

static int
extend_marked(struct pickle_machine *m, bool pairs)
{
	struct pickle_node **items;
	size_t n;

	TRY(pickle_pop_mark(m, &items, &n));
	return extend_below(m, pairs, items, n);
}

static int
extend_by(struct pickle_machine *m, bool pairs)
{
	size_t n = pairs ? 2 : 1;

	if (pickle_above_mark(m) < n)
		return pickle_wrong(m, "takes a value, but the stack is empty");
	m->n_stack -= n;
	return extend_below(m, pairs, m->stack + m->n_stack, n);
}

/* ----------------------------------------------------------------- objects */

static int
compare_text(const char *a, const char *b, size_t b_len)
{
	int c = strncmp(a, b, b_len);

	return c ? c : a[b_len] != '\0';
}

/* Only printable characters, and a limited number. */
static const char *
printable_text(char *out, size_t cap, const char *text, size_t len)
{
	size_t n = 0;

	for (; n < len && n + 1 < cap; n++)
		out[n] = text[n] > ' ' && text[n] < 0x7f ? text[n] : '?';
	out[n] = '\0';
	return out;
}

static int
refuse_global(struct pickle_machine *m, const char *module, size_t module_len, const char *name, size_t name_len)
{
	char a[100], b[100], near[60];
	const struct pickle_node *last = m->last_text;

	if (last)
		printable_text(near, sizeof(near), last->text, last->len);
	return err_set(m->err, PAWL_EUNSUPPORTED,
	               "%s: byte %zu: holds %s.%s%s%s%s; expected plain values and tensors only (nothing was run)",
	               m->what, m->op_at, printable_text(a, sizeof(a), module, module_len),
	               printable_text(b, sizeof(b), name, name_len), last ? " (after '" : "", last ? near : "",
	               last ? "')" : "");
}

int
pickle_push_global(struct pickle_machine *m, const char *module, size_t module_len, const char *name, size_t name_len)
{
	size_t lo = 0, hi = m->n_globals;
	struct pickle_node *node;

	if (memchr(module, 0, module_len) || memchr(name, 0, name_len))
		return refuse_global(m, module, module_len, name, name_len);
	while (lo < hi) {
		size_t mid = lo + (hi - lo) / 2;
		const struct pickle_global *g = &m->globals[mid];
		int c = compare_text(g->module, module, module_len);

		c = c ? c : compare_text(g->name, name, name_len);
		if (c == 0) {
			TRY(pickle_new(m, PICKLE_GLOBAL, &node));
			node->global = g;
			return pickle_push(m, node);
		}
		if (c < 0)
			lo = mid + 1;
		else
			hi = mid;
	}
	return refuse_global(m, module, module_len, name, name_len);
}

static int
stack_global(struct pickle_machine *m)
{
	struct pickle_node *name, *module;

	TRY(pickle_pop(m, &name));
	TRY(pickle_pop(m, &module));
	if (name->type != PICKLE_STR || module->type != PICKLE_STR)
		return pickle_wrong(m, "a name that is not text");
	if (m->last_text == name) /* not the key that a person would look for */
		m->last_text = NULL;
	return pickle_push_global(m, module->text, module->len, name->text, name->len);
}

/* REDUCE and NEWOBJ. */
static int
call_object(struct pickle_machine *m, unsigned use)
{
	struct pickle_node *args, *callee, *node;

	TRY(pickle_pop(m, &args));
	TRY(pickle_pop(m, &callee));
	if (callee->type != PICKLE_GLOBAL || args->type != PICKLE_TUPLE)
		return pickle_wrong(m, "a call of a value that is not a name, or without a tuple");
	const struct pickle_global *g = callee->global;
	if (!(g->uses & use))
		return err_set(m->err, PAWL_EUNSUPPORTED, "%s: byte %zu: calls %s.%s; expected it as a value only",
		               m->what, m->op_at, g->module, g->name);
	if ((g->uses & PICKLE_ORDERED) && args->len == 0)
		return push_container(m, PICKLE_ODICT, NULL, 0);
	TRY(pickle_new(m, PICKLE_CALL, &node));
	node->global = g;
	node->args = args;
	return pickle_push(m, node);
}

static int
build_object(struct pickle_machine *m)
{
	struct pickle_node *state, *object;

	TRY(pickle_pop(m, &state));
	if (pickle_above_mark(m) == 0)
		return pickle_wrong(m, "takes a value, but the stack is empty");
	object = m->stack[m->n_stack - 1];
	if (object->type != PICKLE_ODICT && (object->type != PICKLE_CALL || !(object->global->uses & PICKLE_STATE)))
		return err_set(m->err, PAWL_EUNSUPPORTED, "%s: byte %zu: gives a state to a value that takes none",
		               m->what, m->op_at);
	if (object->built)
		return pickle_wrong(m, "gives a second state to an object");
	object->built = true;
	if (object->type == PICKLE_CALL)
		object->call_state = state;
	return 0;
}

static int
push_persid(struct pickle_machine *m)
{
	struct pickle_node *id, *node;

	TRY(pickle_pop(m, &id));
	TRY(pickle_new(m, PICKLE_PERSID, &node));
	node->args = id;
	return pickle_push(m, node);
}

/* -------------------------------------------------------------- operations */

/* Each group: 1 = done, 0 = not one of these, negative = failed. */
#define DONE(expr)                                  \
	do {                                        \
		int done_rc_ = (expr);              \
		return done_rc_ < 0 ? done_rc_ : 1; \
	} while (0)

static int
scalar_op(struct pickle_machine *m, unsigned char op)
{
	const unsigned char *p;
	uint64_t value;
	double real;

	switch (op) {
	case 'N': /* NONE */
		if (!m->none)
			TRY(pickle_new(m, PICKLE_NONE, &m->none));
		DONE(pickle_push(m, m->none));
	case 0x88: /* NEWTRUE */
	case 0x89: /* NEWFALSE */
		DONE(pickle_push_bool(m, op == 0x88));
	case 'J': /* BININT */
		TRY(pickle_take_number(m, 4, &value));
		DONE(pickle_push_int(m, (int32_t)(uint32_t)value));
	case 'K': /* BININT1 */
	case 'M': /* BININT2 */
		TRY(pickle_take_number(m, op == 'K' ? 1 : 2, &value));
		DONE(pickle_push_int(m, (int64_t)value));
	case 0x8a: /* LONG1 */
	case 0x8b: /* LONG4 */
		DONE(pickle_push_long(m, op == 0x8a ? 1 : 4));
	case 'G': /* BINFLOAT */
		TRY(pickle_take(m, 8, &p));
		value = 0;
		for (unsigned i = 0; i < 8; i++)
			value = value << 8 | p[i];
		memcpy(&real, &value, sizeof(real));
		DONE(pickle_push_float(m, real));
	default:
		return 0;
	}
}

static int
text_op(struct pickle_machine *m, unsigned char op)
{
	switch (op) {
	case 0x8c: /* SHORT_BINUNICODE */
	case 'U':  /* SHORT_BINSTRING: a str of Python 2 */
		DONE(pickle_push_counted(m, PICKLE_STR, 1));
	case 'X': /* BINUNICODE */
	case 'T': /* BINSTRING */
		DONE(pickle_push_counted(m, PICKLE_STR, 4));
	case 0x8d: /* BINUNICODE8 */
		DONE(pickle_push_counted(m, PICKLE_STR, 8));
	case 'C': /* SHORT_BINBYTES */
		DONE(pickle_push_counted(m, PICKLE_BYTES, 1));
	case 'B': /* BINBYTES */
		DONE(pickle_push_counted(m, PICKLE_BYTES, 4));
	case 0x8e: /* BINBYTES8 */
		DONE(pickle_push_counted(m, PICKLE_BYTES, 8));
	default:
		return pickle_line_op(m, op);
	}
}

static int
container_op(struct pickle_machine *m, unsigned char op)
{
	struct pickle_node **items, *top;
	size_t n;

	switch (op) {
	case '(': /* MARK */
		DONE(pickle_push_mark(m));
	case ']': /* EMPTY_LIST */
		DONE(push_container(m, PICKLE_LIST, NULL, 0));
	case '}': /* EMPTY_DICT */
		DONE(push_container(m, PICKLE_DICT, NULL, 0));
	case ')':  /* EMPTY_TUPLE */
	case 0x85: /* TUPLE1, 2, 3 */
	case 0x86:
	case 0x87:
		DONE(push_tuple(m, op == ')' ? 0 : (size_t)(op - 0x84)));
	case 't': /* TUPLE */
		DONE(push_marked(m, PICKLE_TUPLE));
	case 'l': /* LIST */
		DONE(push_marked(m, PICKLE_LIST));
	case 'd': /* DICT */
		DONE(push_marked(m, PICKLE_DICT));
	case 'a': /* APPEND */
	case 's': /* SETITEM */
		DONE(extend_by(m, op == 's'));
	case 'e': /* APPENDS */
	case 'u': /* SETITEMS */
		DONE(extend_marked(m, op == 'u'));
	case '0': /* POP */
		DONE(pickle_pop(m, &top));
	case '1': /* POP_MARK */
		DONE(pickle_pop_mark(m, &items, &n));
	case '2': /* DUP */
		TRY(pickle_pop(m, &top));
		TRY(pickle_push(m, top));
		DONE(pickle_push(m, top));
	default:
		return 0;
	}
}

static int
object_op(struct pickle_machine *m, unsigned char op)
{
	uint64_t index;

	switch (op) {
	case 'q': /* BINPUT */
	case 'r': /* LONG_BINPUT */
		TRY(pickle_take_number(m, op == 'q' ? 1 : 4, &index));
		DONE(pickle_put(m, index));
	case 0x94: /* MEMOIZE */
		DONE(pickle_put(m, m->n_memo));
	case 'h': /* BINGET */
	case 'j': /* LONG_BINGET */
		TRY(pickle_take_number(m, op == 'h' ? 1 : 4, &index));
		DONE(pickle_get_memo(m, index));
	case 0x93: /* STACK_GLOBAL */
		DONE(stack_global(m));
	case 'R': /* REDUCE */
		DONE(call_object(m, PICKLE_CALLED));
	case 0x81: /* NEWOBJ */
		DONE(call_object(m, PICKLE_NEW));
	case 'b': /* BUILD */
		DONE(build_object(m));
	case 'Q': /* BINPERSID */
		DONE(push_persid(m));
	default:
		return 0;
	}
}

static int
frame_op(struct pickle_machine *m, unsigned char op)
{
	const unsigned char *p;
	uint64_t n;

	if (op == 0x80) { /* PROTO */
		TRY(pickle_take(m, 1, &p));
		if (m->op_at != 0)
			return pickle_wrong(m, "names its protocol in the middle");
		if (*p > 5)
			return err_set(m->err, PAWL_EUNSUPPORTED, "%s: protocol %u of pickle, at most 5 is known",
			               m->what, *p);
		return 1;
	}
	if (op != 0x95) /* FRAME */
		return 0;
	if (m->frame_end)
		return pickle_wrong(m, "a frame inside another one");
	TRY(pickle_take_number(m, 8, &n));
	if (n == 0 || n > m->len - m->at)
		return pickle_wrong(m, "a frame that is empty or reaches beyond the stream");
	m->frame_end = m->at + (size_t)n;
	return 1;
}

static int
run_op(struct pickle_machine *m, unsigned char op)
{
	int rc = scalar_op(m, op);

	rc = rc ? rc : container_op(m, op);
	rc = rc ? rc : object_op(m, op);
	rc = rc ? rc : text_op(m, op);
	rc = rc ? rc : frame_op(m, op);
	if (rc == 0)
		return err_set(m->err, PAWL_EUNSUPPORTED,
		               "%s: byte %zu: operation 0x%02x of pickle, which plain values do not need", m->what,
		               m->op_at, op);
	return rc < 0 ? rc : 0;
}

static int
run_program(struct pickle_machine *m)
{
	const unsigned char *op;

	for (uint32_t n_ops = 0;; n_ops++) {
		m->op_at = m->at;
		if (m->frame_end == m->at)
			m->frame_end = 0;
		TRY(pickle_take(m, 1, &op));
		if (*op == '.') /* STOP */
			break;
		if (n_ops == PICKLE_MAX_OPS)
			return pickle_too_much(m, "more than 50,000,000 operations");
		TRY(run_op(m, *op));
	}
	if (m->frame_end && m->frame_end != m->at)
		return pickle_wrong(m, "ends inside a frame");
	if (m->n_stack != 1 || m->n_marks != 0)
		return pickle_wrong(m, "ends with more or less than one value");
	return 0;
}

static void
clean_machine(struct pickle_machine *m)
{
	mem_free(m->stack);
	mem_free(m->marks);
	mem_free(m->memo);
}

int
pickle_decode(const char *what, const void *ptr, size_t len, const struct pickle_global *globals, size_t n_globals,
              struct bump *memory, struct pickle_node **ret, struct pawl_error *err)
{
	PAWL_CLEAN(clean_machine)
	struct pickle_machine m = {.what = what,
	                           .bytes = ptr,
	                           .len = len,
	                           .globals = globals,
	                           .n_globals = n_globals,
	                           .memory = memory,
	                           .err = err};

	if (len > PICKLE_MAX_BYTES)
		return err_set(err, PAWL_ELIMIT, "%s: %zu bytes of pickle, at most %zu are read", what, len,
		               PICKLE_MAX_BYTES);
	m.cap_stack = FIRST_STACK;
	m.stack = mem_zalloc(m.cap_stack, sizeof(*m.stack));
	if (!m.stack)
		return pickle_out_of_memory(&m);
	TRY(run_program(&m));
	if (m.at != len)
		return err_set(err, PAWL_ECORRUPT, "%s: %zu bytes after the end of the pickle", what, len - m.at);
	*ret = m.stack[0];
	return 0;
}

const struct pickle_node *
pickle_get(const struct pickle_node *dict, const char *key)
{
	size_t len = strlen(key);

	if (dict->type != PICKLE_DICT && dict->type != PICKLE_ODICT)
		return NULL;
	for (size_t i = dict->len; i >= 2; i -= 2) {
		const struct pickle_node *k = dict->items[i - 2];

		if (k->type == PICKLE_STR && k->len == len && memcmp(k->text, key, len) == 0)
			return dict->items[i - 1];
	}
	return NULL;
}
