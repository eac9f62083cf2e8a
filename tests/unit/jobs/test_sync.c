/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The input of syncing: places, commands, secrets. Moving and verifying, in every way, is
 * tested from Python: tests/py/test_sync.py.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "helpers/hang.h"
#include "helpers/make_checkpoint.h"
#include "base/clock.h"
#include "base/err.h"
#include "jobs/sync/sync.h"
#include "pawl_jobs.h"

static void
check_place(const char *given, enum sync_place_kind kind, const char *text, const char *store)
{
	struct sync_place p;
	struct pawl_error err = {0};
	if (sync_place_read(given, &p, &err) < 0)
		fail_msg("%s: %s", given, err.message);
	assert_int_equal(p.kind, kind);
	assert_string_equal(p.text, text);
	if (store == NULL)
		assert_null(p.store);
	else
		assert_string_equal(p.store, store);
	sync_place_clear(&p);
}

static void
test_R113_R121_places_are_told_apart(void **state)
{
	(void)state;
	check_place("/data/run/", SYNC_LOCAL, "/data/run", "/data/run");
	check_place("file:///data/run", SYNC_LOCAL, "/data/run", "/data/run");
	check_place("ubuntu@192.0.0.1:/srv/ray_results/trial1", SYNC_HOST, "ubuntu@192.0.0.1:/srv/ray_results/trial1",
	            "ssh://ubuntu@192.0.0.1/srv/ray_results/trial1");
	check_place("node7:results/50%?", SYNC_HOST, "node7:results/50%?", "ssh://node7/~/results/50%25%3F");
	check_place("me@[::1]:/x", SYNC_HOST, "me@[::1]:/x", "ssh://me@[::1]/x");
	check_place("s3://bucket/a", SYNC_STORE, "s3://bucket/a", "s3://bucket/a");
	check_place("ssh://host:22/a", SYNC_STORE, "ssh://host:22/a", "ssh://host:22/a");
	check_place("hdfs://host/a", SYNC_OTHER, "hdfs://host/a", NULL);
}

static void
test_P17_P18_bad_places_are_refused(void **state)
{
	(void)state;
	static const char *const bad[] = {"", "-oProxyCommand=x:/y", "a b:/x", "https://me:CANARY@host/x", "$(x):/y"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct sync_place p;
		struct pawl_error err = {0};
		assert_int_equal(sync_place_read(bad[i], &p, &err), PAWL_EUSAGE);
		assert_null(strstr(err.message, "CANARY"));
	}
}

static void
test_R114_R118_words_are_split_before_they_are_filled(void **state)
{
	(void)state;
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_error err = {0};
	char **w;
	assert_int_equal(sync_command_words("rsync -savz -e \"ssh -i ssh_key.pem\" {source} --to={target}", false,
	                                    "/a b; c", "$(x)", &memory, &w, &err),
	                 0);
	static const char *const want[] = {"rsync", "-savz", "-e", "ssh -i ssh_key.pem", "/a b; c", "--to=$(x)"};
	for (size_t i = 0; i < 6; i++)
		assert_string_equal(w[i], want[i]);
	assert_null(w[6]);
	assert_int_equal(sync_command_words("x {source} | y > {target}", true, "it's", "b", &memory, &w, &err), 0);
	assert_string_equal(w[2], "x 'it'\\''s' | y > 'b'");
	assert_null(w[3]);
	static const char *const bad[] = {"", "x", "x {source}", "x {target}", "x '{source} {target}"};
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(sync_command_words(bad[i], false, "a", "b", &memory, &w, &err), PAWL_EUSAGE);
}

static void
check_hidden(const char *text, const char *want)
{
	char copy[200];
	snprintf(copy, sizeof copy, "%s", text);
	pawl_hide_secrets(copy);
	assert_string_equal(copy, want);
}

static void
test_P18_secrets_are_covered_and_other_words_stay(void **state)
{
	(void)state;
	setenv("SOME_API_KEY", "0123456789", 1);
	setenv("SHORT_TOKEN", "abc", 1);
	setenv("HARMLESS", "visible", 1);
	check_hidden("key 0123456789, abc, visible 0123456789", "key **********, abc, visible **********");
	check_hidden("https://me:pw@host/x s3://bucket/a:b@c", "https://me:**@host/x s3://bucket/a:b@c");
	check_hidden("Password: hunter2\nnext", "Password:********\nnext");
	check_hidden("x-token=abc def\npassword is asked", "x-token=*******\npassword is asked");
	check_hidden("nothing here", "nothing here");
	pawl_hide_secrets(NULL);
}

static int
run(const char *script, int64_t timeout_ms, struct pawl_meter *meter, int *status, struct pawl_error *err)
{
	char *argv[] = {"/bin/sh", "-c", (char *)script, NULL};
	struct sync_limit limit = {.begin_ms = clock_mono_ms(), .meter = meter};
	limit.deadline_ms = limit.begin_ms + timeout_ms;
	memset(err, 0, sizeof *err);
	return sync_run(argv, NULL, &limit, status, err);
}

static void
test_row_35_a_program_ends_as_it_ends_or_at_its_time(void **state)
{
	(void)state;
	struct pawl_error err;
	struct pawl_meter meter = {.cancel = 1};
	int status;
	assert_int_equal(run("exit 0", HANG_MS, NULL, &status, &err), 0);
	assert_int_equal(run("echo a; echo b >&2; exit 9", HANG_MS, NULL, &status, &err), PAWL_EIO);
	assert_string_equal(err.message, "sh: ended with status 9: a|b");
	assert_int_equal(status, 9);
	assert_int_equal(run("exit 127", HANG_MS, NULL, &status, &err), PAWL_ENOTFOUND);
	assert_int_equal(run("kill -11 $$", HANG_MS, NULL, &status, &err), PAWL_EIO);
	assert_string_equal(err.message, "sh: was ended by signal 11");
	assert_int_equal(run("sleep 100000 & sleep 100000", 200, NULL, &status, &err), PAWL_ETIMEOUT);
	assert_int_equal(run("sleep 100000", HANG_MS, &meter, &status, &err), PAWL_ECANCELLED);
	/* A child that keeps the output open is not waited for. */
	assert_int_equal(run("sleep 100000 &", HANG_MS, NULL, &status, &err), 0);
	/* Nor is one that never stops talking. */
	assert_int_equal(run("while :; do echo x; done", 200, NULL, &status, &err), PAWL_ETIMEOUT);
}

static void
test_options_are_checked_before_anything_is_done(void **state)
{
	(void)state;
	struct pawl_syncer *s = NULL;
	struct pawl_error err = {0};
	struct pawl_syncer_opts opts = PAWL_SYNCER_OPTS_INIT;
	assert_int_equal(pawl_syncer_open("/a", "hdfs://b", NULL, &s, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_syncer_open("s3://a/b", "/b", NULL, &s, &err), PAWL_EUSAGE);
	assert_int_equal(pawl_syncer_open("/a", NULL, NULL, &s, &err), PAWL_EUSAGE);
	opts.command = "cp {source}";
	assert_int_equal(pawl_syncer_open("/a", "/b", &opts, &s, &err), PAWL_EUSAGE);
	assert_non_null(strstr(err.message, "no {target}"));
	opts.command = NULL;
	opts.timeout_ms = -1;
	assert_int_equal(pawl_syncer_open("/a", "/b", &opts, &s, &err), PAWL_EUSAGE);
	opts.timeout_ms = 0;
	assert_int_equal(pawl_syncer_open("/nowhere-at-all", "/b", &opts, &s, &err), 0);
	assert_int_equal(pawl_syncer_up(s, NULL, NULL, &err), PAWL_ENOTFOUND);
	pawl_syncer_close(s);
	pawl_syncer_close(NULL);
}

#ifdef __linux__
#define SLOW_MS 300

static _Atomic bool is_slow;
static _Atomic int64_t slow_until_ms; /* 0 = nothing was read yet */

static bool
is_pack(int fd)
{
	char link[64], path[256] = "";
	snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
	return readlink(link, path, sizeof path - 1) > 0 && strstr(path, ".safetensors") != NULL;
}

/* The system's, for the library too. While is_slow is set, no pack can be read before SLOW_MS have
 * passed since the first try. */
ssize_t
pread(int fd, void *ptr, size_t n, off_t offset)
{
	if (is_slow && is_pack(fd)) {
		int64_t none = 0;
		atomic_compare_exchange_strong(&slow_until_ms, &none, clock_mono_ms() + SLOW_MS);
		while (clock_mono_ms() < slow_until_ms)
			clock_sleep_ms(5);
	}
	return (ssize_t)syscall(SYS_pread64, fd, ptr, n, offset);
}

static void
save_large(struct made_run *made)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;
	struct pawl_state *state = NULL;
	const uint64_t n = 1 << 18;
	struct pawl_error err = {0};
	t.dtype = PAWL_U8;
	t.ndim = 1;
	t.shape = &n;
	t.data = calloc(1, n);
	assert_non_null(t.data);
	made_check(pawl_state_new(&state, &err), &err);
	made_check(pawl_state_set_tensor(state, "weight", &t, &err), &err);
	make_checkpoint(made->run, &(struct made_opts){.id = 1, .block_bytes = 4096}, state);
	pawl_state_free(state);
	free((void *)t.data);
}

/* The checkpoint is read in more parts than there are threads, so that not all parts are being read
 * when the time is over. */
static void
test_P16_the_timeout_of_a_sync_ends_the_verification_of_one_checkpoint(void **state)
{
	(void)state;
	struct made_run made = {0};
	struct pawl_syncer *s = NULL;
	struct pawl_error err = {0};
	struct pawl_syncer_opts opts = PAWL_SYNCER_OPTS_INIT;
	made_open(&made, NULL);
	save_large(&made);
	pawl_close(made.run, NULL);
	made.run = NULL;
	opts.timeout_ms = SLOW_MS;
	made_check(pawl_syncer_open(made.root, "/nowhere-at-all", &opts, &s, &err), &err);
	is_slow = true;
	int rc = pawl_syncer_verify(s, 1, NULL, NULL, &err);
	is_slow = false;
	assert_int_equal(rc, PAWL_ETIMEOUT);
	assert_non_null(strstr(err.message, ": has not ended within 0.3 s"));
	pawl_syncer_close(s);
	made_close(&made);
}
#endif

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_R113_R121_places_are_told_apart),
		cmocka_unit_test(test_P17_P18_bad_places_are_refused),
		cmocka_unit_test(test_R114_R118_words_are_split_before_they_are_filled),
		cmocka_unit_test(test_P18_secrets_are_covered_and_other_words_stay),
		cmocka_unit_test(test_row_35_a_program_ends_as_it_ends_or_at_its_time),
		cmocka_unit_test(test_options_are_checked_before_anything_is_done),
#ifdef __linux__
		cmocka_unit_test(test_P16_the_timeout_of_a_sync_ends_the_verification_of_one_checkpoint),
#endif
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
