/* SPDX-License-Identifier: Apache-2.0 */
/*
 * http_address: encodes parts of URLs; finds the host in one, and whether it is this machine or a
 * link-local address. Only metadata services may use the latter. Pure.
 */
#include "store/object/http/http.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

void
http_encode(struct buf *out, const char *text, bool keep_slash)
{
	static const char digits[] = "0123456789ABCDEF";
	for (const unsigned char *c = (const unsigned char *)text; *c != '\0'; c++) {
		if ((*c >= '0' && *c <= '9') || (*c >= 'A' && *c <= 'Z') || (*c >= 'a' && *c <= 'z') ||
		    strchr("-._~", *c) != NULL || (*c == '/' && keep_slash)) {
			buf_putc(out, (char)*c);
			continue;
		}
		const char escape[3] = {'%', digits[*c >> 4], digits[*c & 15]};
		buf_put(out, escape, 3);
	}
}

bool
http_is_loopback(const char *host, size_t len)
{
	char text[64];
	if (len > 2 && host[0] == '[' && host[len - 1] == ']') {
		host++;
		len -= 2;
	}
	if (len >= sizeof text)
		return false;
	memcpy(text, host, len);
	text[len] = '\0';
	struct in_addr v4;
	if (inet_pton(AF_INET, text, &v4) == 1)
		return (ntohl(v4.s_addr) >> 24) == 127;
	return strcasecmp(text, "localhost") == 0 || strcmp(text, "::1") == 0;
}

bool
http_is_link_local(const struct sockaddr *address)
{
	if (address->sa_family == AF_INET) {
		const struct sockaddr_in *v4 = (const void *)address;
		return (ntohl(v4->sin_addr.s_addr) >> 16) == 0xa9fe;
	}
	if (address->sa_family != AF_INET6)
		return false;
	const struct sockaddr_in6 *v6 = (const void *)address;
	const uint8_t *b = v6->sin6_addr.s6_addr;
	if (IN6_IS_ADDR_V4MAPPED(&v6->sin6_addr))
		return b[12] == 0xa9 && b[13] == 0xfe;
	return b[0] == 0xfe && (b[1] & 0xc0) == 0x80;
}

const char *
http_host_of(const char *url, size_t *ret_len)
{
	const char *host = strstr(url, "://");
	host = host != NULL ? host + 3 : url;
	*ret_len = strcspn(host, "/?#");
	return host;
}

bool
http_is_loopback_url(const char *url)
{
	size_t len;
	const char *host = http_host_of(url, &len);
	if (host[0] == '[')
		return http_is_loopback(host, strcspn(host, "]") + 1);
	size_t name = strcspn(host, ":/?#");
	return http_is_loopback(host, name < len ? name : len);
}
