/* SPDX-License-Identifier: Apache-2.0 */
/*
 * py_try: how the extension handles errors and scopes, in the style of src/base. A function returns
 * -1 or NULL with an exception set, and returns at once; what it holds is released by its scope.
 */
#ifndef PAWL_PY_TRY_H
#define PAWL_PY_TRY_H

/* Defines fn##_clean, which calls fn(var) at the end of the scope unless var is NULL by then. */
#define PY_DEFINE_CLEAN(type, fn)              \
	static inline void fn##_clean(type *p) \
	{                                      \
		if (*p)                        \
			fn(*p);                \
	}                                      \
	struct py_state /* takes the semicolon */
#define PY_CLEAN(fn) __attribute__((cleanup(fn##_clean)))

PY_DEFINE_CLEAN(PyObject *, Py_DecRef);
/* Takes the value out of a variable that its scope releases: return PY_STEAL(var). */
#define PY_STEAL(var)                          \
	__extension__({                        \
		__typeof__(var) held_ = (var); \
		(var) = NULL;                  \
		held_;                         \
	})
/* A reference that is released at the end of the scope. */
#define AUTO_REF PY_CLEAN(Py_DecRef) PyObject *

/* Returns from the calling function with the value of expr, or with NULL, if expr is negative. */
#define TRY(expr)                       \
	do {                            \
		int try_rc_ = (expr);   \
		if (try_rc_ < 0)        \
			return try_rc_; \
	} while (0)
#define TRY_NULL(expr)               \
	do {                         \
		if ((expr) < 0)      \
			return NULL; \
	} while (0)

static inline void
py_lock_again(PyThreadState **thread)
{
	PyEval_RestoreThread(*thread);
}
/* The value of a call that may wait, made without the GIL. */
#define UNLOCKED(call)                                                                                        \
	__extension__({                                                                                       \
		__attribute__((cleanup(py_lock_again), unused)) PyThreadState *thread_ = PyEval_SaveThread(); \
		call;                                                                                         \
	})
/* The same for a call that reports to a `struct pawl_error *err`, which is defined here. A negative
 * value is raised. */
#define CALL(st, call)                                       \
	__extension__({                                      \
		struct pawl_error err_ = {0}, *err = &err_;  \
		const int rc_ = UNLOCKED(call);              \
		rc_ < 0 ? py_raise(st, rc_, err), rc_ : rc_; \
	})

/* The result of a method that returns nothing. */
static inline PyObject *
py_none(int rc)
{
	return rc < 0 ? NULL : Py_NewRef(Py_None);
}

#endif
