/* SPDX-License-Identifier: Apache-2.0 */
/* os: descriptors are not passed on to programs, secrets are gone, times are those of the file. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.h"
#include "base/os.h"

static void
assert_closes_on_exec(int fd)
{
	assert_true(fd >= 0);
	assert_int_equal(fcntl(fd, F_GETFD), FD_CLOEXEC);
	close(fd);
}

static void
test_descriptors_are_closed_in_programs_we_start(void **state)
{
	int ends[2];

	(void)state;
	assert_int_equal(os_pipe(ends), 0);
	assert_closes_on_exec(ends[0]);
	assert_closes_on_exec(ends[1]);
	assert_int_equal(os_socketpair(SOCK_STREAM, ends), 0);
	assert_closes_on_exec(ends[0]);
	assert_closes_on_exec(ends[1]);
	assert_closes_on_exec(os_socket(AF_INET, SOCK_STREAM, 0));
}

static void
test_a_send_without_a_reader_fails_and_raises_no_signal(void **state)
{
	int ends[2];

	(void)state;
	assert_int_equal(os_socketpair(SOCK_STREAM, ends), 0);
	close(ends[1]);
	assert_int_equal(send(ends[0], "x", 1, MSG_NOSIGNAL), -1);
	assert_int_equal(errno, EPIPE);
	close(ends[0]);
}

static void
test_a_wiped_secret_is_zeros(void **state)
{
	char secret[8] = "secret";
	static const char zeros[6];

	(void)state;
	os_wipe(secret, 6);
	assert_memory_equal(secret, zeros, 6);
}

static void
test_times_are_those_of_access_and_change(void **state)
{
	const struct timespec set[2] = {{.tv_sec = 11, .tv_nsec = 12}, {.tv_sec = 21, .tv_nsec = 22}};
	struct timespec times[2];
	struct stat st;
	int fd;

	(void)state;
	assert_int_equal(fd_temp_file(&fd, "test", NULL), 0);
	assert_int_equal(futimens(fd, set), 0);
	assert_int_equal(fstat(fd, &st), 0);
	os_times(&st, times);
	assert_memory_equal(times, set, sizeof times);
	close(fd);
}

static void
test_a_sync_of_what_is_no_file_fails(void **state)
{
	int fd;

	(void)state;
	assert_int_equal(fd_temp_file(&fd, "test", NULL), 0);
	assert_int_equal(os_sync(fd), 0);
	assert_int_equal(os_sync_data(fd), 0);
	close(fd);
	assert_int_equal(os_sync(fd), -1);
	assert_int_equal(os_sync_data(fd), -1);
	assert_int_equal(errno, EBADF);
}

static void
test_faults_of_this_thread_are_counted(void **state)
{
	const size_t nbytes = 64 * 4096;
	const uint64_t before = os_thread_faults();
	char *memory = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	(void)state;
	assert_ptr_not_equal(memory, MAP_FAILED);
	memset(memory, 1, nbytes);
	assert_true(os_thread_faults() > before);
	munmap(memory, nbytes);
}

static void
test_only_other_systems_lack_what_linux_has(void **state)
{
	(void)state;
	assert_int_equal(os_needs_linux("this", NULL), 0);
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_descriptors_are_closed_in_programs_we_start),
		cmocka_unit_test(test_a_send_without_a_reader_fails_and_raises_no_signal),
		cmocka_unit_test(test_a_wiped_secret_is_zeros),
		cmocka_unit_test(test_times_are_those_of_access_and_change),
		cmocka_unit_test(test_a_sync_of_what_is_no_file_fails),
		cmocka_unit_test(test_faults_of_this_thread_are_counted),
		cmocka_unit_test(test_only_other_systems_lack_what_linux_has),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
