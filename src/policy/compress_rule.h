/* SPDX-License-Identifier: Apache-2.0 */
/*
 * compress_rule: decides whether the packs of the next save are compressed, where compression is
 * "auto". They are compressed only if the store or mirror is slower than the coder. Else
 * compression would cost processor time without a gain. Pure: the caller reports the measurements.
 */
#ifndef PAWL_COMPRESS_RULE_H
#define PAWL_COMPRESS_RULE_H

#include <stdbool.h>
#include <stdint.h>

#define COMPRESS_CODEC "planes"                /* the codec of "auto" */
#define COMPRESS_MIN_BYTES ((uint64_t)1 << 20) /* less measures latency, not a rate */
#define COMPRESS_CODER_BYTES_PER_SECOND 1e9    /* of one thread, until it has been measured */
#define COMPRESS_USELESS_RATIO 0.95            /* compressed : plain; above it compression gains nothing */
#define COMPRESS_REST_SAVES 32u                /* so many saves without compression before it is tried again */

/* Bytes and the seconds they took. Each new measurement halves the weight of earlier ones. */
struct compress_rate {
	double bytes, seconds;
};
/* Ignored below COMPRESS_MIN_BYTES, and without any time. */
void compress_measure(struct compress_rate *r, uint64_t bytes, double seconds);
double compress_rate(const struct compress_rate *r); /* bytes a second; 0 = not known */

/* Zero-initialise. */
struct compress_rule {
	struct compress_rate store, mirror; /* packs are sent there; unknown = none, or nothing was sent yet */
	struct compress_rate coder;         /* plain bytes, of one thread's processor time */
	bool on;                            /* as of the last decision */
	unsigned rest;                      /* saves left without compression */
};
/* Reports the result of a compressed save. */
void compress_saw(struct compress_rule *r, uint64_t plain_bytes, uint64_t compressed_bytes);
/* Decides for one save; call it once. On where the slower link is below 0.8 of the coder's rate. It
 * stays on until the link is above 1.25 of that rate. */
bool compress_decide(struct compress_rule *r);

#endif
