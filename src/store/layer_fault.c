/* SPDX-License-Identifier: Apache-2.0 */
/*
 * layer_fault: a layer that makes the n-th call of an operation fail, for tests of the core and of the
 * programs around it.
 *
 * Armed by pawl_fault_new (public), put around a store by store_fault_wrap. A failing call has no effect
 * on the store below, as if a real engine had cleaned up after itself: a failed finish takes the object
 * with it. "write" is store_write only; "any" counts every operation that can fail.
 */
#include "store/engine.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"

enum op {
	OP_PUT = 1 << 0,
	OP_CREATE = 1 << 1,
	OP_WRITE = 1 << 2,
	OP_FINISH = 1 << 3,
	OP_PUBLISH = 1 << 4,
	OP_READ = 1 << 5,
	OP_LIST = 1 << 6,
	OP_STAT = 1 << 7,
	OP_REMOVE = 1 << 8,
	OP_LINK = 1 << 9,
	OP_OTHER = 1 << 10, /* open, move, pointer, sync, space, append */
	OP_ANY = (1 << 11) - 1
};

struct pawl_fault {
	int ops; /* enum op, one or all */
	int code;
	bool forever;
	uint64_t nth;
	_Atomic uint64_t calls;
};

struct fault_store {
	struct store base;
	struct store *inner;
	struct pawl_fault *fault; /* borrowed */
};

int
pawl_fault_new(const char *operation, uint64_t nth, int code, int forever, struct pawl_fault **ret,
               struct pawl_error *err)
{
	static const struct {
		const char *name;
		int ops;
	} names[] = {{"put", OP_PUT},         {"create", OP_CREATE}, {"write", OP_WRITE}, {"finish", OP_FINISH},
	             {"publish", OP_PUBLISH}, {"read", OP_READ},     {"list", OP_LIST},   {"stat", OP_STAT},
	             {"remove", OP_REMOVE},   {"link", OP_LINK},     {"any", OP_ANY}};
	int ops = 0;
	for (size_t i = 0; operation != NULL && i < sizeof names / sizeof names[0]; i++)
		if (strcmp(operation, names[i].name) == 0)
			ops = names[i].ops;
	if (ops == 0)
		return err_set(err, PAWL_EUSAGE,
		               "fault: unknown operation \"%.40s\", expected put, create, write, finish, publish, "
		               "read, list, stat, remove, link or any",
		               operation == NULL ? "" : operation);
	if (nth == 0)
		return err_set(err, PAWL_EUSAGE, "fault: calls count from 1, found 0");
	if (code >= 0 || code < PAWL_EINTERNAL)
		return err_set(err, PAWL_EUSAGE, "fault: %d is not an error code", code);

	struct pawl_fault *fault = mem_zalloc(1, sizeof *fault);
	if (fault == NULL)
		return err_set(err, PAWL_ENOMEM, "fault: out of memory");
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

/* Counts a call, and fails it if it is the one. */
static int
hit(struct store *base, enum op op, const char *verb, const char *what, struct pawl_error *err)
{
	struct pawl_fault *fault = ((struct fault_store *)base)->fault;
	if ((fault->ops & (int)op) == 0)
		return 0;
	uint64_t call = atomic_fetch_add(&fault->calls, 1) + 1;
	if (call != fault->nth && !(fault->forever && call > fault->nth))
		return 0;
	return err_set(err, fault->code, "%s%scannot %s: injected fault, call %" PRIu64, what, what[0] ? ": " : "",
	               verb, call);
}

static struct store *
inner_of(struct store *base)
{
	return ((struct fault_store *)base)->inner;
}

static void
fault_close(struct store *base)
{
	store_close(inner_of(base));
	mem_free(base->root);
	mem_free(base);
}

static void
fault_caps(struct store *base, struct store_caps *ret)
{
	store_get_caps(inner_of(base), ret);
}

static int
fault_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	TRY(hit(base, OP_PUT, "put", key, err));
	return inner_of(base)->ops->put(inner_of(base), key, parts, n_parts, flags, err);
}

static int
fault_create(struct store *base, const char *key, const struct store_create *opts, struct store_file **ret,
             struct pawl_error *err)
{
	TRY(hit(base, OP_CREATE, "create", key, err));
	return inner_of(base)->ops->create(inner_of(base), key, opts, ret, err);
}

static int
fault_write(struct store *base, struct store_file *f, uint64_t offset, const void *ptr, size_t len,
            struct pawl_error *err)
{
	TRY(hit(base, OP_WRITE, "write", f->key, err));
	return inner_of(base)->ops->write(inner_of(base), f, offset, ptr, len, err);
}

static int
fault_finish(struct store *base, struct store_file *f, struct pawl_error *err)
{
	int rc = hit(base, OP_FINISH, "finish", f->key, err);
	if (rc == 0)
		return inner_of(base)->ops->finish(inner_of(base), f, err);
	inner_of(base)->ops->abort(inner_of(base), f);
	return rc;
}

static void
fault_abort(struct store *base, struct store_file *f)
{
	inner_of(base)->ops->abort(inner_of(base), f);
}

static int
fault_open(struct store *base, const char *key, struct store_reader **ret, uint64_t *ret_nbytes, struct pawl_error *err)
{
	TRY(hit(base, OP_OTHER, "open", key, err));
	return inner_of(base)->ops->open(inner_of(base), key, ret, ret_nbytes, err);
}

static int
fault_read(struct store *base, struct store_reader *r, uint64_t offset, void *dst, size_t n, struct pawl_error *err)
{
	TRY(hit(base, OP_READ, "read", r->key, err));
	return inner_of(base)->ops->read(inner_of(base), r, offset, dst, n, err);
}

static int
fault_read_copy(struct store *base, struct store_reader *r, unsigned copy, uint64_t offset, void *dst, size_t n,
                struct pawl_error *err)
{
	TRY(hit(base, OP_READ, "read", r->key, err));
	return store_read_copy(inner_of(base), r, copy, offset, dst, n, err);
}

/* Counts as the two calls that it stands for. */
static int
fault_get(struct store *base, const char *key, size_t max, struct buf *out, struct pawl_error *err)
{
	if (inner_of(base)->ops->get == NULL)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: cannot be read in one go", key);
	TRY(hit(base, OP_OTHER, "open", key, err));
	TRY(hit(base, OP_READ, "read", key, err));
	return inner_of(base)->ops->get(inner_of(base), key, max, out, err);
}

/* Nothing counts as cached while reads are to fail: which call fails then does not depend on the cache. */
static int
fault_view(struct store *base, struct store_reader *r, uint64_t offset, size_t n, struct store_view *ret)
{
	if (((struct fault_store *)base)->fault->ops & OP_READ)
		return 0;
	return inner_of(base)->ops->view(inner_of(base), r, offset, n, ret);
}

static void
fault_drop_view(struct store *base, struct store_view *view)
{
	inner_of(base)->ops->drop_view(inner_of(base), view);
}

static void
fault_close_reader(struct store *base, struct store_reader *r)
{
	inner_of(base)->ops->close_reader(inner_of(base), r);
}

static int
fault_stat(struct store *base, const char *key, struct store_entry *ret, struct pawl_error *err)
{
	TRY(hit(base, OP_STAT, "stat", key, err));
	return inner_of(base)->ops->stat(inner_of(base), key, ret, err);
}

static int
fault_list_all(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	TRY(hit(base, OP_LIST, "list", folder, err));
	return store_list_all(inner_of(base), folder, fn, arg, err);
}

static int
fault_list(struct store *base, const char *folder, store_list_fn *fn, void *arg, struct pawl_error *err)
{
	TRY(hit(base, OP_LIST, "list", folder, err));
	return inner_of(base)->ops->list(inner_of(base), folder, fn, arg, err);
}

static int
fault_remove(struct store *base, const char *key, struct pawl_error *err)
{
	TRY(hit(base, OP_REMOVE, "remove", key, err));
	return inner_of(base)->ops->remove(inner_of(base), key, err);
}

static int
fault_remove_folder(struct store *base, const char *folder, struct pawl_error *err)
{
	TRY(hit(base, OP_REMOVE, "remove", folder, err));
	return inner_of(base)->ops->remove_folder(inner_of(base), folder, err);
}

static int
fault_link(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(hit(base, OP_LINK, "link", from, err));
	return inner_of(base)->ops->link(inner_of(base), from, to, err);
}

static int
fault_move(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(hit(base, OP_OTHER, "move", from, err));
	return inner_of(base)->ops->move(inner_of(base), from, to, err);
}

static int
fault_publish(struct store *base, const char *from, const char *to, struct pawl_error *err)
{
	TRY(hit(base, OP_PUBLISH, "publish", from, err));
	return inner_of(base)->ops->publish(inner_of(base), from, to, err);
}

static int
fault_exchange(struct store *base, const char *a, const char *b, struct pawl_error *err)
{
	TRY(hit(base, OP_PUBLISH, "exchange", a, err));
	return store_exchange(inner_of(base), a, b, err);
}

static int
fault_pointer(struct store *base, const char *key, const char *target, struct pawl_error *err)
{
	TRY(hit(base, OP_OTHER, "point", key, err));
	return inner_of(base)->ops->pointer(inner_of(base), key, target, err);
}

static int
fault_sync(struct store *base, const char *folder, struct pawl_error *err)
{
	TRY(hit(base, OP_OTHER, "sync", folder, err));
	return inner_of(base)->ops->sync(inner_of(base), folder, err);
}

static int
fault_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	TRY(hit(base, OP_OTHER, "measure free space", base->root, err));
	return inner_of(base)->ops->space(inner_of(base), ret_free_bytes, err);
}

static int
fault_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	TRY(hit(base, OP_OTHER, "append", key, err));
	return inner_of(base)->ops->append(inner_of(base), key, ptr, len, err);
}

static const struct store_ops fault_ops = {
	.name = "fault",
	.close = fault_close,
	.caps = fault_caps,
	.put = fault_put,
	.create = fault_create,
	.write = fault_write,
	.finish = fault_finish,
	.abort = fault_abort,
	.open = fault_open,
	.read = fault_read,
	.read_copy = fault_read_copy,
	.view = fault_view,
	.drop_view = fault_drop_view,
	.close_reader = fault_close_reader,
	.get = fault_get,
	.stat = fault_stat,
	.list = fault_list,
	.list_all = fault_list_all,
	.remove = fault_remove,
	.remove_folder = fault_remove_folder,
	.link = fault_link,
	.move = fault_move,
	.publish = fault_publish,
	.exchange = fault_exchange,
	.pointer = fault_pointer,
	.sync = fault_sync,
	.space = fault_space,
	.append = fault_append,
};

int
store_fault_wrap(struct store *s, struct pawl_fault *fault, struct store **ret, struct pawl_error *err)
{
	PAWL_FREE char *root = mem_strdup(s->root);
	struct fault_store *layer = mem_zalloc(1, sizeof *layer);
	if (root == NULL || layer == NULL) {
		mem_free(layer);
		return err_set(err, PAWL_ENOMEM, "%s: out of memory", s->root);
	}
	*layer = (struct fault_store){.base = {&fault_ops, steal(&root)}, .inner = s, .fault = fault};
	*ret = &layer->base;
	return 0;
}
