/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_walk: a Python object as a state. Dicts, lists, tuples and scalars are walked; tensors are
 * described by address. An object with a state_dict() is replaced by the result of that.
 *
 * Other types that pawl._kinds knows are saved as a plain value and a kind. All remaining types are
 * refused; the error names path and type. A torch.Size is restored as a plain tuple. Other
 * subclasses of dict and list are restored as dict and list (an OrderedDict as itself). Subclasses
 * of int, float, str and bytes are restored as their value: they compare equal.
 */
#include "py.h"

#include <stdio.h>

#include "py_lazy.h"

/* A tensor on a device. Its bytes are fetched when the library requests them. */
struct py_fill {
	struct py_fill *next;
	struct py_walk *walk;
	PyObject *tensor;
};

static int walk_value(struct py_walk *w, PyObject *obj, const struct py_path *path);

static int
raise_failure(struct py_walk *w, int code, const struct pawl_error *err)
{
	if (code >= 0)
		return 0;
	py_raise(w->st, code, err);
	return -1;
}

/* ---- scalars ---- */

static int
int_scalar(PyObject *obj, struct pawl_scalar *ret, PyObject **keep)
{
	int overflow = 0;
	Py_ssize_t len;
	long long value = PyLong_AsLongLongAndOverflow(obj, &overflow);

	ret->type = PAWL_INT;
	if (!overflow) {
		ret->i = value;
		return value == -1 && PyErr_Occurred() ? -1 : 1;
	}
	*keep = PyObject_CallFunctionObjArgs((PyObject *)&PyUnicode_Type, obj, NULL);
	ret->ptr = *keep ? PyUnicode_AsUTF8AndSize(*keep, &len) : NULL;
	if (!ret->ptr)
		return -1;
	ret->len = (size_t)len;
	return 1;
}

static int
text_scalar(PyObject *obj, struct pawl_scalar *ret)
{
	Py_ssize_t len;

	ret->type = PAWL_STR;
	ret->ptr = PyUnicode_AsUTF8AndSize(obj, &len);
	if (!ret->ptr)
		return -1;
	ret->len = (size_t)len;
	return 1;
}

static int
bytes_scalar(PyObject *obj, struct pawl_scalar *ret)
{
	char *ptr;
	Py_ssize_t len;

	ret->type = PAWL_BYTES;
	TRY(PyBytes_AsStringAndSize(obj, &ptr, &len));
	ret->ptr = ptr;
	ret->len = (size_t)len;
	return 1;
}

int
py_scalar(struct py_state *st, PyObject *obj, const struct py_path *path, struct pawl_scalar *ret, PyObject **keep)
{
	int rc = 0;

	*ret = (struct pawl_scalar){.type = PAWL_NONE};
	*keep = NULL;
	if (obj == Py_None)
		return 1;
	if (obj == Py_True || obj == Py_False) {
		ret->type = PAWL_BOOLEAN;
		ret->i = obj == Py_True;
		return 1;
	}
	if (PyUnicode_Check(obj)) {
		rc = text_scalar(obj, ret);
	} else if (PyLong_Check(obj)) {
		rc = int_scalar(obj, ret, keep);
	} else if (PyFloat_Check(obj)) {
		ret->type = PAWL_FLOAT;
		ret->f = PyFloat_AsDouble(obj);
		rc = 1;
	} else if (PyBytes_Check(obj)) {
		rc = bytes_scalar(obj, ret);
	}
	return rc < 0 ? py_wrap_at(st, path, obj) : rc;
}

/* 1 = added, 0 = not a scalar. */
static int
walk_scalar(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	struct pawl_error err = {0};
	struct pawl_scalar scalar;
	AUTO_REF text = NULL;
	int rc = py_scalar(w->st, obj, path, &scalar, &text);

	if (rc <= 0)
		return rc;
	return raise_failure(w, pawl_state_add(w->state, &scalar, &err), &err) < 0 ? -1 : 1;
}

/* ---- tensors ---- */

static void
keep_error(struct py_walk *w)
{
	if (w->error[0])
		PyErr_Clear();
	else
		PyErr_Fetch(&w->error[0], &w->error[1], &w->error[2]);
}

/* Runs inside pawl_save, on the thread that released the GIL for it. */
static int
fill_bytes(void *arg, void *dst, size_t nbytes, struct pawl_error *err)
{
	struct py_fill *f = arg;
	struct py_walk *w = f->walk;
	int rc;

	PyEval_RestoreThread(w->thread);
	rc = py_tensor_fetch(w->st, f->tensor, dst, nbytes);
	if (rc < 0)
		keep_error(w);
	w->thread = PyEval_SaveThread();
	if (rc < 0 && err) {
		err->code = PAWL_EIO;
		snprintf(err->message, sizeof(err->message), "a tensor could not be copied from its device");
	}
	return rc < 0 ? PAWL_EIO : 0;
}

static int
set_fill(struct py_walk *w, struct py_tensor *t)
{
	struct py_fill *f = PyMem_Malloc(sizeof(*f));

	if (!f) {
		PyErr_NoMemory();
		return -1;
	}
	*f = (struct py_fill){.next = w->fills, .walk = w, .tensor = Py_NewRef(t->owner)};
	w->fills = f;
	t->raw.device = PAWL_DEVICE_HOST;
	t->raw.strides = NULL;
	t->raw.fill = fill_bytes;
	t->raw.fill_arg = f;
	return 0;
}

static bool
is_a_scalar(struct py_state *st, PyObject *obj)
{
	return st->numpy.generic && PyType_IsSubtype(Py_TYPE(obj), (PyTypeObject *)st->numpy.generic);
}

/* Metadata has plain values; a scalar of NumPy becomes one. */
static int
walk_plain(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	AUTO_REF value = is_a_scalar(w->st, obj) ? PyObject_CallMethod(obj, "item", NULL) : NULL;

	if (value && py_is_simple(value))
		return walk_scalar(w, value, path);
	if (PyErr_Occurred())
		return py_wrap_at(w->st, path, obj);
	return py_raise_at(w->st, PAWL_EUNSUPPORTED, path, "a tensor, but metadata may only hold plain values");
}

/* 1 = added, 0 = not a tensor. */
static int
walk_tensor(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	struct pawl_error err = {0};
	struct py_tensor t;
	int rc = py_tensor_describe(w->st, obj, path, &t);

	if (rc <= 0)
		return rc;
	if (w->no_tensors) {
		py_tensor_clear(&t);
		return walk_plain(w, obj, path);
	}
	/* what DLPack has shown is kept for as long as the copy takes only by a lazy save */
	const bool by_driver = t.raw.device && w->by_driver && (w->is_lazy || !PyTuple_Check(t.owner));

	if (t.on_device && !by_driver)
		rc = set_fill(w, &t);
	if (rc >= 0)
		rc = PyList_Append(w->keep, t.owner);
	if (rc >= 0)
		rc = raise_failure(w, pawl_state_add_tensor(w->state, &t.raw, &err), &err);
	if (rc >= 0 && w->lazy && (!t.on_device || by_driver))
		rc = py_lazy_add(w->lazy, w->st, obj, &t, pawl_state_last_tensor(w->state), w->in_optimizer,
		                 w->in_rank);
	py_tensor_clear(&t);
	return rc < 0 ? -1 : 1;
}

/* ---- containers ---- */

/* A container that contains itself would never end. */
static int
check_cycle(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	int depth = 0;

	for (const struct py_path *p = path; p; p = p->up, depth++)
		if (p->container == obj)
			return py_raise_at(w->st, PAWL_EUNSUPPORTED, path,
			                   "a container inside itself cannot be held in a state");
	if (depth >= PY_MAX_DEPTH)
		return py_raise_at(w->st, PAWL_ELIMIT, path, "containers nested deeper than %d", PY_MAX_DEPTH);
	return 0;
}

static int
walk_key(struct py_walk *w, PyObject *key, const struct py_path *path)
{
	struct pawl_error err = {0};
	struct pawl_scalar scalar;
	AUTO_REF text = NULL;
	int rc = py_scalar(w->st, key, path, &scalar, &text);

	if (rc < 0)
		return -1;
	if (rc == 0) {
		AUTO_REF name = PyType_GetQualName(Py_TYPE(key));

		return name ? py_raise_at(w->st, PAWL_EUNSUPPORTED, path,
		                          "a key of type %U cannot be held in a state (None, bool, int, float, str and "
		                          "bytes can); convert it with str()",
		                          name)
		            : -1;
	}
	return raise_failure(w, pawl_state_key(w->state, &scalar, &err), &err);
}

static int
walk_child(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	if (walk_value(w, obj, path) == 0)
		return 0;
	return py_walk_note_refused(w, path) < 0 || walk_scalar(w, Py_None, path) < 0 ? -1 : 0;
}

static int
walk_item(struct py_walk *w, PyObject *dict, PyObject *key, PyObject *value, const struct py_path *path)
{
	struct py_path here = {.up = path, .container = dict, .key = key};

	return walk_key(w, key, &here) < 0 ? py_walk_note_refused(w, &here) : walk_child(w, value, &here);
}

static int
walk_dict_items(struct py_walk *w, PyObject *dict, const struct py_path *path)
{
	Py_ssize_t pos = 0, n = PyDict_Size(dict);
	PyObject *key, *value;

	while (PyDict_Next(dict, &pos, &key, &value)) {
		/* other code may run in between: a state_dict(), another thread */
		AUTO_REF held_key = Py_NewRef(key);
		AUTO_REF held_value = Py_NewRef(value);

		TRY(walk_item(w, dict, held_key, held_value, path));
		if (PyDict_Size(dict) != n)
			return py_raise_at(w->st, PAWL_EUSAGE, path,
			                   "the dict changed its size while it was being saved");
	}
	return 0;
}

/* A subclass may order its items itself, as OrderedDict.move_to_end does. */
static int
walk_mapping_items(struct py_walk *w, PyObject *dict, const struct py_path *path)
{
	AUTO_REF items = PyMapping_Items(dict);
	Py_ssize_t n = items ? PyList_Size(items) : 0;

	if (!items)
		return py_wrap_at(w->st, path, dict);
	for (Py_ssize_t i = 0; i < n; i++) {
		PyObject *pair = PyList_GetItem(items, i); /* borrowed, as the next two */
		PyObject *key = PyTuple_GetItem(pair, 0), *value = PyTuple_GetItem(pair, 1);

		if (!key || !value || walk_item(w, dict, key, value, path) < 0)
			return -1;
	}
	return 0;
}

static int
walk_elements(struct py_walk *w, PyObject *list, bool is_list, const struct py_path *path)
{
	Py_ssize_t n = is_list ? PyList_Size(list) : PyTuple_Size(list);

	for (Py_ssize_t i = 0; i < n; i++) {
		struct py_path here = {.up = path, .container = list, .index = i};
		AUTO_REF value = Py_XNewRef(is_list ? PyList_GetItem(list, i) : PyTuple_GetItem(list, i));

		if (!value || walk_child(w, value, &here) < 0)
			return -1;
		if (is_list && PyList_Size(list) != n)
			return py_raise_at(w->st, PAWL_EUSAGE, path,
			                   "the list changed its size while it was being saved");
	}
	return 0;
}

static int
container_type(struct py_walk *w, PyObject *obj)
{
	if (PyDict_CheckExact(obj))
		return PAWL_DICT;
	if (PyDict_Check(obj))
		return PyType_IsSubtype(Py_TYPE(obj), (PyTypeObject *)w->st->ordered_dict) ? PAWL_ODICT : PAWL_DICT;
	if (PyList_Check(obj))
		return PAWL_LIST;
	if (PyTuple_CheckExact(obj) || (PyObject *)Py_TYPE(obj) == w->st->torch.size)
		return PAWL_TUPLE;
	return 0;
}

static int
walk_container(struct py_walk *w, PyObject *obj, int type, const struct py_path *path)
{
	struct pawl_error err = {0};
	const bool was_in_optimizer = w->in_optimizer;
	int rc;

	TRY(check_cycle(w, obj, path));
	TRY(raise_failure(w, pawl_state_begin(w->state, type, &err), &err));
	if (w->lazy && PyDict_Check(obj) && py_lazy_is_optimizer_state(obj))
		w->in_optimizer = true;
	if (type == PAWL_LIST || type == PAWL_TUPLE)
		rc = walk_elements(w, obj, type == PAWL_LIST, path);
	else
		rc = PyDict_CheckExact(obj) ? walk_dict_items(w, obj, path) : walk_mapping_items(w, obj, path);
	w->in_optimizer = was_in_optimizer;
	return rc < 0 ? -1 : raise_failure(w, pawl_state_end(w->state, &err), &err);
}

/* ---- values per rank ---- */

static int
walk_per_rank(struct py_walk *w, PyObject *value, const struct py_path *path)
{
	struct pawl_error err = {0};

	TRY(raise_failure(w, pawl_state_begin(w->state, PAWL_PER_RANK, &err), &err));
	w->in_rank = true;
	TRY(walk_child(w, value, path));
	w->in_rank = false;
	return raise_failure(w, pawl_state_end(w->state, &err), &err);
}

/* An object may declare that its state belongs to the process, as the random generators do. */
static int
is_per_rank(struct py_walk *w, PyObject *obj)
{
	AUTO_REF mark = PyObject_GetAttr((PyObject *)Py_TYPE(obj), w->st->s.per_rank);

	if (mark)
		return PyObject_IsTrue(mark);
	if (!PyErr_ExceptionMatches(PyExc_AttributeError))
		return -1;
	PyErr_Clear();
	return 0;
}

/* ---- objects ---- */

int
py_has_state_dict(struct py_state *st, PyObject *obj)
{
	if (PyType_Check(obj) || py_is_simple(obj))
		return 0;

	AUTO_REF method = PyObject_GetAttr(obj, st->s.state_dict);

	if (method)
		return PyCallable_Check(method);
	if (!PyErr_ExceptionMatches(PyExc_AttributeError))
		return -1;
	PyErr_Clear();
	return 0;
}

static int
refuse_object(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	AUTO_REF name = PyType_GetQualName(Py_TYPE(obj));
	AUTO_REF module = PyObject_GetAttrString((PyObject *)Py_TYPE(obj), "__module__");
	const char *hint = PyCallable_Check(obj)
	                           ? "it is code; save its name"
	                           : "save its values in a dict, or give it state_dict() and load_state_dict()";

	if (!name || !module)
		return -1;
	return py_raise_at(w->st, PAWL_EUNSUPPORTED, path, "%s %S.%U cannot be held in a state (%s)",
	                   PyUnicode_Check(module) ? py_article(module) : "a", module, name, hint);
}

static int
walk_object(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	AUTO_REF dict = PyObject_CallMethodObjArgs(obj, w->st->s.state_dict, NULL);
	int has;

	if (!dict) {
		py_add_note(path, "raised by state_dict()");
		return -1;
	}
	if (!container_type(w, dict) && !py_is_simple(dict))
		return refuse_object(w, dict, path);
	/* the owner of its tensors may be this dict alone */
	TRY(PyList_Append(w->keep, dict));
	if (w->lazy && (py_lazy_optimizer(w->lazy, w->st, obj) < 0 || py_lazy_module(w->lazy, w->st, obj) < 0)) {
		if (w->is_lazy || !PyErr_ExceptionMatches(PyExc_Exception))
			return py_wrap_at(w->st, path, obj);
		PyErr_Clear(); /* only its files are chosen less well */
	}
	has = w->in_rank ? 0 : is_per_rank(w, obj); /* in one already */
	return has < 0 ? -1 : has ? walk_per_rank(w, dict, path) : walk_value(w, dict, path);
}

/* The plain value of an object that has a kind. 1 = added, 0 = it has none. */
static int
walk_kind(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	struct pawl_error err = {0};
	PyObject *kind_slot, *value_slot;
	int rc = py_kind_parts(w->st, obj, &kind_slot, &value_slot), own = 0;
	AUTO_REF kind = kind_slot;
	AUTO_REF value = value_slot;
	const char *text = kind ? PyUnicode_AsUTF8AndSize(kind, NULL) : NULL;

	if (rc <= 0)
		return rc < 0 ? py_wrap_at(w->st, path, obj) : 0;
	TRY(check_cycle(w, obj, path));
	if (!w->in_rank) /* else the values around it belong to the process already */
		own = py_kind_is_per_rank(kind);
	if (!text || own < 0 || PyList_Append(w->keep, value) < 0)
		return -1;
	if (own)
		TRY(raise_failure(w, pawl_state_begin(w->state, PAWL_PER_RANK, &err), &err));
	TRY(raise_failure(w, pawl_state_kind(w->state, text, &err), &err));
	TRY(walk_child(w, value, path));
	if (own)
		TRY(raise_failure(w, pawl_state_end(w->state, &err), &err));
	return 1;
}

static int
walk_other(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	int type = container_type(w, obj), rc;

	if (type)
		return walk_container(w, obj, type, path);
	rc = walk_tensor(w, obj, path);
	if (rc == 0)
		rc = walk_scalar(w, obj, path);
	if (rc)
		return rc < 0 ? -1 : 0;
	return refuse_object(w, obj, path);
}

static int
walk_value(struct py_walk *w, PyObject *obj, const struct py_path *path)
{
	int rc = 0;

	if (py_is_simple(obj))
		return walk_scalar(w, obj, path) < 0 ? -1 : 0;
	if ((PyObject *)Py_TYPE(obj) == w->st->per_rank) {
		AUTO_REF value = py_unwrap(w->st, obj);

		return value ? walk_per_rank(w, value, path) : -1;
	}
	if (py_has_no_kind(w->st, obj))
		return walk_other(w, obj, path);
	if (!w->no_tensors && !PyDict_Check(obj) && !PyList_Check(obj) && !PyTuple_Check(obj))
		rc = py_has_state_dict(w->st, obj);
	if (rc)
		return rc < 0 ? py_wrap_at(w->st, path, obj) : walk_object(w, obj, path);
	rc = walk_kind(w, obj, path);
	return rc ? (rc < 0 ? -1 : 0) : walk_other(w, obj, path);
}

static int
begin_walk(struct py_walk *w, PyObject *root, const struct pawl *run)
{
	struct pawl_error err = {0};
	uint32_t rank = run ? pawl_my_rank(run) : 0, world = run ? pawl_world_size(run) : 1;

	TRY(py_frames_refresh(w->st));
	w->keep = PyList_New(0);
	if (!w->keep)
		return -1;
	int rc = raise_failure(w, pawl_state_new(&w->state, &err), &err);

	if (rc == 0)
		rc = raise_failure(w, pawl_state_set_rank(w->state, rank, world, &err), &err);
	if (rc == 0)
		rc = walk_value(w, root, NULL);
	if (w->refused && (rc == 0 || PyErr_ExceptionMatches(w->st->errors[-PAWL_EUSAGE]))) {
		PyErr_Clear();
		rc = py_walk_raise_refused(w);
	}
	if (rc < 0)
		py_walk_end(w);
	return rc;
}

int
py_walk_begin(struct py_walk *w, struct py_state *st, PyObject *root, bool no_tensors, const struct pawl *run)
{
	*w = (struct py_walk){.st = st, .no_tensors = no_tensors, .by_driver = run != NULL};
	return begin_walk(w, root, run);
}

int
py_walk_begin_save(struct py_walk *w, struct py_state *st, PyObject *root, const struct pawl *run, struct py_lazy *lazy,
                   bool is_lazy)
{
	*w = (struct py_walk){.st = st, .lazy = lazy, .is_lazy = is_lazy, .by_driver = true};
	return begin_walk(w, root, run);
}

void
py_walk_end(struct py_walk *w)
{
	while (w->fills) {
		struct py_fill *f = w->fills;

		w->fills = f->next;
		Py_DECREF(f->tensor);
		PyMem_Free(f);
	}
	pawl_state_free(w->state);
	w->state = NULL;
	Py_CLEAR(w->keep);
	Py_CLEAR(w->refused);
	for (int i = 0; i < 3; i++)
		Py_CLEAR(w->error[i]);
}
