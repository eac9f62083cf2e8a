/* SPDX-License-Identifier: Apache-2.0 */
/* py_work: see py_work.h. */
#include "py_work.h"

#include <pthread.h>

#include "py_os.h"

#define LOOK_MS 100

struct work {
	py_work_fn *fn;
	void *arg;
	struct pawl_meter meter;

	pthread_mutex_t lock; /* guards the fields below */
	pthread_cond_t ended;
	bool is_over;
	int rc;
	struct pawl_error err;
};

static void *
run_work(void *arg)
{
	struct work *w = arg;
	struct pawl_error err = {0};
	int rc = w->fn(w->arg, &w->meter, &err);

	pthread_mutex_lock(&w->lock);
	w->rc = rc;
	w->err = err;
	w->is_over = true;
	pthread_cond_signal(&w->ended);
	pthread_mutex_unlock(&w->lock);
	return NULL;
}

static bool
wait_slice(struct work *w)
{
	pthread_mutex_lock(&w->lock);
	py_os_cond_wait_ms(&w->ended, &w->lock, &w->is_over, LOOK_MS);
	bool is_over = w->is_over;

	pthread_mutex_unlock(&w->lock);
	return is_over;
}

static int
report_progress(const struct work *w, PyObject *progress)
{
	if (Py_IsNone(progress))
		return 0;
	AUTO_REF done = PyObject_CallFunction(progress, "KK", (unsigned long long)w->meter.done_bytes,
	                                      (unsigned long long)w->meter.total_bytes);

	return done ? 0 : -1;
}

/* 0 when the work is over; -1 with an exception. */
static int
watch_work(struct work *w, PyObject *progress)
{
	for (;;) {
		bool is_over = UNLOCKED(wait_slice(w));

		TRY(PyErr_CheckSignals());
		TRY(report_progress(w, progress));
		if (is_over)
			return 0;
	}
}

static void
work_init(struct work *w)
{
	pthread_mutex_init(&w->lock, NULL);
	py_os_cond_init(&w->ended);
}

int
py_work(struct py_state *st, PyObject *progress, py_work_fn *fn, void *arg, struct pawl_error *err)
{
	struct work w = {.fn = fn, .arg = arg};
	pthread_t thread;
	int rc;

	*err = (struct pawl_error){0};
	work_init(&w);
	if (pthread_create(&thread, NULL, run_work, &w) != 0) {
		py_raise_text(st, PAWL_ENOMEM, "no thread could be started");
		rc = -1;
	} else {
		rc = watch_work(&w, progress);
		w.meter.cancel = rc < 0;
		UNLOCKED(pthread_join(thread, NULL));
		if (rc == 0) {
			rc = w.rc;
			*err = w.err;
		}
	}
	pthread_cond_destroy(&w.ended);
	pthread_mutex_destroy(&w.lock);
	return rc;
}
