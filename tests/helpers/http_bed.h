/* SPDX-License-Identifier: Apache-2.0 */
/* http_bed: a server on the loopback that gives prepared answers, one connection at a time, for
 * tests of http and of its callers. */
#ifndef PAWL_TEST_HTTP_BED_H
#define PAWL_TEST_HTTP_BED_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define HTTP_BED_RULES 8

struct http_bed {
	int fd;
	char url[64]; /* "http://127.0.0.1:PORT" */
	pthread_t thread;
	atomic_bool stop;
	struct http_bed_rule {
		const char *request; /* what it begins with: "GET /x" */
		const char *answer;  /* all of it; NULL: none ever */
		atomic_uint seen;
	} rules[HTTP_BED_RULES];
	char last[65536]; /* the last request, head and body; look at it when the call has returned */
};

static inline void
http_bed_serve(struct http_bed *bed, int fd)
{
	size_t n = 0, want = 0;
	while (n < sizeof bed->last - 1 && (want == 0 || n < want)) {
		ssize_t got = recv(fd, bed->last + n, sizeof bed->last - 1 - n, 0);
		if (got <= 0)
			return;
		n += (size_t)got;
		bed->last[n] = '\0';
		char *end = strstr(bed->last, "\r\n\r\n");
		if (end == NULL || want > 0)
			continue;
		char *length = strcasestr(bed->last, "\r\nContent-Length:");
		want = (size_t)(end + 4 - bed->last) +
		       (length != NULL && length < end ? strtoul(length + 17, NULL, 10) : 0);
	}
	for (size_t i = 0; i < HTTP_BED_RULES && bed->rules[i].request != NULL; i++) {
		struct http_bed_rule *rule = &bed->rules[i];
		if (strncmp(bed->last, rule->request, strlen(rule->request)) != 0)
			continue;
		atomic_fetch_add(&rule->seen, 1);
		while (rule->answer == NULL && !atomic_load(&bed->stop))
			usleep(1000);
		if (rule->answer != NULL)
			send(fd, rule->answer, strlen(rule->answer), MSG_NOSIGNAL);
		return;
	}
	static const char none[] = "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
	send(fd, none, sizeof none - 1, MSG_NOSIGNAL);
}

static inline void *
http_bed_main(void *arg)
{
	struct http_bed *bed = arg;
	while (!atomic_load(&bed->stop)) {
		struct pollfd waiting = {.fd = bed->fd, .events = POLLIN};
		if (poll(&waiting, 1, 20) <= 0)
			continue;
		int fd = accept(bed->fd, NULL, NULL);
		if (fd < 0)
			continue;
		http_bed_serve(bed, fd);
		shutdown(fd, SHUT_WR);
		close(fd);
	}
	return NULL;
}

static inline void
http_bed_open(struct http_bed *bed)
{
	struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t len = sizeof address;
	bed->fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	assert_true(bed->fd >= 0);
	assert_int_equal(bind(bed->fd, (struct sockaddr *)&address, len), 0);
	assert_int_equal(listen(bed->fd, 16), 0);
	assert_int_equal(getsockname(bed->fd, (struct sockaddr *)&address, &len), 0);
	snprintf(bed->url, sizeof bed->url, "http://127.0.0.1:%u", ntohs(address.sin_port));
	assert_int_equal(pthread_create(&bed->thread, NULL, http_bed_main, bed), 0);
}

static inline void
http_bed_close(struct http_bed *bed)
{
	atomic_store(&bed->stop, true);
	pthread_join(bed->thread, NULL);
	close(bed->fd);
}

#endif
