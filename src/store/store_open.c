/* SPDX-License-Identifier: Apache-2.0 */
/* store_open: opens a store by its URL, with the layers that every store of that kind has. */
#include <ctype.h>
#include <string.h>

#include "base/err.h"
#include "base/mem.h"
#include "base/text.h"
#include "store/registry.h"
#include "store/user/store_user.h"

static int
refuse_url(const char *url, const char *why, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf known = {0};
	registry_describe(&known, false);
	return err_set(err, PAWL_EUSAGE, "%s%s, expected %s", url, why, buf_str(&known));
}

/* Length of "scheme" in "scheme:", or 0. A single letter is a name, not a scheme. */
static size_t
scheme_length(const char *url)
{
	size_t len = 0;
	if (!isalpha((unsigned char)url[0]))
		return 0;
	while (isalnum((unsigned char)url[len]) || url[len] == '+' || url[len] == '.' || url[len] == '-')
		len++;
	return url[len] == ':' && len > 1 ? len : 0;
}

int
store_check_slashes(const char *url, struct pawl_error *err)
{
	const size_t scheme = scheme_length(url);
	const char *rest = url + scheme + 1;
	if (registry_find(url) == NULL || strncmp(rest, "//", 2) == 0 || strncmp(url, "mem:", 4) == 0)
		return 0;
	const bool is_rooted = rest[0] == '/', is_file = strncmp(url, "file:", 5) == 0;
	return err_set(err, PAWL_EUSAGE, "%s: a URL has two slashes, expected %.*s:%s%s%s", url, (int)scheme, url,
	               is_rooted && !is_file ? "/" : "//", rest, is_rooted ? " (pathlib.Path removes one)" : "");
}

int
store_check_target(const char *url, struct pawl_error *err)
{
	if (strcmp(url, "mem:") != 0)
		return 0;
	return err_set(err, PAWL_EUSAGE, "mem: is lost when it is closed; choose another target");
}

/* Opens an engine on this machine. */
static int
open_local(const char *url, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err)
{
	if (strcmp(url, "mem:") == 0)
		return store_mem_open(ret, err);
	const char *path = text_skip_file(url);
	if (path != url && *path != '\0')
		return store_file_open(path, create, no_direct_io, ret, err);
	size_t scheme = scheme_length(url);
	TRY(store_check_slashes(url, err));
	bool known = registry_find(url) != NULL;
	if (known || (scheme > 0 && strncmp(url + scheme, "://", 3) == 0))
		return refuse_url(url, known ? ": malformed URL" : ": unknown kind of store", err);
	return store_file_open(url, create, no_direct_io, ret, err);
}

/* True for "hdfs://..", or "simplecache::hdfs://..", which no engine here opens. */
static bool
is_unknown_url(const char *url)
{
	size_t scheme = scheme_length(url);
	return scheme > 0 && registry_find(url) == NULL &&
	       (strncmp(url + scheme, "://", 3) == 0 ||
	        (strncmp(url + scheme, "::", 2) == 0 && strstr(url, "://") != NULL));
}

static int
open_remote(const void *kind, const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	return ((const struct store_kind *)kind)->open(url, create, ret, err);
}

static int
open_users(const void *stores, const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	TRY(store_user_check(stores, err));
	return store_user_open(stores, url, create, ret, err);
}

int
store_open(const char *url, bool create, bool no_direct_io, struct store **ret, struct pawl_error *err)
{
	return store_open_with(NULL, url, create, no_direct_io, ret, err);
}

int
store_open_with(const struct pawl_stores *stores, const char *url, bool create, bool no_direct_io, struct store **ret,
                struct pawl_error *err)
{
	if (url == NULL || url[0] == '\0')
		return refuse_url("", "the store's URL is empty", err);
	const struct store_kind *kind = registry_find(url);
	bool is_remote = kind != NULL && kind->is_remote && strncmp(url + strlen(kind->scheme), "://", 3) == 0;
	if (is_remote && kind->missing != NULL)
		return err_set(err, PAWL_EUNSUPPORTED, "%s: this build of pawl has no %s:// stores: %s", url,
		               kind->scheme, kind->missing);
	if (is_remote)
		return store_retry_open(open_remote, kind, url, create, &(struct store_retry){0}, ret, err);
	if (stores != NULL && is_unknown_url(url))
		return store_retry_open(open_users, stores, url, create, &(struct store_retry){0}, ret, err);
	struct store *s;
	TRY(open_local(url, create, no_direct_io, &s, err));
	int rc = store_log(&s, err);
	if (rc < 0)
		store_close(s);
	else
		*ret = s;
	return rc;
}

int
store_set_place(struct store *s, const char *place, struct pawl_error *err)
{
	while (s->inner)
		s = s->inner;
	s->place = mem_strdup(place);
	return s->place ? 0 : err_nomem(err, place);
}
