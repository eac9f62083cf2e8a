/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_match: walks the saved tree and the live objects in parallel. It chooses the memory that each
 * saved tensor is read into: the live tensor if it fits, otherwise a new one. Nothing is read or
 * changed here, so a difference that strict mode refuses leaves everything unchanged.
 *
 * Containers with tensors or objects must have the same keys on both sides (PY_USER, PY_MODULE).
 * Plain data, a part without either, is replaced by what was saved. An object other than a torch
 * module interprets its state_dict itself (PY_OBJECT). A live object of a kind (py_kind) is matched
 * as its plain value. An optimizer that has not stepped yet has no
 * tensors, which is allowed (py_optim).
 */
#include "py.h"

#include <stdio.h>
#include <string.h>

#include "py_lazy.h"

static int match_node(struct py_restore *r, const struct pawl_node *given, PyObject *wrapped, enum py_rule rule,
                      const struct py_path *path);

/* ---- globs ---- */

/* Do the globs of a partial restore select this leaf? */
static int
is_wanted(struct py_restore *r, const struct py_path *path)
{
	AUTO_REF text = NULL;
	const char *utf8;
	bool hit = false;

	if (!r->opts->n_include)
		return 1;
	text = py_path_text(path);
	utf8 = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
	if (!utf8)
		return -1;
	for (size_t i = 0; i < r->opts->n_include; i++) {
		if (!pawl_path_matches(r->opts->include[i], utf8))
			continue;
		r->glob_used[i] = hit = true;
	}
	return hit;
}

/* ---- plain data ---- */

bool
py_node_is_plain(const struct pawl_node *node)
{
	if (pawl_node_type(node) == PAWL_TENSOR)
		return false;
	for (const struct pawl_node *child = pawl_node_first(node); child; child = pawl_node_next(child))
		if (!py_node_is_plain(child))
			return false;
	return true;
}

static bool
is_plain_dict(struct py_state *st, PyObject *live, int depth)
{
	Py_ssize_t pos = 0;
	PyObject *value;

	while (PyDict_Next(live, &pos, NULL, &value))
		if (!py_is_plain(st, value, depth + 1))
			return false;
	return true;
}

bool
py_is_plain(struct py_state *st, PyObject *live, int depth)
{
	Py_ssize_t n;

	if (py_is_simple(live) || PyUnicode_Check(live) || PyLong_Check(live) || PyFloat_Check(live) ||
	    PyBytes_Check(live) || (PyObject *)Py_TYPE(live) == st->jax.shape) /* the shape of a counter */
		return true;
	if (st->numpy.generic && PyType_IsSubtype(Py_TYPE(live), (PyTypeObject *)st->numpy.generic))
		return true;
	if (depth > PY_MAX_DEPTH)
		return false;
	if (!py_has_no_kind(st, live)) {
		int rc = py_kind_is_plain(st, live, depth);

		if (rc >= 0)
			return rc;
	}
	if (PyDict_Check(live))
		return is_plain_dict(st, live, depth);
	if (!PyList_Check(live) && !PyTuple_Check(live))
		return false;
	n = PyList_Check(live) ? PyList_Size(live) : PyTuple_Size(live);
	for (Py_ssize_t i = 0; i < n; i++)
		if (!py_is_plain(st, PyList_Check(live) ? PyList_GetItem(live, i) : PyTuple_GetItem(live, i),
		                 depth + 1))
			return false;
	return true;
}

static bool
is_dict(const struct pawl_node *node)
{
	return pawl_node_type(node) == PAWL_DICT || pawl_node_type(node) == PAWL_ODICT;
}

static bool
is_container(const struct pawl_node *node)
{
	return pawl_node_type(node) >= PAWL_DICT;
}

bool
py_is_alike(const struct pawl_node *node, PyObject *live)
{
	if (is_dict(node))
		return PyDict_Check(live);
	return is_container(node) && (PyList_Check(live) || PyTuple_Check(live));
}

PyObject *
py_live_child(PyObject *live, PyObject *key, Py_ssize_t index)
{
	if (key)
		return PyDict_GetItemWithError(live, key);
	if (PyList_Check(live))
		return index < PyList_Size(live) ? PyList_GetItem(live, index) : NULL;
	return index < PyTuple_Size(live) ? PyTuple_GetItem(live, index) : NULL;
}

/* ---- leaves ---- */

static int
leave_out(struct py_restore *r, PyObject *live)
{
	struct py_leaf *leaf = py_leaf_push(r);

	if (!leaf)
		return -1;
	leaf->left_out = true;
	leaf->value = Py_XNewRef(live);
	return 0;
}

/* A scalar, or a container without children. */
static int
match_scalar(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule,
             const struct py_path *path)
{
	if (r->opts->n_include && !py_leaf_push(r))
		return -1;
	py_module_must_load(r);
	if (!live || rule != PY_USER || live == Py_None || py_is_plain(r->st, live, 0))
		return live && pawl_node_type(node) < PAWL_TENSOR ? py_kind_check(r, node, path) : 0;
	if (py_is_alike(node, live)) /* an empty container where the live one has tensors */
		return py_problem(r, "missing", path, "");
	return py_kind_differs(r, node, live, path);
}

static int
match_tensor(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule,
             const struct py_path *path)
{
	AUTO_REF made = live ? NULL : py_optim_tensor(r, node, path);

	if (!live && !made)
		return -1;
	return made && made != Py_None ? py_match_tensor(r, node, made, PY_OBJECT, path)
	                               : py_match_tensor(r, node, live, rule, path);
}

static int
match_leaf(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule,
           const struct py_path *path)
{
	int wanted = is_wanted(r, path);
	Py_ssize_t before = PyList_Size(r->problems);

	if (wanted <= 0)
		return wanted < 0 ? -1 : leave_out(r, live);
	if (r->object)
		r->objects[r->object - 1].is_wanted = true;
	if (pawl_node_type(node) != PAWL_TENSOR)
		return match_scalar(r, node, live, rule, path);
	TRY(match_tensor(r, node, live, rule, path));
	r->leaves[r->n_leaves - 1].is_rejected = PyList_Size(r->problems) > before;
	return 0;
}

/* ---- containers ---- */

/* Reports saved values that have no place in the live state. */
static int
report_unexpected(struct py_restore *r, const struct pawl_node *node, const struct py_path *path)
{
	Py_ssize_t index = 0;

	if (!r->opts->n_include || !pawl_node_first(node)) {
		int wanted = is_wanted(r, path);

		return wanted <= 0 ? wanted : py_problem(r, "unexpected", path, "");
	}
	for (const struct pawl_node *child = pawl_node_first(node); child; child = pawl_node_next(child), index++) {
		AUTO_REF key = pawl_node_key(child) ? py_scalar_object(pawl_node_key(child)) : NULL;
		struct py_path here = {.up = path, .key = key, .index = index};

		if (PyErr_Occurred() || report_unexpected(r, child, &here) < 0)
			return -1;
	}
	return 0;
}

static int
report_missing(struct py_restore *r, PyObject *live, PyObject *key, Py_ssize_t index, const struct py_path *path)
{
	struct py_path here = {.up = path, .container = live, .key = key, .index = index};
	int wanted = is_wanted(r, &here);

	return wanted <= 0 ? wanted : py_problem(r, "missing", &here, "");
}

/* Reports keys of the live container that the saved one lacks. */
static int
find_missing(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_path *path)
{
	AUTO_REF saved_keys = PySet_New(NULL);
	Py_ssize_t pos = 0, n;
	PyObject *key;

	if (!saved_keys)
		return -1;
	if (!PyDict_Check(live)) {
		n = PyList_Check(live) ? PyList_Size(live) : PyTuple_Size(live);
		for (Py_ssize_t i = (Py_ssize_t)pawl_node_count(node); i < n; i++)
			TRY(report_missing(r, live, NULL, i, path));
		return 0;
	}
	for (const struct pawl_node *child = pawl_node_first(node); child; child = pawl_node_next(child)) {
		AUTO_REF saved = py_scalar_object(pawl_node_key(child));

		if (!saved || PySet_Add(saved_keys, saved) < 0)
			return -1;
	}
	while (PyDict_Next(live, &pos, &key, NULL)) {
		int known = PySet_Contains(saved_keys, key);

		if (known < 0 || (!known && report_missing(r, live, key, 0, path) < 0))
			return -1;
	}
	return 0;
}

/* In a module's state_dict: a key whose value does not fit is not passed to load_state_dict. */
static int
skip_key(struct py_restore *r, PyObject *live, PyObject *key)
{
	struct py_object *o = py_module_of(r);

	if (!o || o->state_dict != live || !key)
		return 0;
	if (!o->skip)
		o->skip = PySet_New(NULL);
	return o->skip ? PySet_Add(o->skip, key) : -1;
}

/* ---- parts that stay unchanged ---- */

static int
push_skip(struct py_restore *r, const struct pawl_node *node, PyObject *live)
{
	struct py_skip *rows = py_grow(r->skips, r->n_skips, &r->cap_skips, sizeof(*rows));

	if (!rows)
		return -1;
	r->skips = rows;
	rows[r->n_skips++] = (struct py_skip){.node = node, .live = live};
	return 0;
}

/* Handles values per rank of a job with another number of ranks: none of them belongs to this
 * rank. */
static int
match_unclaimed(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_path *path)
{
	const unsigned saved = pawl_restore_info(r->handle)->world_size;
	int wanted = is_wanted(r, path);
	PyObject *problems = r->problems;
	int rc = 0;

	if (wanted < 0)
		return -1;
	if (wanted && r->opts->rank_values == PAWL_RANK_VALUES_STRICT && !r->opts->non_strict) {
		rc = py_problem(r, "per rank", path, ": kept per rank by %u ranks, this job has %u", saved, r->world);
	} else if (wanted) {
		r->problems = r->notices;
		rc = py_problem(r, "dropped", path, ": kept per rank by %u ranks, this job has %u", saved, r->world);
		r->problems = problems;
	}
	return rc < 0 ? -1 : push_skip(r, node, live);
}

/* ours: keys must be equal on both sides. */
static int
match_child(struct py_restore *r, const struct pawl_node *child, PyObject *live, PyObject *key, Py_ssize_t index,
            enum py_rule rule, bool ours, const struct py_path *path)
{
	struct py_path here = {.up = path, .container = live, .key = key, .index = index};
	AUTO_REF item = live ? Py_XNewRef(py_live_child(live, key, index)) : NULL;
	Py_ssize_t before = PyList_Size(r->problems);

	if (PyErr_Occurred())
		return -1;
	if (!item && ours && r->world > 1) /* with several ranks, one need not have everything that all have saved */
		return push_skip(r, child, NULL);
	if (!item && ours && report_unexpected(r, child, &here) < 0)
		return -1;
	TRY(match_node(r, child, item, item ? rule : PY_NEW, &here));
	return PyList_Size(r->problems) > before ? skip_key(r, live, key) : 0;
}

static bool
differs_in_size(const struct pawl_node *node, PyObject *live)
{
	Py_ssize_t n = PyDict_Check(live)   ? PyDict_Size(live)
	               : PyList_Check(live) ? PyList_Size(live)
	                                    : PyTuple_Size(live);

	return n != (Py_ssize_t)pawl_node_count(node);
}

/* An empty dict, list or deque of the caller takes what was saved: an optimizer that has not
 * stepped yet has an empty "state". Of many ranks, one may have nothing of a container, except of
 * that. */
static bool
is_filled(const struct py_restore *r, PyObject *live, const struct py_path *path)
{
	PyObject *outer = path ? path->container : NULL;

	if (py_kind_has_fields(r, live))
		return false;
	if (!(PyDict_Check(live) && PyDict_Size(live) == 0) && !(PyList_Check(live) && PyList_Size(live) == 0))
		return false;
	return r->world == 1 || (outer && PyDict_Check(outer) && py_lazy_is_optimizer_state(outer));
}

static int
note_filled(struct py_restore *r, const struct pawl_node *node, const struct py_path *path)
{
	PyObject *problems = r->problems;
	int rc = is_wanted(r, path);

	if (rc <= 0 && !r->opts->n_include)
		return rc;
	if (py_node_is_plain(node) || *pawl_node_kind(node))
		return 0;
	r->problems = r->notices;
	rc = py_problem(r, "added", path, ": was empty; pass the restored dict to load_state_dict()");
	r->problems = problems;
	return rc;
}

static int
match_container(struct py_restore *r, const struct pawl_node *node, PyObject *live, enum py_rule rule,
                const struct py_path *path)
{
	bool ours = live && (rule == PY_MODULE ||
	                     (rule == PY_USER && !(py_node_is_plain(node) && py_is_plain(r->st, live, 0))));
	Py_ssize_t index = 0, before = PyList_Size(r->problems);

	if (ours && rule == PY_USER && is_filled(r, live, path)) {
		TRY(note_filled(r, node, path));
		ours = false;
	}
	for (const struct pawl_node *child = pawl_node_first(node); child; child = pawl_node_next(child), index++) {
		AUTO_REF key = pawl_node_key(child) ? py_scalar_object(pawl_node_key(child)) : NULL;

		if (PyErr_Occurred() || match_child(r, child, live, key, index, rule, ours, path) < 0)
			return -1;
	}
	/* A saved key without a place here may belong to a live one of another name: the counts are
	 * then equal. */
	if (ours && (differs_in_size(node, live) || r->world > 1 || PyList_Size(r->problems) > before))
		return find_missing(r, node, live, path);
	return 0;
}

/* ---- objects ---- */

static int
push_object(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_path *path)
{
	struct py_object *rows = py_grow(r->objects, r->n_objects, &r->cap_objects, sizeof(*rows)), *o;
	int is_module = 0;

	if (!rows)
		return -1;
	r->objects = rows;
	if (r->st->torch.nn_module)
		is_module = PyObject_IsInstance(live, r->st->torch.nn_module);
	if (is_module < 0)
		return -1;
	o = &rows[r->n_objects++];
	*o = (struct py_object){.node = node, .live = Py_NewRef(live), .is_module = is_module};
	o->state_dict = PyObject_CallMethodObjArgs(live, r->st->s.state_dict, NULL);
	if (!o->state_dict)
		py_add_note(path, "raised by state_dict()");
	return o->state_dict ? 0 : -1;
}

/* Records where a torch module stores its tensors, and whether its load_state_dict does more than
 * copy. */
static int
look_at_module(struct py_restore *r, PyObject *live, bool *must_load)
{
	AUTO_REF helper = PyImport_ImportModule("pawl._torch");
	AUTO_REF answer = helper ? PyObject_CallMethod(helper, "must_load", "O", live) : NULL;
	int yes = answer ? PyObject_IsTrue(answer) : -1;

	if (yes < 0)
		return -1;
	*must_load = yes;
	r->memory = PyObject_CallMethod(helper, "memory", "O", live);
	return r->memory ? 0 : -1;
}

static int
match_object(struct py_restore *r, const struct pawl_node *node, PyObject *live, const struct py_path *path)
{
	const size_t outer = r->object, index = r->n_objects;
	PyObject *outer_memory = r->memory;
	AUTO_REF dict = NULL;
	bool is_module;
	int rc;

	if (!PyObject_HasAttr(live, r->st->s.load_state_dict)) {
		AUTO_REF name = PyType_GetQualName(Py_TYPE(live));

		return name ? py_raise_at(r->st, PAWL_EUSAGE, path, "%s %U has no load_state_dict()", py_article(name),
		                          name)
		            : -1;
	}
	TRY(push_object(r, node, live, path));
	dict = Py_NewRef(r->objects[index].state_dict);
	is_module = r->objects[index].is_module;
	r->object = index + 1;
	r->memory = NULL;
	r->objects[index].where = path;
	rc = is_module ? look_at_module(r, live, &r->objects[index].must_load)
	               : py_optim_look(r, node, &r->objects[index]);
	if (rc == 0)
		rc = match_node(r, node, dict, is_module ? PY_MODULE : PY_OBJECT, path);
	Py_CLEAR(r->memory);
	r->memory = outer_memory;
	r->object = outer;
	return rc;
}

/* 1 = the live value is an object with a state_dict, and neither a tensor nor a container. */
static int
is_object(struct py_restore *r, PyObject *live)
{
	if (!live || py_is_simple(live) || PyDict_Check(live) || PyList_Check(live) || PyTuple_Check(live))
		return 0;
	if (r->st->torch.tensor && PyType_IsSubtype(Py_TYPE(live), (PyTypeObject *)r->st->torch.tensor))
		return 0;
	return py_has_state_dict(r->st, live);
}

PyObject *
py_unwrap(struct py_state *st, PyObject *live)
{
	if (live && (PyObject *)Py_TYPE(live) == st->per_rank)
		return PyObject_GetAttr(live, st->s.value);
	return Py_XNewRef(live);
}

static int
match_node(struct py_restore *r, const struct pawl_node *given, PyObject *wrapped, enum py_rule rule,
           const struct py_path *path)
{
	const struct pawl_node *node = pawl_node_own(given);

	if (!node && wrapped)
		return match_unclaimed(r, given, wrapped, path);
	if (!node)
		return match_container(r, given, NULL, PY_NEW, path); /* the values of all ranks, as a list */

	AUTO_REF live = py_unwrap(r->st, wrapped);
	int object;

	if (wrapped && !live)
		return -1;
	object = is_object(r, live);

	if (object)
		return object < 0 ? -1 : match_object(r, node, live, path);
	if (live) {
		PyObject *value = NULL;
		int rc = py_kind_push(r, node, live, &value);

		if (rc < 0)
			return -1;
		if (rc > 0) {
			Py_DECREF(live);
			live = Py_NewRef(value);
		}
	}
	if (!is_container(node))
		return match_leaf(r, node, live, rule, path);
	if (!pawl_node_first(node) && (!live || !py_is_alike(node, live) || r->opts->n_include))
		return match_leaf(r, node, live, rule, path);
	if (live && py_is_alike(node, live))
		return match_container(r, node, live, rule, path);
	bool is_data = rule == PY_USER && live && py_node_is_plain(node) && py_is_plain(r->st, live, 0);

	if (live && live != Py_None && rule != PY_OBJECT && !is_data)
		TRY(py_kind_differs(r, node, live, path));
	py_module_must_load(r);
	return match_container(r, node, NULL, PY_NEW, path);
}

int
py_match(struct py_restore *r, PyObject *live)
{
	const struct pawl_node *root = pawl_state_root(r->saved);
	size_t n = pawl_state_tensor_count(r->saved);

	r->problems = PyList_New(0);
	r->notices = PyList_New(0);
	r->fresh = PyMem_Calloc(n + 1, sizeof(*r->fresh));
	r->glob_used = PyMem_Calloc(r->opts->n_include + 1, sizeof(*r->glob_used));
	if (!r->problems || !r->notices)
		return -1;
	if (!r->fresh || !r->glob_used) {
		PyErr_NoMemory();
		return -1;
	}
	if (root && match_node(r, root, live, live ? PY_USER : PY_NEW, NULL) < 0)
		return -1;
	for (size_t i = 0; i < r->opts->n_include; i++)
		if (!r->glob_used[i])
			TRY(py_problem_glob(r, r->opts->include[i]));
	return 0;
}

void
py_match_clear(struct py_restore *r)
{
	for (size_t i = 0; i < r->n_leaves; i++) {
		Py_XDECREF(r->leaves[i].holder);
		Py_XDECREF(r->leaves[i].value);
		Py_XDECREF(r->leaves[i].copy_to);
		Py_XDECREF(r->leaves[i].live);
	}
	for (size_t i = 0; i < r->n_objects; i++) {
		Py_XDECREF(r->objects[i].live);
		Py_XDECREF(r->objects[i].state_dict);
		Py_XDECREF(r->objects[i].skip);
		Py_XDECREF(r->objects[i].parameters);
	}
	PyMem_Free(r->leaves);
	PyMem_Free(r->objects);
	py_kind_clear(r);
	PyMem_Free(r->skips);
	r->skips = NULL;
	r->n_skips = r->cap_skips = r->next_skip = 0;
	PyMem_Free(r->fresh);
	PyMem_Free(r->glob_used);
	PyMem_Free(r->ranges);
	r->ranges = NULL;
	r->n_ranges = r->cap_ranges = r->read_into = r->copied_to = 0;
	r->leaves = NULL;
	r->objects = NULL;
	r->fresh = NULL;
	r->glob_used = NULL;
	r->n_leaves = r->cap_leaves = r->next_leaf = 0;
	r->n_objects = r->cap_objects = r->next_object = 0;
	r->object = 0;
	Py_CLEAR(r->memory);
	Py_CLEAR(r->problems);
	Py_CLEAR(r->notices);
}
