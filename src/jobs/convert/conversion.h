/* SPDX-License-Identifier: Apache-2.0 */
/*
 * conversion: tensors of a checkpoint as files of other formats. conversion.c has the public functions and the order of
 * steps, conversion_select.c decides which tensors go under which names, conversion_plan.c how a file of a format looks,
 * conversion_write.c streams a file through conversion_output.c, conversion_place.c gives finished files their names.
 */
#ifndef PAWL_CONVERSION_H
#define PAWL_CONVERSION_H

#include "base/buf.h"
#include "base/crc32.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/table.h"
#include "format/safetensors/safetensors.h"
#include "restore/restore.h"

#define CONVERSION_SLAB_BYTES ((uint64_t)32 << 20) /* of a file, made and written at a time */
#define CONVERSION_TEMP_LEN 48
#define CONVERSION_TARGETS "safetensors, hf, pt, dcp, pawl, npz or npy"

/* A step on the way to a value (dcp). */
struct conversion_key {
	const char *text;
	size_t len, index;
	bool is_index; /* in a list */
};

/* A tensor that is written. */
struct conversion_item {
	size_t tensor; /* row of the manifest */
	const char *name;
	int dtype;       /* as it is written */
	uint64_t nbytes; /* likewise */
	size_t file;
	/* dcp */
	struct conversion_key *keys;
	size_t n_keys; /* 0 = the name is the only one */
	uint64_t begin, length; /* in its file */
};

/* A value that is no tensor and is written (dcp). */
struct conversion_value {
	const char *name;
	const struct pawl_node *node;
	struct conversion_key *keys;
	size_t n_keys;
	uint64_t begin, length; /* in the last file */
};

/* A second name of a tensor. */
struct conversion_tie {
	const char *name;
	size_t item;
};

/* What a file is made of, in order. */
enum conversion_kind {
	CONVERSION_BYTES,  /* nbytes at ptr */
	CONVERSION_TENSOR, /* all of an item */
	CONVERSION_CRC,    /* the CRC-32 of an item's stretch, of 4 bytes: what came since it was begun and before it was ended */
	CONVERSION_BEGIN,  /* an item's stretch begins; no bytes */
	CONVERSION_END,
};
struct conversion_piece {
	enum conversion_kind kind;
	size_t item;
	const void *ptr;
	uint64_t nbytes; /* in the file */
};
/* Memory is the plan's. */
struct conversion_plan {
	struct bump memory;
	struct buf bytes; /* all that is constant, one behind the other */
	struct conversion_piece *pieces;
	size_t n, cap;
};

struct conversion_file {
	const char *name;
	size_t first, n; /* items */
	char temp[CONVERSION_TEMP_LEN]; /* hidden name it is written under; "" = none (any more) */
};

struct conversion;
struct conversion_target {
	const char *name;        /* as in pawl_convert_opts.to */
	const char *suffixes[2]; /* of file names */
	bool is_folder, has_ties; /* has_ties: a second name of a tensor is told, not written */
	/* Checks dtypes and lays the file out. */
	int (*plan)(struct conversion *, const struct conversion_file *, struct conversion_plan *, struct pawl_error *err);
	/* Of a folder: what says which files belong together, written last; index_always: also if there is one file. */
	const char *index_name;
	int (*index)(const struct conversion *, struct buf *out, struct pawl_error *err);
	bool index_always;
};

/* What is known of a stretch of the source with a CRC-32 of its own. */
struct conversion_member {
	size_t member; /* row of the manifest */
	size_t item;   /* is read through as it is written; SIZE_MAX = none is, it is read for itself */
	uint32_t parts;
	bool wanted, done;
};

struct conversion {
	const char *what; /* "convert" or "export": begins messages */
	struct pawl_convert_opts opts;
	const char *strip_prefix;
	bool only_model;
	const char *model_prefix; /* of the paths of the model's tensors, "model/"; NULL = all tensors are written */
	bool is_whole; /* a checkpoint of pawl is made, by relayout.c */
	uint64_t whole_bytes;
	const struct conversion_target *target;
	int dtype; /* 0 = as they are */
	struct pawl_meter *meter;
	struct pawl_restore *r;
	struct bump memory;
	struct conversion_item *items;
	size_t n_items, n_left; /* n_left: leaves that are no tensors */
	struct table by_name; /* names as they are written */
	size_t *taken; /* per row of the manifest: its item + 1 */
	struct conversion_value *values;
	size_t n_values;
	bool new_names; /* dcp: names are chosen, and the result is flat */
	struct conversion_tie *ties;
	size_t n_ties;
	struct st_pair *notes; /* metadata of a safetensors file */
	size_t n_notes;
	/* writing */
	struct conversion_file *files;
	size_t n_files;
	char *folder, *file; /* file NULL = a set in a folder */
	bool made_folder;    /* and not yet all that belongs into it */
	int dir_fd;
	struct store *store; /* of the same folder, for what is large */
	char index_temp[CONVERSION_TEMP_LEN];
	struct fetch *fetch;
	char *raw; /* a slab: what is cast, as it was read */
	struct crc32 crc;
	struct conversion_member *members; /* as the manifest's */
	uint32_t *item_crcs;
};

/* conversion.c. `what`, `opts`, `strip_prefix` and `meter` are set, dir_fd is -1, all else is zero. */
int conversion_run(struct conversion *c, struct pawl *run, uint64_t id, const char *dst, struct pawl_error *err);
void conversion_clear(struct conversion *c); /* usable as PAWL_CLEAN(conversion_clear) */

static inline int
conversion_no_memory(const struct conversion *c, struct pawl_error *err)
{
	return err_set(err, PAWL_ENOMEM, "%s: out of memory", c->what);
}

/* conversion_select.c: fills items, notes. */
int conversion_select(struct conversion *c, struct pawl_error *err);
/* For conversion_dcp.c: is it chosen by its path; one more item, under the name that the rules make of this one; a name. */
bool conversion_wants(const struct conversion *c, const char *path, const char *plain);
int conversion_add_item(struct conversion *c, size_t tensor, const char *plain, struct pawl_error *err);
int conversion_take_name(struct conversion *c, const char *name, const char *plain, struct pawl_error *err);

/* conversion_dcp.c: fills items and values; a file; what says what is where. */
int conversion_dcp_select(struct conversion *c, struct pawl_error *err);
int conversion_plan_dcp(struct conversion *c, const struct conversion_file *f, struct conversion_plan *plan,
                        struct pawl_error *err);
int conversion_dcp_metadata(const struct conversion *c, struct buf *out, struct pawl_error *err);

/* conversion_plan.c. The target of a file name or of a name in the options; NULL: none. */
const struct conversion_target *conversion_target_of(const char *path, const char *to);
int conversion_share_out(struct conversion *c, struct pawl_error *err); /* fills files */
void conversion_plan_clear(struct conversion_plan *plan);
/* For the formats below: a piece at the end; PAWL_ENOMEM. */
int conversion_plan_add(struct conversion_plan *plan, struct conversion_piece piece);
int conversion_wrong_dtype(const struct conversion *c, const struct conversion_item *item, struct pawl_error *err);
int conversion_index(const struct conversion *c, struct buf *out, struct pawl_error *err);

/* conversion_pt.c: a file of torch.save with one flat dict of tensors. */
int conversion_plan_pt(struct conversion *c, const struct conversion_file *f, struct conversion_plan *plan,
                       struct pawl_error *err);

/* conversion_npz.c: a file of numpy.savez. */
int conversion_plan_npz(struct conversion *c, const struct conversion_file *f, struct conversion_plan *plan,
                        struct pawl_error *err);

/* conversion_write.c. */
int conversion_write_begin(struct conversion *c, struct pawl_error *err);
int conversion_write(struct conversion *c, const struct conversion_plan *plan, struct conversion_file *f,
                     struct pawl_error *err); /* under the name f->temp; durable */
/* Reads what of the source has a sum and has not been checked by writing. */
int conversion_write_end(struct conversion *c, struct pawl_error *err);

/* conversion_output.c: a file that is written from front to end by a thread of its own, while the next slab is made. */
struct conversion_output;
int conversion_output_open(struct conversion *c, const struct conversion_file *f, uint64_t nbytes,
                           struct conversion_output **ret, struct pawl_error *err);
/* Where the next bytes are put, and how many fit there: at least a byte. */
void conversion_output_room(const struct conversion_output *o, char **ret, uint64_t *ret_nbytes);
/* They are there. Waits for what was put before, and tells what went wrong with it. */
int conversion_output_put(struct conversion_output *o, uint64_t nbytes, struct pawl_error *err);
/* All is durable; frees *o in any case. */
int conversion_output_finish(struct conversion_output **o, struct pawl_error *err);
void conversion_output_abort(struct conversion_output *o); /* nothing stays; NULL is fine */

/* conversion_place.c. Splits dst into a folder, which is opened (and made for a set), and a file. */
int conversion_place_open(struct conversion *c, const char *dst, struct pawl_error *err);
int conversion_place_check(const struct conversion *c, struct pawl_error *err); /* PAWL_EEXISTS */
/* The name of the index that is written; NULL = none. */
const char *conversion_index_name(const struct conversion *c);
/* A hidden name that no file has. */
int conversion_place_name(char temp[CONVERSION_TEMP_LEN], struct pawl_error *err);
/* A new file under such a name, which is left in temp; fd, or a code. */
int conversion_place_create(const struct conversion *c, char temp[CONVERSION_TEMP_LEN], struct pawl_error *err);
int conversion_place_reveal(struct conversion *c, struct pawl_error *err);
/* Takes away what has no name yet. */
void conversion_place_clear(struct conversion *c);

#endif
