/* SPDX-License-Identifier: Apache-2.0 */
/*
 * watch: notices SIGTERM and SIGUSR1, so that a save can be made before the process is killed.
 *
 * A signal handler gets only the signal's number, so it must find the watcher in static memory.
 * That is `slot`, so a process has at most one watcher. The handler notes time and number in
 * lock-free atomics, and calls the earlier handler. Both are safe at any point. All else happens
 * when the caller asks (pawl_watch_signal). In a forked child the earlier handler alone acts.
 *
 *   closed --open: slot.watch = w, handlers in--> watching --signal--> flag up (stays so)
 *      ^-------- close: handlers back, slot.watch = NULL, wait for slot.inside == 0, free --------'
 */
#include "pawl.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"

static const int watched[] = {SIGTERM, SIGUSR1};
#define N_WATCHED (sizeof(watched) / sizeof(watched[0]))

struct pawl_watch {
	double grace_seconds;
	pid_t pid;                           /* of the process that opened it; a forked child has a copy */
	struct sigaction earlier[N_WATCHED]; /* never changed once the slot points here */
	_Atomic(int64_t) at_ns;              /* when the first signal arrived; 0 = none yet */
	atomic_int sender;                   /* process id, 0 = not known; set before signal */
	atomic_int signal;                   /* set after at_ns */
};

static struct {
	_Atomic(struct pawl_watch *) watch;
	atomic_int inside; /* handlers that may be looking at *watch now */
	/* For each signal the thread in an earlier handler. A handler of the program that was set
	 * over an earlier watch still calls that one, which is this one. */
	atomic_uintptr_t calling[N_WATCHED];
} slot;

_Static_assert(ATOMIC_INT_LOCK_FREE == 2 && ATOMIC_LLONG_LOCK_FREE == 2 && ATOMIC_LONG_LOCK_FREE == 2 &&
                       ATOMIC_POINTER_LOCK_FREE == 2,
               "a signal handler may use lock-free atomics only");

static void
call_earlier(const struct sigaction *earlier, int number, siginfo_t *info, void *context)
{
	if (earlier->sa_flags & SA_SIGINFO) {
		if (earlier->sa_sigaction)
			earlier->sa_sigaction(number, info, context);
	} else if (earlier->sa_handler != SIG_DFL && earlier->sa_handler != SIG_IGN) {
		earlier->sa_handler(number);
	}
}

/* In a forked child no code uses the watch, so the signal has the effect that it would have without
 * the watch. The signal is blocked while its handler runs. So the one raised here is delivered when
 * the handler returns. */
static void
act_as_before(const struct sigaction *earlier, int number)
{
	if ((earlier->sa_flags & SA_SIGINFO) == 0 && earlier->sa_handler == SIG_DFL &&
	    sigaction(number, earlier, NULL) == 0)
		raise(number);
}

static size_t
index_of(int number)
{
	size_t i = 0;

	while (i < N_WATCHED && watched[i] != number)
		i++;
	return i;
}

/* Calls the earlier handler, unless this thread is in it already. */
static void
call_earlier_once(const struct sigaction *earlier, int number, siginfo_t *info, void *context)
{
	atomic_uintptr_t *calling = &slot.calling[index_of(number)];
	const uintptr_t me = (uintptr_t)pthread_self();
	uintptr_t thread = 0;

	if (atomic_compare_exchange_strong(calling, &thread, me)) {
		call_earlier(earlier, number, info, context);
		atomic_store(calling, 0);
	} else if (thread != me) { /* another thread got the same signal */
		call_earlier(earlier, number, info, context);
	}
}

static void
on_signal(int number, siginfo_t *info, void *context)
{
	int kept_errno = errno;
	struct sigaction earlier = {.sa_handler = SIG_IGN};
	bool in_child = false;

	atomic_fetch_add(&slot.inside, 1);
	struct pawl_watch *watch = atomic_load(&slot.watch);
	if (watch) {
		int64_t none = 0;
		in_child = watch->pid != getpid();
		if (!in_child && atomic_compare_exchange_strong(&watch->at_ns, &none, clock_mono_ns())) {
			/* Only a signal from a process has a sender. */
			atomic_store(&watch->sender, info && info->si_code <= 0 ? (int)info->si_pid : 0);
			atomic_store(&watch->signal, number);
		}
		earlier = watch->earlier[index_of(number)];
	}
	atomic_fetch_sub(&slot.inside, 1);
	if (in_child)
		act_as_before(&earlier, number);
	call_earlier_once(&earlier, number, info, context);
	errno = kept_errno;
}

static bool
is_ours(const struct sigaction *action)
{
	return (action->sa_flags & SA_SIGINFO) != 0 && action->sa_sigaction == on_signal;
}

static int
install_handler(const struct pawl_watch *watch, size_t i)
{
	const struct sigaction *earlier = &watch->earlier[i];
	struct sigaction action = {.sa_sigaction = on_signal, .sa_flags = SA_SIGINFO | SA_ONSTACK};

	/* A program with a handler of its own decided whether system calls are interrupted. A
	 * program without one does not expect it. */
	bool had_handler = (earlier->sa_flags & SA_SIGINFO) != 0 ||
	                   (earlier->sa_handler != SIG_DFL && earlier->sa_handler != SIG_IGN);
	action.sa_flags |= had_handler ? earlier->sa_flags & SA_RESTART : SA_RESTART;
	action.sa_mask = earlier->sa_mask;
	return sigaction(watched[i], &action, NULL);
}

static void
restore_handlers(const struct pawl_watch *watch, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		struct sigaction now;
		/* A handler that was set after ours must stay. */
		if (atomic_load(&slot.watch) == watch && sigaction(watched[i], NULL, &now) == 0 && is_ours(&now))
			sigaction(watched[i], &watch->earlier[i], NULL);
	}
}

static void
release_watch(struct pawl_watch *watch)
{
	struct pawl_watch *mine = watch;

	if (atomic_compare_exchange_strong(&slot.watch, &mine, NULL) && watch->pid == getpid())
		while (atomic_load(&slot.inside) > 0)
			sched_yield();
	mem_free(watch);
}

int
pawl_watch_open(double grace_seconds, struct pawl_watch **ret, struct pawl_error *err)
{
	if (!ret)
		return err_set(err, PAWL_EUSAGE, "watch: expected a pointer that receives the handle, found NULL");
	if (!(grace_seconds >= 0))
		return err_set(err, PAWL_EUSAGE, "watch: expected a grace time of 0 seconds or more, found %g",
		               grace_seconds);
	struct pawl_watch *watch = mem_zalloc(1, sizeof(*watch));
	if (!watch)
		return err_nomem(err, "watch");
	watch->grace_seconds = grace_seconds;
	watch->pid = getpid();
	atomic_init(&watch->at_ns, 0);
	atomic_init(&watch->sender, 0);
	atomic_init(&watch->signal, 0);
	for (size_t i = 0; i < N_WATCHED; i++)
		sigaction(watched[i], NULL, &watch->earlier[i]);

	struct pawl_watch *there = atomic_load(&slot.watch);
	bool inherited = there && there->pid != watch->pid;
	for (size_t i = 0; inherited && i < N_WATCHED; i++)
		if (is_ours(&watch->earlier[i]))
			watch->earlier[i] = there->earlier[i];
	if (!inherited)
		there = NULL;
	if (!atomic_compare_exchange_strong(&slot.watch, &there, watch)) {
		mem_free(watch);
		return err_set(err, PAWL_EBUSY, "watch: this process already watches signals");
	}
	for (size_t i = 0; i < N_WATCHED; i++) {
		if (install_handler(watch, i) == 0)
			continue;
		int sys = errno;
		restore_handlers(watch, i);
		release_watch(watch);
		return err_sys(err, sys, "watch: handler of signal %d", watched[i]);
	}
	*ret = watch;
	return 0;
}

int
pawl_watch_signal(const struct pawl_watch *watch)
{
	return watch ? atomic_load(&watch->signal) : 0;
}

int64_t
pawl_watch_sender(const struct pawl_watch *watch)
{
	return watch ? atomic_load(&watch->sender) : 0;
}

double
pawl_watch_seconds_left(const struct pawl_watch *watch)
{
	if (!watch || !(watch->grace_seconds > 0) || atomic_load(&watch->signal) == 0)
		return -1;
	double passed = (double)(clock_mono_ns() - atomic_load(&watch->at_ns)) / 1e9;
	return passed < watch->grace_seconds ? watch->grace_seconds - passed : 0;
}

void
pawl_watch_close(struct pawl_watch *watch)
{
	if (!watch)
		return;
	restore_handlers(watch, N_WATCHED);
	release_watch(watch);
}
