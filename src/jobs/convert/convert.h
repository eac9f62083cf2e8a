/* SPDX-License-Identifier: Apache-2.0 */
/*
 * convert: writes tensors of a checkpoint to files of other formats. convert.c has the public
 * functions and the order of steps. convert_select.c decides which tensors get which names,
 * convert_extra.c which other values of a model are written. convert_plan.c has the layout of a
 * file. convert_write.c streams a file, convert_place.c gives finished files their names.
 * reshard_*.c write a checkpoint for another number of ranks.
 */
#ifndef PAWL_CONVERT_H
#define PAWL_CONVERT_H

#include "base/buf.h"
#include "base/bump.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/mem.h"
#include "base/table.h"
#include "format/safetensors/safetensors.h"
#include "layout/piece_plan.h"
#include "pawl_jobs.h"
#include "restore/restore.h"
#include "state/walk.h"

#define CONVERT_SLAB_BYTES ((uint64_t)32 << 20) /* of a file, made and written at once */
#define CONVERT_TARGETS "safetensors, hf, pt, dcp, pawl, npz or npy"

/* A step on the path to a value (dcp). */
struct convert_key {
	const char *text;
	size_t len, index;
	bool is_index; /* the step is into a list */
};

/* A tensor to write. */
struct convert_item {
	size_t tensor; /* row of the manifest */
	const char *name;
	int dtype;       /* in the output */
	uint64_t nbytes; /* in the output */
	size_t file;
	/* dcp */
	struct convert_key *keys;
	size_t n_keys;          /* 0 = the name is the only one */
	uint64_t begin, length; /* in its file */
};

/* A value that is written and is not a tensor (dcp). */
struct convert_value {
	const char *name;
	const struct pawl_node *node;
	struct convert_key *keys;
	size_t n_keys;
	uint64_t begin, length; /* in the last file */
};

/* A second name of a tensor. */
struct convert_tie {
	const char *name;
	size_t item;
};

/* What get_extra_state() of a module returned (pt). */
struct convert_extra {
	const char *name;
	const struct pawl_node *node;
};

struct convert_file {
	const char *name;
	size_t first, n;              /* items */
	char temp[HIDDEN_NAME_BYTES]; /* the hidden name while it is written; "" = none (any more) */
};

struct convert_job;
struct convert_target {
	const char *name;         /* as in pawl_convert_opts.to */
	const char *suffixes[2];  /* of file names */
	bool is_folder, has_ties; /* has_ties: a second name of a tensor is recorded, not written */
	bool has_extras;          /* a model's extra states are written with it */
	/* Checks dtypes and lays the file out. Tensors are numbered as the items. */
	int (*plan)(struct convert_job *, const struct convert_file *, struct piece_plan *, struct pawl_error *err);
	/* For a folder: the file that records which files belong together, written last; and the
	 * name of a single file, which has no index. index_always: a single file has one, too. */
	const char *index_name, *single_name;
	int (*index)(const struct convert_job *, struct buf *out, struct pawl_error *err);
	bool index_always;
};

/* The state of a source range that has its own CRC-32. */
struct convert_member {
	size_t member; /* row of the manifest */
	size_t item;   /* the item that reads it while it is written; SIZE_MAX = none, it is read separately */
	uint32_t parts;
	bool wanted, done;
};

struct convert_job {
	struct pawl_convert_opts opts;
	const char *model_prefix;      /* prefix of the paths of the model's tensors, "model/"; NULL = all tensors are
	                                  written */
	const struct pawl_node *model; /* the dict at model_prefix, if it is searched for extra states */
	bool is_whole;                 /* the output is a checkpoint of pawl, by reshard_job.c */
	uint64_t whole_bytes;
	const struct convert_target *target;
	int dtype; /* 0 = unchanged */
	struct pawl_meter *meter;
	struct pawl_restore *r;
	struct bump memory;
	struct convert_item *items;
	size_t n_items, n_left; /* n_left: leaves that are not tensors */
	struct convert_extra *extras;
	size_t n_extras, n_plain; /* n_plain: items before those that are inside an extra state */
	struct table by_name;     /* names in the output */
	size_t *taken;            /* per row of the manifest: its item + 1 */
	size_t *kept;             /* the same of those inside an extra state, which are not cast */
	struct convert_value *values;
	size_t n_values;
	bool new_names; /* dcp: names are chosen, and the result is flat */
	struct convert_tie *ties;
	size_t n_ties;
	struct st_pair *notes; /* metadata of a safetensors file */
	size_t n_notes;
	/* writing */
	struct convert_file *files;
	size_t n_files;
	char *folder, *file; /* file NULL = a set in a folder */
	bool made_folder;    /* and it does not yet hold all its files */
	int dir_fd;
	struct store *store; /* of the same folder, for large writes */
	char index_temp[HIDDEN_NAME_BYTES];
	struct fetch *fetch;
	char *raw;                      /* a slab: the bytes read for a cast */
	struct convert_member *members; /* rows as in the manifest */
	uint32_t *item_crcs;
};

/* convert_select.c: fills items and notes. */
int convert_select(struct convert_job *c, struct pawl_error *err);
/* For convert_dcp.c. convert_wants: is the path chosen? convert_add_item: adds an item, under the
 * name that the rules make of `plain`. convert_take_name: reserves a name. */
bool convert_wants(const struct convert_job *c, const char *path, const char *plain);
int convert_add_item(struct convert_job *c, size_t tensor, const char *plain, struct pawl_error *err);
int convert_take_name(struct convert_job *c, const char *name, const char *plain, struct pawl_error *err);
/* For convert_extra.c. convert_make_name: the name that the rules make of `plain`.
 * convert_child_path: the path of a child of the dict at `prefix`, escaped and plain. */
int convert_make_name(struct convert_job *c, const char *plain, const char **ret, struct pawl_error *err);
int convert_child_path(const char *prefix, const struct pawl_node *parent, const struct pawl_node *child,
                       struct buf *path, struct buf *plain, struct pawl_error *err);

/* convert_extra.c. convert_is_extra: is the child of a model's dict an extra state?
 * convert_is_extra_path: the same of a path. convert_in_extra: does the leaf belong to one?
 * convert_add_extras: fills extras, adds the items in them, and reads their texts. */
bool convert_is_extra(const struct pawl_node *child);
bool convert_is_extra_path(const char *plain);
bool convert_in_extra(const struct convert_job *c, const struct walk_leaf *leaf);
int convert_add_extras(struct convert_job *c, struct pawl_error *err);

/* convert_dcp.c: fills items and values; plans a file; writes the index of all items. */
int convert_dcp_select(struct convert_job *c, struct pawl_error *err);
int convert_dcp_plan(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan,
                     struct pawl_error *err);
int convert_dcp_metadata(const struct convert_job *c, struct buf *out, struct pawl_error *err);

/* convert_plan.c. The target of a file name or of a name in the options; NULL: none. */
const struct convert_target *convert_target_of(const char *path, const char *to);
int convert_share_out(struct convert_job *c, struct pawl_error *err); /* fills files */
int convert_wrong_dtype(const struct convert_item *item, struct pawl_error *err);
int convert_index(const struct convert_job *c, struct buf *out, struct pawl_error *err);

/* convert_pt.c: a file of torch.save with one flat dict of tensors. */
int convert_pt_plan(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan,
                    struct pawl_error *err);

/* convert_npz.c: a file of numpy.savez. */
int convert_npz_plan(struct convert_job *c, const struct convert_file *f, struct piece_plan *plan,
                     struct pawl_error *err);

/* convert_write.c. */
int convert_write_begin(struct convert_job *c, struct pawl_error *err);
int convert_write(struct convert_job *c, const struct piece_plan *plan, struct convert_file *f,
                  struct pawl_error *err); /* under the name f->temp; durable */
/* Reads and checks source ranges with a CRC that writing did not check. */
int convert_write_end(struct convert_job *c, struct pawl_error *err);

/* convert_place.c. Splits dst into a folder and a file. The folder is opened, and made for a
 * set. */
int convert_place_open(struct convert_job *c, const char *dst, struct pawl_error *err);
int convert_place_check(const struct convert_job *c, struct pawl_error *err); /* PAWL_EEXISTS */
/* The name of the index to write; NULL = none. */
const char *convert_index_name(const struct convert_job *c);
/* Creates a file under a hidden name, stored in temp. Returns a descriptor or an error code. */
int convert_place_create(const struct convert_job *c, const char *name, char temp[HIDDEN_NAME_BYTES],
                         struct pawl_error *err);
int convert_place_reveal(struct convert_job *c, struct pawl_error *err);
/* Removes files that have no final name yet. */
void convert_place_clear(struct convert_job *c);

#endif
