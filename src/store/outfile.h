/* SPDX-License-Identifier: Apache-2.0 */
/*
 * outfile: an object that one thread writes from its beginning to its end. While the caller fills
 * one slab, a thread writes the previous one. The bytes may be compressed on the way, and blocks of
 * them checksummed.
 *
 *   struct outfile *file;
 *   TRY(outfile_open(&opts, &file, err));
 *   while (...) {
 *     outfile_room(file, &ptr, &room);
 *     ... fill n <= room bytes at ptr ...
 *     TRY(outfile_put(file, n, err));            or outfile_put_bytes(file, bytes, n, err)
 *   }
 *   TRY(outfile_finish(&file, &sums, err));      on every other path: outfile_abort(file)
 *
 * Promises: no object has the key before finish or after abort (P2). After an error only abort is
 * allowed (P5). Checksums are computed over the bytes in memory, before they are written (P1).
 * Memory: two slabs; if the file is compressed, also a third one and the needs of codec_writer.
 *
 * A save does not use it: its units come from many threads in any order (save/write.c).
 */
#ifndef PAWL_STORE_OUTFILE_H
#define PAWL_STORE_OUTFILE_H

#include "base/mem.h"
#include "base/sum.h"
#include "format/codec/codec.h"
#include "store/store.h"

#define OUTFILE_SLAB_BYTES ((uint64_t)8 << 20)

/* All pointers are borrowed until the file is finished or aborted. */
struct outfile_opts {
	struct store *store;
	const char *key;
	const char *name;          /* NULL, or the start of messages; those of a store name only the key */
	uint64_t nbytes;           /* exact number of bytes that will be put */
	uint64_t block_bytes;      /* per checksum; 0 = no checksums */
	uint64_t slab_bytes;       /* a multiple of 64 KiB; 0 = OUTFILE_SLAB_BYTES */
	const struct codec *codec; /* NULL = plain; else the store must be able to cut */
	int level;                 /* of compression */
	unsigned threads;          /* of compression; 0 = as many as there are cores */
	bool buffered;             /* no direct I/O */
};

/* Checksums of the blocks of a file. */
struct outfile_blocks {
	uint64_t nbytes;
	struct sum128 *sums; /* to be freed by outfile_sums_clear */
	size_t n;
};
struct outfile_sums {
	struct outfile_blocks file;  /* as stored */
	struct outfile_blocks plain; /* as put; empty without a codec */
};

struct outfile;
int outfile_open(const struct outfile_opts *opts, struct outfile **ret, struct pawl_error *err);
/* Where to write the next bytes, and how many fit: all that are left, or nearly a slab. */
void outfile_room(const struct outfile *o, char **ret, uint64_t *ret_nbytes);
/* The first nbytes of the room are filled. Waits for the previous slab, and reports its error. */
int outfile_put(struct outfile *o, uint64_t nbytes, struct pawl_error *err);
/* The same for the caller's own bytes, any number of them. */
int outfile_put_bytes(struct outfile *o, const void *ptr, uint64_t nbytes, struct pawl_error *err);
/* Makes the complete object durable. Frees *o in any case. ret may be NULL. */
int outfile_finish(struct outfile **o, struct outfile_sums *ret, struct pawl_error *err);
void outfile_abort(struct outfile *o); /* NULL is fine */
PAWL_DEFINE_CLEAN(struct outfile, outfile_abort);
void outfile_sums_clear(struct outfile_sums *sums);

#endif
