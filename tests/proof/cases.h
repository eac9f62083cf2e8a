/* SPDX-License-Identifier: Apache-2.0 */
/* cases: the proof kinds that work on bytes and file systems rather than on calls. */
#ifndef PROOF_CASES_H
#define PROOF_CASES_H

#include "scenario.h"

struct shared { /* memory shared by the interrupted child and the checking parent */
	struct scenario_progress progress;
	volatile long calls, allocs;
};

void proof_wipe(const char *root);
/* Each adds to cases and bad; cases is -1 where the machine does not allow it. */
void prove_space(const char *root, long every, struct shared *shared, long *cases, long *bad);
/* 1 if the harness notices a library without the check. */
int control_space(const char *root, struct shared *shared);
void prove_bits(const char *root, long every, long *cases, long *bad);
int control_bits(const char *root);
void prove_truncation(const char *root, long every, long *cases, long *bad);
int control_truncation(const char *root);
void prove_power(const char *root, long every, struct shared *shared, long *cases, long *bad, int *control_caught);

#endif
