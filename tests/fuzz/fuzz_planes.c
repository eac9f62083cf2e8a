/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_planes: any bytes as a segment of a planes frame, for as many plain bytes as the first two
 * say. It is decoded or refused with a reason, and nothing else is written to. Also any bytes are
 * encoded, and must come back. Promise P17.
 */
#include <stdlib.h>
#include <string.h>

#include "format/codec/planes.h"
#include "fuzz.h"

/* The output is memory of its own, so that a byte beyond it is seen. */
static void
decode(struct planes_decoder *d, const uint8_t *in, size_t n_in, size_t n_out)
{
	struct planes_input rest = {in, n_in};
	uint8_t *out = malloc(n_out);
	const char *why = NULL;

	check(out != NULL);
	check(planes_decode(d, &rest, out, n_out, &why) || why);
	check(rest.n <= n_in);
	free(out);
}

static void
there_and_back(struct planes_encoder *e, struct planes_decoder *d, const uint8_t *plain, size_t n)
{
	uint8_t *compressed = malloc(n + PLANES_HEAD_BYTES), *back = malloc(n);
	const char *why = NULL;

	check(compressed && back);
	const size_t size = (size_t)(planes_encode(e, plain, n, compressed) - compressed);
	check(size <= n + PLANES_HEAD_BYTES);
	struct planes_input rest = {compressed, size};
	check(planes_decode(d, &rest, back, n, &why) && rest.n == 0 && memcmp(back, plain, n) == 0);
	free(compressed);
	free(back);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct planes_encoder *encoder;
	static struct planes_decoder *decoder;

	if (size < 3 || size - 2 > PLANES_SEGMENT_BYTES)
		return 0;
	if (!encoder) {
		encoder = planes_encoder_new();
		decoder = planes_decoder_new();
	}
	check(encoder && decoder);
	decode(decoder, data + 2, size - 2, 1u + data[0] + 256u * data[1]);
	there_and_back(encoder, decoder, data + 2, size - 2);
	return 0;
}
