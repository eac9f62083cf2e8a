/* SPDX-License-Identifier: Apache-2.0 */
/*
 * target: parses a TARGET argument, and opens it.
 *
 *   RUN                               a run folder; its latest checkpoint where one is needed
 *   RUN@SELECTOR                      latest, best, good, 400 (a step), id:7, or a name
 *   RUN/checkpoints/checkpoint_000007 a checkpoint of a run; also RUN/latest and RUN/best
 *   s3://BUCKET/RUN[@SELECTOR]        the same in a bucket, or in any other store that has a URL
 *   FOLDER                            a single checkpoint that does not belong to a run
 *   FILE.safetensors, FILE.pt, FOLDER written by another program, read as a checkpoint
 *
 * An argument that exists as a path is a path, even if it contains '@'.
 */
#ifndef PAWL_CLI_TARGET_H
#define PAWL_CLI_TARGET_H

#include "cli.h"

struct target {
	const char *text;     /* as given */
	const char *root;     /* the path to open: the run folder or the single checkpoint */
	const char *selector; /* NULL = none was named */
	bool single;
	bool file;          /* of another program; single is set, too */
	bool link;          /* the selector is the destination of a link such as RUN/latest */
	bool may_list;      /* a URL of a folder that is neither is not explained: the caller lists it */
	uint64_t bandwidth; /* bytes per second, read and written; 0 = no limit. target_parse leaves it 0 */
	const struct pawl_uploads *uploads; /* for uploads to the run's own mirrors; NULL = the defaults */
	int64_t upload_ms;                  /* longest time of one upload; 0 = the default */
};

/* Is it a URL rather than a path: s3://bucket/run and the like? */
bool target_is_url(const char *text);
/* A name below a path or URL; the options of a URL stay at its end. */
const char *target_join(struct cli *cli, const char *root, const char *name);

/* Options of every command that may select the best checkpoint. */
struct score {
	struct texts by, order;
};
#define SCORE_OPTIONS(type)                                              \
	{"by",      0,                                                   \
	 OPT_TEXTS, offsetof(struct type, score.by),                     \
	 "METRIC",  "metric that decides 'best'; repeat to break ties"}, \
		{"order",   0,                                           \
	         OPT_TEXTS, offsetof(struct type, score.order),          \
	         "max|min", "which values are better (default: max)"}

/* Finds out what the argument names; the folder must exist. Reads no checkpoint. */
int target_parse(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err);
/* The same for a command that lists other folders of a store: there PAWL_ENOTFOUND comes without a
 * search for what was meant, which costs requests. */
int target_parse_or_folder(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err);
/* The same for an argument that must name a complete run. */
int target_parse_run(struct cli *cli, const char *text, struct target *ret, struct pawl_error *err);
/* A pawl_lease_wait_fn; arg: the struct cli. Prints the holder of the lease, once. */
int target_note_wait(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err);
/* Is the folder a checkpoint of another program, or the name that of one in a file? */
bool target_is_foreign(struct cli *cli, const char *path, bool is_folder);
/* Opens the target, read-only unless `writable`. score may be NULL. */
int target_open(struct cli *cli, const struct target *target, bool writable, const struct score *score,
                struct pawl **ret, struct pawl_error *err);
/* Fills in the score rules of a policy; the arrays live as long as the invocation. PAWL_EUSAGE for
 * an order without its metric. */
int target_score(struct cli *cli, const struct score *score, struct pawl_retention *policy, struct pawl_error *err);
/* Refuses a metric that no checkpoint has: it is probably a typing error. */
int target_check_metrics(struct cli *cli, struct pawl *run, const struct score *score, struct pawl_error *err);
/* The id that the target's selector (default: latest) names. A checkpoint whose manifest does not
 * verify is PAWL_ECORRUPT with the reason, not missing. */
int target_find(struct cli *cli, struct pawl *run, const struct target *target, uint64_t *ret_id,
                struct pawl_error *err);
/* Refuses a row of a list with bad ones if the checkpoint cannot be read and may be intact: no
 * older one takes its place. */
int target_check_row(struct pawl *run, const struct pawl_info *info, struct pawl_error *err);
/* Prints that n folders have no manifest. */
void target_note_unfinished(struct cli *cli, size_t n);
/* The folder name of the damaged checkpoint that the target names, or NULL. */
const char *target_bad_name(struct cli *cli, struct pawl *run, const struct target *target);
/* The summary of a checkpoint, copied to memory of the invocation. */
int target_info(struct cli *cli, struct pawl *run, uint64_t id, const struct pawl_info **ret, struct pawl_error *err);
/* A summary copied to memory of the invocation. */
const struct pawl_info *target_copy_info(struct cli *cli, const struct pawl_info *from);
/* The checkpoint that the target names, held until pawl_hold_close. If it is deleted before it is
 * held, the search is repeated: latest, best and links then name another one. *ret_hold: NULL if no
 * hold can be made. */
int target_hold(struct cli *cli, struct pawl *run, const struct target *target, const struct pawl_info **ret,
                struct pawl_hold **ret_hold, struct pawl_error *err);

/* One checkpoint to read. */
struct taken {
	struct target target;
	struct pawl *run;
	struct pawl_hold *hold;
	const struct pawl_info *info;
};
/* Parses, opens and holds the checkpoint that the argument names. Release *ret also after an
 * error. */
int target_take(struct cli *cli, const char *text, const struct score *score, struct taken *ret,
                struct pawl_error *err);
void target_release(struct taken *taken);
void target_close_hold(struct pawl_hold **hold);

#endif
