/* SPDX-License-Identifier: Apache-2.0 */
/* py_os: what Linux and macOS name differently; src/base/os.h is the library's. */
#ifndef PAWL_PY_OS_H
#define PAWL_PY_OS_H

#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#ifdef __linux__

static inline bool
py_os_is_main_thread(void)
{
	return gettid() == getpid();
}

/* Exchanges the names of two folders; returns as rename. EINVAL, ENOSYS, ENOTSUP: not supported. */
static inline int
py_os_exchange(const char *a, const char *b)
{
	return renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE);
}

static inline void
py_os_cond_init(pthread_cond_t *cond)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(cond, &attr);
	pthread_condattr_destroy(&attr);
}

/* Waits until *is_over, at most this long. */
static inline void
py_os_cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, const bool *is_over, long ms)
{
	struct timespec until;
	int rc = 0;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_nsec += ms * 1000000;
	until.tv_sec += until.tv_nsec / 1000000000;
	until.tv_nsec %= 1000000000;
	while (!*is_over && rc == 0)
		rc = pthread_cond_timedwait(cond, lock, &until);
}

#else /* macOS */

static inline bool
py_os_is_main_thread(void)
{
	return pthread_main_np() == 1;
}

static inline int
py_os_exchange(const char *a, const char *b)
{
	return renamex_np(a, b, RENAME_SWAP);
}

static inline void
py_os_cond_init(pthread_cond_t *cond)
{
	pthread_cond_init(cond, NULL);
}

static inline void
py_os_cond_wait_ms(pthread_cond_t *cond, pthread_mutex_t *lock, const bool *is_over, long ms)
{
	const struct timespec left = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	if (!*is_over) /* the caller comes back */
		pthread_cond_timedwait_relative_np(cond, lock, &left);
}

#endif

#endif
