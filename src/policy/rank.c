/* SPDX-License-Identifier: Apache-2.0 */
/*
 * rank: which process of a job this is. A table of launchers; the first one whose variables are set
 * counts. Pure: the environment is a function that is passed in.
 *
 * Processes inherit variables, so several launchers can be visible at once (mpirun in a Slurm job,
 * torchrun in one). The innermost launcher comes first in the table. A row counts where its sign is
 * set and one of rank and size. If the other one is missing, that is an error: a guess would save
 * half a job.
 *
 * `attempt` must be the same on all ranks and differ between two starts, or be empty. Else files of
 * a killed attempt would be taken for those of the next one. Values that only seem unique are not
 * used: process ids, ports, and run ids that a person chose. docs/explanation/multi-rank.md has the
 * table with the reasons.
 */
#include "policy/rank.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/sum.h"
#include "base/text.h"

struct look {
	rank_get_fn *get;
	void *ctx;
	struct pawl_error *err;
};

/* Writes the text, without the launcher's name, and returns true; false if there is none. */
typedef bool attempt_fn(const struct look *look, char *ret, size_t cap);

/* Two names: the second one counts where the first is not set. */
struct name {
	const char *first, *second;
};

struct launcher {
	const char *name;
	const char *sign; /* only this launcher sets it; NULL: its ranks and sizes have names of their own */
	bool needs_rank;  /* a size alone means nothing: an allocation has one, too */
	bool needs_both;
	struct name rank, size, local_rank, local_size, node_rank;
	struct name sizes;   /* local sizes of all nodes, such as "4(x2),3" */
	attempt_fn *attempt; /* NULL: its environment has nothing suitable */
};

/* An empty variable counts as one that is not set. */
static const char *
value_of(const struct look *look, const char *name)
{
	const char *value = name ? look->get(look->ctx, name) : NULL;

	return value && *value ? value : NULL;
}

/* The one of the two names that is set; if neither is, the better known one. */
static const char *
choose_name(const struct look *look, const struct name *name)
{
	return value_of(look, name->first) || !name->second ? name->first : name->second;
}

/* ---- what names a start ---- */

/*
 * People choose run ids ("none", the name of the job), and the port may be fixed. But the agent of
 * a node makes a folder with a random name, and below it one for each restart:
 * RANDOM/attempt_1/LOCAL_RANK/error.json. With several nodes every agent has its own folder and
 * counts restarts by itself. Then there is nothing that all ranks share.
 */
static bool
torchrun_attempt(const struct look *look, char *ret, size_t cap)
{
	const char *nodes = value_of(look, "GROUP_WORLD_SIZE"), *file = value_of(look, "TORCHELASTIC_ERROR_FILE");
	const char *begin = file ? file + strlen(file) : NULL, *end = NULL, *middle = NULL;

	if (!nodes || strcmp(nodes, "1") != 0 || !file)
		return false;
	for (int slashes = 0; begin > file; begin--) {
		if (begin[-1] != '/')
			continue;
		slashes++;
		if (slashes == 2)
			end = begin - 1;
		else if (slashes == 3)
			middle = begin;
		else if (slashes == 4)
			break;
	}
	if (!middle || begin == file || strncmp(middle, "attempt_", strlen("attempt_")) != 0)
		return false;
	return (size_t)snprintf(ret, cap, "%.*s", (int)(end - begin), begin) < cap;
}

/*
 * The job id comes from mpirun's process id and may repeat. mpirun draws the key at random, for
 * each start and for all ranks. The key protects connections, so only 64 bits of its checksum are
 * used: they identify it and do not reveal it.
 */
static bool
openmpi_attempt(const struct look *look, char *ret, size_t cap)
{
	const char *id = value_of(look, "OMPI_MCA_ess_base_jobid");
	const char *key = value_of(look, "OMPI_MCA_orte_precondition_transports");

	if (!id || !key)
		return false;
	return (size_t)snprintf(ret, cap, "%s.%016llx", id, (unsigned long long)sum_bytes(key, strlen(key)).lo) < cap;
}

static bool
slurm_attempt(const struct look *look, char *ret, size_t cap)
{
	const char *job = value_of(look, "SLURM_JOB_ID"), *step = value_of(look, "SLURM_STEP_ID");
	const char *restart = value_of(look, "SLURM_RESTART_COUNT"); /* not set the first time */

	if (!job || !step)
		return false;
	return (size_t)snprintf(ret, cap, "%s.%s.%s", job, step, restart ? restart : "0") < cap;
}

/* Ids of jobs count milliseconds since their instance began: alone, those of two private instances
 * may be equal. */
static bool
flux_attempt(const struct look *look, char *ret, size_t cap)
{
	const char *outer = value_of(look, "FLUX_ENCLOSING_ID"), *job = value_of(look, "FLUX_JOB_ID");

	if (!outer || !job)
		return false;
	return (size_t)snprintf(ret, cap, "%s.%s", outer, job) < cap;
}

static bool
pals_attempt(const struct look *look, char *ret, size_t cap)
{
	const char *id = value_of(look, "PALS_APID");

	return id && (size_t)snprintf(ret, cap, "%s", id) < cap;
}

/* ---- the table ---- */

static const struct launcher launchers[] = {
	{.name = "torchrun",
         .sign = "TORCHELASTIC_RUN_ID",
         .rank = {.first = "RANK"},
         .size = {.first = "WORLD_SIZE"},
         .local_rank = {.first = "LOCAL_RANK"},
         .local_size = {.first = "LOCAL_WORLD_SIZE"},
         .node_rank = {.first = "GROUP_RANK"},
         .attempt = torchrun_attempt},
	/* its NODE_RANK is a rank on the node, counted over all jobs there */
	{.name = "openmpi",
         .rank = {.first = "OMPI_COMM_WORLD_RANK"},
         .size = {.first = "OMPI_COMM_WORLD_SIZE"},
         .local_rank = {.first = "OMPI_COMM_WORLD_LOCAL_RANK"},
         .local_size = {.first = "OMPI_COMM_WORLD_LOCAL_SIZE"},
         .attempt = openmpi_attempt},
	{.name = "mpich",
         .sign = "MPI_LOCALRANKID",
         .rank = {.first = "PMI_RANK"},
         .size = {.first = "PMI_SIZE"},
         .local_rank = {.first = "MPI_LOCALRANKID"},
         .local_size = {.first = "MPI_LOCALNRANKS"}},
	{.name = "mvapich",
         .rank = {.first = "MV2_COMM_WORLD_RANK"},
         .size = {.first = "MV2_COMM_WORLD_SIZE"},
         .local_rank = {.first = "MV2_COMM_WORLD_LOCAL_RANK"},
         .local_size = {.first = "MV2_COMM_WORLD_LOCAL_SIZE"}},
	/* before the schedulers: scripts run one task per node there, which starts the processes
         * and names them so. One of the two counts only at the end, since scripts also set
         * WORLD_SIZE for all tasks */
	{.name = "env",
         .needs_both = true,
         .rank = {.first = "RANK"},
         .size = {.first = "WORLD_SIZE"},
         .local_rank = {.first = "LOCAL_RANK"},
         .local_size = {.first = "LOCAL_WORLD_SIZE"},
         .node_rank = {"NODE_RANK", "GROUP_RANK"}},
	/* without a step it is a batch script or a shell, which also has PROCID 0 and the job's
         * NTASKS */
	{.name = "slurm",
         .sign = "SLURM_STEP_ID",
         .needs_rank = true,
         .rank = {.first = "SLURM_PROCID"},
         .size = {"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"},
         .local_rank = {.first = "SLURM_LOCALID"},
         .node_rank = {.first = "SLURM_NODEID"},
         .sizes = {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"},
         .attempt = slurm_attempt},
	/* before PALS, whose variables it may set for Cray's MPI, as Slurm may */
	{.name = "flux",
         .sign = "FLUX_TASK_RANK",
         .rank = {.first = "FLUX_TASK_RANK"},
         .size = {.first = "FLUX_JOB_SIZE"},
         .local_rank = {.first = "FLUX_TASK_LOCAL_ID"},
         .attempt = flux_attempt},
	{.name = "pals",
         .sign = "PALS_RANKID",
         .rank = {.first = "PALS_RANKID"},
         .size = {.first = "PMI_SIZE"},
         .local_rank = {.first = "PALS_LOCAL_RANKID"},
         .local_size = {"PALS_LOCAL_SIZE", "PMI_LOCAL_SIZE"},
         .node_rank = {.first = "PALS_NODEID"},
         .attempt = pals_attempt},
	{.name = "pmi",
         .rank = {.first = "PMI_RANK"},
         .size = {.first = "PMI_SIZE"},
         .local_rank = {.first = "PMI_LOCAL_RANK"},
         .local_size = {.first = "PMI_LOCAL_SIZE"}},
	{.name = "jax", .rank = {.first = "JAX_PROCESS_ID"}, .size = {.first = "JAX_NUM_PROCESSES"}},
	{.name = "kubernetes",
         .sign = "JOB_COMPLETION_INDEX",
         .rank = {.first = "JOB_COMPLETION_INDEX"},
         .size = {.first = "WORLD_SIZE"}},
	{.name = "env", .rank = {.first = "RANK"}, .size = {.first = "WORLD_SIZE"}},
};
#define N_LAUNCHERS (sizeof(launchers) / sizeof(launchers[0]))

static const struct launcher *
find_launcher(const struct look *look)
{
	for (size_t i = 0; i < N_LAUNCHERS; i++) {
		const struct launcher *l = &launchers[i];
		bool has_rank = value_of(look, choose_name(look, &l->rank));
		bool has_size = value_of(look, choose_name(look, &l->size));

		if (l->sign && !value_of(look, l->sign))
			continue;
		if (l->needs_both ? has_rank && has_size : has_rank || (has_size && !l->needs_rank))
			return l;
	}
	return NULL;
}

/* ---- numbers ---- */

/* Decimal digits of a number that fits; *end is the first character behind them. -1 if there are
 * none. */
static int32_t
parse_digits(const char *text, const char **end)
{
	int64_t value = -1;

	for (; *text >= '0' && *text <= '9' && value <= INT32_MAX; text++)
		value = (value < 0 ? 0 : value * 10) + (*text - '0');
	*end = text;
	return value <= INT32_MAX ? (int32_t)value : -1;
}

/* -1 where the variable is not set. */
static int
look_up_number(const struct look *look, const struct name *name, int32_t *ret)
{
	const char *variable = choose_name(look, name), *text = value_of(look, variable), *end;

	*ret = -1;
	if (!text)
		return 0;
	*ret = parse_digits(text, &end);
	if (*ret < 0 || *end)
		return err_set(look->err, PAWL_EUSAGE, "%s: expected a whole number from 0 to %d, found \"%.64s\"",
		               variable, INT32_MAX, text);
	return 0;
}

/* The entry of a node in "4(x2),3"; -1 if there is none, or the text is something else. */
static int32_t
size_of_node(const char *text, int32_t node)
{
	while (text && *text) {
		int32_t size = parse_digits(text, &text), times = 1;

		if (strncmp(text, "(x", 2) == 0) {
			times = parse_digits(text + 2, &text);
			if (*text++ != ')')
				return -1;
		}
		if (size < 0 || times < 1 || (*text && *text++ != ','))
			return -1;
		if (node < times)
			return size;
		node -= times;
	}
	return -1;
}

/* ---- putting it together ---- */

static int
check_pair(const struct look *look, const char *name, int32_t value, const char *size_name, int32_t size)
{
	if (size < 1)
		return err_set(look->err, PAWL_EUSAGE, "%s: expected at least 1, found %d", size_name, size);
	if (value >= size)
		return err_set(look->err, PAWL_EUSAGE, "%s: expected less than %s, which is %d, found %d", name,
		               size_name, size, value);
	return 0;
}

static int
read_world(const struct look *look, const struct launcher *l, struct pawl_rank *r)
{
	const char *rank = choose_name(look, &l->rank), *size = choose_name(look, &l->size);
	const char *given = value_of(look, rank) ? rank : size, *missing = given == rank ? size : rank;

	if (!value_of(look, missing))
		return err_set(look->err, PAWL_EUSAGE, "%s: expected together with %s, found %s=%.64s alone", missing,
		               given, given, value_of(look, given));
	TRY(look_up_number(look, &l->rank, &r->rank));
	TRY(look_up_number(look, &l->size, &r->world_size));
	return check_pair(look, rank, r->rank, size, r->world_size);
}

static int
read_node(const struct look *look, const struct launcher *l, struct pawl_rank *r)
{
	const char *local_rank = choose_name(look, &l->local_rank), *local_size = choose_name(look, &l->local_size);

	TRY(look_up_number(look, &l->local_rank, &r->local_rank));
	TRY(look_up_number(look, &l->local_size, &r->local_world_size));
	TRY(look_up_number(look, &l->node_rank, &r->node_rank));
	if (r->local_world_size >= 0)
		TRY(check_pair(look, local_rank, r->local_rank, local_size, r->local_world_size));
	if (r->local_world_size > r->world_size)
		return err_set(look->err, PAWL_EUSAGE, "%s: expected at most %s, which is %d, found %d", local_size,
		               choose_name(look, &l->size), r->world_size, r->local_world_size);
	if (r->local_world_size < 0 && r->node_rank >= 0) {
		int32_t size = size_of_node(value_of(look, choose_name(look, &l->sizes)), r->node_rank);

		if (size > r->local_rank && size <= r->world_size)
			r->local_world_size = size;
	}
	return 0;
}

/* Derives what the launcher does not set. */
static void
derive_missing(struct pawl_rank *r)
{
	if (r->world_size == 1 && r->local_rank < 0)
		r->local_rank = 0;
	if (r->world_size == 1)
		r->local_world_size = 1;
	if (r->local_world_size == r->world_size && r->node_rank < 0)
		r->node_rank = 0;
}

/* Short and printable: any other text is replaced by its checksum. */
static void
read_attempt(const struct look *look, const struct launcher *l, struct pawl_rank *r)
{
	char text[1024];
	bool is_plain = true;

	if (!l->attempt || !l->attempt(look, text, sizeof(text)))
		return;
	size_t len = strlen(text);
	for (size_t i = 0; i < len; i++)
		is_plain = is_plain && text[i] > ' ' && text[i] <= '~';
	if (!is_plain || len + strlen(l->name) + 2 > sizeof(r->attempt)) {
		sum_to_hex(sum_bytes(text, len), text);
		text[32] = '\0';
	}
	snprintf(r->attempt, sizeof(r->attempt), "%s:%.*s", l->name, (int)(sizeof(r->attempt) - strlen(l->name) - 2),
	         text);
}

int
rank_identify(struct pawl_rank *rank, rank_get_fn *get, void *ctx, struct pawl_error *err)
{
	const struct look look = {.get = get, .ctx = ctx, .err = err};
	const struct launcher *l = find_launcher(&look);
	struct pawl_rank r = {.world_size = 1, .local_rank = -1, .local_world_size = -1, .node_rank = -1};

	if (!rank || rank->size == 0)
		return err_set(err, PAWL_EUSAGE, "rank: size is 0, set it by PAWL_RANK_INIT");
	if (l) {
		TRY(read_world(&look, l, &r));
		TRY(read_node(&look, l, &r));
		text_copy(r.launcher, sizeof(r.launcher), l->name);
		read_attempt(&look, l, &r);
	}
	derive_missing(&r);
	r.size = rank->size;
	memcpy(rank, &r, rank->size < sizeof(r) ? rank->size : sizeof(r));
	return 0;
}

static const char *
from_environment(void *ctx, const char *name)
{
	(void)ctx;
	return getenv(name);
}

int
pawl_rank_identify(struct pawl_rank *rank, struct pawl_error *err)
{
	return rank_identify(rank, from_environment, NULL, err);
}
