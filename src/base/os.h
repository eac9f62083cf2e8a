/* SPDX-License-Identifier: Apache-2.0 */
/* os: the calls that differ between Linux and macOS. A function whose call macOS lacks does nothing
 * there if only speed suffers. Otherwise its caller asks os_needs_linux, which reports an error. */
#ifndef PAWL_BASE_OS_H
#define PAWL_BASE_OS_H

#include <fcntl.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include "pawl.h"

#ifndef O_PATH
#define O_PATH O_NONBLOCK /* an open for reading that waits for no writer */
#endif
#ifndef MSG_CMSG_CLOEXEC
#define MSG_CMSG_CLOEXEC 0
#endif

/* 0 on Linux, else PAWL_EUNSUPPORTED: "<what> needs Linux". */
int os_needs_linux(const char *what, struct pawl_error *err);

/* fsync and fdatasync; F_FULLFSYNC on macOS, where fsync stops in the cache of the disk. */
int os_sync(int fd);
int os_sync_data(int fd);
void os_reserve(int fd, uint64_t nbytes); /* room for a file of that size */
void os_drop_cache(int fd);               /* the file's pages leave the memory */
/* Access and modification times. */
void os_times(const struct stat *st, struct timespec ret[2]);

/* pipe, socketpair (AF_UNIX) and socket, closed in every program we start. A send with MSG_NOSIGNAL
 * to a socket without a reader raises no signal. */
int os_pipe(int ret[2]);
int os_socketpair(int type, int ret[2]);
int os_socket(int family, int type, int protocol);
void os_acknowledge(int socket); /* TCP: acknowledges what has arrived without delay */

void os_huge_pages(void *ptr, size_t nbytes); /* a hint: fewer faults on first use */
bool os_fault_in(void *ptr, size_t nbytes);   /* false: not done */
uint64_t os_thread_faults(void);              /* minor page faults of this thread; 0 if they are not counted */
void os_wipe(void *ptr, size_t nbytes);       /* zeroes a secret, even if the memory is not used again */

char **os_environ(void); /* environ */

#endif
