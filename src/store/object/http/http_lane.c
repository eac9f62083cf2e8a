/* SPDX-License-Identifier: Apache-2.0 */
/* http_lane: see http_lane.h. */
#include "store/object/http/http_lane.h"

#include <unistd.h>

#include "base/mem.h"
#include "base/os.h"
#include "store/object/libs.h"

struct http_lane *
http_lane_new(void)
{
	struct http_lane *lane = mem_zalloc(1, sizeof *lane);
	if (lane == NULL)
		return NULL;
	lane->multi = libs()->multi_init();
	if (lane->multi == NULL) {
		http_lane_free(lane);
		return NULL;
	}
	libs()->multi_setopt(lane->multi, CURLMOPT_MAXCONNECTS, (long)HTTP_MAX_PARALLEL);
	return lane;
}

void
http_lane_free(struct http_lane *lane)
{
	if (lane == NULL)
		return;
	for (size_t i = 0; i < HTTP_MAX_PARALLEL; i++)
		libs()->easy_cleanup(lane->easy[i]);
	if (lane->multi != NULL)
		libs()->multi_cleanup(lane->multi);
	mem_free(lane);
}

curl_socket_t
http_lane_open_socket(struct http_lane *lane, const struct curl_sockaddr *address)
{
	curl_socket_t fd = os_socket(address->family, address->socktype, address->protocol);
	if (fd != CURL_SOCKET_BAD && lane->n_sockets < HTTP_LANE_SOCKETS)
		lane->sockets[lane->n_sockets++] = fd;
	return fd;
}

int
http_lane_close_socket(void *arg, curl_socket_t fd)
{
	struct http_lane *lane = arg;
	size_t i = 0;
	while (i < lane->n_sockets && lane->sockets[i] != fd)
		i++;
	if (i < lane->n_sockets)
		lane->sockets[i] = lane->sockets[--lane->n_sockets];
	return close(fd);
}

void
http_lane_acknowledge(struct http_lane *lane)
{
	for (size_t i = 0; lane->has_answers && i < lane->n_sockets; i++)
		os_acknowledge(lane->sockets[i]);
	lane->has_answers = false;
}
