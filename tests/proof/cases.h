/* SPDX-License-Identifier: Apache-2.0 */
/* cases: what the kinds of proof share, and those that work on bytes and file systems rather than
 * on calls. */
#ifndef PROOF_CASES_H
#define PROOF_CASES_H

#include "helpers/hang.h"
#include "scenario.h"

struct shared { /* memory shared by the interrupted child and the checking parent */
	struct scenario_progress progress;
	volatile long calls, allocs, syncs;
};

/* A file system in a file, mounted by a loop device. */
struct disk {
	char kind[8]; /* "ext4", "xfs" */
	char image[600], mnt[600];
};
/* Returns 0, or -1 if the machine does not allow it. disk_drop does nothing on what was never
 * made. */
int disk_make(struct disk *, const char *base, const char *kind);
void disk_drop(struct disk *);

struct totals {
	long cases, bad;
	int not_run; /* the machine does not allow it */
};

void proof_wipe(const char *root);

/* Each adds to the totals. root: a name for a folder that does not exist yet. The controls return 1
 * if the harness notices that the library lacks the check. */
void prove_space(const char *root, long every, long pass, struct shared *shared, struct totals *t);
int control_space(const char *root, struct shared *shared);
void prove_power(const char *root, long every, long pass, struct shared *shared, struct totals *t);
int control_power(const char *root, struct shared *shared);
void prove_head_bits(const char *root, long every, struct totals *t);
void prove_data_bits(const char *root, long every, long pass, struct totals *t);
int control_bits(const char *root);
void prove_truncation(const char *root, long every, struct totals *t);
int control_truncation(const char *root);
void prove_ranks(const char *root, long every, long pass, struct totals *t);
int control_ranks(const char *root);

#endif
