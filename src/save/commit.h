/* SPDX-License-Identifier: Apache-2.0 */
/*
 * commit: the one moment at which a checkpoint begins to exist. Promises P2, P3, P4, P10.
 *
 * Every pack is durable before the manifest is put. When a run is opened, it chooses how a
 * checkpoint then begins to exist. Its folder is renamed (commit_rename.c), or the manifest is put
 * last (commit_put.c).
 */
#ifndef PAWL_COMMIT_H
#define PAWL_COMMIT_H

#include "base/buf.h"
#include "state/manifest.h"

struct reuse;
struct save;
struct save_pack;

struct commit_ops {
	bool is_hidden; /* until then the files are in a hidden folder, which only this save uses */
	/* Puts the manifest and makes the checkpoint exist. The step may have happened although an
	 * error is returned: then s->is_publishing is set. */
	int (*publish)(struct save *s, const struct buf *text, const struct manifest_file *files, size_t n,
	               struct pawl_error *err);
	/* The three below return 1 = the checkpoint exists; 0 = it does not and never will; an
	 * error = not known. *ret_name: its name, to be freed. After publish failed: */
	int (*resolve)(struct save *s, struct pawl_error *err);
	int (*find)(struct save *s, char **ret_name, struct pawl_error *err); /* on rank 0 */
	/* On another rank, without a verdict: no process can publish the save afterwards. */
	int (*abort)(struct save *s, char **ret_name, struct pawl_error *err);
	/* On rank 0: no process can publish what the save has left. */
	void (*withdraw)(struct save *s);
};

/* By rename: into a free name, or in exchange for an older single checkpoint. By put: where other
 * processes can abort the save, and where none can or none looks for it. */
extern const struct commit_ops commit_by_rename, commit_by_exchange, commit_by_put, commit_by_lone_put;

/* Manifest, then publish. After success the checkpoint exists and is durable. */
int commit_publish(struct save *s, struct pawl_error *err);
/* JSON members of the summary (checkpoint's metadata in pack 0). */
int commit_summary(const struct save *s, struct buf *out, struct pawl_error *err);
/* Encodes the written files as a manifest, or as a part of one. *ret (may be NULL) borrows from the
 * save. */
int commit_describe(struct save *s, bool part, struct manifest *ret, struct buf *out, struct pawl_error *err);
void commit_describe_file(const struct save_pack *p, struct manifest_file *ret);
/* The commit of a run of one process and of rank 0. */
int commit_bytes(struct save *s, struct buf *text, const struct manifest_file *files, size_t n, struct pawl_error *err);
/* Checks that all files are in the folder that is published, with their sizes. */
int commit_check_files(struct save *s, const struct manifest_file *files, size_t n, struct pawl_error *err);
/* For a save that may be a checkpoint, or become one: reports that, and sets s->in_doubt, so that
 * the written files stay. */
int commit_report_unknown(struct save *s, int code, const struct pawl_error *why, const struct pawl_error *trouble,
                          struct pawl_error *err);

/* commit_ranks.c: the commit of many ranks. Rank 0 collects the parts of all. Another rank hands in
 * its part and waits for the result. */
int commit_as_host(struct save *s, struct pawl_error *err);
int commit_as_guest(struct save *s, struct pawl_error *err);
/* Another rank could not write its files: reports that. If its folder has vanished, rank 0 has
 * abandoned the save, and its reason replaces *err. Returns the code. */
int commit_guest_unwritten(struct save *s, int code, struct pawl_error *err);

#endif
