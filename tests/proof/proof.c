/* SPDX-License-Identifier: Apache-2.0 */
/*
 * proof: interrupts the trainings of scenario.c by every kind of fault and checks the promises
 * after each. Prints one row per figure: cases, how many are required, how many were bad, seconds.
 * Every harness has a negative control: with one safeguard taken away it must find a violation, or
 * the run fails. The check after each case has one per promise.
 *
 *   proof [--every N] [--passes N] [--first N] [--only KIND] [--root DIR] [--format tap]
 *   kinds: check kill torn alloc io short sync space head data truncate power ranks
 *
 * A pass takes every N-th point (N = 1: all of them) of each training run, on tmpfs, ext4 and xfs
 * in turn: three passes bring every run to each of them. io takes every fourth point for each kind
 * of error (every 32nd where it fails from then on). alloc takes every fourth where it fails from
 * then on, a thinned-out power every 2N-th. Passes differ in sizes, packs, threads, contents
 * and scores (scenario_vary); --first is the number of the first one. Without --passes a kind is
 * repeated until its required figure is reached, or runs once if --every thins it out. ext4 and xfs
 * are stored in files and need root and loop devices. Without them everything is done on tmpfs, and
 * the output reports it. space sweeps five trainings, power six on ext4 and xfs; head, data and
 * truncate damage one small checkpoint; ranks runs jobs of several processes.
 */
#include <errno.h>
#include <ftw.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "scenario.h"
#include "shim.h"

#define MAX_PASSES 1000
#define DIED (-3) /* in addition to the results of scenario_check: the training ended as it must not */

struct backend {
	const char *name;
	char root[700];
	struct disk disk; /* of ext4 and xfs */
	long cases;
};

struct proof {
	long every, passes, first; /* passes: 0 = until the figure is reached */
	const char *training;      /* of the calls' figures only those whose names begin so; NULL = all */
	const char *only, *root;   /* root: where those work that need no file system of their own */
	struct shared *shared;
	struct backend backends[3];
	int n_backends;
	bool is_tap;
	const char *lead; /* of each line of the table */
	int n_told;       /* rows and controls */
};

struct fault {
	enum shim_mode mode;
	long nth;
	int error;
	bool forever;
};

static double
now_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int
wipe_one(const char *path, const struct stat *st, int flag, struct FTW *at)
{
	(void)st, (void)flag, (void)at;
	if (remove(path) < 0 && errno != ENOENT)
		fprintf(stderr, "cannot remove %s\n", path);
	return 0;
}

void
proof_wipe(const char *root)
{
	nftw(root, wipe_one, 16, FTW_DEPTH | FTW_PHYS);
}

/* Runs a scenario in a child with one fault armed. Returns its wait status; shared gets what the
 * shim counted. */
static int
run_child(const struct scenario *sc, const char *root, const struct fault *f, struct shared *shared)
{
	memset((void *)shared, 0, sizeof(*shared));
	pid_t pid = fork();

	if (pid == 0) {
		struct pawl_error err = {0};

		setrlimit(RLIMIT_CORE, &(struct rlimit){0}); /* some controls crash on purpose */
		alarm(HANG_SECONDS);                         /* a hang is a finding, not a wait */
		shim_arm(f->mode, f->nth, f->error, f->forever);
		int rc = scenario_run(sc, root, &shared->progress, &err);

		shared->calls = shim_calls();
		shared->allocs = shim_allocs();
		shared->syncs = shim_syncs();
		shim_disarm();
		_exit(rc < 0 ? 1 : 0);
	}
	int status = 0;

	waitpid(pid, &status, 0);
	return status;
}

static void
run_whole(const struct scenario *sc, const char *root, struct shared *shared)
{
	run_child(sc, root, &(struct fault){.mode = SHIM_COUNT}, shared);
}

static bool
died_rightly(int status, enum shim_mode mode)
{
	if (mode == SHIM_KILL || mode == SHIM_KILL_TORN)
		return (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) || WIFEXITED(status);
	return WIFEXITED(status);
}

/* One interrupted run and its check: 0, or DIED or what the check found, with the reason. */
static int
violation(const struct scenario *sc, const char *root, const struct fault *f, struct shared *shared, char *why,
          size_t len)
{
	int status = run_child(sc, root, f, shared), bad;

	if (died_rightly(status, f->mode)) {
		bad = scenario_check(sc, root, &shared->progress, 1, why, len);
	} else {
		snprintf(why, len, "ended with wait status 0x%x", (unsigned)status);
		bad = DIED;
	}
	proof_wipe(root);
	return bad;
}

static long
points(const struct shared *shared, enum shim_mode mode)
{
	if (mode == SHIM_FAIL_ALLOC || mode == SHIM_BAD_ALLOC)
		return shared->allocs;
	return mode == SHIM_FAIL_SYNC || mode == SHIM_LOSE_SYNC ? shared->syncs : shared->calls;
}

/* Every `every`-th point of all training runs, beginning elsewhere in each run and each pass. */
static void
sweep(struct proof *p, struct fault f, long every, long pass, struct totals *t)
{
	char why[1200];

	for (int i = 0; i < n_scenarios; i++) {
		const struct scenario sc = scenario_vary(i, pass);
		struct backend *b = &p->backends[(pass + i) % p->n_backends];

		if (p->training && strncmp(sc.name, p->training, strlen(p->training)) != 0)
			continue;
		run_whole(&sc, b->root, p->shared);
		/* threads make the count vary a little, so take a few more calls */
		const long n = points(p->shared, f.mode) + 5;

		proof_wipe(b->root);
		for (f.nth = 1 + (i + pass + f.error) % every; f.nth <= n; f.nth += every) {
			t->cases++;
			b->cases++;
			if (violation(&sc, b->root, &f, p->shared, why, sizeof(why)) == 0)
				continue;
			t->bad++;
			fprintf(stderr, "  pass %ld, %s, scenario '%s', fault mode %d, call %ld, errno %d: %s\n", pass,
			        b->name, sc.name, (int)f.mode, f.nth, f.error, why);
		}
	}
}

static void
prove_kill(struct proof *p, long pass, struct totals *t)
{
	sweep(p, (struct fault){.mode = SHIM_KILL}, p->every, pass, t);
}

static void
prove_torn(struct proof *p, long pass, struct totals *t)
{
	sweep(p, (struct fault){.mode = SHIM_KILL_TORN}, p->every, pass, t);
}

static void
prove_alloc(struct proof *p, long pass, struct totals *t)
{
	sweep(p, (struct fault){.mode = SHIM_FAIL_ALLOC}, p->every, pass, t);
	sweep(p, (struct fault){.mode = SHIM_FAIL_ALLOC, .forever = true}, p->every * 4, pass, t);
}

static void
prove_io(struct proof *p, long pass, struct totals *t)
{
	static const int errors[] = {EIO, ENOSPC, EDQUOT, EINTR, EAGAIN, ESTALE, EROFS, EMFILE};
	struct fault f = {.mode = SHIM_FAIL_IO};

	for (size_t i = 0; i < sizeof(errors) / sizeof(*errors); i++) {
		f.error = errors[i];
		sweep(p, f, p->every * 4, pass, t);
	}
	f.forever = true;
	for (size_t i = 0; i < 2; i++) { /* for ever: EIO, ENOSPC */
		f.error = errors[i];
		sweep(p, f, p->every * 32, pass, t);
	}
}

static void
prove_short(struct proof *p, long pass, struct totals *t)
{
	sweep(p, (struct fault){.mode = SHIM_SHORT_IO}, p->every, pass, t);
}

static void
prove_sync(struct proof *p, long pass, struct totals *t)
{
	sweep(p, (struct fault){.mode = SHIM_FAIL_SYNC}, p->every, pass, t);
}

static void
space(struct proof *p, long pass, struct totals *t)
{
	prove_space(p->root, p->every, pass, p->shared, t);
}

static void
head_bits(struct proof *p, long pass, struct totals *t)
{
	(void)pass;
	prove_head_bits(p->root, p->every, t);
}

static void
data_bits(struct proof *p, long pass, struct totals *t)
{
	prove_data_bits(p->root, p->every, pass, t);
}

static void
truncation(struct proof *p, long pass, struct totals *t)
{
	(void)pass;
	prove_truncation(p->root, p->every, t);
}

static void
power(struct proof *p, long pass, struct totals *t)
{
	prove_power(p->root, p->every > 1 ? p->every * 2 : 1, pass, p->shared, t);
}

static void
ranks(struct proof *p, long pass, struct totals *t)
{
	prove_ranks(p->root, p->every, pass, t);
}

/* ---- controls */

/* The same sweep over a library that lacks the check (mode): some point must be found bad, and for
 * this reason. */
static int
control_sweep(struct proof *p, enum shim_mode mode, int expected)
{
	const struct scenario sc = scenario_vary(0, 0);
	struct fault f = {.mode = mode};
	char why[1200];

	run_whole(&sc, p->backends[0].root, p->shared);
	const long n = points(p->shared, mode);

	proof_wipe(p->backends[0].root);
	for (f.nth = 1; f.nth <= n; f.nth++)
		if (violation(&sc, p->backends[0].root, &f, p->shared, why, sizeof(why)) == expected)
			return 1;
	return 0;
}

static int
control_alloc(struct proof *p)
{
	return control_sweep(p, SHIM_BAD_ALLOC, DIED);
}

static int
control_io(struct proof *p)
{
	return control_sweep(p, SHIM_LIE, SCENARIO_LOST);
}

static int
control_short(struct proof *p)
{
	return control_sweep(p, SHIM_LIE_SHORT, SCENARIO_LOST);
}

static int
control_sync(struct proof *p)
{
	return control_sweep(p, SHIM_LOSE_SYNC, SCENARIO_LOST);
}

static int
full_disk_control(struct proof *p)
{
	return control_space(p->root, p->shared);
}

static int
bits_control(struct proof *p)
{
	return control_bits(p->root);
}

static int
truncation_control(struct proof *p)
{
	return control_truncation(p->root);
}

static int
ranks_control(struct proof *p)
{
	return control_ranks(p->root);
}

static int
power_control(struct proof *p)
{
	return control_power(p->root, p->shared);
}

/* Damage done by hand to a complete run, or to what it reported, and a word that the check's
 * complaint must have. */
static const struct by_hand {
	const char *what;
	int scenario;
	int saves; /* 0 = the scenario's */
	const char *word;
	const char *damage; /* shell command in the run's folder; NULL = what it reported is changed */
	int64_t expect_at_most;
	int64_t begun;
} by_hand[] = {
	{"the newest checkpoint is gone", 0, 0, "lost: step 2", "rm -r checkpoints/checkpoint_000002", 0, 0},
	{"an older one that is to be kept is gone", 0, 0, "lost: step 1", "rm -r checkpoints/checkpoint_000001", 0, 0},
	{"a checkpoint that nobody began", 0, 0, "never begun", NULL, 0, 1},
	{"a byte of a checkpoint is another", 0, 0, "checkpoint_000002",
         "printf x | dd of=checkpoints/checkpoint_000002/rank00000-00001.safetensors bs=1 seek=9001 conv=notrunc status=none",
         0, 0},
	{"the pinned checkpoint is gone", 18, 2, "a pinned checkpoint", "rm -r checkpoints/checkpoint_000001", 0, 0},
	{"the pin is gone", 18, 2, "pin is gone", "rm -r .pawl/marks", 0, 0},
	{"the best checkpoint is gone", 2, 0, "the best", "rm -r checkpoints/checkpoint_000001", 0, 0},
	{"more are kept than num_to_keep allows", 0, 0, "num_to_keep", "true", 1, 0},
	{"something lies about", 0, 0, "stays", "mkdir .left", 0, 0},
};

static int
control_by_hand(struct proof *p, const struct by_hand *c)
{
	struct scenario sc = scenario_vary(c->scenario, 0);
	const char *root = p->backends[0].root;
	char command[1200], why[1200] = "";

	if (c->saves)
		sc.saves = c->saves;
	run_whole(&sc, root, p->shared);
	int sound = scenario_check(&sc, root, &p->shared->progress, 0, why, sizeof(why)) == 0;

	snprintf(command, sizeof(command), "cd '%s' && %s", root, c->damage ? c->damage : "true");
	if (system(command) != 0)
		sound = 0;
	if (c->begun) {
		p->shared->progress = (struct scenario_progress){.begun_step = c->begun};
		p->shared->progress.acked_step = c->begun;
	}
	sc.expect_at_most = c->expect_at_most;
	int bad = scenario_check(&sc, root, &p->shared->progress, 1, why, sizeof(why));

	proof_wipe(root);
	return sound && bad < 0 && strstr(why, c->word) != NULL;
}

/* ---- the table */

static const struct kind {
	const char *name, *what;
	long required; /* 0 = all there are: one pass */
	void (*prove)(struct proof *, long pass, struct totals *);
	const char *control;
	int (*caught)(struct proof *);
} kinds[] = {
	{"kill", "SIGKILL before every changing system call", 25000, prove_kill, NULL, NULL},
	{"torn", "SIGKILL in the middle of every changing system call", 25000, prove_torn, NULL, NULL},
	{"alloc", "n-th allocation fails, once and from then on", 50000, prove_alloc, "a result that nobody looks at",
         control_alloc},
	{"io", "n-th I/O call fails: 8 kinds of error, once and for ever", 25000, prove_io,
         "an error of write that gets lost", control_io},
	{"short", "n-th write moves one byte", 5000, prove_short, "the rest is forgotten", control_short},
	{"sync", "n-th fsync fails and what it was to keep is gone", 2000, prove_sync,
         "an error of fsync that gets lost", control_sync},
	{"space", "disk full at every 4 KiB of a training", 2000, space, "a full disk that goes unnoticed",
         full_disk_control},
	{"head", "every bit of manifest and header flipped", 0, head_bits, NULL, NULL},
	{"data", "sampled data bits flipped", 100000, data_bits, "without the sums; and an undamaged one",
         bits_control},
	{"truncate", "every truncation of every file", 0, truncation, "without reading the packs", truncation_control},
	{"power", "power cut before and in every call, ext4 and xfs", 4000, power, "the same without fsync",
         power_control},
	{"ranks", "rank faults: one of 2 to 8 killed or stopped in any call", 1000, ranks,
         "a verdict turned round, a pack gone, a save gone, a wait", ranks_control},
};

/* One line of TAP, if that is requested; then the table is its comments. skip: why it was not run,
 * or NULL. */
static void
print_tap(struct proof *p, bool good, const char *what, const char *skip)
{
	if (p->is_tap)
		printf("%sok %d - %s%s%s\n", good ? "" : "not ", ++p->n_told, what, skip ? " # SKIP " : "",
		       skip ? skip : "");
	fflush(stdout);
}

static int
control_row(struct proof *p, const char *what, int caught)
{
	printf("%s  control: %-49s %s\n", p->lead, what, caught ? "caught, as it must be" : "NOT CAUGHT");
	print_tap(p, caught, what, NULL);
	return !caught;
}

static void
skipped_row(struct proof *p, const char *what)
{
	static const char why[] = "needs root, loop devices";

	printf("%s%-60s not run: %s\n", p->lead, what, why);
	print_tap(p, true, what, why);
}

static int
row(struct proof *p, const struct kind *k, const struct totals *t, bool complete, double seconds)
{
	char required[24] = "-";

	if (complete && k->required == 0)
		snprintf(required, sizeof(required), "all");
	else if (complete)
		snprintf(required, sizeof(required), "%ld", k->required);
	printf("%s%-60s %8ld %9s %5ld %9.1f\n", p->lead, k->what, t->cases, required, t->bad, seconds);
	for (int i = 0, any = 0; i < p->n_backends; i++) {
		const struct backend *b = &p->backends[i];

		if (b->cases)
			printf("%s%s%s %ld%s", any ? "" : p->lead, any ? ", " : "    on ", b->name, b->cases,
			       i + 1 == p->n_backends ? "\n" : "");
		any += b->cases > 0;
	}
	const bool bad = t->bad > 0 || t->cases == 0 || (complete && t->cases < k->required);

	print_tap(p, !bad, k->what, NULL);
	return bad;
}

static int
prove(struct proof *p, const struct kind *k)
{
	const bool complete = p->passes == 0;
	const double since = now_seconds();
	struct totals t = {0};
	int bad;

	for (int i = 0; i < p->n_backends; i++)
		p->backends[i].cases = 0;
	for (long pass = 0; pass < (complete ? MAX_PASSES : p->passes) && !t.not_run; pass++) {
		if (complete && pass > 0 && (t.cases >= k->required || t.cases == 0))
			break;
		k->prove(p, p->first + pass, &t);
	}
	if (t.not_run) {
		skipped_row(p, k->what);
		return 0;
	}
	bad = row(p, k, &t, complete, now_seconds() - since);
	if (k->control)
		bad |= control_row(p, k->control, k->caught(p));
	return bad;
}

static bool
wanted(const struct proof *p, const char *kind)
{
	return !p->only || strcmp(p->only, kind) == 0;
}

static int
prove_wanted(struct proof *p)
{
	int bad = 0, any = 0;

	printf("%s%-60s %8s %9s %5s %9s\n", p->lead, "figure", "cases", "required", "bad", "seconds");
	if (p->n_backends < 3)
		skipped_row(p, p->n_backends == 1 ? "the sweeps on ext4 and xfs" : "the sweeps on one of ext4 and xfs");
	for (size_t i = 0; wanted(p, "check") && i < sizeof(by_hand) / sizeof(*by_hand); i++, any++)
		bad |= control_row(p, by_hand[i].what, control_by_hand(p, &by_hand[i]));
	for (size_t i = 0; i < sizeof(kinds) / sizeof(*kinds); i++) {
		if (wanted(p, kinds[i].name)) {
			bad |= prove(p, &kinds[i]);
			any++;
		}
	}
	if (p->is_tap)
		printf("1..%d\n", p->n_told);
	return any ? bad : 1;
}

static void
find_backends(struct proof *p, const char *name, const char *base)
{
	static const char *const kinds_of_disk[] = {"ext4", "xfs"};

	p->backends[p->n_backends].name = name;
	snprintf(p->backends[p->n_backends++].root, sizeof(p->backends->root), "%s/run", base);
	for (int i = 0; i < 2; i++) {
		struct backend *b = &p->backends[p->n_backends];
		char image[560], root[sizeof(b->root)];

		snprintf(image, sizeof(image), "%s/disk", base);
		if (disk_make(&b->disk, image, kinds_of_disk[i]) < 0)
			continue;
		snprintf(root, sizeof(root), "%s/run", b->disk.mnt);
		memcpy(b->root, root, sizeof(root));
		b->name = kinds_of_disk[i];
		p->n_backends++;
	}
}

int
main(int argc, char **argv)
{
	static char default_root[] = "/dev/shm/pawl-proof-XXXXXX";
	struct proof p = {.every = 1, .passes = -1};
	const char *base = NULL, *name = "tmpfs";
	char root[512];

	p.shared = mmap(NULL, sizeof(*p.shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	for (int i = 1; i + 1 < argc; i += 2) {
		if (strcmp(argv[i], "--every") == 0)
			p.every = strtol(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--passes") == 0)
			p.passes = strtol(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--first") == 0)
			p.first = strtol(argv[i + 1], NULL, 10);
		else if (strcmp(argv[i], "--only") == 0)
			p.only = argv[i + 1];
		else if (strcmp(argv[i], "--training") == 0)
			p.training = argv[i + 1];
		else if (strcmp(argv[i], "--root") == 0)
			base = name = argv[i + 1];
		else if (strcmp(argv[i], "--format") == 0)
			p.is_tap = strcmp(argv[i + 1], "tap") == 0;
	}
	p.lead = p.is_tap ? "# " : "";
	if (p.passes < 0)
		p.passes = p.every > 1;
	if (p.every < 1 || p.first < 0 || p.shared == MAP_FAILED)
		return 2;
	if (!base && !(base = mkdtemp(default_root)))
		return 2;
	snprintf(root, sizeof(root), "%s/run", base);
	p.root = root;
	/* Mounts of its own: they go with the process, however it ends. */
	if (unshare(CLONE_NEWNS) == 0)
		mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL);
	find_backends(&p, name, base);

	int bad = prove_wanted(&p);

	for (int i = 0; i < p.n_backends; i++)
		disk_drop(&p.backends[i].disk);
	proof_wipe(base);
	return bad ? 1 : 0;
}
