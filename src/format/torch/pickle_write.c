/* SPDX-License-Identifier: Apache-2.0 */
/* pickle_write: see pickle_write.h. Pure. The opcodes are those of pickletools, protocol 2. */
#include "format/torch/pickle_write.h"

#include <string.h>

static void
put_le(struct buf *b, uint64_t value, unsigned nbytes)
{
	for (unsigned i = 0; i < nbytes; i++)
		buf_putc(b, (char)(value >> (8 * i)));
}

void
pickle_put_op(struct buf *b, char op)
{
	buf_putc(b, op);
}

void
pickle_put_begin(struct buf *b)
{
	buf_puts(b, "\x80\x02");
}

void
pickle_put_end(struct buf *b)
{
	buf_putc(b, '.');
}

void
pickle_put_bool(struct buf *b, bool value)
{
	buf_putc(b, value ? '\x88' : '\x89');
}

/* The shortest form, as Python writes it. */
void
pickle_put_int(struct buf *b, int64_t value)
{
	unsigned nbytes = 1;

	if (value >= 0 && value <= UINT8_MAX) {
		buf_putc(b, 'K');
		put_le(b, (uint64_t)value, 1);
	} else if (value >= 0 && value <= UINT16_MAX) {
		buf_putc(b, 'M');
		put_le(b, (uint64_t)value, 2);
	} else if (value >= INT32_MIN && value <= INT32_MAX) {
		buf_putc(b, 'J');
		put_le(b, (uint64_t)value, 4);
	} else {
		while (nbytes < 8 && value >> (8 * nbytes - 1) != 0 && value >> (8 * nbytes - 1) != -1)
			nbytes++;
		buf_putc(b, '\x8a');
		buf_putc(b, (char)nbytes);
		put_le(b, (uint64_t)value, nbytes);
	}
}

/* bytes = bytes * 10 + digit, least significant first; false beyond the limit. */
static bool
shift_in(unsigned char *bytes, size_t *n, unsigned digit)
{
	unsigned carry = digit;

	for (size_t i = 0; i < *n; i++) {
		carry += bytes[i] * 10u;
		bytes[i] = (unsigned char)carry;
		carry >>= 8;
	}
	if (carry > 0 && *n == PICKLE_OP_MAX_LONG)
		return false;
	if (carry > 0)
		bytes[(*n)++] = (unsigned char)carry;
	return true;
}

bool
pickle_put_decimal(struct buf *b, const char *digits, size_t len)
{
	unsigned char bytes[PICKLE_OP_MAX_LONG + 1] = {0};
	const bool negative = len > 0 && digits[0] == '-';
	unsigned carry = 1;
	size_t n = 0;

	if (len == negative)
		return false;
	for (size_t i = negative; i < len; i++)
		if (digits[i] < '0' || digits[i] > '9' || !shift_in(bytes, &n, (unsigned)(digits[i] - '0')))
			return false;
	if (n == 0 || bytes[n - 1] > 127)
		n++; /* room for the sign */
	if (n > PICKLE_OP_MAX_LONG)
		return false;
	for (size_t i = 0; negative && i < n; i++) {
		carry += (unsigned char)~bytes[i];
		bytes[i] = (unsigned char)carry;
		carry >>= 8;
	}
	buf_putc(b, '\x8a');
	buf_putc(b, (char)n);
	buf_put(b, bytes, n);
	return true;
}

void
pickle_put_float(struct buf *b, double value)
{
	uint64_t bits;

	memcpy(&bits, &value, sizeof(bits));
	buf_putc(b, 'G');
	for (unsigned i = 8; i-- > 0;)
		buf_putc(b, (char)(bits >> (8 * i)));
}

void
pickle_put_str(struct buf *b, const char *text, size_t len)
{
	buf_putc(b, 'X');
	put_le(b, len, 4);
	buf_put(b, text, len);
}

void
pickle_put_latin1(struct buf *b, const void *bytes, size_t len)
{
	const unsigned char *from = bytes;
	size_t n = len;

	for (size_t i = 0; i < len; i++)
		n += from[i] > 127;
	buf_putc(b, PICKLE_OP_MARK);
	buf_putc(b, 'X');
	put_le(b, n, 4);
	for (size_t i = 0; i < len; i++) {
		if (from[i] > 127)
			buf_putc(b, (char)(0xc0 | from[i] >> 6));
		buf_putc(b, (char)(from[i] > 127 ? 0x80 | (from[i] & 0x3f) : from[i]));
	}
	pickle_put_str(b, "latin1", 6);
	buf_putc(b, PICKLE_OP_TUPLE);
	buf_putc(b, PICKLE_OP_REDUCE);
}

void
pickle_put_global(struct buf *b, const char *module, const char *name)
{
	buf_printf(b, "c%s\n%s\n", module, name);
}

static void
put_numbered(struct buf *b, char one, char four, uint32_t number)
{
	buf_putc(b, number <= UINT8_MAX ? one : four);
	put_le(b, number, number <= UINT8_MAX ? 1 : 4);
}

void
pickle_put_memo(struct buf *b, uint32_t number)
{
	put_numbered(b, 'q', 'r', number);
}

void
pickle_put_again(struct buf *b, uint32_t number)
{
	put_numbered(b, 'h', 'j', number);
}
