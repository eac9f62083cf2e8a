/* SPDX-License-Identifier: Apache-2.0 */
/* scenario: see scenario.h. Uses pawl.h only. */
#include "helpers/hang.h"
#include "scenario.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define N_MOVING 80000u /* at most; F32 */
#define N_FROZEN 40000u
#define N_RESTING 3000u /* shares a file with what changes until the second save */
#define N_SMALL 10u

const struct scenario scenarios[] = {
	{.name = "keep all", .saves = 2},
	{.name = "keep 1", .num_to_keep = 1, .saves = 3},
	{.name = "keep 2 by score", .num_to_keep = 2, .by_score = 1, .saves = 4},
	{.name = "frozen, keep 1", .num_to_keep = 1, .frozen = 1, .saves = 3},
	{.name = "frozen, keep all", .frozen = 1, .saves = 2},
	{.name = "recycle", .num_to_keep = 1, .recycle = 1, .saves = 4},
	{.name = "recycle, frozen", .num_to_keep = 1, .recycle = 2, .frozen = 1, .saves = 4},
	{.name = "lazy", .lazy = 1, .saves = 2},
	{.name = "lazy, keep 1", .lazy = 1, .num_to_keep = 1, .saves = 3},
	{.name = "ring", .mode = PAWL_MODE_RING, .saves = 2},
	{.name = "ring, keep 1", .mode = PAWL_MODE_RING, .num_to_keep = 1, .saves = 3},
	{.name = "ring, frozen", .mode = PAWL_MODE_RING, .frozen = 1, .saves = 3},
	{.name = "ring, recycle", .mode = PAWL_MODE_RING, .num_to_keep = 1, .recycle = 1, .saves = 4},
	{.name = "direct", .mode = PAWL_MODE_DIRECT, .saves = 2},
	{.name = "direct, keep 1", .mode = PAWL_MODE_DIRECT, .num_to_keep = 1, .saves = 3},
	{.name = "direct, frozen", .mode = PAWL_MODE_DIRECT, .frozen = 1, .saves = 3},
	{.name = "direct, by score", .mode = PAWL_MODE_DIRECT, .num_to_keep = 1, .by_score = 1, .saves = 3},
	{.name = "marks", .marks = 1, .saves = 3},
	{.name = "marks, keep 1", .marks = 1, .num_to_keep = 1, .saves = 4},
	{.name = "marks, by score", .marks = 1, .num_to_keep = 1, .by_score = 1, .saves = 4},
	{.name = "replace", .on_busy = PAWL_BUSY_REPLACE, .saves = 3},
	{.name = "replace, keep 1", .on_busy = PAWL_BUSY_REPLACE, .num_to_keep = 1, .saves = 3},
	{.name = "skip", .on_busy = PAWL_BUSY_SKIP, .saves = 3},
	{.name = "nodes", .nodes = 1, .saves = 2},
	{.name = "nodes, frozen, keep 1", .nodes = 1, .num_to_keep = 1, .frozen = 1, .saves = 3},
	{.name = "zst", .codec = "zst", .saves = 2},
	{.name = "zst, frozen, keep 1", .codec = "zst", .frozen = 1, .num_to_keep = 1, .saves = 3},
	{.name = "zst, ring", .codec = "zst", .mode = PAWL_MODE_RING, .saves = 2},
	{.name = "zst, direct, nodes", .codec = "zst", .mode = PAWL_MODE_DIRECT, .nodes = 1, .saves = 2},
	{.name = "everything",
         .num_to_keep = 2,
         .by_score = 1,
         .recycle = 1,
         .frozen = 1,
         .marks = 1,
         .lazy = 1,
         .saves = 4},
};
const int n_scenarios = sizeof(scenarios) / sizeof(*scenarios);

struct scenario
scenario_vary(int which, long pass)
{
	static const uint32_t sizes[] = {50000, 37001, 66003, 20480, N_MOVING};
	static const uint32_t io_threads[] = {2, 1, 4};
	static const uint64_t pack_kib[] = {128, 256, 96, 192};
	struct scenario sc = scenarios[which];

	sc.n_moving = sizes[pass % 5];
	sc.io_threads = io_threads[pass % 3];
	sc.copy_threads = 1 + (uint32_t)(pass % 2);
	sc.pack_bytes = pack_kib[pass % 4] << 10;
	sc.seed = pass;
	return sc;
}

struct model {
	float moving[N_MOVING], frozen[N_FROZEN], resting[N_RESTING], small[N_SMALL];
};

static void
fill(const struct scenario *sc, struct model *m, int64_t step)
{
	for (unsigned i = 0; i < sc->n_moving; i++)
		m->moving[i] = (float)((int64_t)i * 7 + step * 1013 + sc->seed * 31);
	for (unsigned i = 0; i < N_FROZEN; i++)
		m->frozen[i] = (float)i * 0.25f;
	for (unsigned i = 0; i < N_RESTING; i++)
		m->resting[i] = (float)i * 0.5f;
	for (unsigned i = 0; i < N_SMALL; i++)
		m->small[i] = (float)(step * 100 + (int64_t)i);
}

static int
add(struct pawl_state *s, const char *path, float *data, uint64_t n, struct pawl_error *err)
{
	struct pawl_tensor t = PAWL_TENSOR_INIT;

	t.dtype = PAWL_F32;
	t.ndim = 1;
	t.shape = &n;
	t.data = data;
	return pawl_state_set_tensor(s, path, &t, err);
}

static int
describe(const struct scenario *sc, struct model *m, int64_t step, struct pawl_state **ret, struct pawl_error *err)
{
	struct pawl_state *s = NULL;
	int rc = pawl_state_new(&s, err);

	if (rc == 0)
		rc = add(s, "model/moving", m->moving, sc->n_moving, err);
	if (rc == 0 && sc->frozen)
		rc = add(s, "model/frozen", m->frozen, N_FROZEN, err);
	if (rc == 0 && sc->frozen)
		rc = add(s, "model/resting", m->resting, N_RESTING, err);
	if (rc == 0)
		rc = add(s, "small", m->small, N_SMALL, err);
	if (rc == 0)
		rc = pawl_state_set_int(s, "step", step, err);
	if (rc < 0) {
		pawl_state_free(s);
		return rc;
	}
	*ret = s;
	return 0;
}

static void
use_nodes(const char *root, struct pawl_open_opts *o)
{
	static char folder[600]; /* the options borrow it */

	mkdir(root, 0700);
	for (int node = 0; node < 2; node++) {
		snprintf(folder, sizeof(folder), "%s/disk%d", root, node);
		mkdir(folder, 0700);
	}
	snprintf(folder, sizeof(folder), "%s/disk{node_rank}", root);
	o->ranks.node_folder = folder;
	o->ranks.n_nodes = 2;
	o->ranks.n_partners = 1;
}

static void
options(const struct scenario *sc, const char *root, struct pawl_open_opts *o, const char **score)
{
	*o = (struct pawl_open_opts)PAWL_OPEN_OPTS_INIT;
	o->root = root;
	o->staging.mode = sc->mode;
	o->packs.compression = sc->codec;
	o->on_busy = sc->on_busy;
	o->packs.recycle = sc->recycle;
	o->retention.num_to_keep = sc->num_to_keep;
	o->packs.pack_bytes = sc->pack_bytes;
	o->packs.block_bytes = 64 << 10;
	o->staging.ring_bytes = 8 << 20;
	o->staging.copy_threads = sc->copy_threads;
	o->io.threads = sc->io_threads;
	if (sc->nodes)
		use_nodes(root, o);
	if (sc->by_score) {
		o->retention.score_attributes = score;
		o->retention.n_scores = 1;
	}
}

static double
score_of(const struct scenario *sc, int64_t step)
{
	static const double scores[] = {0.5, 0.9, 0.2, 0.7};

	return scores[(step + sc->seed) % 4];
}

/* The score is reported last: until then the older, lower one asks for less. */
static void
note_score(struct scenario_progress *progress, int64_t step, double score)
{
	if (progress->best_step != 0 && score <= progress->best_score)
		return;
	progress->best_step = step;
	progress->best_score = score;
}

static int
save_once(const struct scenario *sc, struct pawl *run, struct model *m, int64_t step,
          struct scenario_progress *progress, struct pawl_error *err)
{
	struct pawl_metric metric = {.name = "accuracy", .value = score_of(sc, step)};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_ticket *ticket = NULL;
	struct pawl_state *s = NULL;
	int rc;

	fill(sc, m, step);
	rc = describe(sc, m, step, &s, err);
	if (rc < 0)
		return rc;
	save.step = step;
	save.lazy = sc->lazy;
	save.metrics = &metric;
	save.n_metrics = 1;
	progress->begun_step = step;
	rc = pawl_save(run, &save, s, &ticket, err);
	pawl_state_free(s);
	if (rc == PAWL_EBUSY && sc->on_busy == PAWL_BUSY_SKIP)
		return 0;
	if (rc < 0)
		return rc;
	if (sc->on_busy == PAWL_BUSY_WAIT || step == sc->saves) { /* else saves overlap */
		rc = pawl_ticket_wait(ticket, HANG_MS, err);
		if (rc == 0) {
			progress->acked_step = step;
			progress->acked_mask |= 1u << step;
			note_score(progress, step, metric.value);
		}
	}
	pawl_ticket_free(ticket);
	if (rc == 0)
		rc = pawl_fence(run, 60000, err);
	return rc;
}

static int
use_marks(struct pawl *run, int64_t step, struct scenario_progress *progress, struct pawl_error *err)
{
	struct pawl_metric metric = {.name = "accuracy", .value = 0.95};
	uint64_t id;
	int rc = pawl_find(run, "latest", &id, err);

	if (rc < 0)
		return rc;
	if (step == 1) {
		rc = pawl_pin(run, id, err);
		if (rc == 0)
			progress->pinned_step = 1;
	} else if (step == 2) {
		rc = pawl_score(run, id, &metric, 1, err);
		if (rc == 0)
			note_score(progress, step, metric.value);
	} else if (step == 3) {
		progress->pinned_step = 0; /* from here on it may be pinned or not */
		rc = pawl_find(run, "id:1", &id, err);
		if (rc == 0)
			rc = pawl_unpin(run, id, err);
		if (rc == 0)
			progress->unpinned_step = 1;
	}
	return rc;
}

static int
train(const struct scenario *sc, struct pawl *run, struct scenario_progress *progress, struct pawl_error *err)
{
	struct model *m = malloc(sizeof(*m));
	int rc = m ? 0 : PAWL_ENOMEM;

	for (int64_t step = 1; rc == 0 && step <= sc->saves; step++) {
		rc = save_once(sc, run, m, step, progress, err);
		if (rc == 0 && sc->marks)
			rc = use_marks(run, step, progress, err);
	}
	if (rc == 0)
		rc = pawl_wait(run, HANG_MS, err);
	else
		pawl_fence(run, 60000, NULL);
	free(m);
	return rc;
}

int
scenario_run(const struct scenario *sc, const char *root, struct scenario_progress *progress, struct pawl_error *err)
{
	const char *score[] = {"accuracy"};
	struct pawl_open_opts o;
	struct pawl *run = NULL;
	int rc, closed;

	options(sc, root, &o, score);
	rc = pawl_open(&o, &run, err);
	if (rc < 0)
		return rc;
	rc = train(sc, run, progress, err);
	closed = pawl_close(run, rc < 0 ? NULL : err);
	return rc < 0 ? rc : closed;
}

static int
complain(char *why, size_t len, const char *what, const char *detail)
{
	snprintf(why, len, "%s: %s", what, detail);
	return SCENARIO_BAD;
}

/* Restores one checkpoint and compares every byte with what its step must hold. */
static int
check_one(const struct scenario *sc, struct pawl *run, const struct pawl_info *info, char *why, size_t len)
{
	struct model *live = calloc(1, sizeof(*live)), *want = calloc(1, sizeof(*want));
	struct pawl_restore_opts opts = PAWL_RESTORE_OPTS_INIT;
	struct pawl_restore *r = NULL;
	struct pawl_state *s = NULL;
	struct pawl_error err = {0};
	char selector[32];
	int64_t step = -1;
	int rc, damaged;

	snprintf(selector, sizeof(selector), "id:%llu", (unsigned long long)info->id);
	opts.selector = selector;
	opts.no_fallback = 1;
	rc = describe(sc, live, 0, &s, &err);
	if (rc == 0)
		rc = pawl_restore(run, &opts, s, &r, &err);
	if (rc == 0)
		rc = pawl_state_get_int(pawl_restore_state(r), "step", &step, &err);
	fill(sc, want, info->step);
	damaged = rc == PAWL_ECORRUPT;
	if (rc < 0) {
		complain(why, len, info->name, err.message);
	} else if (step != info->step || memcmp(live->moving, want->moving, sizeof(want->moving)) != 0 ||
	           memcmp(live->small, want->small, sizeof(want->small)) != 0 ||
	           (sc->frozen && (memcmp(live->frozen, want->frozen, sizeof(want->frozen)) != 0 ||
	                           memcmp(live->resting, want->resting, sizeof(want->resting)) != 0))) {
		rc = complain(why, len, info->name, "restored bytes differ from what was saved");
		damaged = 1;
	}
	pawl_restore_close(r);
	pawl_state_free(s);
	free(live);
	free(want);
	return damaged ? SCENARIO_LOST : rc < 0 ? SCENARIO_BAD : 0;
}

/* What the list shows; steps as bits. */
struct seen {
	uint32_t steps, pinned;
	int64_t newest, n_unpinned;
	double best_score; /* -1 = none has a score */
	uint64_t best_id;
};

static void
look_at(struct seen *seen, const struct pawl_info *info)
{
	uint32_t bit = info->step >= 0 && info->step < 32 ? 1u << info->step : 0;

	seen->steps |= bit;
	if (info->marks & PAWL_MARK_PINNED)
		seen->pinned |= bit;
	else
		seen->n_unpinned++;
	if (info->step > seen->newest)
		seen->newest = info->step;
	if (info->has_score && info->score > seen->best_score) {
		seen->best_score = info->score;
		seen->best_id = info->id;
	}
}

/* The newest N (all, without a limit) of the acknowledged ones. Which of them a list of best ones
 * keeps is another rule. */
static int
check_newest(const struct scenario *sc, const struct seen *seen, const struct scenario_progress *progress, char *why,
             size_t len)
{
	for (int step = 1; step < 32; step++) {
		uint32_t bit = 1u << step;
		int newer = __builtin_popcount(seen->steps & ~(bit | (bit - 1)));

		if (!(progress->acked_mask & bit) || (seen->steps & bit))
			continue;
		if (newer == 0 || (!sc->by_score && (sc->num_to_keep == 0 || newer < sc->num_to_keep))) {
			snprintf(why, len, "lost: step %d was acknowledged, is to be kept and is not listed", step);
			return SCENARIO_LOST;
		}
	}
	return 0;
}

/* P6: the best one by score, as far as it was acknowledged; and `best` finds it. */
static int
check_best(struct pawl *run, const struct seen *seen, const struct scenario_progress *progress, char *why, size_t len)
{
	struct pawl_error err = {0};
	uint64_t id = 0;

	if (progress->best_step && !(seen->steps & 1u << progress->best_step) &&
	    seen->best_score <= progress->best_score) {
		complain(why, len, "lost", "the best acknowledged checkpoint is not listed, and none is better");
		return SCENARIO_LOST;
	}
	if (seen->best_id && pawl_find(run, "best", &id, &err) < 0)
		return complain(why, len, "best", err.message);
	return id == seen->best_id ? 0 : complain(why, len, "best", "is not the one with the highest score");
}

static int
check_pins(const struct seen *seen, const struct scenario_progress *progress, char *why, size_t len)
{
	if (progress->pinned_step && !(seen->steps & 1u << progress->pinned_step)) {
		complain(why, len, "lost", "a pinned checkpoint is not listed");
		return SCENARIO_LOST;
	}
	if (progress->pinned_step && !(seen->pinned & 1u << progress->pinned_step))
		return complain(why, len, "pins", "an acknowledged pin is gone");
	if (progress->unpinned_step && (seen->pinned & 1u << progress->unpinned_step))
		return complain(why, len, "pins", "what was unpinned is pinned again");
	return 0;
}

static int
check_list(const struct scenario *sc, struct pawl *run, const struct scenario_progress *progress, int settled,
           char *why, size_t len)
{
	const int64_t limit = sc->expect_at_most ? sc->expect_at_most : sc->num_to_keep;
	struct seen seen = {.best_score = -1};
	struct pawl_list *list = NULL;
	struct pawl_error err = {0};
	int rc = pawl_list_open(run, 0, &list, &err);

	if (rc < 0)
		return complain(why, len, "list", err.message);
	for (size_t i = 0; rc == 0 && i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		look_at(&seen, info);
		rc = check_one(sc, run, info, why, len);
	}
	pawl_list_free(list);
	if (rc == 0)
		rc = check_newest(sc, &seen, progress, why, len);
	if (rc == 0)
		rc = check_pins(&seen, progress, why, len);
	if (rc == 0 && sc->by_score)
		rc = check_best(run, &seen, progress, why, len);
	if (rc == 0 && seen.newest > progress->begun_step)
		rc = complain(why, len, "list", "a checkpoint is listed that was never begun");
	/* The latest stays in addition to the best ones. */
	if (rc == 0 && settled && limit > 0 && seen.n_unpinned > limit + (sc->by_score ? 1 : 0))
		rc = complain(why, len, "retention", "more are kept than num_to_keep allows");
	return rc;
}

/* Looks for what a crash left and no process removed; its name goes to found. */
static int
find_leftover(const char *root, const char *folder, char *found, size_t len)
{
	char path[512];
	int n = 0;

	snprintf(path, sizeof(path), "%s/%s", root, folder);
	DIR *d = opendir(path);

	if (!d)
		return 0;
	for (struct dirent *e; (e = readdir(d));) {
		const char *name = e->d_name;

		if (*name != '.' || strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, ".pawl") == 0)
			continue;
		if (strstr(name, ".lease") || strstr(name, ".probe."))
			continue; /* these go with time */
		snprintf(found, len, "%s/%s stays", folder, name);
		n = 1;
	}
	closedir(d);
	return n;
}

static int
is_marked(const char *root, const char *token)
{
	char path[600], wanted[64];
	int n = 0;

	snprintf(path, sizeof(path), "%s/checkpoints", root);
	snprintf(wanted, sizeof(wanted), ".at=%.32s=", token);
	DIR *all = opendir(path);

	for (struct dirent *e; all && (e = readdir(all));) {
		snprintf(path, sizeof(path), "%s/checkpoints/%.200s", root, e->d_name);
		DIR *one = opendir(path);

		for (struct dirent *f; one && (f = readdir(one));)
			n += strncmp(f->d_name, wanted, strlen(wanted)) == 0;
		if (one)
			closedir(one);
	}
	if (all)
		closedir(all);
	return n > 0;
}

/* Looks for packs on a node that no checkpoint has. */
static int
find_orphan(const char *root, int node, char *found, size_t len)
{
	char path[600];
	int n = 0;

	snprintf(path, sizeof(path), "%s/disk%d/packs", root, node);
	DIR *runs = opendir(path);

	for (struct dirent *e; runs && (e = readdir(runs));) {
		if (*e->d_name == '.')
			continue;
		snprintf(path, sizeof(path), "%s/disk%d/packs/%.100s", root, node, e->d_name);
		DIR *tokens = opendir(path);

		for (struct dirent *f; tokens && (f = readdir(tokens));) {
			if (*f->d_name == '.' || is_marked(root, f->d_name))
				continue;
			snprintf(found, len, "packs of %s stay on node %d", f->d_name, node);
			n = 1;
		}
		if (tokens)
			closedir(tokens);
	}
	if (runs)
		closedir(runs);
	return n;
}

static int
use_again(const struct scenario *sc, const char *root, struct scenario_progress progress, char *why, size_t len)
{
	const char *score[] = {"accuracy"};
	struct model *m = calloc(1, sizeof(*m));
	struct pawl_open_opts o;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	struct scenario once = *sc;
	int64_t step = progress.begun_step + 1;
	char found[400];
	int rc, found_bad = 0;

	once.on_busy = PAWL_BUSY_WAIT;
	options(&once, root, &o, score);
	rc = pawl_open(&o, &run, &err);
	if (rc == 0)
		rc = save_once(&once, run, m, step, &progress, &err);
	free(m);
	if (rc == 0)
		found_bad = check_list(sc, run, &progress, 1, why, len);
	if (run && pawl_close(run, rc || found_bad ? NULL : &err) < 0 && !found_bad)
		rc = -1;
	if (rc < 0)
		return complain(why, len, "using it again", err.message);
	if (found_bad)
		return found_bad;
	if (find_leftover(root, "checkpoints", found, sizeof(found)) ||
	    find_leftover(root, ".", found, sizeof(found)) || find_orphan(root, 0, found, sizeof(found)) ||
	    find_orphan(root, 1, found, sizeof(found)))
		return complain(why, len, "using it again", found);
	return 0;
}

int
scenario_check(const struct scenario *sc, const char *root, const struct scenario_progress *progress, int then_use,
               char *why, size_t why_len)
{
	const char *score[] = {"accuracy"};
	struct pawl_open_opts o;
	struct pawl_error err = {0};
	struct pawl *run = NULL;
	int rc;

	options(sc, root, &o, score);
	o.read_only = 1;
	rc = pawl_open(&o, &run, &err);
	if (rc == PAWL_ENOTFOUND && progress->acked_step == 0)
		rc = 0; /* interrupted before there was a folder */
	else if (rc == PAWL_ENOTFOUND)
		return complain(why, why_len, "lost", err.message), SCENARIO_LOST;
	else if (rc < 0)
		return complain(why, why_len, "open", err.message);
	else
		rc = check_list(sc, run, progress, 0, why, why_len);
	pawl_close(run, NULL);
	if (rc < 0)
		return rc;
	return then_use ? use_again(sc, root, *progress, why, why_len) : 0;
}
