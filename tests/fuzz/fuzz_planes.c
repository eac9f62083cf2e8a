/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_planes: any bytes as a segment of a planes frame, for as many plain bytes as the first two say: every
 * processor's variant gives the same bytes and leaves the same rest, or refuses it for the same reason; none touches
 * anything else. And any bytes packed: alike by every variant, and they come back. Promise P17.
 */
#include <stdlib.h>
#include <string.h>

#include "format/codec/planes.h"
#include "fuzz.h"

#define N_OPS 3u

/* What a variant has made of the input. */
struct outcome {
	bool taken;
	size_t n_rest;
	const char *why;
	uint8_t *out; /* memory of its own, so that a byte beyond it is seen */
};

static size_t
variants(const struct planes_ops *ops[N_OPS])
{
	size_t n = 0;

	ops[n++] = &planes_generic;
#if defined(__x86_64__)
	const bool bits = __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2");
	if (bits && __builtin_cpu_supports("avx2"))
		ops[n++] = &planes_avx2;
	if (bits && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
	    __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
		ops[n++] = &planes_avx512;
#endif
	return n;
}

static struct outcome
take(const struct planes_ops *ops, struct planes_unpacker *u, const uint8_t *in, size_t n_in, size_t n_out)
{
	struct outcome ret = {.out = malloc(n_out)};
	struct planes_rest rest = {in, n_in};

	check(ret.out != NULL);
	ret.taken = ops->take(u, &rest, ret.out, n_out, &ret.why);
	ret.n_rest = rest.n;
	check(ret.n_rest <= n_in && (ret.taken || ret.why));
	return ret;
}

static void
take_by_all(struct planes_unpacker *u, const uint8_t *in, size_t n_in, size_t n_out)
{
	const struct planes_ops *ops[N_OPS];
	const size_t n = variants(ops);
	struct outcome first = take(ops[0], u, in, n_in, n_out);

	for (size_t i = 1; i < n; i++) {
		struct outcome other = take(ops[i], u, in, n_in, n_out);
		check(other.taken == first.taken && other.n_rest == first.n_rest);
		check(first.taken ? memcmp(first.out, other.out, n_out) == 0 : strcmp(first.why, other.why) == 0);
		free(other.out);
	}
	free(first.out);
}

static void
there_and_back(struct planes_packer *p, struct planes_unpacker *u, const uint8_t *plain, size_t n)
{
	const struct planes_ops *ops[N_OPS];
	const size_t n_ops = variants(ops), room = n + PLANES_HEAD_BYTES + PLANES_ROOM_BYTES;
	uint8_t *packed[2] = {malloc(room), malloc(room)};

	check(packed[0] && packed[1]);
	const size_t size = (size_t)(ops[0]->put(p, plain, n, packed[0]) - packed[0]);
	check(size <= n + PLANES_HEAD_BYTES);
	for (size_t i = 1; i < n_ops; i++) {
		check((size_t)(ops[i]->put(p, plain, n, packed[1]) - packed[1]) == size);
		check(memcmp(packed[0], packed[1], size) == 0);
	}
	struct outcome back = take(ops[0], u, packed[0], size, n);
	check(back.taken && back.n_rest == 0 && memcmp(back.out, plain, n) == 0);
	free(back.out);
	free(packed[0]);
	free(packed[1]);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static struct planes_packer packer;
	static struct planes_unpacker unpacker;

	if (size < 3)
		return 0;
	take_by_all(&unpacker, data + 2, size - 2, 1u + data[0] + 256u * data[1]);
	there_and_back(&packer, &unpacker, data + 2, size - 2);
	return 0;
}
