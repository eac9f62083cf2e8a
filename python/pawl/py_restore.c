/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_restore: open, match, read, and fall back as pawl.h describes. The values are then stored:
 * into the caller's containers, through load_state_dict() into objects, and all of them into a
 * separate tree.
 *
 * py_match has created a record for every leaf in the order of the saved tree; the same walk uses
 * them here.
 */
#include "py.h"

#include <string.h>

/* The result for a node. tree NULL = it was left out. put is the value to store in the live
 * container. Both are new references; put NULL = the same as tree. */
struct outcome {
	PyObject *tree, *put;
};

static int finish_node(struct py_restore *r, const struct pawl_node *given, PyObject *wrapped, enum py_rule rule,
                       struct outcome *ret);

static void
outcome_clear(struct outcome *o)
{
	Py_CLEAR(o->tree);
	Py_CLEAR(o->put);
}
#define AUTO_OUTCOME __attribute__((cleanup(outcome_clear))) struct outcome

static PyObject *
put_of(const struct outcome *o)
{
	return o->put ? o->put : o->tree;
}

static bool
is_dict(const struct pawl_node *node)
{
	return pawl_node_type(node) == PAWL_DICT || pawl_node_type(node) == PAWL_ODICT;
}

/* ---- leaves ---- */

/* An empty dict for a saved one; of the subclass that a live object had (a Counter), if any. */
static PyObject *
new_dict(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule)
{
	bool ordered = pawl_node_type(node) == PAWL_ODICT;

	if (!live || rule == PY_USER || PyDict_CheckExact(live) || (PyObject *)Py_TYPE(live) == r->st->ordered_dict)
		return ordered ? PyObject_CallNoArgs(r->st->ordered_dict) : PyDict_New();

	AUTO_REF copy = PyObject_CallMethodObjArgs(live, r->st->s.copy, NULL);
	AUTO_REF done =
		copy && Py_TYPE(copy) == Py_TYPE(live) ? PyObject_CallMethodObjArgs(copy, r->st->s.clear, NULL) : NULL;

	if (done)
		return Py_NewRef(copy);
	PyErr_Clear();
	return PyDict_New();
}

static PyObject *
copy_tensor(struct py_state *st, PyObject *to, PyObject *from)
{
	if (st->numpy.ndarray && PyType_IsSubtype(Py_TYPE(to), (PyTypeObject *)st->numpy.ndarray))
		return PyObject_CallMethod(st->numpy.module, "copyto", "OO", to, from);

	AUTO_REF plain = PyObject_CallMethodObjArgs(to, st->s.detach, NULL);

	return plain ? PyObject_CallMethodObjArgs(plain, st->s.copy_, from, NULL) : NULL;
}

static int
copy_to_live(struct py_restore *r, struct py_leaf *leaf)
{
	AUTO_REF done = copy_tensor(r->st, leaf->copy_to, leaf->holder);

	if (!done)
		return -1;
	leaf->value = Py_NewRef(leaf->live);
	Py_CLEAR(leaf->holder);
	return 0;
}

/* Tied leaves of one kind share the finished object; those of several kinds share its memory. */
static int
finish_holder(struct py_restore *r, const struct pawl_node *node, struct py_leaf *leaf)
{
	const size_t index = pawl_node_tensor(node);
	struct py_leaf *tied = r->fresh[index] ? &r->leaves[r->fresh[index] - 1] : leaf;

	leaf->kind = pawl_node_kind(node);
	while (tied != leaf) {
		if (tied->value && tied->kind && strcmp(tied->kind, leaf->kind) == 0) {
			leaf->value = Py_NewRef(tied->value);
			return 0;
		}
		if (!tied->other)
			tied->other = (size_t)(leaf - r->leaves) + 1;
		tied = &r->leaves[tied->other - 1];
	}
	if (leaf->live) {
		AUTO_REF jax = PyImport_ImportModule("pawl.jax");

		leaf->value = jax ? PyObject_CallMethod(jax, "_place", "OO", leaf->holder, leaf->live) : NULL;
		return leaf->value ? 0 : -1;
	}
	leaf->value = py_tensor_finish(r->st, leaf->holder, leaf->kind, pawl_state_tensor(r->saved, index));
	return leaf->value ? 0 : -1;
}

static int
finish_leaf(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule, struct outcome *ret)
{
	bool is_tensor = pawl_node_type(node) == PAWL_TENSOR;
	const struct pawl_scalar *scalar = pawl_node_scalar(node);
	struct py_leaf *leaf = is_tensor || r->opts->n_include ? &r->leaves[r->next_leaf++] : NULL;
	int rc = 0;

	if (leaf && leaf->left_out) {
		ret->tree = Py_XNewRef(leaf->value);
		return 0;
	}
	if (is_tensor) {
		if (!leaf->value)
			rc = leaf->copy_to ? copy_to_live(r, leaf) : finish_holder(r, node, leaf);
		ret->tree = Py_XNewRef(leaf->value);
		ret->put = leaf->is_rejected && rule == PY_USER ? Py_XNewRef(live) : NULL;
		return rc;
	}
	if (live && rule == PY_USER && live != Py_None && !py_is_plain(r->st, live, 0))
		ret->put = Py_NewRef(live); /* a tensor or an object is not replaced by a plain value */
	if (!scalar) {
		ret->tree = is_dict(node) ? new_dict(r, node, NULL, PY_NEW)
		                          : py_plain_object(node); /* an empty container */
		return ret->tree ? 0 : -1;
	}
	if ((scalar->type == PAWL_STR || scalar->type == PAWL_BYTES) && !scalar->ptr && scalar->len)
		return 0; /* a long text that was not read */
	ret->tree = py_scalar_object(scalar);
	return ret->tree ? 0 : -1;
}

/* ---- containers ---- */

/* Puts one value into the caller's dict, unless it is already there. */
static int
put_item(PyObject *live, PyObject *key, PyObject *was, PyObject *put)
{
	return was == put ? 0 : PyObject_SetItem(live, key, put);
}

static int
drop_other_keys(PyObject *live, PyObject *tree)
{
	AUTO_REF keys = PyMapping_Keys(live);
	Py_ssize_t n = keys ? PyList_Size(keys) : -1;

	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *key = PyList_GetItem(keys, i); /* borrowed */
		int known = PyDict_Contains(tree, key);

		if (known < 0 || (!known && PyObject_DelItem(live, key) < 0))
			return -1;
	}
	return n < 0 ? -1 : 0;
}

/* Is this part of the caller's state plain data, which is replaced by what was saved? */
static bool
is_replaced(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule)
{
	return rule == PY_USER && live && py_node_is_plain(node) && py_is_plain(r->st, live, 0);
}

static int
finish_dict(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule, struct outcome *ret)
{
	bool replaced = is_replaced(r, node, live, rule), any = !pawl_node_first(node);
	bool is_filled = live && PyDict_Size(live) == 0;
	AUTO_REF tree = new_dict(r, node, live, rule);

	if (!tree)
		return -1;
	for (const struct pawl_node *child = pawl_node_first(node); child; child = pawl_node_next(child)) {
		AUTO_OUTCOME o = {0};
		AUTO_REF key = py_scalar_object(pawl_node_key(child));
		AUTO_REF item = key && live ? Py_XNewRef(py_live_child(live, key, 0)) : NULL;

		if (!key || PyErr_Occurred() || finish_node(r, child, item, item ? rule : PY_NEW, &o) < 0)
			return -1;
		if (!o.tree)
			continue;
		any = true;
		TRY(PyObject_SetItem(tree, key, rule == PY_USER ? o.tree : put_of(&o)));
		if (rule == PY_USER && (item || replaced || is_filled) && put_item(live, key, item, put_of(&o)) < 0)
			return -1;
	}
	if (replaced && !r->opts->n_include && drop_other_keys(live, tree) < 0)
		return -1;
	if (rule == PY_USER)
		ret->put = Py_XNewRef(live);
	ret->tree = any ? Py_NewRef(tree) : NULL; /* nothing of it was selected */
	return 0;
}

/* Replaces the contents of the caller's list. */
static int
put_list(PyObject *live, PyObject *puts, bool replaced)
{
	Py_ssize_t n = PyList_Size(live), m = PyList_Size(puts);

	if (replaced || n == 0)
		return PyList_SetSlice(live, 0, n, puts);
	for (Py_ssize_t i = 0; i < n && i < m; i++) {
		PyObject *put = PyList_GetItem(puts, i); /* borrowed */

		if (put != PyList_GetItem(live, i) && PyList_SetItem(live, i, Py_NewRef(put)) < 0)
			return -1;
	}
	return 0;
}

/* The value to store in the caller's container for a sequence: the caller's own list, or the tuple
 * itself if nothing changed. */
static PyObject *
put_sequence(PyObject *live, PyObject *puts, bool replaced)
{
	bool same = PyTuple_Check(live) && PyTuple_Size(live) == PyList_Size(puts);

	if (PyList_Check(live))
		return put_list(live, puts, replaced) < 0 ? NULL : Py_NewRef(live);
	for (Py_ssize_t i = 0; same && i < PyTuple_Size(live); i++)
		same = PyTuple_GetItem(live, i) == PyList_GetItem(puts, i);
	return same ? Py_NewRef(live) : PyList_AsTuple(puts);
}

static int
finish_list(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule, struct outcome *ret)
{
	bool replaced = is_replaced(r, node, live, rule), any = !pawl_node_first(node);
	AUTO_REF tree = PyList_New(0);
	AUTO_REF puts = PyList_New(0);
	Py_ssize_t index = 0;

	if (!tree || !puts)
		return -1;
	for (const struct pawl_node *child = pawl_node_first(node); child; child = pawl_node_next(child), index++) {
		AUTO_OUTCOME o = {0};
		AUTO_REF item = live ? Py_XNewRef(py_live_child(live, NULL, index)) : NULL;

		if (PyErr_Occurred() || finish_node(r, child, item, item ? rule : PY_NEW, &o) < 0)
			return -1;
		any = any || o.tree;
		if (!o.tree)
			o.tree = Py_NewRef(item ? item
			                        : Py_None); /* positions count: a value left out keeps its position */
		TRY(PyList_Append(tree, rule == PY_USER ? o.tree : put_of(&o)));
		TRY(PyList_Append(puts, put_of(&o)));
	}
	if (rule == PY_USER && live) {
		ret->put = put_sequence(live, puts, replaced && !r->opts->n_include);
		if (!ret->put)
			return -1;
	}
	if (!any)
		return 0;
	ret->tree = pawl_node_type(node) == PAWL_TUPLE ? PyList_AsTuple(tree) : Py_NewRef(tree);
	return ret->tree ? 0 : -1;
}

/* ---- objects ---- */

static int
drop_keys(PyObject *dict, PyObject *set)
{
	AUTO_REF keys = PySequence_List(set);
	Py_ssize_t n = keys ? PyList_Size(keys) : -1;

	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *key = PyList_GetItem(keys, i); /* borrowed */

		if (PyDict_Contains(dict, key) == 1 && PyObject_DelItem(dict, key) < 0)
			return -1;
	}
	return n < 0 ? -1 : 0;
}

/* The tree to pass to load_state_dict: with the metadata that torch attaches to a state_dict, and
 * without keys that do not fit. */
static PyObject *
loadable_tree(struct py_restore *r, const struct py_object *o, PyObject *tree)
{
	AUTO_REF notes = NULL;
	AUTO_REF copy = NULL;

	if (!o->is_module || !PyDict_Check(tree))
		return Py_NewRef(tree);
	copy = PyObject_CallMethodObjArgs(tree, r->st->s.copy, NULL);
	if (!copy)
		return NULL;
	if (o->skip && drop_keys(copy, o->skip) < 0)
		return NULL;
	notes = PyObject_GetAttr(o->state_dict, r->st->s._metadata);
	if (notes && !PyDict_CheckExact(copy) && PyObject_SetAttr(copy, r->st->s._metadata, notes) < 0)
		PyErr_Clear();
	PyErr_Clear();
	return Py_NewRef(copy);
}

static int
load_object(struct py_restore *r, const struct py_object *o, PyObject *tree)
{
	AUTO_REF arg = loadable_tree(r, o, tree);
	AUTO_REF args = arg ? PyTuple_Pack(1, arg) : NULL;
	AUTO_REF kwargs = o->is_module && r->opts->non_strict ? Py_BuildValue("{s:O}", "strict", Py_False) : NULL;
	AUTO_REF method = PyObject_GetAttr(o->live, r->st->s.load_state_dict);
	AUTO_REF done = args && method && !PyErr_Occurred() ? PyObject_Call(method, args, kwargs) : NULL;

	return done ? 0 : -1;
}

static int
finish_object(struct py_restore *r, const struct pawl_node *node, struct outcome *ret)
{
	size_t index = r->next_object++;
	const struct py_object *o = &r->objects[index];
	AUTO_OUTCOME inner = {0};

	TRY(finish_node(r, node, o->state_dict, o->is_module ? PY_MODULE : PY_OBJECT, &inner));
	if (!inner.tree)
		return 0;
	if ((o->is_wanted || !r->opts->n_include) && (!o->is_module || o->must_load) &&
	    load_object(r, o, inner.tree) < 0)
		return -1;
	ret->put = Py_NewRef(o->live);
	ret->tree = Py_NewRef(inner.tree);
	return 0;
}

static int
finish_value(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule, struct outcome *ret)
{
	bool is_object = r->next_object < r->n_objects && r->objects[r->next_object].node == node &&
	                 r->objects[r->next_object].live == live;

	if (is_object)
		return finish_object(r, node, ret);
	if (pawl_node_type(node) < PAWL_DICT)
		return finish_leaf(r, node, live, rule, ret);
	if (!pawl_node_first(node) && (!live || !py_is_alike(node, live) || r->opts->n_include))
		return finish_leaf(r, node, live, rule, ret);
	if (live && !py_is_alike(node, live)) {
		if (rule == PY_USER && live != Py_None && !(py_node_is_plain(node) && py_is_plain(r->st, live, 0)))
			ret->put = Py_NewRef(live);
		live = NULL;
	}
	if (!live)
		rule = PY_NEW;
	return is_dict(node) ? finish_dict(r, node, live, rule, ret) : finish_list(r, node, live, rule, ret);
}

/* Puts the values of a live object of a kind back into it, or into another one of its type. */
static int
finish_kinded(struct py_restore *r, const struct pawl_node *node, const struct py_kinded *k, enum py_rule rule,
              struct outcome *ret)
{
	AUTO_OUTCOME inner = {0};

	TRY(finish_value(r, node, k->value, rule, &inner));
	if (!inner.tree)
		return 0;
	if (r->opts->n_include && inner.tree == k->value) { /* a leaf that was left out */
		ret->tree = Py_NewRef(k->live);
		return 0;
	}

	AUTO_REF made = py_kind_rebuild(k, put_of(&inner), pawl_node_kind(node), rule == PY_USER);

	ret->tree = Py_XNewRef(made);
	return made ? 0 : -1;
}

/* A value whose kind has no live object to go into. */
static int
make_kind(const struct pawl_node *node, PyObject *live, struct outcome *ret)
{
	PyObject *made;

	if (!ret->tree || ret->tree == live || pawl_node_type(node) == PAWL_TENSOR || !*pawl_node_kind(node))
		return 0;
	made = py_kind_make(pawl_node_kind(node), ret->tree);
	if (!made)
		return -1;
	py_set(&ret->tree, made);
	return 0;
}

/* Stores the value of a pawl.PerRank in it; the object itself stays in place. */
static int
put_into_wrapper(struct py_restore *r, PyObject *wrapper, PyObject *live, struct outcome *ret)
{
	PyObject *put = put_of(ret);

	if (put && put != live && PyObject_SetAttr(wrapper, r->st->s.value, put) < 0)
		return -1;
	Py_XDECREF(ret->put);
	ret->put = Py_NewRef(wrapper);
	return 0;
}

static int
finish_node(struct py_restore *r, const struct pawl_node *given, PyObject *wrapped, enum py_rule rule,
            struct outcome *ret)
{
	const struct pawl_node *node = pawl_node_own(given);
	AUTO_REF live = py_unwrap(r->st, wrapped);
	const struct py_kinded *k;
	int rc;

	if (wrapped && !live)
		return -1;
	if (r->next_skip < r->n_skips && r->skips[r->next_skip].node == given &&
	    r->skips[r->next_skip].live == wrapped) {
		r->next_skip++;
		ret->tree = Py_XNewRef(live);
		ret->put = Py_XNewRef(wrapped);
		return 0;
	}
	if (!node)
		return finish_list(r, given, NULL, PY_NEW, ret);
	k = live ? py_kind_next(r, node, live) : NULL;
	rc = k ? finish_kinded(r, node, k, rule, ret) : finish_value(r, node, live, rule, ret);
	if (rc == 0 && !k)
		rc = make_kind(node, live, ret);
	return rc == 0 && live != wrapped ? put_into_wrapper(r, wrapped, live, ret) : rc;
}

/* ---- the loop ---- */

static PyObject *
list_rows(size_t n, const char *(*get)(const struct pawl_restore *, size_t), const struct pawl_restore *handle)
{
	PyObject *list = PyList_New(0);

	for (size_t i = 0; list && i < n; i++) {
		const char *row = get(handle, i);
		AUTO_REF text = PyUnicode_DecodeUTF8(row, (Py_ssize_t)strlen(row), "replace");

		if (!text || PyList_Append(list, text) < 0)
			Py_CLEAR(list);
	}
	return list;
}

static bool
is_damage(int code)
{
	return code == PAWL_ECORRUPT || code == PAWL_EIO || code == PAWL_ELIMIT || code == PAWL_ENOTFOUND;
}

/* Reads what is bound; after damage selects an older checkpoint. 1 = match again, 0 = read. */
static int
read_or_fall_back(struct py_restore *r)
{
	struct pawl_error why = {0}, err = {0};
	int rc, next = 0;

	rc = UNLOCKED(pawl_restore_read(r->handle, &why));
	if (rc < 0 && is_damage(rc))
		next = UNLOCKED(pawl_restore_fallback(r->handle, &why, &err));
	if (rc == 0)
		return 0;
	if (is_damage(rc) && next == 0)
		return 1;
	if (!is_damage(rc))
		py_raise(r->st, rc, &why);
	else /* none is left, because of damage */
		py_raise(r->st, next == PAWL_ENOTFOUND ? rc : next, &err);
	py_add_note(NULL, "tensors that were to be restored in place may be overwritten in part");
	return -1;
}

static int
match_and_read(struct py_restore *r, PyObject *live)
{
	int again;

	do {
		py_match_clear(r);
		r->saved = pawl_restore_state(r->handle);
		TRY(py_match(r, live));
		TRY(py_check_problems(r));
		again = read_or_fall_back(r);
	} while (again > 0);
	return again;
}

static PyObject *
finish_restore(struct py_restore *r, PyObject *live)
{
	const struct pawl_node *root = pawl_state_root(r->saved);
	const struct pawl_info *info = pawl_restore_info(r->handle);
	AUTO_OUTCOME o = {0};

	if (root && finish_node(r, root, live, live ? PY_USER : PY_NEW, &o) < 0) {
		py_name_long_int(r->st, root);
		py_add_note(NULL, "raised while %s was loaded into the given state, which may be restored in part",
		            info->name);
		return NULL;
	}

	AUTO_REF facts = py_info_dict(info);
	AUTO_REF fallbacks = list_rows(pawl_restore_fallback_count(r->handle), pawl_restore_fallback_get, r->handle);
	AUTO_REF repairs = list_rows(pawl_restore_report_count(r->handle), pawl_restore_report_get, r->handle);
	AUTO_REF metadata = py_metadata(r->st, pawl_restore_metadata(r->handle));

	if (!facts || !fallbacks || !repairs || !metadata ||
	    PyList_SetSlice(r->problems, PyList_Size(r->problems), PyList_Size(r->problems), repairs) < 0 ||
	    PyList_SetSlice(r->problems, PyList_Size(r->problems), PyList_Size(r->problems), r->notices) < 0)
		return NULL;
	return PyTuple_Pack(5, o.tree ? o.tree : Py_None, facts, fallbacks, r->problems, metadata);
}

/* With an exception set: closing the handle reports it to the other ranks. */
static void
notify_ranks(struct py_restore *r)
{
	PyObject *kind, *value, *trace;

	if (r->world < 2)
		return;
	PyErr_Fetch(&kind, &value, &trace);
	AUTO_REF text = value ? PyObject_Str(value) : NULL;
	const char *why = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
	bool is_mismatch = kind && PyErr_GivenExceptionMatches(kind, r->st->errors[-PAWL_EMISMATCH]);

	if (why && *why)
		pawl_restore_failed(r->handle, is_mismatch ? PAWL_EMISMATCH : PAWL_ECANCELLED, why);
	PyErr_Clear();
	PyErr_Restore(kind, value, trace);
}

PyObject *
py_restore_run(struct py_state *st, struct pawl *run, PyObject *live, const struct pawl_restore_opts *opts)
{
	struct py_restore r = {.st = st, .opts = opts, .world = pawl_world_size(run)};
	struct pawl_error err = {0};
	PyObject *result = NULL;
	int rc;

	TRY_NULL(py_frames_refresh(st));
	rc = UNLOCKED(pawl_restore_open(run, opts, &r.handle, &err));
	if (rc == PAWL_ENOTFOUND)
		Py_RETURN_NONE;
	if (rc < 0)
		return py_raise(st, rc, &err);
	if (match_and_read(&r, live) == 0)
		result = finish_restore(&r, live);
	else {
		py_name_long_int(st, r.saved ? pawl_state_root(r.saved) : NULL);
		notify_ranks(&r);
	}
	py_match_clear(&r);
	UNLOCKED(pawl_restore_close(r.handle)); /* releases the hold, perhaps in a bucket */
	return result;
}
