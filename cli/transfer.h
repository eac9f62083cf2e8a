/* SPDX-License-Identifier: Apache-2.0 */
/* transfer: what 'pawl cp' and 'pawl sync' share: their options, one transfer under the progress line, and its report. */
#ifndef PAWL_CLI_TRANSFER_H
#define PAWL_CLI_TRANSFER_H

#include "cli.h"
#include "jsonout.h"
#include "target.h"

struct transfer_args {
	uint64_t streams, memory_bytes, bandwidth;
	double timeout_seconds;
	bool dry_run;
};
#define TRANSFER_OPTIONS(type)                                                                                \
	{"dry-run",         'n', OPT_FLAG, offsetof(struct type, transfer.dry_run), NULL,                     \
	 "say what would be copied, and copy nothing"},                                                       \
		{"bwlimit", 0, OPT_RATE, offsetof(struct type, transfer.bandwidth), "RATE",                   \
		 "at most so many bytes a second each way, such as 20MB/s"},                                  \
		{"streams", 0, OPT_COUNT, offsetof(struct type, transfer.streams), "N",                       \
		 "pieces on their way at a time (default: 4)"},                                               \
		{"memory", 0, OPT_BYTES, offsetof(struct type, transfer.memory_bytes), "SIZE",                \
		 "memory for all of them together (default: 256MiB)"},                                        \
		{"timeout", 0, OPT_SECONDS, offsetof(struct type, transfer.timeout_seconds), "TIME",          \
		 "give up after this time; a second call goes on"}

struct transfer {
	const char *to;
	bool dry_run;
	const struct pawl_info *info; /* of one checkpoint; NULL = a run */
	const uint64_t *ids;          /* of a run: only these */
	size_t n_ids;
	/* what came of it */
	struct pawl_copies *copies; /* of a run; owned; NULL = nothing */
	bool was_there;             /* the one checkpoint */
	int code;
	const char *message; /* of a code other than 0 */
	double seconds;
};

/* Runs it; the outcome is in *t. */
void transfer_run(struct cli *cli, struct pawl *from, const struct transfer_args *args, struct transfer *t);
void transfer_clear(struct transfer *t); /* usable as CLEANUP(transfer_clear) */
/* Its rows, and a last line for people. */
void transfer_print(struct cli *cli, const struct transfer *t);
/* Members of the object that has been begun: to, dry_run, checkpoints, bytes, sent_bytes, seconds, error. */
void transfer_json(struct jsonout *j, const struct transfer *t);
/* Refuses a place for something new inside of a run or a checkpoint; URLs are left to the library. */
int transfer_check_place(struct cli *cli, const char *to, struct pawl_error *err);

#endif
