/* SPDX-License-Identifier: Apache-2.0 */
/*
 * clock: time, random tokens, and the identity of processes for leases and holds. By P10 a lease is
 * taken over only when its holder is known to be dead.
 *
 * `boot` is the boot id of the kernel and, after a '/', the number of the pid namespace. A pid says
 * nothing about a process in another container on the same machine. `machine` is a checksum of the
 * machine id: the id itself is not for publication (machine-id(5)).
 */
#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>
#ifdef __APPLE__
#include <sys/sysctl.h>
#endif

#include "base/err.h"
#include "base/sum.h"
#include "base/text.h"

#define INITIAL_PID_NAMESPACE "/4026531836" /* PROC_PID_INIT_INO of Linux: of processes outside of containers */

static int64_t
clock_ns(clockid_t id)
{
	struct timespec now = {0};

	clock_gettime(id, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t
clock_mono_ns(void)
{
	return clock_ns(CLOCK_MONOTONIC);
}

int64_t
clock_thread_ns(void)
{
	return clock_ns(CLOCK_THREAD_CPUTIME_ID);
}

int64_t
clock_mono_ms(void)
{
	return clock_ns(CLOCK_MONOTONIC) / 1000000;
}

int64_t
clock_unix_ns(void)
{
	return clock_ns(CLOCK_REALTIME);
}

int64_t
clock_deadline_ms(int64_t timeout_ms)
{
	int64_t now_ms = clock_mono_ms();

	return timeout_ms < 0 ? -1 : timeout_ms > INT64_MAX - now_ms ? INT64_MAX : now_ms + timeout_ms;
}

void
clock_sleep_ms(int64_t ms)
{
	if (ms <= 0)
		return;
	struct timespec left = {.tv_sec = (time_t)(ms / 1000), .tv_nsec = (long)(ms % 1000) * 1000000};
	while (nanosleep(&left, &left) < 0 && errno == EINTR)
		continue;
}

int
clock_token(char out[33], struct pawl_error *err)
{
	unsigned char bytes[16];
	char hex[33];

	if (getentropy(bytes, sizeof(bytes)) < 0)
		return err_sys(err, errno, "random bytes of the system");
	for (size_t i = 0; i < sizeof(bytes); i++)
		snprintf(hex + 2 * i, 3, "%02x", (unsigned)bytes[i]);
	memcpy(out, hex, sizeof(hex));
	return 0;
}

/* -------------------------------------------------------------- processes */

#ifdef __linux__

/* First bytes of a file of /proc as text; false if it cannot be read. */
static bool
read_small_file(const char *path, char *out, size_t cap)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		return false;
	ssize_t n;
	do
		n = read(fd, out, cap - 1);
	while (n < 0 && errno == EINTR);
	close(fd);
	if (n <= 0)
		return false;
	out[n] = '\0';
	return true;
}

static int
read_boot(char out[64], struct pawl_error *err)
{
	char id[64], namespace[64];

	if (!read_small_file("/proc/sys/kernel/random/boot_id", id, sizeof(id)))
		return err_sys(err, errno, "boot id of the system");
	id[strcspn(id, "\n")] = '\0';
	ssize_t n = readlink("/proc/self/ns/pid", namespace, sizeof(namespace) - 1);
	namespace[n > 0 ? n : 0] = '\0';
	/* "pid:[4026531836]" */
	char *number = strchr(namespace, '[');
	number = number ? number + 1 : namespace;
	number[strcspn(number, "]")] = '\0';
	snprintf(out, 64, "%.40s/%.20s", id, number);
	return 0;
}

/* Containers often have none, or that of their image. */
static void
read_machine(char out[33])
{
	static const char *const paths[] = {"/etc/machine-id", "/var/lib/dbus/machine-id"};
	char text[64] = "pawl machine ";
	const size_t prefix = strlen(text);

	out[0] = '\0';
	for (size_t i = 0; i < 2; i++) {
		if (!read_small_file(paths[i], text + prefix, sizeof(text) - prefix) ||
		    strspn(text + prefix, "0123456789abcdef") != 32)
			continue;
		sum_to_hex(sum_bytes(text, prefix + 32), out);
		out[32] = '\0';
		return;
	}
}

/* The word with this number (from 1, as in the manual of proc) of a line of /proc/<pid>/stat. Words
 * up to 2 hold the program's name, which may contain anything. NULL if there are too few. */
static const char *
stat_word(const char *line, unsigned number)
{
	const char *at = strrchr(line, ')');

	for (unsigned i = 2; at && i < number; i++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	return at;
}

/* 1 alive and *ret_ticks set, 0 dead, -1 cannot be known. */
static int
read_start_ticks(int64_t pid, uint64_t *ret_ticks)
{
	char path[64], line[1024];

	if (pid <= 0)
		return 0;
	snprintf(path, sizeof(path), "/proc/%lld/stat", (long long)pid);
	if (!read_small_file(path, line, sizeof(line)))
		return kill((pid_t)pid, 0) < 0 && errno == ESRCH ? 0 : -1;
	const char *state = stat_word(line, 3), *threads = stat_word(line, 20), *start = stat_word(line, 22);
	if (!state || !threads || !start)
		return -1;
	/* A zombie is dead, unless only its main thread has ended. */
	if ((*state == 'Z' || *state == 'X') && strtoll(threads, NULL, 10) <= 1)
		return 0;
	*ret_ticks = strtoull(start, NULL, 10);
	return 1;
}

#else

static int
read_boot(char out[64], struct pawl_error *err)
{
	(void)err;
	memset(out, 0, 64);
#ifdef __APPLE__
	size_t len = 63;
	if (sysctlbyname("kern.bootsessionuuid", out, &len, NULL, 0) < 0)
		out[0] = '\0';
#endif
	return 0;
}

static void
read_machine(char out[33])
{
	out[0] = '\0';
}

static int
read_start_ticks(int64_t pid, uint64_t *ret_ticks)
{
	if (pid <= 0 || (kill((pid_t)pid, 0) < 0 && errno == ESRCH))
		return 0;
	*ret_ticks = 0;
	return 1;
}

#endif

int
clock_this_process(struct clock_process *ret, struct pawl_error *err)
{
	struct clock_process self = {.pid = (int64_t)getpid()};

	if (gethostname(self.host, sizeof(self.host) - 1) < 0)
		return err_sys(err, errno, "name of this host");
	TRY(read_boot(self.boot, err));
	read_machine(self.machine);
	if (read_start_ticks(self.pid, &self.start_ticks) < 0)
		self.start_ticks = 0;
	*ret = self;
	return 0;
}

/* Names that many machines carry say nothing about where a process runs. */
static bool
is_common_host(const char *host)
{
	return host[0] == '\0' || strncmp(host, "localhost", 9) == 0 || strcmp(host, "(none)") == 0;
}

enum clock_place
clock_process_place(const struct clock_process *p, const struct clock_process *self)
{
	const size_t boot_len = strcspn(self->boot, "/");
	const bool knows_machine = p->machine[0] && self->machine[0];

	if (strcmp(p->host, self->host) != 0 || boot_len == 0 || !p->boot[0] ||
	    (knows_machine && strcmp(p->machine, self->machine) != 0))
		return CLOCK_ELSEWHERE;
	if (strcmp(p->boot, self->boot) == 0)
		return CLOCK_HERE;
	/* In a container the host name may be that of another pod, and the machine id that of the
	 * image. */
	const bool is_rebooted = (strcspn(p->boot, "/") != boot_len || strncmp(p->boot, self->boot, boot_len) != 0) &&
	                         strcmp(self->boot + boot_len, INITIAL_PID_NAMESPACE) == 0 &&
	                         strcmp(p->boot + strcspn(p->boot, "/"), INITIAL_PID_NAMESPACE) == 0;

	return is_rebooted && knows_machine && !is_common_host(self->host) ? CLOCK_REBOOTED : CLOCK_ELSEWHERE;
}

/* When this machine was booted, by its clock as it is set now. */
static int64_t
boot_unix_ns(void)
{
#ifdef CLOCK_BOOTTIME
	struct timespec up;

	if (clock_gettime(CLOCK_BOOTTIME, &up) == 0)
		return clock_unix_ns() - up.tv_sec * 1000000000LL - up.tv_nsec;
#endif
	return clock_unix_ns() - clock_mono_ns();
}

int
clock_process_alive(const struct clock_process *p)
{
	return clock_seen_process_alive(p, 0);
}

int
clock_seen_process_alive(const struct clock_process *p, int64_t seen_unix_ns)
{
	struct clock_process self = {0};
	uint64_t ticks = 0;

	if (clock_this_process(&self, NULL) < 0)
		return -1;
	const enum clock_place place = clock_process_place(p, &self);

	if (place != CLOCK_HERE)
		return place == CLOCK_REBOOTED && seen_unix_ns < boot_unix_ns() ? 0 : -1;
	int alive = read_start_ticks(p->pid, &ticks);
	if (alive != 1)
		return alive;
	if (p->start_ticks == 0 || ticks == 0)
		return -1;
	return ticks == p->start_ticks;
}

bool
clock_is_same_process(const struct clock_process *a, const struct clock_process *b)
{
	return a->pid == b->pid && a->start_ticks == b->start_ticks && strcmp(a->host, b->host) == 0 &&
	       strcmp(a->boot, b->boot) == 0;
}
