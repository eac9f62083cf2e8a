/* SPDX-License-Identifier: Apache-2.0 */
/* rank: every launcher's variables, which one counts if several are set, what is wrong with them,
 * and what distinguishes one start of a job from the next. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "policy/rank.h"

#define COUNT(rows) (sizeof(rows) / sizeof((rows)[0]))
#define MAX_VARIABLES 16

/* "NAME=value", up to the first NULL. */
struct environment {
	const char *rows[MAX_VARIABLES];
};

static const char *
get(void *ctx, const char *name)
{
	const struct environment *e = ctx;
	size_t len = strlen(name);

	for (size_t i = 0; i < MAX_VARIABLES && e->rows[i]; i++)
		if (strncmp(e->rows[i], name, len) == 0 && e->rows[i][len] == '=')
			return e->rows[i] + len + 1;
	return NULL;
}

static struct pawl_rank
identify(struct environment e)
{
	struct pawl_rank r = PAWL_RANK_INIT;
	struct pawl_error err = {0};

	if (rank_identify(&r, get, &e, &err) < 0)
		fail_msg("%s", err.message);
	return r;
}

static const struct row {
	const char *launcher, *attempt;
	int32_t numbers[5]; /* rank, world size; on the node: rank, world size, which one it is */
	struct environment env;
} every_launcher[] = {
	{"", "", {0, 1, 0, 1, 0}, {{NULL}}},
	{"torchrun",
         "",
         {5, 8, 1, 4, 1},
         {{"RANK=5", "WORLD_SIZE=8", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=4", "GROUP_RANK=1", "GROUP_WORLD_SIZE=2",
           "TORCHELASTIC_RUN_ID=job", "TORCHELASTIC_RESTART_COUNT=0",
           "TORCHELASTIC_ERROR_FILE=/var/t/job_ab12/attempt_0/1/error.json"}}},
	{"torchrun",
         "torchrun:none_ab12/attempt_3",
         {1, 2, 1, 2, 0},
         {{"RANK=1", "WORLD_SIZE=2", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=2", "GROUP_RANK=0", "GROUP_WORLD_SIZE=1",
           "TORCHELASTIC_RUN_ID=none", "TORCHELASTIC_RESTART_COUNT=3", "MASTER_ADDR=a", "MASTER_PORT=29500",
           "TORCHELASTIC_ERROR_FILE=/var/t/none_ab12/attempt_3/1/error.json"}}},
	{"openmpi",
         "",
         {2, 4, 0, 2, -1},
         {{"OMPI_COMM_WORLD_RANK=2", "OMPI_COMM_WORLD_SIZE=4", "OMPI_COMM_WORLD_LOCAL_RANK=0",
           "OMPI_COMM_WORLD_LOCAL_SIZE=2", "OMPI_COMM_WORLD_NODE_RANK=7"}}},
	{"mpich", "", {3, 4, 1, 2, -1}, {{"PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"}}},
	{"mpich", "", {3, 4, 3, 4, 0}, {{"PMI_RANK=3", "PMI_SIZE=4", "MPI_LOCALRANKID=3", "MPI_LOCALNRANKS=4"}}},
	{"mvapich",
         "",
         {1, 4, 1, 2, -1},
         {{"MV2_COMM_WORLD_RANK=1", "MV2_COMM_WORLD_SIZE=4", "MV2_COMM_WORLD_LOCAL_RANK=1",
           "MV2_COMM_WORLD_LOCAL_SIZE=2"}}},
	{"env", "", {6, 8, 2, 4, 1}, {{"RANK=6", "WORLD_SIZE=8", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=4", "NODE_RANK=1"}}},
	{"env", "", {6, 8, -1, -1, 1}, {{"RANK=6", "WORLD_SIZE=8", "GROUP_RANK=1"}}},
	{"env", "", {0, 1, 0, 1, 0}, {{"RANK=0", "WORLD_SIZE=1"}}},
	{"slurm",
         "slurm:77.2.0",
         {5, 7, 1, 3, 1},
         {{"SLURM_PROCID=5", "SLURM_NTASKS=7", "SLURM_LOCALID=1", "SLURM_NODEID=1", "SLURM_JOB_ID=77",
           "SLURM_STEP_ID=2", "SLURM_STEP_TASKS_PER_NODE=4,3"}}},
	{"slurm",
         "slurm:77.0.1",
         {0, 4, 0, 2, 0},
         {{"SLURM_PROCID=0", "SLURM_NTASKS=64", "SLURM_STEP_NUM_TASKS=4", "SLURM_LOCALID=0", "SLURM_NODEID=0",
           "SLURM_JOB_ID=77", "SLURM_STEP_ID=0", "SLURM_RESTART_COUNT=1", "SLURM_TASKS_PER_NODE=2(x2)"}}},
	{"flux",
         "",
         {3, 4, 1, -1, -1},
         {{"FLUX_TASK_RANK=3", "FLUX_JOB_SIZE=4", "FLUX_TASK_LOCAL_ID=1", "FLUX_JOB_ID=f2"}}},
	{"flux",
         "flux:f1.f2",
         {3, 4, -1, -1, -1},
         {{"FLUX_TASK_RANK=3", "FLUX_JOB_SIZE=4", "FLUX_JOB_ID=f2", "FLUX_ENCLOSING_ID=f1", "PALS_RANKID=3",
           "PMI_RANK=3", "PMI_SIZE=4"}}},
	{"pals",
         "pals:0e4f-11",
         {3, 4, 1, 2, 1},
         {{"PALS_RANKID=3", "PMI_RANK=3", "PMI_SIZE=4", "PALS_LOCAL_RANKID=1", "PMI_LOCAL_SIZE=2", "PALS_NODEID=1",
           "PALS_APID=0e4f-11"}}},
	{"pmi", "", {3, 4, 1, 2, -1}, {{"PMI_RANK=3", "PMI_SIZE=4", "PMI_LOCAL_RANK=1", "PMI_LOCAL_SIZE=2"}}},
	{"jax", "", {1, 2, -1, -1, -1}, {{"JAX_PROCESS_ID=1", "JAX_NUM_PROCESSES=2", "JAX_COORDINATOR_ADDRESS=a:1"}}},
	{"kubernetes", "", {1, 3, -1, -1, -1}, {{"JOB_COMPLETION_INDEX=1", "WORLD_SIZE=3"}}},
};

static void
test_every_launcher(void **state)
{
	(void)state;
	for (size_t i = 0; i < COUNT(every_launcher); i++) {
		const struct row *row = &every_launcher[i];
		struct pawl_rank r = identify(row->env);

		if (strcmp(r.launcher, row->launcher) != 0 || strcmp(r.attempt, row->attempt) != 0)
			fail_msg("row %zu: launcher \"%s\", attempt \"%s\"", i, r.launcher, r.attempt);
		const int32_t numbers[5] = {r.rank, r.world_size, r.local_rank, r.local_world_size, r.node_rank};
		for (size_t k = 0; k < COUNT(numbers); k++)
			if (numbers[k] != row->numbers[k])
				fail_msg("row %zu: number %zu is %d, not %d", i, k, numbers[k], row->numbers[k]);
	}
}

static void
test_the_innermost_launcher_counts(void **state)
{
	(void)state;
	const struct {
		const char *launcher;
		int32_t numbers[2];
		struct environment env;
	} rows[] = {
		/* torchrun, one agent for each task of a Slurm step */
		{"torchrun",
	         {5, 8},
	         {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "RANK=5", "WORLD_SIZE=8",
	           "TORCHELASTIC_RUN_ID=none"}}},
		/* mpirun in a Slurm step, in a shell where RANK was set */
		{"openmpi",
	         {2, 4},
	         {{"SLURM_PROCID=0", "SLURM_NTASKS=1", "SLURM_STEP_ID=0", "OMPI_COMM_WORLD_RANK=2",
	           "OMPI_COMM_WORLD_SIZE=4", "RANK=0", "WORLD_SIZE=1"}}},
		/* a task for each node, which starts eight processes */
		{"env",
	         {11, 16},
	         {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "RANK=11", "WORLD_SIZE=16"}}},
		/* the script set the number of processes, and left the rank to Slurm */
		{"slurm", {1, 2}, {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "WORLD_SIZE=2"}}},
		/* Slurm's plugins for PMI and for Cray's MPI */
		{"slurm",
	         {1, 2},
	         {{"SLURM_PROCID=1", "SLURM_NTASKS=2", "SLURM_STEP_ID=0", "PMI_RANK=1", "PMI_SIZE=2",
	           "PALS_RANKID=1"}}},
		/* the script of a batch job, and the shell of an allocation */
		{"",
	         {0, 1},
	         {{"SLURM_PROCID=0", "SLURM_NTASKS=16", "SLURM_LOCALID=0", "SLURM_NODEID=0", "SLURM_JOB_ID=1"}}},
		{"", {0, 1}, {{"SLURM_NTASKS=16", "SLURM_JOB_ID=1"}}},
		{"", {0, 1}, {{"SLURM_NTASKS=16", "SLURM_JOB_ID=1", "SLURM_STEP_ID=1"}}},
		/* left over from mpiexec, whose rank and size have been taken away */
		{"", {0, 1}, {{"MPI_LOCALRANKID=1", "MPI_LOCALNRANKS=2"}}},
		/* empty is not set */
		{"", {0, 1}, {{"RANK=", "WORLD_SIZE=", "OMPI_COMM_WORLD_RANK="}}},
		{"env", {2, 3}, {{"RANK=2", "WORLD_SIZE=3", "LOCAL_RANK=", "TORCHELASTIC_RUN_ID="}}},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct pawl_rank r = identify(rows[i].env);

		if (strcmp(r.launcher, rows[i].launcher) != 0 || r.rank != rows[i].numbers[0] ||
		    r.world_size != rows[i].numbers[1])
			fail_msg("row %zu: launcher \"%s\", %d of %d", i, r.launcher, r.rank, r.world_size);
	}
}

static void
test_wrong_variables_are_named_with_what_they_hold(void **state)
{
	(void)state;
#define WHOLE "expected a whole number from 0 to 2147483647, found "
	const struct {
		struct environment env;
		const char *message;
	} rows[] = {
		{{{"RANK=1"}}, "WORLD_SIZE: expected together with RANK, found RANK=1 alone"},
		{{{"WORLD_SIZE=4"}}, "RANK: expected together with WORLD_SIZE, found WORLD_SIZE=4 alone"},
		{{{"TORCHELASTIC_RUN_ID=a", "RANK=1"}}, "WORLD_SIZE: expected together with RANK, found RANK=1 alone"},
		{{{"OMPI_COMM_WORLD_RANK=1", "RANK=0", "WORLD_SIZE=1"}},
	         "OMPI_COMM_WORLD_SIZE: expected together with OMPI_COMM_WORLD_RANK, found OMPI_COMM_WORLD_RANK=1 alone"},
		{{{"OMPI_COMM_WORLD_SIZE=2"}},
	         "OMPI_COMM_WORLD_RANK: expected together with OMPI_COMM_WORLD_SIZE, found OMPI_COMM_WORLD_SIZE=2 alone"},
		{{{"MPI_LOCALRANKID=0", "PMI_RANK=1"}},
	         "PMI_SIZE: expected together with PMI_RANK, found PMI_RANK=1 alone"},
		{{{"MV2_COMM_WORLD_RANK=1"}},
	         "MV2_COMM_WORLD_SIZE: expected together with MV2_COMM_WORLD_RANK, found MV2_COMM_WORLD_RANK=1 alone"},
		{{{"SLURM_PROCID=1", "SLURM_STEP_ID=0"}},
	         "SLURM_NTASKS: expected together with SLURM_PROCID, found SLURM_PROCID=1 alone"},
		{{{"FLUX_TASK_RANK=1"}},
	         "FLUX_JOB_SIZE: expected together with FLUX_TASK_RANK, found FLUX_TASK_RANK=1 alone"},
		{{{"PALS_RANKID=1"}}, "PMI_SIZE: expected together with PALS_RANKID, found PALS_RANKID=1 alone"},
		{{{"PMI_SIZE=2"}}, "PMI_RANK: expected together with PMI_SIZE, found PMI_SIZE=2 alone"},
		{{{"JAX_NUM_PROCESSES=2"}},
	         "JAX_PROCESS_ID: expected together with JAX_NUM_PROCESSES, found JAX_NUM_PROCESSES=2 alone"},
		{{{"JOB_COMPLETION_INDEX=1"}},
	         "WORLD_SIZE: expected together with JOB_COMPLETION_INDEX, found JOB_COMPLETION_INDEX=1 alone"},
		{{{"RANK=one", "WORLD_SIZE=4"}}, "RANK: " WHOLE "\"one\""},
		{{{"RANK=-1", "WORLD_SIZE=4"}}, "RANK: " WHOLE "\"-1\""},
		{{{"RANK=1.0", "WORLD_SIZE=4"}}, "RANK: " WHOLE "\"1.0\""},
		{{{"RANK= 1", "WORLD_SIZE=4"}}, "RANK: " WHOLE "\" 1\""},
		{{{"RANK=0x1", "WORLD_SIZE=4"}}, "RANK: " WHOLE "\"0x1\""},
		{{{"RANK=1", "WORLD_SIZE=2147483648"}}, "WORLD_SIZE: " WHOLE "\"2147483648\""},
		{{{"RANK=99999999999999999999999999", "WORLD_SIZE=4"}},
	         "RANK: " WHOLE "\"99999999999999999999999999\""},
		{{{"RANK=1", "WORLD_SIZE=-4"}}, "WORLD_SIZE: " WHOLE "\"-4\""},
		{{{"RANK=0", "WORLD_SIZE=0"}}, "WORLD_SIZE: expected at least 1, found 0"},
		{{{"RANK=4", "WORLD_SIZE=4"}}, "RANK: expected less than WORLD_SIZE, which is 4, found 4"},
		{{{"JAX_PROCESS_ID=9", "JAX_NUM_PROCESSES=2"}},
	         "JAX_PROCESS_ID: expected less than JAX_NUM_PROCESSES, which is 2, found 9"},
		{{{"SLURM_PROCID=4", "SLURM_STEP_NUM_TASKS=4", "SLURM_NTASKS=8", "SLURM_STEP_ID=0"}},
	         "SLURM_PROCID: expected less than SLURM_STEP_NUM_TASKS, which is 4, found 4"},
		{{{"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=x"}}, "LOCAL_RANK: " WHOLE "\"x\""},
		{{{"RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=-2"}}, "LOCAL_WORLD_SIZE: " WHOLE "\"-2\""},
		{{{"RANK=1", "WORLD_SIZE=4", "NODE_RANK=a"}}, "NODE_RANK: " WHOLE "\"a\""},
		{{{"RANK=1", "WORLD_SIZE=4", "LOCAL_WORLD_SIZE=0"}}, "LOCAL_WORLD_SIZE: expected at least 1, found 0"},
		{{{"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=2", "LOCAL_WORLD_SIZE=2"}},
	         "LOCAL_RANK: expected less than LOCAL_WORLD_SIZE, which is 2, found 2"},
		{{{"RANK=1", "WORLD_SIZE=4", "LOCAL_RANK=1", "LOCAL_WORLD_SIZE=8"}},
	         "LOCAL_WORLD_SIZE: expected at most WORLD_SIZE, which is 4, found 8"},
		{{{"PALS_RANKID=1", "PMI_SIZE=2", "PALS_LOCAL_RANKID=3", "PMI_LOCAL_SIZE=2"}},
	         "PALS_LOCAL_RANKID: expected less than PMI_LOCAL_SIZE, which is 2, found 3"},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		struct environment env = rows[i].env;
		struct pawl_rank r = {.size = sizeof(r), .rank = 77, .launcher = "as before"};
		struct pawl_error err = {0};

		assert_int_equal(rank_identify(&r, get, &env, &err), PAWL_EUSAGE);
		assert_string_equal(err.message, rows[i].message);
		assert_int_equal(r.rank, 77);
		assert_string_equal(r.launcher, "as before");
		assert_int_equal(rank_identify(&r, get, &env, NULL), PAWL_EUSAGE);
	}
}

static void
test_a_long_value_is_cut_in_the_message(void **state)
{
	(void)state;
	char text[4096] = "RANK=";
	memset(text + 5, '7', sizeof(text) - 6);
	struct environment env = {{text, "WORLD_SIZE=2"}};
	struct pawl_rank r = PAWL_RANK_INIT;
	struct pawl_error err = {0};

	assert_int_equal(rank_identify(&r, get, &env, &err), PAWL_EUSAGE);
	assert_true(strlen(err.message) < 160);
}

static void
test_the_size_of_a_node_from_slurms_list(void **state)
{
	(void)state;
	const struct {
		const char *list;
		int node;
		int32_t size;
	} rows[] = {
		{"4", 0, 4},       {"4", 1, -1},       {"4(x2),3", 0, 4},
		{"4(x2),3", 1, 4}, {"4(x2),3", 2, 3},  {"4(x2),3", 3, -1},
		{"1,2,3", 1, 2},   {"2(x3)", 2, 2},    {"", 0, -1},
		{"x", 0, -1},      {"4(x", 0, -1},     {"4(x)", 0, -1},
		{"4(x2", 0, -1},   {"4(x0),3", 0, -1}, {"4;3", 0, -1},
		{"(x2)", 0, -1},   {",4", 0, -1},      {"99", 0, -1},
		{"0", 0, -1},      {"4,", 1, -1},      {"4(x99999999999)", 0, -1},
	};
	for (size_t i = 0; i < COUNT(rows); i++) {
		char list[64], node[32];
		snprintf(list, sizeof(list), "SLURM_STEP_TASKS_PER_NODE=%s", rows[i].list);
		snprintf(node, sizeof(node), "SLURM_NODEID=%d", rows[i].node);
		struct environment env = {
			{list, node, "SLURM_PROCID=0", "SLURM_LOCALID=0", "SLURM_NTASKS=11", "SLURM_STEP_ID=0"}};

		int32_t size = identify(env).local_world_size;
		if (size != rows[i].size)
			fail_msg("node %d of \"%s\": %d", rows[i].node, rows[i].list, size);
	}
}

static struct environment
torchrun(const char *nodes, const char *file)
{
	return (struct environment){{"RANK=0", "WORLD_SIZE=2", "TORCHELASTIC_RUN_ID=a", nodes, file}};
}

static void
test_what_torchrun_gives_names_a_start_or_is_left_out(void **state)
{
	(void)state;
	const char *one = "GROUP_WORLD_SIZE=1";
	struct pawl_rank a = identify(torchrun(one, "TORCHELASTIC_ERROR_FILE=logs/a_x1/attempt_0/0/error.json"));
	struct pawl_rank b = identify(torchrun(one, "TORCHELASTIC_ERROR_FILE=logs/a_x1/attempt_0/1/error.json"));
	struct pawl_rank restarted =
		identify(torchrun(one, "TORCHELASTIC_ERROR_FILE=logs/a_x1/attempt_1/0/error.json"));
	struct pawl_rank again = identify(torchrun(one, "TORCHELASTIC_ERROR_FILE=logs/a_x2/attempt_0/0/error.json"));

	assert_string_equal(a.attempt, "torchrun:a_x1/attempt_0");
	assert_string_equal(a.attempt, b.attempt);
	assert_string_not_equal(a.attempt, restarted.attempt);
	assert_string_not_equal(a.attempt, again.attempt);

	const char *unfit[] = {"TORCHELASTIC_ERROR_FILE=",
	                       "TORCHELASTIC_ERROR_FILE=error.json",
	                       "TORCHELASTIC_ERROR_FILE=/0/error.json",
	                       "TORCHELASTIC_ERROR_FILE=attempt_0/0/error.json",
	                       "TORCHELASTIC_ERROR_FILE=/attempt_0/0/error.json",
	                       "TORCHELASTIC_ERROR_FILE=/var/mine/0/error.json",
	                       "OTHER=1"};
	for (size_t i = 0; i < COUNT(unfit); i++)
		assert_string_equal(identify(torchrun(one, unfit[i])).attempt, "");
	/* each node has a folder of its own */
	const char *file = "TORCHELASTIC_ERROR_FILE=logs/a_x1/attempt_0/0/error.json";
	assert_string_equal(identify(torchrun("GROUP_WORLD_SIZE=2", file)).attempt, "");
	assert_string_equal(identify(torchrun("GROUP_WORLD_SIZE=", file)).attempt, "");
}

static void
test_what_openmpi_gives_names_a_start_and_keeps_the_key(void **state)
{
	(void)state;
	const char *key = "OMPI_MCA_orte_precondition_transports=23cc5c21cda72663-8aa3d636c050258e";
	struct environment e = {
		{"OMPI_COMM_WORLD_RANK=0", "OMPI_COMM_WORLD_SIZE=2", "OMPI_MCA_ess_base_jobid=934215681", key}};
	struct pawl_rank a = identify(e);

	assert_memory_equal(a.attempt, "openmpi:934215681.", strlen("openmpi:934215681."));
	assert_int_equal(strlen(a.attempt), strlen("openmpi:934215681.") + 16);
	assert_null(strstr(a.attempt, "23cc5c21cda72663"));
	assert_null(strstr(a.attempt, "8aa3d636c050258e"));
	/* another mpirun that got the same process id */
	e.rows[3] = "OMPI_MCA_orte_precondition_transports=fa707465917983fd-221006e0e12c5e17";
	assert_string_not_equal(identify(e).attempt, a.attempt);
	e.rows[3] = NULL;
	assert_string_equal(identify(e).attempt, "");
	/* Open MPI 5 has no such job id, and a key that it finds there is not its own */
	e.rows[2] = key;
	assert_string_equal(identify(e).attempt, "");
}

static void
test_an_attempt_is_short_and_printable(void **state)
{
	(void)state;
	char text[2048] = "PALS_APID=";
	struct environment e = {{"PALS_RANKID=0", "PMI_SIZE=2", text}};
	size_t begin = strlen(text);

	memset(text + begin, 'a', 186);
	text[begin + 186] = '\0';
	assert_int_equal(strlen(identify(e).attempt), 191);
	memset(text + begin, 'a', 187);
	text[begin + 187] = '\0';
	struct pawl_rank first = identify(e);
	assert_int_equal(strlen(first.attempt), strlen("pals:") + 32);
	text[begin + 186] = 'b';
	assert_string_not_equal(identify(e).attempt, first.attempt);
	strncat(text, " \n\x80", sizeof(text) - strlen(text) - 1);
	text[begin] = ' ';
	struct pawl_rank odd = identify(e);
	for (const char *c = odd.attempt; *c; c++)
		assert_true(*c > ' ' && *c <= '~');
	/* too long to be looked at */
	memset(text + begin, 'a', sizeof(text) - begin - 1);
	text[sizeof(text) - 1] = '\0';
	assert_string_equal(identify(e).attempt, "");
}

static void
test_only_the_callers_size_is_written(void **state)
{
	(void)state;
	struct environment e = {{"RANK=1", "WORLD_SIZE=2", "NODE_RANK=1"}};
	struct pawl_rank r = {.size = offsetof(struct pawl_rank, local_rank), .local_rank = 77, .launcher = "mine"};
	struct pawl_error err = {0};

	assert_int_equal(rank_identify(&r, get, &e, &err), 0);
	assert_int_equal(r.size, offsetof(struct pawl_rank, local_rank));
	assert_int_equal(r.rank, 1);
	assert_int_equal(r.world_size, 2);
	assert_int_equal(r.local_rank, 77);
	assert_string_equal(r.launcher, "mine");

	r.size = 0;
	assert_int_equal(pawl_rank_identify(&r, &err), PAWL_EUSAGE);
	assert_string_equal(err.message, "rank: size is 0, set it by PAWL_RANK_INIT");
	assert_int_equal(pawl_rank_identify(NULL, &err), PAWL_EUSAGE);
}

static void
test_the_environment_of_the_process_is_read(void **state)
{
	(void)state;
	const char *names[] = {"TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
	                       "MPI_LOCALRANKID",     "MV2_COMM_WORLD_RANK",  "MV2_COMM_WORLD_SIZE"};
	struct pawl_rank r = PAWL_RANK_INIT;
	struct pawl_error err = {0};

	for (size_t i = 0; i < COUNT(names); i++)
		unsetenv(names[i]);
	setenv("RANK", "2", 1);
	setenv("WORLD_SIZE", "3", 1);
	assert_int_equal(pawl_rank_identify(&r, &err), 0);
	assert_int_equal(r.rank, 2);
	assert_int_equal(r.world_size, 3);
	assert_string_equal(r.launcher, "env");
}

int
main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_launcher),
		cmocka_unit_test(test_the_innermost_launcher_counts),
		cmocka_unit_test(test_wrong_variables_are_named_with_what_they_hold),
		cmocka_unit_test(test_a_long_value_is_cut_in_the_message),
		cmocka_unit_test(test_the_size_of_a_node_from_slurms_list),
		cmocka_unit_test(test_what_torchrun_gives_names_a_start_or_is_left_out),
		cmocka_unit_test(test_what_openmpi_gives_names_a_start_and_keeps_the_key),
		cmocka_unit_test(test_an_attempt_is_short_and_printable),
		cmocka_unit_test(test_only_the_callers_size_is_written),
		cmocka_unit_test(test_the_environment_of_the_process_is_read),
	};
	return cmocka_run_group_tests(tests, NULL, NULL);
}
