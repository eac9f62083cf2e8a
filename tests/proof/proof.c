/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proof: interrupts the scenarios at every point, by every kind of fault, and checks the promises after each. Prints
 * one row per figure. Every harness has a negative control: with one safeguard taken away it must find a violation, or
 * the run fails.
 *
 *   proof [--every N] [--only KIND] [--root DIR]     every N-th point only (N = 1: all of them)
 *   kinds: kill torn alloc io short space bits truncate power
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "scenario.h"
#include "shim.h"

struct proof_options {
	long every;
	const char *only;
	const char *root;
};

struct totals {
	long cases, bad;
};

static double
now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

void
proof_wipe(const char *root)
{
	char command[600];

	snprintf(command, sizeof(command), "rm -rf -- '%s'", root);
	if (system(command) != 0)
		fprintf(stderr, "cannot remove %s\n", root);
}

/* Runs a scenario in a child with one fault armed. Returns its wait status; *calls gets what the shim counted. */
static int
run_child(const struct scenario *sc, const char *root, enum shim_mode mode, long nth, int error, bool forever,
          struct shared *shared)
{
	memset((void *)shared, 0, sizeof(*shared));
	pid_t pid = fork();

	if (pid == 0) {
		struct pawl_error err = {0};

		setrlimit(RLIMIT_CORE, &(struct rlimit){0}); /* some controls crash on purpose */
		alarm(60);                                   /* a hang is a finding, not a wait */
		shim_arm(mode, nth, error, forever);
		int rc = scenario_run(sc, root, &shared->progress, &err);

		shared->calls = shim_calls();
		shared->allocs = shim_allocs();
		shim_disarm();
		_exit(rc < 0 ? 1 : 0);
	}
	int status = 0;

	waitpid(pid, &status, 0);
	return status;
}

static bool
died_rightly(int status, enum shim_mode mode)
{
	if (mode == SHIM_KILL || mode == SHIM_KILL_TORN)
		return (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) || WIFEXITED(status);
	return WIFEXITED(status);
}

/* One interrupted run and its check; returns 1 if something was wrong, with the reason. */
static int
violation(const struct scenario *sc, const char *root, enum shim_mode mode, long nth, int error, bool forever,
          struct shared *shared, char *why, size_t len)
{
	int status = run_child(sc, root, mode, nth, error, forever, shared), bad = 0;

	if (!died_rightly(status, mode)) {
		snprintf(why, len, "ended with wait status 0x%x", (unsigned)status);
		bad = 1;
	} else if (scenario_check(sc, root, &shared->progress, 1, why, len) < 0) {
		bad = 1;
	}
	proof_wipe(root);
	return bad;
}

static int
one_case(const struct scenario *sc, const char *root, enum shim_mode mode, long nth, int error, bool forever,
         struct shared *shared)
{
	char why[1200] = "";
	int bad = violation(sc, root, mode, nth, error, forever, shared, why, sizeof(why));

	if (bad)
		fprintf(stderr, "  scenario '%s', fault mode %d, call %ld, errno %d: %s\n", sc->name, (int)mode, nth,
		        error, why);
	return bad;
}

static void
sweep(const struct proof_options *o, enum shim_mode mode, int error, bool forever, struct shared *shared,
      struct totals *t)
{
	for (int i = 0; i < n_scenarios; i++) {
		const struct scenario *sc = &scenarios[i];

		run_child(sc, o->root, SHIM_COUNT, 0, 0, false, shared);
		/* threads make the count vary a little, so go on a few calls beyond it */
		long n = (mode == SHIM_FAIL_ALLOC ? shared->allocs : shared->calls) + 5;

		proof_wipe(o->root);
		for (long nth = 1 + i % o->every; nth <= n; nth += o->every) {
			t->cases++;
			t->bad += one_case(sc, o->root, mode, nth, error, forever, shared);
		}
	}
}

static void
prove_io(const struct proof_options *o, struct shared *shared, struct totals *t)
{
	static const int errors[] = {EIO, ENOSPC, EDQUOT, EINTR, EAGAIN, ESTALE, EROFS, EMFILE};
	struct proof_options each = *o;

	each.every = o->every * 4; /* eight kinds of error share the points */
	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++)
		sweep(&each, SHIM_FAIL_IO, errors[i], false, shared, t);
	each.every *= 8;
	sweep(&each, SHIM_FAIL_IO, EIO, true, shared, t);
	sweep(&each, SHIM_FAIL_IO, ENOSPC, true, shared, t);
}

static void
prove_alloc(const struct proof_options *o, struct shared *shared, struct totals *t)
{
	struct proof_options forever = *o;

	forever.every *= 4;
	sweep(o, SHIM_FAIL_ALLOC, 0, false, shared, t);
	sweep(&forever, SHIM_FAIL_ALLOC, 0, true, shared, t);
}

/* A checkpoint that is gone, and one that was never begun, must be caught: the checker is not blind. */
static int
control_kill(const struct proof_options *o, struct shared *shared)
{
	char command[700], why[1200];
	const struct scenario *sc = &scenarios[0];

	run_child(sc, o->root, SHIM_COUNT, 0, 0, false, shared);
	snprintf(command, sizeof(command), "f=$(ls -d '%s'/checkpoints/*/ | tail -1); rm -rf \"$f\"", o->root);
	if (system(command) != 0)
		return 0;
	int lost = scenario_check(sc, o->root, &shared->progress, 0, why, sizeof(why)) < 0;

	proof_wipe(o->root);
	run_child(sc, o->root, SHIM_COUNT, 0, 0, false, shared);
	shared->progress.begun_step = 1; /* as if the last one had never been begun */
	shared->progress.acked_step = 1;
	int invented = scenario_check(sc, o->root, &shared->progress, 0, why, sizeof(why)) < 0;

	proof_wipe(o->root);
	return lost && invented;
}

/* The same sweep over a library that lacks the check (mode): some point must be found bad. */
static int
control_sweep(const struct proof_options *o, enum shim_mode mode, struct shared *shared)
{
	const struct scenario *sc = &scenarios[0];
	char why[1200];

	run_child(sc, o->root, SHIM_COUNT, 0, 0, false, shared);
	long n = mode == SHIM_BAD_ALLOC ? shared->allocs : shared->calls;

	proof_wipe(o->root);
	for (long nth = 1; nth <= n; nth++)
		if (violation(sc, o->root, mode, nth, 0, false, shared, why, sizeof(why)))
			return 1;
	return 0;
}

static bool
wanted(const struct proof_options *o, const char *kind)
{
	return !o->only || strcmp(o->only, kind) == 0;
}

static int
row(const char *what, struct totals t, double since)
{
	if (t.cases < 0)
		printf("%-58s not run: needs root, loop devices\n", what);
	else
		printf("%-58s %8ld cases  %4ld bad  %7.1f s\n", what, t.cases, t.bad, now_seconds() - since);
	fflush(stdout);
	return t.bad > 0;
}

static int
control_row(const char *what, int caught)
{
	printf("%-58s %s\n", what, caught ? "caught, as it must be" : "NOT CAUGHT");
	fflush(stdout);
	return !caught;
}

static int
prove_process(const struct proof_options *o, struct shared *shared)
{
	struct totals t;
	double since;
	int bad = 0;

	if (wanted(o, "kill")) {
		since = now_seconds();
		t = (struct totals){0};
		sweep(o, SHIM_KILL, 0, false, shared, &t);
		bad |= row("SIGKILL before every changing system call", t, since);
		bad |= control_row("  control: a lost or invented checkpoint", control_kill(o, shared));
	}
	if (wanted(o, "torn")) {
		since = now_seconds();
		t = (struct totals){0};
		sweep(o, SHIM_KILL_TORN, 0, false, shared, &t);
		bad |= row("SIGKILL in the middle of every changing system call", t, since);
		bad |= control_row("  control: a lost or invented checkpoint", control_kill(o, shared));
	}
	if (wanted(o, "alloc")) {
		since = now_seconds();
		t = (struct totals){0};
		prove_alloc(o, shared, &t);
		bad |= row("n-th allocation fails, once and from then on", t, since);
		bad |= control_row("  control: a result that nobody looks at",
		                   control_sweep(o, SHIM_BAD_ALLOC, shared));
	}
	if (wanted(o, "io")) {
		since = now_seconds();
		t = (struct totals){0};
		prove_io(o, shared, &t);
		bad |= row("n-th I/O call fails: 8 kinds of error, once and for ever", t, since);
		bad |= control_row("  control: an error of write that gets lost", control_sweep(o, SHIM_LIE, shared));
	}
	if (wanted(o, "short")) {
		since = now_seconds();
		t = (struct totals){0};
		sweep(o, SHIM_SHORT_IO, 0, false, shared, &t);
		bad |= row("n-th write moves one byte", t, since);
		bad |= control_row("  control: the rest is forgotten", control_sweep(o, SHIM_LIE_SHORT, shared));
	}
	return bad;
}

static int
prove_storage(const struct proof_options *o, struct shared *shared)
{
	struct totals t;
	double since;
	int bad = 0;

	if (wanted(o, "space")) {
		since = now_seconds();
		t = (struct totals){0};
		prove_space(o->root, o->every, shared, &t.cases, &t.bad);
		bad |= row("disk full at every 4 KiB of a training", t, since);
		if (t.cases >= 0)
			bad |= control_row("  control: a full disk that goes unnoticed",
			                   control_space(o->root, shared));
	}
	if (wanted(o, "bits")) {
		since = now_seconds();
		t = (struct totals){0};
		prove_bits(o->root, o->every, &t.cases, &t.bad);
		bad |= row("every bit of manifest and headers, sampled data bits", t, since);
		bad |= control_row("  control: without the sums; and an undamaged one", control_bits(o->root));
	}
	if (wanted(o, "truncate")) {
		since = now_seconds();
		t = (struct totals){0};
		prove_truncation(o->root, o->every, &t.cases, &t.bad);
		bad |= row("every truncation of every file", t, since);
		bad |= control_row("  control: without reading the packs", control_truncation(o->root));
	}
	if (wanted(o, "power")) {
		int caught = 0;

		since = now_seconds();
		t = (struct totals){0};
		prove_power(o->root, o->every, shared, &t.cases, &t.bad, &caught);
		bad |= row("power cut (file system shutdown) on ext4 and xfs", t, since);
		if (t.cases >= 0)
			bad |= control_row("  control: the same without fsync", caught);
	}
	return bad;
}

int
main(int argc, char **argv)
{
	static char default_root[] = "/dev/shm/pawl-proof-XXXXXX";
	struct proof_options o = {.every = 1};
	struct shared *shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	char root[512];

	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--every") == 0)
			o.every = strtol(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--only") == 0)
			o.only = argv[i + 1];
		else if (strcmp(argv[i], "--root") == 0)
			o.root = argv[i + 1];
	}
	if (o.every < 1 || shared == MAP_FAILED)
		return 2;
	if (!o.root && !(o.root = mkdtemp(default_root)))
		return 2;
	snprintf(root, sizeof(root), "%s/run", o.root);

	struct proof_options inner = o;

	inner.root = root;
	int bad = prove_process(&inner, shared) | prove_storage(&inner, shared);

	proof_wipe(o.root);
	return bad ? 1 : 0;
}
