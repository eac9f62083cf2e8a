/* SPDX-License-Identifier: Apache-2.0 */
/*
 * role: what this process does in the saves of a run. It is alone, writes a single checkpoint, is
 * rank 0 of many, or is another rank. Chosen once, when the run is opened.
 *
 * Many ranks take part in the same saves. A rank does so also when it knows that its part fails,
 * since the others wait for it.
 */
#ifndef PAWL_ROLE_H
#define PAWL_ROLE_H

#include <stdbool.h>

#include "base/buf.h"
#include "base/bump.h"
#include "base/hidden.h"
#include "run/run.h"

struct save;

struct role_ops {
	bool is_keeper;  /* it removes the folder of a failed save */
	bool keeps_mark; /* intervals count from a save although it fails */
	bool regroups;   /* a later save may link packs, so they are planned for that */

	/* An earlier error that stops a save before it begins, or 0. */
	int (*admit)(struct pawl *run, struct pawl_error *err);
	/* Continues pawl_save. code < 0: the arguments are refused, and *err says why. */
	int (*save)(struct pawl *run, int code, const struct pawl_save_opts *opts, const struct pawl_state *state,
	            struct pawl_ticket **ret, struct pawl_error *err);
	/* pawl_save_failed: the caller cannot make its state. Returns code. */
	int (*skip)(struct pawl *run, const struct pawl_save_opts *opts, int code, const char *why);
	/* Is a save due for all ranks? due: 1, 0 or an error of this rank. */
	int (*agree_due)(struct pawl *run, int due, struct pawl_error *err);
	/* The part of a state that this process writes. Borrows from the state and from memory. */
	int (*share)(const struct pawl *run, const struct pawl_state *state, struct bump *memory,
	             struct pawl_state *ret, struct pawl_error *err);
	/* Appends the checkpoint's name. */
	int (*name)(const struct save *s, struct buf *ret, struct pawl_error *err);
	/* The name of the hidden folder that the save is written to. */
	void (*hidden_name)(const struct save *s, const char *name, char ret[HIDDEN_NAME_BYTES]);
	/* The files are written: makes the checkpoint exist. */
	int (*commit)(struct save *s, struct pawl_error *err);
	/* They could not be written. Returns code, with the reason of rank 0 if it is another. */
	int (*unwritten)(struct save *s, int code, struct pawl_error *err);
	/* After a failure: remembers a folder that must be removed again later. */
	void (*note_failed)(struct save *s);
	/* After the commit: pointers and retention. */
	int (*settle)(struct pawl *run, struct pawl_error *err);
};

extern const struct role_ops role_alone, role_single, role_host, role_guest;

/* Operations that several roles share. */
int role_name_by_template(const struct save *s, struct buf *ret, struct pawl_error *err);
void role_note_nothing(struct save *s);
int role_settle_run(struct pawl *run, struct pawl_error *err);
int role_settle_nothing(struct pawl *run, struct pawl_error *err);

#endif
