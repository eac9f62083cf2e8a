/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ranks: jobs of several processes, of which one is killed or stopped at one of its changing system
 * calls. After each case it must hold that
 *
 *   no rank hangs (P16),
 *   no two ranks ended one save with opposite verdicts (P11),
 *   what was acknowledged to a rank is listed, what failed for one is not, and every listed
 *   checkpoint restores bit for bit (P2, P3),
 *   the job can be started again, with as many ranks and with another number: it restores the
 *   newest and saves, and no leftovers remain afterwards (P4, P9).
 *
 * Cases spend their time waiting for deadlines, so several run at once, each in a process of its
 * own.
 */
#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "cases.h"
#include "shim.h"

#define MAX_WORLD 8
#define SAVES 3 /* in a case; after it there are two more, of the job started again */
#define STEPS (SAVES + 3)
#define TIMEOUT_MS 400
#define GAP 4 /* every GAP-th point makes a complete pass: about 1,200 cases */
#define AT_ONCE 12
#define ROWS 840u /* divided by any number of ranks */
#define COLS 4u
#define WHOLE 3000u

enum trouble { KILLED, TORN, STOPPED, HELD_UP, N_TROUBLES }; /* HELD_UP: stopped, but continued before the deadline */

/* What is to go wrong in the harness itself, for the controls. */
enum sabotage { NONE, VERDICT_TURNED, PACK_GONE, SAVE_GONE, SLEEPER };

struct point {
	int world, victim;
	enum trouble trouble;
	long nth; /* 0 = nothing happens */
	int num_to_keep;
	enum sabotage sabotage;
};

/* Each rank tells how its steps ended. code: 1 = not at all. */
struct board {
	struct {
		volatile int code, is_unknown;
	} saved[MAX_WORLD][STEPS], opened[MAX_WORLD];
	volatile int64_t begun; /* the highest step */
	volatile long calls[MAX_WORLD];
	char why[MAX_WORLD][1100]; /* the job started again */
};

struct job {
	const char *root;
	const struct point *point; /* NULL = a job started again */
	int world, from, to;
	struct board *board;
};

static int64_t
now_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

static int
complain(char *why, size_t len, const char *what, const char *detail)
{
	snprintf(why, len, "%.60s: %.900s", what, detail);
	return SCENARIO_BAD;
}

/* ---- the state */

struct model {
	float whole[WHOLE], rows[ROWS * COLS];
	uint64_t at, n; /* the rows of a rank */
};

static void
fill(struct model *m, int rank, int world, int64_t step)
{
	m->n = ROWS / (uint64_t)world;
	m->at = (uint64_t)rank * m->n;
	for (uint64_t i = 0; i < WHOLE; i++)
		m->whole[i] = (float)(i * 3 + (uint64_t)step * 7919);
	for (uint64_t i = 0; i < m->n * COLS; i++)
		m->rows[i] = (float)((m->at * COLS + i) * 5 + (uint64_t)step * 104729);
}

static int
describe(struct model *m, int rank, int world, struct pawl_state **ret, struct pawl_error *err)
{
	const uint64_t whole[1] = {WHOLE}, all[2] = {ROWS, COLS}, n[2] = {m->n, COLS}, at[2] = {m->at, 0};
	struct pawl_tensor w = PAWL_TENSOR_INIT, rows = PAWL_TENSOR_INIT;
	struct pawl_state *s = NULL;

	w.dtype = rows.dtype = PAWL_F32;
	w.ndim = 1;
	w.shape = whole;
	w.data = m->whole;
	rows.ndim = 2;
	rows.shape = n;
	rows.global_shape = all;
	rows.offsets = at;
	rows.data = m->rows;
	int rc = pawl_state_new(&s, err);

	if (rc == 0 && world > 1)
		rc = pawl_state_set_rank(s, (uint32_t)rank, (uint32_t)world, err);
	if (rc == 0)
		rc = pawl_state_set_tensor(s, "whole", &w, err);
	if (rc == 0)
		rc = pawl_state_set_tensor(s, "rows", &rows, err);
	if (rc == 0)
		rc = pawl_state_set_int(s, "place", rank, err);
	if (rc < 0)
		pawl_state_free(s);
	else
		*ret = s;
	return rc;
}

/* One rank's part of a checkpoint. */
static int
check_part(struct pawl *run, const char *selector, int rank, int world, int64_t step, char *why, size_t len)
{
	struct model *live = calloc(1, sizeof(*live)), *want = calloc(1, sizeof(*want));
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *r = NULL;
	struct pawl_state *s = NULL;
	struct pawl_error err = {0};

	opts.selector = selector;
	opts.no_fallback = 1;
	fill(want, rank, world, step);
	live->n = want->n;
	live->at = want->at;
	int rc = describe(live, rank, world, &s, &err);

	if (rc == 0)
		rc = pawl_restore(run, &opts, s, &r, &err);
	if (rc < 0)
		rc = complain(why, len, "restore", err.message);
	else if (pawl_restore_info(r)->step != step)
		rc = complain(why, len, "restore", "another step than the newest");
	else if (memcmp(live, want, sizeof(*live)) != 0)
		rc = complain(why, len, "restore", "bytes differ from what was saved");
	pawl_restore_close(r);
	pawl_state_free(s);
	free(live);
	free(want);
	return rc;
}

/* ---- a rank */

static int
open_run(const struct job *job, int rank, struct pawl **ret, struct pawl_error *err)
{
	struct pawl_open_opts o = PAWL_OPEN_OPTS_INIT;
	struct pawl_rank who = PAWL_RANK_INIT;

	who.rank = rank;
	who.world_size = job->world;
	o.root = job->root;
	o.ranks.self = &who;
	o.timeouts.commit_ms = job->point && job->point->nth ? TIMEOUT_MS : HANG_MS;
	o.io.threads = o.staging.copy_threads = 1;
	o.retention.num_to_keep = job->point ? job->point->num_to_keep : 0;
	return pawl_open(&o, ret, err);
}

static int
save(struct pawl *run, const struct job *job, int rank, int64_t step, struct pawl_error *err)
{
	struct model *m = calloc(1, sizeof(*m));
	struct pawl_save_opts opts = PAWL_SAVE_OPTS_INIT;
	struct pawl_ticket *ticket = NULL;
	struct pawl_state *s = NULL;

	fill(m, rank, job->world, step);
	int rc = describe(m, rank, job->world, &s, err);

	opts.step = step;
	if (job->board->begun < step)
		job->board->begun = step;
	if (rc == 0)
		rc = pawl_save(run, &opts, s, &ticket, err);
	if (rc == 0)
		rc = pawl_ticket_wait(ticket, -1, err);
	pawl_ticket_free(ticket);
	pawl_state_free(s);
	free(m);
	return rc;
}

static void
train(const struct job *job, int rank)
{
	static const enum shim_mode modes[] = {SHIM_KILL, SHIM_KILL_TORN, SHIM_STOP, SHIM_STOP};
	const struct point *p = job->point;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	if (p->victim == rank && p->nth)
		shim_arm(modes[p->trouble], p->nth, 0, false);
	else
		shim_arm(SHIM_COUNT, 0, 0, false);
	int rc = open_run(job, rank, &run, &err);

	job->board->opened[rank].code = rc;
	for (int step = job->from; rc == 0 && step <= job->to; step++) {
		int code = save(run, job, rank, step, &err);

		while (p->sabotage == SLEEPER && rank == 1 && step == 1)
			pause();
		job->board->saved[rank][step].is_unknown = strstr(err.message, "is not known") != NULL;
		job->board->saved[rank][step].code = code;
	}
	job->board->calls[rank] = shim_calls();
	pawl_close(run, NULL);
}

/* The job started again: restores the newest, saves once. */
static void
go_on(const struct job *job, int rank)
{
	struct pawl_error err = {0};
	char *why = job->board->why[rank];
	const size_t len = sizeof(job->board->why[0]);
	struct pawl *run = NULL;

	snprintf(why, len, "ended in between");
	if (open_run(job, rank, &run, &err) < 0) {
		complain(why, len, "opening again", err.message);
		return;
	}
	int bad = job->from > 0 ? check_part(run, NULL, rank, job->world, job->from, why, len) : 0;

	if (bad == 0 && save(run, job, rank, job->to, &err) < 0)
		bad = complain(why, len, "saving again", err.message);
	if (pawl_close(run, &err) < 0 && bad == 0)
		bad = complain(why, len, "closing", err.message);
	if (bad == 0)
		*why = '\0';
}

/* ---- a job */

static long
stop_ms(const struct point *p)
{
	return p->trouble == HELD_UP ? TIMEOUT_MS / 3 : TIMEOUT_MS + 300;
}

/* Starts all ranks, continues the one that stops, and waits for all. -1 if one hangs. */
static int
run_job(const struct job *job, void (*fn)(const struct job *, int rank))
{
	pid_t pids[MAX_WORLD];
	/* The sleeper never ends: any limit finds it. */
	const int64_t limit_ms = job->point && job->point->sabotage == SLEEPER ? 2 * TIMEOUT_MS : HANG_MS;
	int64_t until = now_ms() + limit_ms, stopped_at = 0;
	int left = job->world, hangs = 0;

	for (int r = 0; r < job->world; r++) {
		pids[r] = fork();
		if (pids[r] == 0) {
			setrlimit(RLIMIT_CORE, &(struct rlimit){0});
			fn(job, r);
			_exit(0);
		}
	}
	while (left > 0) {
		for (int r = 0; r < job->world; r++) {
			int status;

			if (pids[r] == 0 || waitpid(pids[r], &status, WNOHANG | WUNTRACED) != pids[r])
				continue;
			if (WIFSTOPPED(status)) {
				stopped_at = now_ms();
				continue;
			}
			pids[r] = 0;
			left--;
		}
		if (stopped_at && now_ms() >= stopped_at + stop_ms(job->point)) {
			kill(pids[job->point->victim], SIGCONT);
			stopped_at = 0;
		}
		for (int r = 0; r < job->world && now_ms() > until; r++)
			if (pids[r])
				hangs = kill(pids[r], SIGKILL) == 0 || hangs;
		usleep(3000);
	}
	return hangs ? -1 : 0;
}

/* ---- what must hold */

/* No rank says the opposite of another. *acked, *failed: bit n = step n. */
static int
check_verdicts(const struct point *p, const struct board *b, unsigned *acked, unsigned *failed, char *why, size_t len)
{
	for (int r = 0; r < p->world; r++) {
		for (int step = 1; step <= SAVES; step++) {
			int code = b->saved[r][step].code;

			if (p->sabotage == VERDICT_TURNED && r == 1 && step == 2)
				code = code ? 0 : PAWL_EIO;
			if (code == 0)
				*acked |= 1u << step;
			else if (code < 0 && !b->saved[r][step].is_unknown)
				*failed |= 1u << step;
		}
	}
	if (!(*acked & *failed))
		return 0;
	snprintf(why, len, "opposite verdicts: committed 0x%x, failed 0x%x", *acked, *failed);
	return SCENARIO_BAD;
}

/* Every listed checkpoint, each complete. Steps as bits; *newest 0 = none. */
static int
check_list(const char *root, unsigned *steps, int *newest, char *why, size_t len)
{
	struct pawl_open_opts o = PAWL_OPEN_OPTS_INIT;
	struct pawl_list *list = NULL;
	struct pawl_error err = {0};
	struct pawl *run = NULL;

	*steps = 0;
	*newest = 0;
	o.root = root;
	o.read_only = 1;
	int rc = pawl_open(&o, &run, &err);

	if (rc == PAWL_ENOTFOUND)
		return 0; /* interrupted before there was a folder */
	if (rc == 0)
		rc = pawl_list_open(run, 1, &list, &err);
	if (rc < 0)
		rc = complain(why, len, "list", err.message);
	for (size_t i = 0; rc == 0 && i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);
		char selector[32], inner[1100] = "";

		snprintf(selector, sizeof(selector), "id:%llu", (unsigned long long)info->id);
		if (info->step < 1 || info->step >= STEPS)
			rc = complain(why, len, info->name, "a step that nobody saved, or no checkpoint");
		else if ((rc = check_part(run, selector, 0, 1, info->step, inner, sizeof(inner))) < 0)
			complain(why, len, info->name, inner);
		*steps |= 1u << (info->step & 15);
		if (info->step > *newest)
			*newest = (int)info->step;
	}
	pawl_list_free(list);
	pawl_close(run, NULL);
	return rc;
}

static int
check_kept(const struct point *p, const struct board *b, unsigned acked, unsigned failed, unsigned listed, char *why,
           size_t len)
{
	for (int step = 1; step <= SAVES; step++) {
		unsigned bit = 1u << step;
		int is_newest = (listed & ~(bit | (bit - 1))) == 0;

		if ((acked & bit) && !(listed & bit) && (is_newest || p->num_to_keep == 0)) {
			snprintf(why, len, "lost: step %d was committed and is not listed", step);
			return SCENARIO_LOST;
		}
		if ((failed & listed & bit) || ((listed & bit) && step > b->begun)) {
			snprintf(why, len, "step %d %s, and is listed", step,
			         failed & bit ? "failed" : "was never begun");
			return SCENARIO_BAD;
		}
	}
	return 0;
}

/* Nothing is hidden among the checkpoints any more. */
static int
check_clean(const char *root, char *why, size_t len)
{
	char path[800];
	int bad = 0;

	snprintf(path, sizeof(path), "%s/checkpoints", root);
	DIR *d = opendir(path);

	for (struct dirent *e; d && (e = readdir(d));)
		if (*e->d_name == '.' && strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
			bad = complain(why, len, "stays", e->d_name);
	if (d)
		closedir(d);
	return bad;
}

static int
start_again(const char *root, int world, int newest, int to, struct board *board, char *why, size_t len)
{
	struct job job = {.root = root, .world = world, .from = newest, .to = to, .board = board};
	unsigned listed;
	int now;

	if (run_job(&job, go_on) < 0)
		return complain(why, len, "started again", "hangs");
	for (int r = 0; r < world; r++)
		if (board->why[r][0])
			return complain(why, len, "started again", board->why[r]);
	int rc = check_list(root, &listed, &now, why, len);

	if (rc == 0 && now != to)
		rc = complain(why, len, "started again", "what it saved is not the newest");
	return rc < 0 ? rc : check_clean(root, why, len);
}

static void
spoil(const struct point *p, const char *root)
{
	char command[1000];

	if (p->sabotage != PACK_GONE && p->sabotage != SAVE_GONE)
		return;
	snprintf(command, sizeof(command), "cd '%s/checkpoints/checkpoint_00000%d' && rm -r %s", root, SAVES,
	         p->sabotage == PACK_GONE ? "rank00001*" : "\"$PWD\"");
	if (system(command) != 0)
		fprintf(stderr, "  the control cannot spoil %s\n", root);
}

/* One case. 0 or what is wrong. */
static int
violation(const struct point *p, const char *root, struct board *b, char *why, size_t len)
{
	struct job job = {.root = root, .point = p, .world = p->world, .from = 1, .to = SAVES, .board = b};
	unsigned acked = 0, failed = 0, listed = 0;
	int newest = 0;

	memset((void *)b, 0, sizeof(*b));
	for (int r = 0; r < MAX_WORLD; r++)
		for (int step = 0; step < STEPS; step++)
			b->saved[r][step].code = 1;
	int rc = run_job(&job, train);

	if (rc < 0)
		return complain(why, len, "a rank", "hangs");
	rc = check_verdicts(p, b, &acked, &failed, why, len);
	spoil(p, root);
	if (rc == 0)
		rc = check_list(root, &listed, &newest, why, len);
	if (rc == 0)
		rc = check_kept(p, b, acked, failed, listed, why, len);
	if (rc == 0)
		rc = start_again(root, p->world, newest, SAVES + 1, b, why, len);
	if (rc == 0)
		rc = start_again(root, p->world == 2 ? 3 : p->world - 1, SAVES + 1, SAVES + 2, b, why, len);
	return rc;
}

/* ---- all points */

static struct board *
make_board(void)
{
	void *b = mmap(NULL, sizeof(struct board), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	return b == MAP_FAILED ? NULL : b;
}

/* A case in a process of its own, which ends with 0 if all held. */
static pid_t
start_case(const struct point *p, const char *base, long number)
{
	pid_t pid = fork();

	if (pid != 0)
		return pid;
	struct board *b = make_board();
	char root[700], why[1400] = "no memory";

	snprintf(root, sizeof(root), "%s.%ld", base, number);
	int bad = b ? violation(p, root, b, why, sizeof(why)) : SCENARIO_BAD;

	if (bad)
		fprintf(stderr, "  %d ranks, rank %d, trouble %d, call %ld, keeps %d: %s\n", p->world, p->victim,
		        (int)p->trouble, p->nth, p->num_to_keep, why);
	proof_wipe(root);
	_exit(bad ? 1 : 0);
}

struct running {
	pid_t pids[AT_ONCE];
	struct totals *totals;
};

/* Waits until there is room for another case, or for all. */
static void
collect(struct running *run, int at_most)
{
	for (;;) {
		int n = 0;

		for (int i = 0; i < AT_ONCE; i++) {
			int status;

			if (run->pids[i] && waitpid(run->pids[i], &status, WNOHANG) == run->pids[i]) {
				run->totals->bad += !WIFEXITED(status) || WEXITSTATUS(status) != 0;
				run->pids[i] = 0;
			}
			n += run->pids[i] != 0;
		}
		if (n <= at_most)
			return;
		usleep(5000);
	}
}

/* How many changing calls each rank of an undisturbed job makes. */
static void
count_calls(const char *root, int world, struct board *b)
{
	struct point p = {.world = world, .victim = -1};
	struct job job = {.root = root, .point = &p, .world = world, .from = 1, .to = SAVES, .board = b};

	memset((void *)b, 0, sizeof(*b));
	run_job(&job, train);
	proof_wipe(root);
}

void
prove_ranks(const char *root, long every, long pass, struct totals *t)
{
	static const int worlds[] = {2, 3, 4, 5, 7, 8};
	struct running run = {.totals = t};
	struct board *b = make_board();
	long number = pass * 7;

	for (size_t w = 0; b && w < sizeof(worlds) / sizeof(*worlds); w++) {
		struct point p = {.world = worlds[w]};

		count_calls(root, p.world, b);
		for (int i = 0; i < 3; i++) { /* rank 0, the last, one between */
			p.victim = i == 0 ? 0 : i == 1 ? p.world - 1 : p.world / 2;
			if (i == 2 && p.world == 2)
				continue;
			const long n = b->calls[p.victim] + 3;

			for (int k = 0; k < N_TROUBLES; k++)
				for (p.nth = 1; p.nth <= n; p.nth++) {
					if (number++ % (GAP * every) != 0)
						continue;
					p.trouble = (enum trouble)k;
					p.num_to_keep = number / GAP % 3 == 0;
					collect(&run, AT_ONCE - 1);
					for (int slot = 0; slot < AT_ONCE; slot++)
						if (!run.pids[slot]) {
							run.pids[slot] = start_case(&p, root, number);
							break;
						}
					t->cases++;
				}
		}
	}
	collect(&run, 0);
	if (!b)
		t->bad++;
	else
		munmap(b, sizeof(*b));
}

/* An undisturbed job, with the harness itself doing what must not happen. */
int
control_ranks(const char *root)
{
	static const struct {
		enum sabotage sabotage;
		const char *word;
	} controls[] = {{NONE, ""},
	                {VERDICT_TURNED, "opposite verdicts"},
	                {PACK_GONE, "checkpoint_000003: restore"},
	                {SAVE_GONE, "lost: step 3"},
	                {SLEEPER, "a rank: hangs"}};
	struct board *b = make_board();
	int caught = b != NULL;

	for (size_t i = 0; caught && i < sizeof(controls) / sizeof(*controls); i++) {
		struct point p = {.world = 3, .victim = -1, .sabotage = controls[i].sabotage};
		char why[1400] = "";
		int bad = violation(&p, root, b, why, sizeof(why));

		caught = (bad != 0) == (controls[i].sabotage != NONE) && strstr(why, controls[i].word) != NULL;
		if (!caught)
			fprintf(stderr, "  control %d: %s\n", (int)controls[i].sabotage, *why ? why : "nothing found");
		proof_wipe(root);
	}
	if (b)
		munmap(b, sizeof(*b));
	return caught;
}
