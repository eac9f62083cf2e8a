/* SPDX-License-Identifier: Apache-2.0 */
/*
 * object_url: reads the URL of an object store and the endpoint of a server. See object.h. P17: a
 * prefix is a path of plain names. P18: an endpoint that names a user is not shown.
 */
#include "store/object/object.h"

#include <string.h>

#include "base/err.h"
#include "base/text.h"

int
object_keep(struct object_config *c, const char *text, const char **ret, struct pawl_error *err)
{
	*ret = bump_strndup(&c->memory, text, strlen(text));
	return *ret != NULL ? 0 : err_nomem(err, "object store");
}

static bool
is_bucket(const char *name, size_t len)
{
	if (len < 3 || len > 255)
		return false;
	for (size_t i = 0; i < len; i++) {
		char c = name[i];
		bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
		if (!plain && (i == 0 || (c != '-' && c != '_' && c != '.')))
			return false;
	}
	return true;
}

int
object_read_url(struct object_config *c, const char *url, const char *begin, const char *kind, struct pawl_error *err)
{
	size_t len = strcspn(begin, "/"), scheme = strcspn(url, ":");
	if (memchr(begin, ':', len) != NULL && strchr(begin, '@') != NULL) /* not shown: it may be a secret (P18) */
		return err_set(err, PAWL_EUSAGE, "%.*s://...: credentials in a URL are refused", (int)scheme, url);
	if (len == 0)
		return err_set(err, PAWL_EUSAGE, "%.300s: has no %s, expected %.*s://%s/prefix", url, kind, (int)scheme,
		               url, kind);
	if (!is_bucket(begin, len))
		return err_set(err, PAWL_EUSAGE, "%.300s: \"%.*s\" is not a name of a %s", url, (int)len, begin, kind);
	const char *prefix = begin + len;
	while (*prefix == '/')
		prefix++;
	size_t n = strlen(prefix);
	while (n > 0 && prefix[n - 1] == '/')
		n--;
	c->bucket = bump_strndup(&c->memory, begin, len);
	char *folder = bump_strndup(&c->memory, prefix, n);
	if (c->bucket == NULL || folder == NULL)
		return err_nomem(err, "object store");
	if (n > 0 && !text_is_key(folder))
		return err_set(err, PAWL_EUSAGE, "%.300s: the part after the %s is not a path of plain names", url,
		               kind);
	c->prefix = n > 0 ? bump_printf(&c->memory, "%s/", folder) : "";
	c->root = bump_printf(&c->memory, "%.*s%s%s%s", (int)(begin - url), url, c->bucket, n > 0 ? "/" : "", folder);
	return c->prefix == NULL || c->root == NULL ? err_nomem(err, "object store") : 0;
}

static int
bad_endpoint(const char *service, const char *endpoint, const char *why, struct pawl_error *err)
{
	/* The text before an '@' may be a password. */
	if (strchr(endpoint, '@') != NULL)
		return err_set(err, PAWL_EUSAGE, "the endpoint of %s names a user, expected http(s)://host:port",
		               service);
	return err_set(err, PAWL_EUSAGE, "%.200s: is not the %s of %s, expected http(s)://host:port", endpoint, why,
	               service);
}

int
object_read_endpoint(struct object_config *c, const char *service, const char *endpoint, struct pawl_error *err)
{
	c->https = strncmp(endpoint, "https://", 8) == 0;
	if (!c->https && strncmp(endpoint, "http://", 7) != 0)
		return bad_endpoint(service, endpoint, "endpoint", err);
	const char *host = endpoint + (c->https ? 8 : 7);
	size_t len = strcspn(host, "/?#");
	if (len == 0 || strpbrk(endpoint, "@?# \t\\") != NULL)
		return bad_endpoint(service, endpoint, "plain endpoint", err);
	size_t n = strlen(host + len);
	while (n > 0 && host[len + n - 1] == '/')
		n--;
	/* Clients leave the usual port out of the Host header, which is signed. */
	const char *usual = c->https ? ":443" : ":80";
	size_t tail = strlen(usual);
	size_t host_len = len > tail && memcmp(host + len - tail, usual, tail) == 0 ? len - tail : len;
	c->host = bump_strndup(&c->memory, host, host_len);
	c->base_path = bump_strndup(&c->memory, host + len, n);
	return c->host == NULL || c->base_path == NULL ? err_nomem(err, "object store") : 0;
}
