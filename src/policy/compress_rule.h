/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_rule: are the packs of the next save compressed, where compression is "auto"? Only where what they go over is
 * slower than the coder: then fewer bytes come sooner, else the processors would work for nothing. Pure; called by
 * save.c, told by save.c and mirror_upload.c what has been measured.
 */
#ifndef PAWL_COMPRESS_RULE_H
#define PAWL_COMPRESS_RULE_H

#include <stdbool.h>
#include <stdint.h>

#define COMPRESS_CODEC "planes" /* the one that "auto" stands for */
#define COMPRESS_MIN_BYTES ((uint64_t)1 << 20)     /* less tells of latency, not of a rate */
#define COMPRESS_CODER_BYTES_PER_SECOND 1e9        /* of one thread, until it has been measured */
#define COMPRESS_USELESS_RATIO 0.95                /* packed : plain; above it nothing is won */
#define COMPRESS_REST_SAVES 32u                    /* then so many saves go by before it is tried again */

/* Bytes and the seconds they took; what was earlier counts half with each new measurement. */
struct compress_rate {
	double bytes, seconds;
};
/* Below COMPRESS_MIN_BYTES, and without any time, nothing is learnt. */
void compress_measure(struct compress_rate *r, uint64_t bytes, double seconds);
double compress_rate(const struct compress_rate *r); /* bytes a second; 0 = not known */

/* Zero-initialise. */
struct compress_rule {
	struct compress_rate store, mirror; /* what packs go over; not known = there is none, or nothing has gone over it yet */
	struct compress_rate coder;         /* plain bytes, of one thread's processor time */
	bool on;                            /* as of the last decision */
	unsigned rest;                      /* saves to go by without it */
};
/* What a compressed save has come to. */
void compress_saw(struct compress_rule *r, uint64_t plain_bytes, uint64_t packed_bytes);
/* For one save, once: on where the slower link is below 0.8 of the coder, and then until it is above 1.25 of it. */
bool compress_decide(struct compress_rule *r);

#endif
