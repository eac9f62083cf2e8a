/* SPDX-License-Identifier: Apache-2.0 */
/* rank_answers: what a call returned on each rank of a job, in memory that all ranks share. For
 * tests whose *state is the run's folder. */
#ifndef PAWL_TESTS_RANK_ANSWERS_H
#define PAWL_TESTS_RANK_ANSWERS_H

#include <stdlib.h>
#include <sys/mman.h>

#include "helpers/ranks.h"
#include "helpers/scratch.h"

/* By rank. */
static struct answer {
	int code;
	struct pawl_error err;
} *answers;

static inline int
answers_setup(void **state)
{
	char *root = malloc(256);

	*state = root;
	answers = mmap(NULL, RANKS_MAX * sizeof(*answers), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	return answers == MAP_FAILED ? -1 : scratch_make(root, 256, "ranks");
}

static inline int
answers_teardown(void **state)
{
	munmap(answers, RANKS_MAX * sizeof(*answers));
	scratch_remove(*state);
	free(*state);
	return 0;
}

#endif
