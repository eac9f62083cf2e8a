/* SPDX-License-Identifier: Apache-2.0 */
/* compress_rule: see compress_rule.h. */
#include "policy/compress_rule.h"

#define BEGIN_BELOW 0.8
#define END_ABOVE 1.25

void
compress_measure(struct compress_rate *r, uint64_t bytes, double seconds)
{
	if (bytes < COMPRESS_MIN_BYTES || !(seconds > 0))
		return;
	r->bytes = r->bytes / 2 + (double)bytes;
	r->seconds = r->seconds / 2 + seconds;
}

double
compress_rate(const struct compress_rate *r)
{
	return r->seconds > 0 ? r->bytes / r->seconds : 0;
}

void
compress_saw(struct compress_rule *r, uint64_t plain_bytes, uint64_t compressed_bytes)
{
	if (plain_bytes >= COMPRESS_MIN_BYTES &&
	    (double)compressed_bytes > COMPRESS_USELESS_RATIO * (double)plain_bytes)
		r->rest = COMPRESS_REST_SAVES;
}

bool
compress_decide(struct compress_rule *r)
{
	const double store = compress_rate(&r->store), mirror = compress_rate(&r->mirror);
	const double link = store > 0 && (mirror <= 0 || store < mirror) ? store : mirror;
	const double measured = compress_rate(&r->coder);
	const double coder = measured > 0 ? measured : COMPRESS_CODER_BYTES_PER_SECOND;

	if (r->rest > 0) {
		r->rest--;
		r->on = false;
		return false;
	}
	r->on = link > 0 && link < (r->on ? END_ABOVE : BEGIN_BELOW) * coder;
	return r->on;
}
