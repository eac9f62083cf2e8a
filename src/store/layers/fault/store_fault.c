/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_fault: makes the n-th call of an operation fail, for tests of the library and of programs
 * that use it.
 *
 * A failing call has no effect on the inner store, as if a real engine had cleaned up. For example,
 * a failed finish removes the object. "write" counts store_write only; "any" counts every operation
 * that can fail.
 */
#include <inttypes.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "store/layers/layer.h"

struct pawl_fault {
	int ops; /* enum layer_op, one or all */
	int code;
	bool forever;
	uint64_t nth;
	_Atomic uint64_t calls;
};

struct fault_store {
	struct store base;
	struct pawl_fault *fault; /* borrowed */
};

int
pawl_fault_new(const char *operation, uint64_t nth, int code, int forever, struct pawl_fault **ret,
               struct pawl_error *err)
{
	static const struct {
		const char *name;
		int ops;
	} names[] = {{"put", LAYER_PUT},       {"create", LAYER_CREATE},   {"write", LAYER_WRITE},
	             {"finish", LAYER_FINISH}, {"publish", LAYER_PUBLISH}, {"read", LAYER_READ},
	             {"list", LAYER_LIST},     {"stat", LAYER_STAT},       {"remove", LAYER_REMOVE},
	             {"link", LAYER_LINK},     {"any", LAYER_ANY}};
	int ops = 0;
	for (size_t i = 0; operation != NULL && i < sizeof names / sizeof names[0]; i++)
		if (strcmp(operation, names[i].name) == 0)
			ops = names[i].ops;
	if (ops == 0)
		return err_set(err, PAWL_EUSAGE,
		               "fault: unknown operation \"%.40s\", expected put, create, write, finish, publish, "
		               "read, list, stat, remove, link or any",
		               operation == NULL ? "" : operation);
	if (ret == NULL)
		return err_set(err, PAWL_EUSAGE, "fault: expected a pointer that receives the handle, found NULL");
	if (nth == 0)
		return err_set(err, PAWL_EUSAGE, "fault: calls count from 1, found 0");
	if (code >= 0 || code < PAWL_EDEVICE)
		return err_set(err, PAWL_EUSAGE, "fault: %d is not an error code", code);

	struct pawl_fault *fault = mem_zalloc(1, sizeof *fault);
	if (fault == NULL)
		return err_nomem(err, "fault");
	*fault = (struct pawl_fault){.ops = ops, .code = code, .forever = forever != 0, .nth = nth};
	*ret = fault;
	return 0;
}

uint64_t
pawl_fault_calls(const struct pawl_fault *fault)
{
	return atomic_load(&fault->calls);
}

void
pawl_fault_free(struct pawl_fault *fault)
{
	mem_free(fault);
}

/* Counts a call, and fails it if it is the chosen one. */
static int
fault_enter(struct store *base, const struct layer_call *c, struct pawl_error *err)
{
	struct pawl_fault *fault = ((struct fault_store *)base)->fault;
	if ((fault->ops & (int)c->op) == 0)
		return 0;
	uint64_t call = atomic_fetch_add(&fault->calls, 1) + 1;
	if (call != fault->nth && !(fault->forever && call > fault->nth))
		return 0;
	return err_set(err, fault->code, "%s%scannot %s: injected fault, call %" PRIu64, c->what,
	               c->what[0] != '\0' ? ": " : "", c->verb, call);
}

/* While reads fail, nothing counts as cached. Which call fails must not depend on the cache. */
static bool
fault_is_cached(struct store *base, struct store_reader *r, uint64_t offset, size_t n)
{
	const struct pawl_fault *fault = ((struct fault_store *)base)->fault;
	return (fault->ops & LAYER_READ) == 0 && store_is_cached(base->inner, r, offset, n);
}

static const struct store_ops fault_ops = {.enter = fault_enter, .is_cached = fault_is_cached};

int
store_fault_wrap(struct store *s, struct pawl_fault *fault, struct store **ret, struct pawl_error *err)
{
	PAWL_FREE struct fault_store *layer = mem_zalloc(1, sizeof *layer);
	if (layer == NULL)
		return err_nomem(err, s->root);
	TRY(layer_init(&layer->base, &fault_ops, s, err));
	layer->fault = fault;
	*ret = &steal(&layer)->base;
	return 0;
}
