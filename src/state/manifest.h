/* SPDX-License-Identifier: Apache-2.0 */
/*
 * manifest: the commit record of a checkpoint <-> bytes. Pure. A checkpoint exists if and only if
 * its manifest exists and verifies (P2). It is written once and never changed.
 *
 * It is one JSON object with one member per line, exactly these in this order. "run" is empty for a
 * single checkpoint. The summary comes first, so that a list of many checkpoints parses only that.
 * The digest still covers everything, and is checked first.
 *
 *   {"pawl_manifest":1,
 *   "run":"<32 hex>", "id":7, "attempt":1, "token":"<32 hex>",
 *   "step":400, "unix_ns":1790000000000000000,
 *   "progress":{"epoch":3,..}                                    (known counters only),
 *   "metrics":{"accuracy":0.91,"loss":{"$float":"7ff8000000000000"},"note":null}
 *                                                                (null: not a number),
 *   "world_size":1, "bytes":<total size of the files>, "new_bytes":<of those not reused>,
 *   "n_tensors":.., "n_files":.., "blocked_seconds":0.21, "nonfinite":false, "repaired":false,
 *   "metadata":<state without tensors, or null>,
 *   "state":<state>,
 *   "tensors":[
 *   {"name":"model/w","dtype":"F32","shape":[4,2],
 *    "pieces":[{"file":0,"begin":4096,"offsets":[0,0],"lengths":[4,2]}]},..       (one line)
 *   ],
 *   "files":[
 *   {"name":"rank00000-00000.safetensors","size":4128,"block":1048576,"reused":false,
 *    "sums":"<32 hex per block>"},..                                              (one line)
 *   (version 2, where a file is compressed: its row ends with ,"codec":"zst","plain_size":..,
 *   "plain_sums":"..", and the summary has "plain_bytes" after "new_bytes")
 *   ],
 *   "digest":"<32 hex>"}
 *   <line feed, end>
 *
 * digest: XXH3-128 of all bytes before the line feed that precedes `"digest"`. offsets and lengths
 * are left out when the piece is the complete tensor. Limits: 512 MiB, 1,000,000 tensors and files,
 * the depth of a state (state.h), and those of base/json.h. Blocks are a power of two from 512
 * bytes to 1 TiB. The state's strings are short by construction.
 */
#ifndef PAWL_MANIFEST_H
#define PAWL_MANIFEST_H

#include "base/bump.h"
#include "base/mem.h"
#include "base/sum.h"
#include "pawl.h"
#include "state/state.h"

#define CATALOG_FOLDER "checkpoints" /* in the folder of a run; checkpoints/<name>/manifest.json */
#define MANIFEST_NAME "manifest.json"
#define MANIFEST_MAX_BYTES (512u << 20)
#define MANIFEST_VERSION 2 /* the newest that is read; written only where a file is compressed, else 1 */
/* No codec compresses better than this: a block of zstd has at least 4 bytes, and at most 128 KiB
 * come out of it. Beyond that, and 64 MiB, the size that a file claims is false. */
#define MANIFEST_MAX_RATIO 32768u
#define MANIFEST_FREE_BYTES ((uint64_t)64 << 20)

struct manifest_file {
	const char *name;
	uint64_t nbytes, block_bytes;
	size_t n_blocks; /* ceil(nbytes / block_bytes) */
	const struct sum128
		*sums;      /* of each block; the last one covers what is left of the file; NULL = there are none */
	bool reused;        /* linked from the previous checkpoint, not written */
	const char *memory; /* not NULL: the bytes of a file that is in no store (foreign_tree.h) */
	/* NULL, or the codec of a compressed file ("zst"). All fields above describe the stored
	 * file. All fields below, and the places of pieces, describe its decompressed contents.
	 * Both have blocks of the same size. */
	const char *codec;
	uint64_t plain_bytes;
	size_t n_plain_blocks;
	const struct sum128 *plain_sums;
};

/* The size of the file for readers of tensors: decompressed. */
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
	/* How the box is stored in the file, in elements; NULL = in C order. Only foreign files
	 * have others. Then nbytes reaches from its first element to its last, and every step is
	 * wider than everything inside it. */
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
	uint64_t nbytes;       /* of the complete tensor */
	size_t n_pieces;
	struct manifest_piece *pieces;
	bool whole; /* in a part: every rank must have the complete tensor, and writes a share of it (rank_share.h) */
	const struct sum128 *sum; /* in a part: of a long str or bytes that every rank must have; else NULL */
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
	uint64_t plain_bytes; /* of all files, decompressed; 0 = none is compressed, so the same as `bytes` */
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

/* Appends the bytes. Checks what decode would check (PAWL_EUSAGE). offsets and lengths may be NULL
 * for a complete tensor. */
int manifest_encode(const struct manifest *m, struct buf *out, struct pawl_error *err);
/* The same with the state as JSON text that is already encoded, for the save path. m->state is
 * ignored. */
int manifest_encode_with(const struct manifest *m, struct pawl_slice state_json, struct buf *out,
                         struct pawl_error *err);
/* Reads a part. It was encoded with m->part set and begins with "pawl_part". As manifest_decode,
 * but pieces need not fill their tensors. A row also records whether the tensor is given
 * completely. */
int manifest_decode_part(const char *what, const void *ptr, size_t len, struct manifest **ret, struct pawl_error *err);
/* Only the members from "run" to "metadata", as one JSON object without digest. Pack 0 carries it
 * for repair. */
int manifest_encode_summary(const struct manifest *m, struct buf *out, struct pawl_error *err);
/* The known counters as a JSON object. */
void manifest_put_progress(const struct pawl_progress *progress, struct buf *out);
/* The scores as a JSON object. */
void manifest_put_metrics(const struct pawl_metric *metrics, size_t n, struct buf *out);
/* PAWL_ECORRUPT: a member is not a known counter of at least 0. */
int manifest_read_progress(const struct json *object, struct pawl_progress *ret, struct pawl_error *err);
/* Reads what manifest_encode_summary wrote, which no digest protects. */
int manifest_decode_summary(const char *what, const void *ptr, size_t len, struct manifest **ret,
                            struct pawl_error *err);
/* Verifies the digest, then decodes. summary: stops before "state", so tensors and files stay NULL
 * and n_* are set. `what` names the checkpoint in errors (PAWL_ECORRUPT, PAWL_ELIMIT,
 * PAWL_EVERSION). A full decode also checks: every tensor leaf of the state has a row and every row
 * is used. Pieces are inside their files and tensors, do not overlap, and fill their tensor
 * exactly. Checksums match the sizes. Names are safe components. */
int manifest_decode(const char *what, const void *ptr, size_t len, bool summary, struct manifest **ret,
                    struct pawl_error *err);
/* Index of the first member that ends after an offset of a file, or that is in a later file.
 * n_members if there is none. */
size_t manifest_find_member(const struct manifest *m, uint32_t file, uint64_t at);
void manifest_free(struct manifest *m);
PAWL_DEFINE_CLEAN(struct manifest, manifest_free);

/* Where folders cannot be renamed, an aborted save has this text in place of its manifest
 * (ranks/abort_commit.h). */
#define MANIFEST_WITHDRAWN_BEGIN "{\"pawl_withdrawn\":1,"
bool manifest_is_withdrawn(const char *text, size_t len);

#endif
