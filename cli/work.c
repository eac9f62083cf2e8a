/* SPDX-License-Identifier: Apache-2.0 */
/* work: see work.h. Two threads: one waits for signals, one draws the progress line during work. */
#include "work.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/mem.h"
#include "human.h"

#define WORK_FIRST_MS 300 /* shorter work shows no line */
#define WORK_EVERY_MS 100
#define WORK_BAR_MAX 30
#define WORK_BAR_MIN 8
#define WORK_FIGURES 52    /* columns reserved for the figures */
#define WORK_LONGEST_S 1e8 /* every system's setitimer takes so much */

struct work {
	const struct term *term;
	bool draws;
	sigset_t signals; /* signals handled here */
	pthread_t waiter, drawer;

	pthread_mutex_t lock; /* guards all below */
	pthread_cond_t changed;
	struct pawl_meter *meter; /* NULL when no work runs */
	const char *label;
	uint64_t base_bytes, total_bytes;
	int64_t began_ns; /* clock_mono_ns of the work shown */
	bool shown;       /* the line is on the screen */
	bool drawing;     /* the drawer thread exists */
	bool stop_drawing, stop;
	bool is_limited, timed_out; /* by work_limit */
	int signal;
	struct pawl_meter waits; /* work_meter */
};

static void
erase_line(struct work *w)
{
	if (!w->shown)
		return;
	(void)fputs("\r\033[K", w->term->file);
	(void)fflush(w->term->file);
	w->shown = false;
}

/* "12 s left" */
static const char *
time_left(struct keep *keep, double seconds)
{
	if (seconds < 100)
		return keep_printf(keep, "  %.0f s left", seconds + 0.5);
	return keep_printf(keep, "  %s left", human_seconds(keep, seconds));
}

/* "52%  1.30 GiB of 2.50 GiB  3.10 GB/s  12 s left", as far as the values are known. */
static const char *
format_figures(const struct work *w, struct keep *keep, uint64_t done, uint64_t total)
{
	double seconds = (double)(clock_mono_ns() - w->began_ns) * 1e-9,
	       rate = seconds > 0 ? (double)done / seconds : 0;
	const char *ret = "";

	if (w->signal != 0 || w->timed_out)
		return "stopping";
	if (total > 0)
		ret = keep_printf(keep, "%3.0f%%  %s of %s", (double)done / (double)total * 100,
		                  human_bytes(keep, (double)done), human_bytes(keep, (double)total));
	else if (done > 0)
		ret = human_bytes(keep, (double)done);
	if (done > 0)
		ret = keep_printf(keep, "%s  %s", ret, human_rate(keep, rate));
	if (total > done && done > 0 && seconds > 1)
		ret = keep_printf(keep, "%s%s", ret, time_left(keep, (double)(total - done) / rate));
	return ret;
}

/* Called with the lock held. */
static void
draw_line(struct work *w)
{
	uint64_t done = w->base_bytes + __atomic_load_n(&w->meter->done_bytes, __ATOMIC_RELAXED);
	uint64_t total =
		w->total_bytes > 0 ? w->total_bytes : __atomic_load_n(&w->meter->total_bytes, __ATOMIC_RELAXED);
	const struct term *term = w->term;
	struct keep keep = {0};
	size_t width = (size_t)term->width - 1, used = term_width(w->label) + 2, bar = 0, full;

	done = total > 0 && done > total ? total : done;
	(void)fprintf(term->file, "\r%s  ", w->label);
	/* the figures have a fixed width, so that the bar keeps its length while they change */
	if (total > 0 && w->signal == 0 && used + WORK_FIGURES + WORK_BAR_MIN < width) {
		bar = width - used - WORK_FIGURES;
		bar = bar > WORK_BAR_MAX ? WORK_BAR_MAX : bar;
		full = (size_t)((double)done / (double)total * (double)bar + 0.5);
		term_repeat(term, STYLE_ACCENT, term->utf8 ? "\u2501" : "=", full);
		term_repeat(term, STYLE_DIM, term->utf8 ? "\u2500" : "-", bar - full);
		(void)fputs("  ", term->file);
		used += bar + 2;
	}
	(void)fputs(term_cut(&keep, format_figures(w, &keep, done, total), used < width ? width - used : 0, term->utf8),
	            term->file);
	(void)fputs("\033[K", term->file);
	(void)fflush(term->file);
	w->shown = true;
	keep_clear(&keep);
}

static void *
run_drawer(void *arg)
{
	struct work *w = arg;

	(void)pthread_mutex_lock(&w->lock);
	while (!w->stop_drawing) {
		struct timespec until;

		(void)clock_gettime(CLOCK_REALTIME, &until);
		until.tv_nsec += WORK_EVERY_MS * 1000000L;
		until.tv_sec += until.tv_nsec / 1000000000L;
		until.tv_nsec %= 1000000000L;
		(void)pthread_cond_timedwait(&w->changed, &w->lock, &until);
		if (!w->stop_drawing && w->meter != NULL && w->label != NULL &&
		    clock_mono_ns() - w->began_ns >= WORK_FIRST_MS * INT64_C(1000000))
			draw_line(w);
	}
	(void)pthread_mutex_unlock(&w->lock);
	return NULL;
}

/* Cancels the work, or ends the process. Called with the lock held. */
static void
take_signal(struct work *w, int number)
{
	const bool is_timer = number == SIGALRM && w->is_limited;

	if (is_timer && w->meter == NULL) /* the work ended first */
		return;
	if (!is_timer && (w->meter == NULL || w->signal != 0)) {
		erase_line(w);
		_exit(128 + number);
	}
	if (is_timer)
		w->timed_out = true;
	else
		w->signal = number;
	__atomic_store_n(&w->meter->cancel, 1, __ATOMIC_RELAXED);
	__atomic_store_n(&w->waits.cancel, 1, __ATOMIC_RELAXED);
	(void)pthread_cond_signal(&w->changed);
}

static void *
run_waiter(void *arg)
{
	struct work *w = arg;

	for (;;) {
		int number = 0;

		if (sigwait(&w->signals, &number) != 0)
			continue;
		(void)pthread_mutex_lock(&w->lock);
		if (w->stop) {
			(void)pthread_mutex_unlock(&w->lock);
			return NULL;
		}
		if (number != SIGUSR2)
			take_signal(w, number);
		(void)pthread_mutex_unlock(&w->lock);
	}
}

/* Adds a signal, unless it is ignored on entry (nohup, a background job of a script). */
static void
add_signal(sigset_t *set, int number)
{
	struct sigaction action;

	if (sigaction(number, NULL, &action) == 0 && action.sa_handler != SIG_IGN)
		(void)sigaddset(set, number);
}

struct work *
work_open(const struct term *term, bool draws)
{
	struct work *w = mem_zalloc(1, sizeof(*w));

	if (w == NULL)
		return NULL;
	w->term = term;
	w->draws = draws && term->tty;
	(void)sigemptyset(&w->signals);
	add_signal(&w->signals, SIGINT);
	add_signal(&w->signals, SIGTERM);
	add_signal(&w->signals, SIGHUP);       /* the terminal was closed */
	(void)sigaddset(&w->signals, SIGUSR2); /* wakes the waiting thread at the end */
	(void)sigaddset(&w->signals, SIGALRM); /* of work_limit */
	(void)pthread_sigmask(SIG_BLOCK, &w->signals, NULL);
	(void)pthread_mutex_init(&w->lock, NULL);
	(void)pthread_cond_init(&w->changed, NULL);
	if (pthread_create(&w->waiter, NULL, run_waiter, w) != 0) {
		(void)pthread_sigmask(SIG_UNBLOCK, &w->signals, NULL);
		mem_free(w);
		return NULL;
	}
	return w;
}

static void
stop_drawer(struct work *w)
{
	bool drawing;

	(void)pthread_mutex_lock(&w->lock);
	drawing = w->drawing;
	w->drawing = false;
	w->stop_drawing = true;
	(void)pthread_cond_signal(&w->changed);
	(void)pthread_mutex_unlock(&w->lock);
	if (drawing)
		(void)pthread_join(w->drawer, NULL);
}

void
work_close(struct work *w)
{
	if (w == NULL)
		return;
	stop_drawer(w);
	(void)pthread_mutex_lock(&w->lock);
	erase_line(w);
	w->stop = true;
	(void)pthread_mutex_unlock(&w->lock);
	(void)pthread_kill(w->waiter, SIGUSR2);
	(void)pthread_join(w->waiter, NULL);
	(void)pthread_cond_destroy(&w->changed);
	(void)pthread_mutex_destroy(&w->lock);
	mem_free(w);
}

static void
reset_meter(struct pawl_meter *meter)
{
	__atomic_store_n(&meter->done_bytes, 0, __ATOMIC_RELAXED);
	__atomic_store_n(&meter->total_bytes, 0, __ATOMIC_RELAXED);
}

void
work_begin(struct work *w, const char *label, struct pawl_meter *meter, uint64_t total_bytes)
{
	reset_meter(meter);
	__atomic_store_n(&meter->cancel, 0, __ATOMIC_RELAXED);
	if (w == NULL)
		return;
	(void)pthread_mutex_lock(&w->lock);
	if (w->signal != 0)
		__atomic_store_n(&meter->cancel, 1, __ATOMIC_RELAXED);
	w->meter = meter;
	w->label = label;
	w->base_bytes = 0;
	w->total_bytes = total_bytes;
	w->began_ns = clock_mono_ns();
	w->stop_drawing = false;
	if (w->draws && !w->drawing)
		w->drawing = pthread_create(&w->drawer, NULL, run_drawer, w) == 0;
	(void)pthread_mutex_unlock(&w->lock);
}

void
work_next(struct work *w)
{
	if (w == NULL)
		return;
	(void)pthread_mutex_lock(&w->lock);
	if (w->meter != NULL) {
		w->base_bytes += __atomic_load_n(&w->meter->done_bytes, __ATOMIC_RELAXED);
		reset_meter(w->meter);
	}
	(void)pthread_mutex_unlock(&w->lock);
}

void
work_limit(struct work *w, double seconds)
{
	const double s = seconds < WORK_LONGEST_S ? seconds : WORK_LONGEST_S;
	struct itimerval timer = {0};

	if (w == NULL || !(s > 0))
		return;
	timer.it_value.tv_sec = (time_t)s;
	timer.it_value.tv_usec = (suseconds_t)((s - floor(s)) * 1e6);
	if (s < 1e-6) /* 0 would be no timer */
		timer.it_value.tv_usec = 1;
	(void)pthread_mutex_lock(&w->lock);
	w->is_limited = true;
	(void)pthread_mutex_unlock(&w->lock);
	(void)setitimer(ITIMER_REAL, &timer, NULL);
}

void
work_end(struct work *w)
{
	const struct itimerval none = {0};

	if (w == NULL)
		return;
	if (w->is_limited)
		(void)setitimer(ITIMER_REAL, &none, NULL);
	stop_drawer(w);
	(void)pthread_mutex_lock(&w->lock);
	erase_line(w);
	w->meter = NULL;
	(void)pthread_mutex_unlock(&w->lock);
}

void
work_hide(struct work *w)
{
	if (w == NULL)
		return;
	(void)pthread_mutex_lock(&w->lock);
	erase_line(w);
}

void
work_show(struct work *w)
{
	if (w != NULL)
		(void)pthread_mutex_unlock(&w->lock);
}

const struct pawl_meter *
work_meter(const struct work *w)
{
	return w != NULL ? &w->waits : NULL;
}

bool
work_timed_out(struct work *w)
{
	bool ret;

	if (w == NULL)
		return false;
	(void)pthread_mutex_lock(&w->lock);
	ret = w->timed_out && w->signal == 0;
	(void)pthread_mutex_unlock(&w->lock);
	return ret;
}

int
work_signal(struct work *w)
{
	int number;

	if (w == NULL)
		return 0;
	(void)pthread_mutex_lock(&w->lock);
	number = w->signal;
	(void)pthread_mutex_unlock(&w->lock);
	return number;
}
