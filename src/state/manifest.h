/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest: the commit record of a checkpoint <-> bytes. Pure. A checkpoint exists if and only if its
 * manifest is there and verifies (P2). Written once, never changed.
 *
 * One JSON object, one member per line, exactly these in this order ("run" is empty for a single checkpoint);
 * the summary comes first so that listing many
 * checkpoints parses only that (everything is still covered by the digest, which is checked first):
 *
 *   {"pawl_manifest":1,
 *   "run":"<32 hex>", "id":7, "attempt":1, "token":"<32 hex>",
 *   "step":400, "unix_ns":1790000000000000000, "progress":{"epoch":3,..}   (known counters only),
 *   "metrics":{"accuracy":0.91,"loss":{"$float":"7ff8000000000000"},"note":null}   (null: not a number),
 *   "world_size":1, "bytes":<sum of the sizes of files>, "new_bytes":<of those not reused>, "n_tensors":..,
 *   "n_files":.., "blocked_seconds":0.21, "nonfinite":false, "repaired":false,
 *   "metadata":<state without tensors, or null>,
 *   "state":<state>,
 *   "tensors":[
 *   {"name":"model/w","dtype":"F32","shape":[4,2],"pieces":[{"file":0,"begin":4096,"offsets":[0,0],"lengths":[4,2]}]},..
 *   ],
 *   "files":[
 *   {"name":"rank00000-00000.safetensors","size":4128,"block":1048576,"reused":false,"sums":"<32 hex per block>"},..
 *   (version 2, where a file is compressed: its row ends with ,"codec":"zst","plain_size":..,"plain_sums":"..", and the
 *   summary has "plain_bytes" behind "new_bytes")
 *   ],
 *   "digest":"<32 hex>"}
 *   <line feed, end>
 *
 * digest: XXH3-128 of all bytes before the line feed that precedes `"digest"`. offsets and lengths are left out when
 * the piece is the whole tensor. Limits: 512 MiB, 1,000,000 tensors and files, a state's depth (state.h); blocks are a
 * power of two of 512 bytes to 1 TiB; what base/json.h bounds comes on top (the state's strings are short by
 * construction).
 */
#ifndef PAWL_MANIFEST_H
#define PAWL_MANIFEST_H

#include "base/mem.h"
#include "base/sum.h"
#include "pawl.h"
#include "state/state.h"

#define CATALOG_FOLDER "checkpoints" /* in the folder of a run; checkpoints/<name>/manifest.json */
#define MANIFEST_NAME "manifest.json"
#define MANIFEST_MAX_BYTES (512u << 20)
#define MANIFEST_VERSION 2 /* the newest that is read; written only where a file is compressed, else 1 */
/* No codec makes less of any bytes (bz2 of zeros: 95700 : 1); beyond it (and 64 MiB) a file is a lie (T7). */
#define MANIFEST_MAX_RATIO 131072u
#define MANIFEST_FREE_BYTES ((uint64_t)64 << 20)

struct manifest_file {
	const char *name;
	uint64_t nbytes, block_bytes;
	size_t n_blocks; /* ceil(nbytes / block_bytes) */
	const struct sum128
		*sums; /* of each block; the last one covers what is left of the file; NULL = there are none */
	bool reused;   /* linked from the previous checkpoint, not written */
	const char *memory; /* not NULL: there is no such file, these are its bytes (foreign_tree.h) */
	/* NULL, or by which codec the file is compressed ("zst"). All above is of the file as it lies there, all below, and
	 * where pieces lie, of what it is unpacked; blocks are of the same size. */
	const char *codec;
	uint64_t plain_bytes;
	size_t n_plain_blocks;
	const struct sum128 *plain_sums;
};

/* What the file is to those who read tensors from it. */
static inline uint64_t
manifest_plain_bytes(const struct manifest_file *f)
{
	return f->codec ? f->plain_bytes : f->nbytes;
}

static inline size_t
manifest_plain_blocks(const struct manifest_file *f)
{
	return f->codec ? f->n_plain_blocks : f->n_blocks;
}

static inline const struct sum128 *
manifest_plain_sums(const struct manifest_file *f)
{
	return f->codec ? f->plain_sums : f->sums;
}

struct manifest_piece {
	uint32_t file;
	uint64_t begin, nbytes;            /* in the file, absolute */
	const uint64_t *offsets, *lengths; /* box in the global tensor, ndim each; never NULL after decode */
	/* How the box lies in the file, in elements; NULL = in C order. Only foreign files have others: then nbytes reaches
	 * from its first element to its last, and every step is wider than all that lies within it. */
	const uint64_t *strides;
};

/* A stretch of a foreign file with a CRC-32 of its own. */
struct manifest_member {
	uint32_t file, crc;
	uint64_t begin, nbytes; /* at least 1 */
};

struct manifest_tensor {
	const char *name;
	int dtype;
	uint32_t ndim;
	const uint64_t *shape; /* global */
	uint64_t nbytes;       /* of the whole tensor */
	size_t n_pieces;
	struct manifest_piece *pieces;
	bool whole; /* in a part: all other ranks must have it as well, and write their shares of it (share.h) */
};

struct manifest {
	struct bump memory; /* owns everything below but the states */
	const char *format; /* of a foreign file (foreign.h), static; NULL = pawl's own */
	char run_id[33], token[33];
	uint64_t id, attempt;
	int64_t step, unix_ns;
	struct pawl_progress progress;
	struct pawl_metric *metrics;
	size_t n_metrics;
	uint32_t world_size;
	uint64_t bytes, new_bytes, n_tensors, n_files;
	uint64_t plain_bytes; /* of all files, unpacked; 0 = none is compressed, as `bytes` */
	double blocked_seconds;
	bool nonfinite, repaired;
	bool part;                   /* one rank's share: all its tensors, but only the pieces that it has written */
	struct pawl_state *metadata; /* owned; NULL = none */
	struct pawl_state *state;    /* owned; NULL after a summary decode. Its tensor table is described */
	struct manifest_tensor *tensors; /* in the order of state's tensor table: index i is tensor i */
	struct manifest_file *files;
	struct manifest_member *members; /* of a foreign checkpoint; disjoint */
	size_t n_members;
};

/* Appends the bytes. Checks what decode would check (PAWL_EUSAGE; offsets and lengths may be NULL for a whole tensor).
 */
int manifest_encode(const struct manifest *m, struct buf *out, struct pawl_error *err);
/* The same with the state given as JSON text already encoded (the save path; m->state is not looked at). */
int manifest_encode_with(const struct manifest *m, struct pawl_slice state_json, struct buf *out,
                         struct pawl_error *err);
/* Reads a part (encoded with m->part set, it begins with "pawl_part"): as manifest_decode, but pieces need not fill
 * their tensors, and a row ends with "whole":true where the tensor is given whole. */
int manifest_decode_part(const char *what, const void *ptr, size_t len, struct manifest **ret, struct pawl_error *err);
/* Only the members from "run" to "metadata", as one JSON object without digest: what pack 0 carries for repair. */
int manifest_encode_summary(const struct manifest *m, struct buf *out, struct pawl_error *err);
/* Reads what manifest_encode_summary wrote (text that no digest protects). */
int manifest_decode_summary(const char *what, const void *ptr, size_t len, struct manifest **ret,
                            struct pawl_error *err);
/* Verifies the digest, then decodes; summary: stops before "state" (tensors and files stay NULL, n_* are set).
 * `what` names the checkpoint in errors (PAWL_ECORRUPT, PAWL_ELIMIT, PAWL_EVERSION). Full decode checks: every
 * tensor leaf of the state has a row and every row is used; pieces lie inside their files and tensors, do not overlap
 * each other and fill their tensor exactly; sums match sizes; names are safe components. */
int manifest_decode(const char *what, const void *ptr, size_t len, bool summary, struct manifest **ret,
                    struct pawl_error *err);
void manifest_free(struct manifest *m);

/* Where folders cannot be renamed, this text stands where the manifest would be once the save has been called off
 * (ranks/withdraw.h). */
#define MANIFEST_WITHDRAWN_BEGIN "{\"pawl_withdrawn\":1,"
bool manifest_is_withdrawn(const char *text, size_t len);

#endif
