/* SPDX-License-Identifier: Apache-2.0 */
/* sftp_wire: packets and the state of a connection. Shared by sftp.c and sftp_data.c, and private
 * to them. */
#ifndef PAWL_STORE_SFTP_WIRE_H
#define PAWL_STORE_SFTP_WIRE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"
#include "store/ssh/sftp.h"

enum {
	SSH_FXP_INIT = 1,
	SSH_FXP_VERSION = 2,
	SSH_FXP_OPEN = 3,
	SSH_FXP_CLOSE = 4,
	SSH_FXP_READ = 5,
	SSH_FXP_WRITE = 6,
	SSH_FXP_LSTAT = 7,
	SSH_FXP_FSTAT = 8,
	SSH_FXP_OPENDIR = 11,
	SSH_FXP_READDIR = 12,
	SSH_FXP_REMOVE = 13,
	SSH_FXP_MKDIR = 14,
	SSH_FXP_RMDIR = 15,
	SSH_FXP_STAT = 17,
	SSH_FXP_RENAME = 18,
	SSH_FXP_SYMLINK = 20,
	SSH_FXP_STATUS = 101,
	SSH_FXP_HANDLE = 102,
	SSH_FXP_DATA = 103,
	SSH_FXP_NAME = 104,
	SSH_FXP_ATTRS = 105,
	SSH_FXP_EXTENDED = 200,
	SSH_FXP_EXTENDED_REPLY = 201
};
enum {
	SSH_FX_OK = 0,
	SSH_FX_EOF = 1,
	SSH_FX_NO_SUCH_FILE = 2,
	SSH_FX_PERMISSION_DENIED = 3,
	SSH_FX_NO_CONNECTION = 6,
	SSH_FX_CONNECTION_LOST = 7,
	SSH_FX_OP_UNSUPPORTED = 8
};

#define WIRE_CHUNK_BYTES 32768u                /* of one read or write: every server accepts it */
#define WIRE_MAX_CHUNK_BYTES (255u << 10)      /* .. and the most that a server is asked for */
#define WIRE_MAX_PACKET ((256u << 10) + 1024u) /* from the server */
#define WIRE_BUFFER_BYTES ((size_t)1 << 20)

struct sftp {
	int fd, said;
	int64_t timeout_ms;
	unsigned features;
	uint32_t last_id, read_bytes, write_bytes;
	bool greeted, lost;
	unsigned char *in; /* WIRE_BUFFER_BYTES; received but not yet used: in_begin to in_end */
	size_t in_begin, in_end;
	struct buf tail; /* the last output of the program */
};

/* A received packet, valid until the next one is received. Reading beyond its end sets failed and
 * returns zeros. */
struct wire {
	uint8_t type;
	bool failed;
	const unsigned char *at, *end;
};
uint32_t sftp_u32(const unsigned char *p);
void sftp_set_u32(unsigned char *p, uint32_t value);
void sftp_set_u64(unsigned char *p, uint64_t value);
uint32_t sftp_get_u32(struct wire *w);
uint64_t sftp_get_u64(struct wire *w);
const unsigned char *sftp_get_string(struct wire *w, uint32_t *ret_len);

int sftp_send(struct sftp *s, const void *ptr, size_t len, struct pawl_error *err);
int sftp_receive(struct sftp *s, struct wire *ret, struct pawl_error *err);
/* Reads a STATUS packet after its id, and returns its code as ours. */
int sftp_status(struct sftp *s, struct wire *w, const char *verb, struct pawl_error *err);
int sftp_mistrust(struct sftp *s, const char *what, struct pawl_error *err);

#endif
