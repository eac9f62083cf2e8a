/* SPDX-License-Identifier: Apache-2.0 */
/* huffman: see huffman.h. Promise P17: no length, size or code of the input is used before it is checked. */
#include "format/codec/huffman.h"

#include <stdbool.h>
#include <string.h>

#define N_SYMBOLS 256u
#define N_STREAMS 4u
#define HEAD_BYTES (N_SYMBOLS / 2 + 4 * (N_STREAMS - 1))
#define MAX_BITS HUFFMAN_MAX_BITS
#define FULL (1u << MAX_BITS) /* the sum over all codes of 2^(11 - length), where none is left over */
#define MIN_BYTES 64u
#define COUNTERS 4u /* so that equal neighbours do not wait for each other */

static uint64_t
load64(const unsigned char *p)
{
	uint64_t value;

	memcpy(&value, p, sizeof(value));
	return value;
}

static void
store64(unsigned char *p, uint64_t value)
{
	memcpy(p, &value, sizeof(value));
}

/* The first one of stream k among n bytes. */
static size_t
begin_of(size_t n, unsigned k)
{
	return k < N_STREAMS ? n / N_STREAMS * k : n;
}

/* ------------------------------------------------------------------ lengths */

struct rank {
	uint32_t count;
	uint8_t symbol;
};

static void
count(const unsigned char *src, size_t n, uint32_t counts[N_SYMBOLS])
{
	uint32_t part[COUNTERS][N_SYMBOLS] = {{0}};
	size_t i = 0;

	for (; n - i >= 8; i += 8) {
		const uint64_t x = load64(src + i);
#pragma GCC unroll 8
		for (unsigned k = 0; k < 8; k++)
			part[k % COUNTERS][x >> (8 * k) & 255]++;
	}
	for (; i < n; i++)
		part[0][src[i]]++;
	for (unsigned s = 0; s < N_SYMBOLS; s++)
		counts[s] = part[0][s] + part[1][s] + part[2][s] + part[3][s];
}

/* Those that occur, the rarest first; equal ones by value. */
static unsigned
sort(const uint32_t counts[N_SYMBOLS], struct rank ranks[N_SYMBOLS])
{
	unsigned n = 0;

	for (unsigned s = 0; s < N_SYMBOLS; s++) {
		if (!counts[s])
			continue;
		unsigned at = n++;
		for (; at > 0 && ranks[at - 1].count > counts[s]; at--)
			ranks[at] = ranks[at - 1];
		ranks[at] = (struct rank){.count = counts[s], .symbol = (uint8_t)s};
	}
	return n;
}

/* Moffat and Katajainen: a[] holds n >= 2 counts in rising order, then code lengths in falling order. */
static void
find_lengths(uint32_t a[N_SYMBOLS], unsigned n)
{
	unsigned leaf = 0, root = 0;

	for (unsigned next = 0; next < n - 1; next++) { /* inner nodes; a[node]: its weight, then its parent */
		uint32_t weight = 0;
		for (int k = 0; k < 2; k++) {
			if (leaf >= n || (root < next && a[root] < a[leaf])) {
				weight += a[root];
				a[root++] = next;
			} else {
				weight += a[leaf++];
			}
		}
		a[next] = weight;
	}
	a[n - 2] = 0; /* parents -> depths */
	for (unsigned node = n - 2; node-- > 0;)
		a[node] = a[a[node]] + 1;
	unsigned left = n, inner = n - 1, available = 1, depth = 0;
	while (available > 0) {
		unsigned used = 0;
		for (; inner > 0 && a[inner - 1] == depth; inner--)
			used++;
		for (; available > used; available--)
			a[--left] = depth;
		available = 2 * used;
		depth++;
	}
}

/* No code of more than 11 bits, and none left over. */
static void
limit_lengths(uint32_t a[N_SYMBOLS], unsigned n)
{
	uint32_t sum = 0;

	for (unsigned i = 0; i < n; i++) {
		a[i] = a[i] < MAX_BITS ? a[i] : MAX_BITS;
		sum += FULL >> a[i];
	}
	for (unsigned i = 0; sum > FULL; i = i + 1 < n ? i + 1 : 0) /* the rarest that can become longer */
		while (a[i] < MAX_BITS && sum > FULL)
			sum -= FULL >> ++a[i];
	for (unsigned i = n; i-- > 0;) /* what that was too much, to the most frequent */
		while (a[i] > 1 && sum + (FULL >> a[i]) <= FULL)
			sum += FULL >> a[i]--;
}

/* 0 = fewer than two symbols. */
static unsigned
choose_lengths(const uint32_t counts[N_SYMBOLS], uint8_t lengths[N_SYMBOLS])
{
	struct rank ranks[N_SYMBOLS];
	uint32_t a[N_SYMBOLS];
	const unsigned n = sort(counts, ranks);

	memset(lengths, 0, N_SYMBOLS);
	if (n < 2)
		return 0;
	for (unsigned i = 0; i < n; i++)
		a[i] = ranks[i].count;
	find_lengths(a, n);
	limit_lengths(a, n);
	for (unsigned i = 0; i < n; i++)
		lengths[ranks[i].symbol] = (uint8_t)a[i];
	return n;
}

/* Canonical codes, their first bit lowest. */
static void
make_codes(const uint8_t lengths[N_SYMBOLS], uint16_t codes[N_SYMBOLS])
{
	unsigned next = 0;

	for (unsigned len = 1; len <= MAX_BITS; len++, next <<= 1) {
		for (unsigned s = 0; s < N_SYMBOLS; s++) {
			if (lengths[s] != len)
				continue;
			unsigned turned = 0;
			for (unsigned bit = 0; bit < len; bit++)
				turned |= (next >> bit & 1u) << (len - 1 - bit);
			codes[s] = (uint16_t)turned;
			next++;
		}
	}
}

/* ----------------------------------------------------------------- encoding */

/* pairs[first | second << 8]: both codes, and above bit 24 how many bits they are. Only of those that occur. */
static void
make_pairs(struct huffman_encoder *e, const uint8_t lengths[N_SYMBOLS])
{
	uint16_t codes[N_SYMBOLS];
	uint8_t used[N_SYMBOLS] = {0};
	unsigned n = 0;

	make_codes(lengths, codes);
	for (unsigned s = 0; s < N_SYMBOLS; s++)
		if (lengths[s])
			used[n++] = (uint8_t)s;
	for (unsigned i = 0; i < n; i++) {
		for (unsigned k = 0; k < n; k++) {
			const unsigned first = used[k], second = used[i];
			e->pairs[first | second << 8] = (uint32_t)codes[first] |
			                                (uint32_t)codes[second] << lengths[first] |
			                                (uint32_t)(lengths[first] + lengths[second]) << 24;
		}
	}
}

/* A stream that is being written: the last bits, which are no whole byte yet. */
struct tail {
	uint64_t bits;
	unsigned n;
	unsigned char *to;
};

static inline void
add_pair(struct tail *t, const uint32_t *pairs, const unsigned char *src)
{
	uint16_t two;

	memcpy(&two, src, sizeof(two));
	const uint32_t pair = pairs[two];
	t->bits |= (uint64_t)(pair & 0xffffffu) << t->n;
	t->n += pair >> 24;
}

static inline void
flush(struct tail *t)
{
	store64(t->to, t->bits);
	t->to += t->n >> 3;
	t->bits >>= t->n & ~7u;
	t->n &= 7;
}

static size_t
encode_stream(const struct huffman_encoder *e, const unsigned char *src, size_t n, uint16_t last_code, uint8_t last_len,
              unsigned char *dst)
{
	struct tail t = {.to = dst};
	size_t i = 0;

	for (; n - i >= 4; i += 4) { /* at most 7 + 44 bits */
		add_pair(&t, e->pairs, src + i);
		add_pair(&t, e->pairs, src + i + 2);
		flush(&t);
	}
	if (n - i >= 2) {
		add_pair(&t, e->pairs, src + i);
		flush(&t);
		i += 2;
	}
	if (i < n) {
		t.bits |= (uint64_t)last_code << t.n;
		t.n += last_len;
		flush(&t);
	}
	if (t.n > 0)
		*t.to++ = (unsigned char)t.bits;
	return (size_t)(t.to - dst);
}

size_t
huffman_bound(size_t n)
{
	return HEAD_BYTES + n / 8 * MAX_BITS + MAX_BITS + 2 * N_STREAMS;
}

size_t
huffman_encode(struct huffman_encoder *e, const unsigned char *src, size_t n, size_t most, unsigned char *dst)
{
	uint32_t counts[N_SYMBOLS];
	uint8_t lengths[N_SYMBOLS];
	uint16_t codes[N_SYMBOLS] = {0};
	uint64_t bits = 0;
	size_t at = HEAD_BYTES;

	if (n < MIN_BYTES)
		return 0;
	count(src, n, counts);
	if (!choose_lengths(counts, lengths))
		return 0;
	for (unsigned s = 0; s < N_SYMBOLS; s++)
		bits += (uint64_t)counts[s] * lengths[s];
	if (HEAD_BYTES + N_STREAMS + bits / 8 >= most)
		return 0;
	for (unsigned s = 0; s < N_SYMBOLS; s += 2)
		dst[s / 2] = (unsigned char)(lengths[s] | lengths[s + 1] << 4);
	make_pairs(e, lengths);
	make_codes(lengths, codes);
	for (unsigned k = 0; k < N_STREAMS; k++) {
		const size_t begin = begin_of(n, k), end = begin_of(n, k + 1);
		const unsigned char last = src[end - 1];
		const size_t size = encode_stream(e, src + begin, end - begin, codes[last], lengths[last], dst + at);
		const uint32_t size32 = (uint32_t)size;

		if (k < N_STREAMS - 1)
			memcpy(dst + N_SYMBOLS / 2 + (size_t)4 * k, &size32, sizeof(size32));
		at += size;
	}
	return at;
}

/* ----------------------------------------------------------------- decoding */

/* steps[the next 11 bits]: up to six bytes, the first lowest; above bit 48 how many bits they are, above 52 how many
 * the first is, above 56 how many bytes. Every entry has one byte at least: no code is left over. */
static bool
make_steps(struct huffman_decoder *d, const uint8_t lengths[N_SYMBOLS])
{
	uint16_t codes[N_SYMBOLS], singles[FULL];
	uint32_t sum = 0;

	for (unsigned s = 0; s < N_SYMBOLS; s++) {
		if (lengths[s] > MAX_BITS)
			return false;
		sum += lengths[s] ? FULL >> lengths[s] : 0;
	}
	if (sum != FULL)
		return false;
	make_codes(lengths, codes);
	for (unsigned s = 0; s < N_SYMBOLS; s++)
		for (unsigned i = codes[s]; lengths[s] && i < FULL; i += 1u << lengths[s])
			singles[i] = (uint16_t)(s | (unsigned)lengths[s] << 8);
	for (unsigned i = 0; i < FULL; i++) {
		unsigned used = singles[i] >> 8, n = 1;
		uint64_t bytes = singles[i] & 255;

		for (; n < 6; n++) {
			const unsigned next = singles[i >> used];
			if (used + (next >> 8) > MAX_BITS)
				break;
			bytes |= (uint64_t)(next & 255) << (8 * n);
			used += next >> 8;
		}
		d->steps[i] = bytes | (uint64_t)used << 48 | (uint64_t)(singles[i] >> 8) << 52 | (uint64_t)n << 56;
	}
	return true;
}

/* A stream that is being read: the next bit, and where its byte goes. */
struct reader {
	const unsigned char *src;
	size_t bit, n_bits;
	unsigned char *to, *end;
};

#define STEPS 5u              /* of 11 bits, out of the 57 that one load gives at least */
#define ROOM (6u * STEPS + 2) /* bytes that they write at most */

static inline bool
is_inside(const struct reader *r)
{
	return (r->bit >> 3) + 8 <= r->n_bits >> 3 && (size_t)(r->end - r->to) >= ROOM;
}

static inline uint64_t
step(const struct huffman_decoder *d, uint64_t bits, unsigned char **to, size_t *bit)
{
	const uint64_t entry = d->steps[bits & (FULL - 1)];
	const unsigned used = entry >> 48 & 15;

	store64(*to, entry);
	*to += entry >> 56;
	*bit += used;
	return bits >> used;
}

/* Four at once, while none is near its end. */
static void
decode_inside(const struct huffman_decoder *d, struct reader r[N_STREAMS])
{
	struct reader a = r[0], b = r[1], c = r[2], e = r[3];

	while (is_inside(&a) && is_inside(&b) && is_inside(&c) && is_inside(&e)) {
		uint64_t x = load64(a.src + (a.bit >> 3)) >> (a.bit & 7),
			 y = load64(b.src + (b.bit >> 3)) >> (b.bit & 7);
		uint64_t z = load64(c.src + (c.bit >> 3)) >> (c.bit & 7),
			 w = load64(e.src + (e.bit >> 3)) >> (e.bit & 7);

		for (unsigned i = 0; i < STEPS; i++) {
			x = step(d, x, &a.to, &a.bit);
			y = step(d, y, &b.to, &b.bit);
			z = step(d, z, &c.to, &c.bit);
			w = step(d, w, &e.to, &e.bit);
		}
	}
	r[0] = a, r[1] = b, r[2] = c, r[3] = e;
}

/* The rest of one, byte by byte: none too far. false = it is not exactly so long. */
static bool
decode_rest(const struct huffman_decoder *d, struct reader *r)
{
	while (r->to < r->end) {
		const size_t at = r->bit >> 3, left = (r->n_bits >> 3) - at;
		uint64_t bits = 0;

		memcpy(&bits, r->src + at, left < 8 ? left : 8);
		const uint64_t entry = d->steps[bits >> (r->bit & 7) & (FULL - 1)];
		r->bit += entry >> 52 & 15;
		if (r->bit > r->n_bits)
			return false;
		*r->to++ = (unsigned char)entry;
	}
	return r->n_bits - r->bit < 8;
}

const char *
huffman_decode(struct huffman_decoder *d, const unsigned char *src, size_t n_src, unsigned char *dst, size_t n)
{
	struct reader readers[N_STREAMS];
	uint8_t lengths[N_SYMBOLS];
	size_t at = HEAD_BYTES;

	if (n_src < HEAD_BYTES)
		return "codes are cut off";
	for (unsigned s = 0; s < N_SYMBOLS; s += 2) {
		lengths[s] = src[s / 2] & 15;
		lengths[s + 1] = src[s / 2] >> 4;
	}
	if (!make_steps(d, lengths))
		return "lengths of codes that do not fit together";
	for (unsigned k = 0; k < N_STREAMS; k++) {
		uint32_t size = (uint32_t)(n_src - at);

		if (k < N_STREAMS - 1)
			memcpy(&size, src + N_SYMBOLS / 2 + (size_t)4 * k, sizeof(size));
		if (size > n_src - at)
			return "a stream of codes is longer than what it is in";
		readers[k] = (struct reader){.src = src + at,
		                             .n_bits = (size_t)8 * size,
		                             .to = dst + begin_of(n, k),
		                             .end = dst + begin_of(n, k + 1)};
		at += size;
	}
	decode_inside(d, readers);
	for (unsigned k = 0; k < N_STREAMS; k++)
		if (!decode_rest(d, &readers[k]))
			return "a stream of codes is not of the length that it should be";
	return NULL;
}
