/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pickle_write: opcodes of pickle protocol 2, only those that torch.load(weights_only=True)
 * accepts. Errors stick to the buffer (buf.h).
 */
#ifndef PAWL_FORMAT_PICKLE_WRITE_H
#define PAWL_FORMAT_PICKLE_WRITE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

#define PICKLE_OP_MAX_LONG 255u /* only LONG1 is accepted: 2,039 bits and a sign */

void pickle_put_begin(struct buf *b); /* PROTO 2 */
void pickle_put_end(struct buf *b);   /* STOP */
void pickle_put_op(struct buf *b, char op);
void pickle_put_bool(struct buf *b, bool value);
void pickle_put_int(struct buf *b, int64_t value);
/* A decimal number of any length, with an optional sign; false if it is not one or is too long. */
bool pickle_put_decimal(struct buf *b, const char *digits, size_t len);
void pickle_put_float(struct buf *b, double value);
/* len below 2^32. */
void pickle_put_str(struct buf *b, const char *text, size_t len);
/* As _codecs.encode(text, 'latin1'), the form of bytes in protocol 2. The caller has put the global
 * before; it is called here. */
void pickle_put_latin1(struct buf *b, const void *bytes, size_t len);
void pickle_put_global(struct buf *b, const char *module, const char *name);
/* Gives the top of the stack a number; a numbered value can be put again. */
void pickle_put_memo(struct buf *b, uint32_t number);
void pickle_put_again(struct buf *b, uint32_t number);

/* Opcodes without arguments. */
#define PICKLE_OP_NONE 'N'
#define PICKLE_OP_MARK '('
#define PICKLE_OP_TUPLE 't'
#define PICKLE_OP_EMPTY_TUPLE ')'
#define PICKLE_OP_EMPTY_LIST ']'
#define PICKLE_OP_EMPTY_DICT '}'
#define PICKLE_OP_APPENDS 'e'
#define PICKLE_OP_SETITEMS 'u'
#define PICKLE_OP_REDUCE 'R'
#define PICKLE_OP_BUILD 'b'
#define PICKLE_OP_NEW '\x81'
#define PICKLE_OP_PERSISTENT 'Q'

#endif
