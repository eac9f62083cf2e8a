/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore: from a selector to filled memory. restore_pick.c picks the checkpoint, restore.c falls
 * back, restore_match.c compares a live state with the saved one, restore_read.c reads.
 */
#ifndef PAWL_RESTORE_H
#define PAWL_RESTORE_H

#include <stdbool.h>

#include "base/bump.h"
#include "base/mem.h"
#include "layout/reshard.h"
#include "pawl.h"
#include "read/fetch.h"
#include "run/run.h"
#include "state/manifest.h"

/* A list of lines of text. */
struct restore_rows {
	char **rows;
	size_t n, cap;
};

/* A tensor that is read as it was saved, then converted to the caller's. */
struct restore_cast {
	size_t binding; /* that reads it into `bytes` */
	int from;       /* its dtype */
	void *bytes;
	struct reshard_binding to;
};

/* Names and dtypes that the caller wants, as in struct pawl_restore_opts. Borrowed. */
struct restore_rules {
	const char *const *rename, *const *cast;
	size_t n_rename, n_cast;
};

struct pawl_restore {
	struct pawl *run;
	struct bump options;  /* memory of the copied options */
	const char *selector; /* NULL = the latest */
	const char *const *include;
	size_t n_include;
	struct restore_rules rules;
	bool non_strict, can_fall_back;
	bool has_vanished;        /* the last candidate was deleted or replaced since the catalog was read */
	unsigned n_looks;         /* selections after a checkpoint was deleted while it was read */
	bool owes_word;           /* many ranks: the others wait for this rank's result */
	struct pawl_error reason; /* the last error: sent to the others when the restore is given up */
	int rank_values;          /* enum pawl_rank_values */
	pawl_share_fn *share_fn;  /* many ranks: sends what one rank has read to all, or NULL */
	void *share_arg;
	uint64_t ring_bytes;
	uint64_t healed_bytes; /* damaged in one copy, read from another */

	/* the current checkpoint; replaced by a fallback */
	struct manifest *manifest;
	char *folder;     /* its key */
	struct store *at; /* NULL, or the only mirror that has it; borrowed */
	struct bump info_memory;
	struct pawl_info info;
	struct pawl_hold *hold; /* NULL where none can be made */

	struct bump binding_memory;
	struct reshard_binding *bindings;
	size_t n_bindings, cap_bindings;
	struct restore_cast *casts;
	size_t n_casts, cap_casts;

	struct restore_rows fallbacks, report;
	size_t n_unused_rules; /* lines of the report: rules that match no path */
	struct fetch *fetch;   /* made by the first read */
	uint64_t read_bytes;   /* by the last read, from the store */
	double read_seconds;
};

int restore_check_rules(const struct restore_rules *rules, struct pawl_error *err);
/* Gives the state of a manifest other paths, and its tensors other dtypes. The manifest's own table
 * keeps the saved ones. A rule that matches no path becomes a row; without rows it is
 * PAWL_EMISMATCH. */
int restore_apply_rules(const struct restore_rules *rules, struct manifest *m, struct restore_rows *rows,
                        struct pawl_error *err);
/* PAWL_EUSAGE if the handle is NULL. */
int restore_check_handle(const struct pawl_restore *r, struct pawl_error *err);
/* Copies a list of n texts into the memory of the options. */
int restore_copy_texts(struct pawl_restore *r, const char *what, const char *const *texts, size_t n,
                       const char *const **ret, size_t *ret_n, struct pawl_error *err);
/* Reduces a saved state to this rank's values, with the names and dtypes that the caller wants. */
int restore_resolve(const struct pawl_restore *r, struct manifest *m, struct restore_rows *rows,
                    struct pawl_error *err);
/* Replaces a destination of another dtype by memory for the saved bytes. Its arrays are copied. */
int restore_add_cast(struct pawl_restore *r, int saved, struct pawl_tensor *dst, struct pawl_error *err);
/* Converts what was read. */
int restore_run_casts(struct pawl_restore *r, struct pawl_error *err);
/* Forgets the casts of destinations from n on. */
void restore_cut_casts(struct pawl_restore *r, size_t n);
/* Reads on this rank alone. */
int restore_read_own(struct pawl_restore *r, struct pawl_error *err);
/* Fills destinations of the current checkpoint. *ret_nbytes: read from the store for that. */
int restore_fetch(struct pawl_restore *r, const struct reshard_binding *bindings, size_t n, uint64_t *ret_nbytes,
                  struct pawl_error *err);
/* Bytes of all destinations; UINT64_MAX if they overflow. */
uint64_t restore_wanted_bytes(const struct reshard_binding *bindings, size_t n);
/* Writes to events.jsonl that a restore has ended. nbytes: what all ranks have read. */
void restore_read_event(const struct pawl_restore *r, uint64_t nbytes);
/* After a restore: replaces files that were damaged or missing here by copies from a mirror. */
void mirror_repair(struct pawl_restore *r);
/* Appends a line, and owns the text, also on failure. text NULL = out of memory. */
int restore_add_row(struct restore_rows *rows, char *text, struct pawl_error *err);
/* Frees the lines from n on. */
void restore_cut_rows(struct restore_rows *rows, size_t n);
void restore_rows_clear(struct restore_rows *rows);
/* Remembers why the restore may be given up; returns rc. */
int restore_note_reason(struct pawl_restore *r, int rc, const struct pawl_error *err);
/* Forgets the destinations from n on. */
void restore_cut_bindings(struct pawl_restore *r, size_t n);

PAWL_DEFINE_CLEAN(struct pawl_restore, pawl_restore_close);

#endif
