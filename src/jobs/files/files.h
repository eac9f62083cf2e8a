/* SPDX-License-Identifier: Apache-2.0 */
/*
 * files: single files written in the background (pawl_files_*), and one of them on its way.
 *
 *   files_name.c   where it goes, and in which format; hidden names, and those that dead processes have left
 *   files_copy.c   the caller's tensors -> an image of the file in the arena, with their CRC-32
 *   files_write.c  the image -> the disk, and its name
 *   files.c        the queue, the tickets, and what all jobs share
 *
 * A plain file is written while its image is still being copied, behind the copying threads. A job belongs to the
 * caller until it is queued, then to the one thread that writes, which waits until the caller is through with it.
 */
#ifndef PAWL_FILES_H
#define PAWL_FILES_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>

#include "base/crc32.h"
#include "base/pool.h"
#include "base/rate.h"
#include "format/codec/codec.h"
#include "layout/file_plan.h"
#include "run/ticket.h"
#include "save/arena.h"
#include "store/store.h"

#define FILES_TEMP_BYTES 160
#define FILES_UNIT_BYTES ((uint64_t)8 << 20) /* of one write */

typedef int file_plan_fn(const struct pawl_state *state, const struct file_plan_opts *opts, struct file_plan *ret,
			 struct pawl_error *err);

/* Where a file goes. */
struct files_target {
	char *path;           /* as given */
	char *folder, *name;  /* of the file */
	char *stem;           /* its name without suffixes */
	file_plan_fn *plan;   /* of the format */
	const struct codec *codec; /* NULL = not compressed */
};

struct pawl_files {
	struct pawl_arena *arena;
	bool own_arena;
	unsigned threads;        /* of the compression */
	struct pool *copiers;    /* NULL = the caller copies alone */
	struct pool *writers;    /* of pieces of one file */
	struct pool *worker;     /* one thread: file after file */
	struct pawl_fault *fault;
	uint64_t bandwidth;
	struct crc32 crc;

	pthread_mutex_t lock; /* guards below */
	pthread_cond_t changed;
	uint64_t n_begun, n_done, staged_bytes;
	struct pawl_ticket **tickets; /* in the order of the saves; until somebody has been told of the error */
	size_t n_tickets, cap_tickets;
	char *swept; /* the folder last looked through for what dead processes left; NULL = none */
};

struct files_job {
	struct pawl_files *files;
	struct pawl_ticket *ticket; /* a reference */
	struct files_target target;
	struct store *store; /* of the folder */
	char temp[FILES_TEMP_BYTES];
	bool overwrite;
	int level;
	struct file_plan plan;
	struct arena_region region; /* the image */
	atomic_uint *sums;          /* per tensor: the parts of its CRC-32 */
	uint64_t reserved;          /* counted in staged_bytes */
	int64_t begin_ns, staged_ns, written_ns;

	const struct pawl_state *state; /* while it is being copied */
	size_t *summed;                 /* per tensor: the piece of which the CRC-32 is taken; SIZE_MAX = none */
	const void **data;              /* per tensor: its contiguous bytes; NULL = to be gathered */
	uint64_t unit_bytes;
	atomic_uint_fast64_t next; /* unit to copy */

	atomic_uint_fast64_t next_write; /* unit to write */
	pthread_mutex_t lock;            /* guards below */
	pthread_cond_t changed;
	unsigned char *copied; /* per unit of copying */
	uint64_t n_copied;     /* units from the first one on */
	bool is_image;         /* all is copied, and the caller's thread is through with the job */
	int failed;            /* of writing */
	struct pawl_error error;
	struct store_file *file;
};

/* files_name.c. format: see pawl_file_opts. Freed by files_target_clear, also after a failure. */
int files_target_set(const char *path, const char *format, struct files_target *ret, struct pawl_error *err);
void files_target_clear(struct files_target *t);
/* A hidden name that says which process writes under it. */
int files_temp_name(char ret[FILES_TEMP_BYTES], struct pawl_error *err);
/* Removes from a folder what processes of this host left that are dead for certain. Failures are passed over. */
void files_sweep(struct store *folder);

/* files_copy.c: all that can fail comes first: takes the region, and calls the caller's framework. */
int files_copy_begin(struct files_job *job, const struct pawl_state *state, struct pawl_error *err);
/* Fills the region, all but the sums. The job is the writing thread's when it returns. */
void files_copy(struct files_job *job);
/* Waits until the first `end` bytes of the image are there; UINT64_MAX: until the caller is through with the job. */
void files_copy_wait(struct files_job *job, uint64_t end);

/* files_write.c: the background half; settles the ticket. The region is given back. */
void files_write(struct files_job *job);
/* files.c: the image is not needed any more. */
void files_release_image(struct files_job *job);

#endif
