/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files: writes single files in the background (pawl_files_*).
 *
 *   files_name.c   folder, name and format; hidden names, and those left by dead processes
 *   files_copy.c   the caller's tensors -> an image of the file in the arena, with their CRC-32
 *   files_write.c  the image -> the disk, and its name
 *   files.c        the queue, the tickets, and what all jobs share
 *
 * A plain file is written while its image is still being copied; the writes follow the copying
 * threads. A job belongs to the caller until it is queued. Then it belongs to the thread that
 * writes, which waits until the caller is done with it.
 */
#ifndef PAWL_FILES_H
#define PAWL_FILES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/pool.h"
#include "format/codec/codec.h"
#include "layout/file_plan.h"
#include "pawl_jobs.h"
#include "run/ticket.h"
#include "save/arena.h"
#include "store/store.h"

#define FILES_TEMP_BYTES 160
#define FILES_UNIT_BYTES ((uint64_t)8 << 20) /* of one write */

typedef int file_plan_fn(const struct pawl_state *state, const struct file_plan_opts *opts, struct piece_plan *ret,
                         struct pawl_error *err);

/* The destination of a file. */
struct files_target {
	char *path;                /* as given */
	char *folder, *name;       /* of the file */
	char *stem;                /* its name without suffixes */
	file_plan_fn *plan;        /* of the format */
	const struct codec *codec; /* NULL = not compressed */
};

struct pawl_files {
	struct pawl_arena *arena;
	bool own_arena;
	unsigned threads;     /* of the compression */
	struct pool *copiers; /* NULL = the caller copies alone */
	struct pool *writers; /* of pieces of one file */
	struct pool *worker;  /* one thread: file after file */
	struct pawl_fault *fault;
	uint64_t bandwidth;

	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	uint64_t n_begun, n_done, staged_bytes;
	struct pawl_ticket **tickets; /* in the order of the saves; kept until their error was reported */
	size_t n_tickets, cap_tickets;
	char *swept; /* the folder last searched for files of dead processes; NULL = none */
};

struct files_job {
	struct pawl_files *files;
	struct pawl_ticket *ticket; /* a reference */
	struct files_target target;
	struct store *store; /* of the folder */
	char temp[FILES_TEMP_BYTES];
	bool overwrite;
	int level;
	struct piece_plan plan;
	struct arena_region region; /* the image */
	atomic_uint *sums;          /* per tensor: the parts of its CRC-32 */
	uint64_t reserved;          /* counted in staged_bytes */
	int64_t begin_ns, staged_ns, written_ns;

	const struct pawl_state *state; /* while it is being copied */
	size_t *crc_piece;              /* per tensor: the piece whose CRC-32 is computed; SIZE_MAX = none */
	const void **data;              /* per tensor: its contiguous bytes; NULL = must be gathered */
	uint64_t unit_bytes;
	atomic_uint_fast64_t next; /* unit to copy */

	atomic_uint_fast64_t next_write; /* unit to write */
	pthread_mutex_t lock;            /* guards below */
	pthread_cond_t changed;
	unsigned char *copied; /* per unit of copying */
	uint64_t n_copied;     /* units copied from the first one on, without a gap */
	bool is_image;         /* everything is copied, and the caller's thread is done with the job */
	int failed;            /* error code of writing */
	struct pawl_error error;
	struct store_file *file;
};

/* files_name.c. format: see pawl_file_opts. Free with files_target_clear, also after a failure. */
int files_target_set(const char *path, const char *format, struct files_target *ret, struct pawl_error *err);
void files_target_clear(struct files_target *t);
/* A hidden name that identifies the process that writes under it. */
int files_temp_name(char ret[FILES_TEMP_BYTES], struct pawl_error *err);
/* Removes from a folder the files left by processes of this host that are certainly dead. Ignores
 * failures. */
void files_sweep(struct store *folder);

/* files_copy.c: does everything that can fail: takes the region, and calls the caller's
 * framework. */
int files_copy_begin(struct files_job *job, const struct pawl_state *state, struct pawl_error *err);
/* Fills the region, except the CRCs. After it returns, the job belongs to the writing thread. */
void files_copy(struct files_job *job);
/* Waits until the first `end` bytes of the image are copied. UINT64_MAX: until the caller is done
 * with the job. */
void files_copy_wait(struct files_job *job, uint64_t end);

/* files_write.c: the background half; settles the ticket. Releases the region. */
void files_write(struct files_job *job);
/* files.c: the image is not needed any more. */
void files_release_image(struct files_job *job);

#endif
