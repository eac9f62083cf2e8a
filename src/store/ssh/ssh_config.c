/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ssh_config: reads ssh://user@host:port/path?identity=..&known_hosts=..&timeout=.., and builds the
 * command line of ssh from it. See docs/how-to/stores/ssh.md.
 *
 * No part of a URL may become an option of ssh or run a command. Users and hosts are plain names
 * that do not begin with '-'. The options are only files and times. All other settings of ssh come
 * from its own configuration, or from the environment. P18: a password in a URL is refused, and not
 * repeated.
 */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/proc.h"
#include "base/text.h"
#include "store/ssh/store_ssh.h"

#define SCHEME "ssh://"
#define DEFAULT_TIMEOUT_S 60
#define MAX_TIMEOUT_S 3600
#define MAX_ARGS 32

struct url {
	const char *shown; /* without the query; allocated in the store's memory */
	const char *user, *host, *port, *path, *identity, *known_hosts;
	long timeout_s;
};

static int
refuse_address(const char *shown, const char *why, struct pawl_error *err)
{
	return err_set(err, PAWL_EUSAGE, "%.300s: %s, expected ssh://user@host:port/path", shown, why);
}

/* Decodes %41 in place; false for NUL and for digits that are not hexadecimal. */
static bool
decode_percent(char *text)
{
	char *to = text;
	for (const char *c = text; *c != '\0'; c++) {
		if (*c != '%') {
			*to++ = *c;
			continue;
		}
		int high = text_hex_digit(c[1]), low = high < 0 ? -1 : text_hex_digit(c[2]);
		if (low < 0 || high * 16 + low == 0)
			return false;
		*to++ = (char)(high * 16 + low);
		c += 2;
	}
	*to = '\0';
	return true;
}

static bool
is_name(const char *text, const char *more)
{
	if (text[0] == '\0' || text[0] == '-')
		return false;
	for (; *text != '\0'; text++)
		if (!isalnum((unsigned char)*text) && strchr(more, *text) == NULL)
			return false;
	return true;
}

static bool
is_number(const char *text, long least, long most, long *ret)
{
	char *end;
	if (!isdigit((unsigned char)text[0]))
		return false;
	*ret = strtol(text, &end, 10);
	return *end == '\0' && *ret >= least && *ret <= most;
}

static int
read_query(char *query, struct url *u, struct pawl_error *err)
{
	char *rest = NULL;
	for (char *part = strtok_r(query, "&", &rest); part != NULL; part = strtok_r(NULL, "&", &rest)) {
		char *value = strchr(part, '=');
		if (value == NULL || !decode_percent(value))
			return refuse_address(u->shown, "an option of the URL is not NAME=VALUE", err);
		*value++ = '\0';
		if (strcmp(part, "identity") == 0 && value[0] != '\0')
			u->identity = value;
		else if (strcmp(part, "known_hosts") == 0 && value[0] != '\0')
			u->known_hosts = value;
		else if (strcmp(part, "timeout") == 0 && is_number(value, 1, MAX_TIMEOUT_S, &u->timeout_s))
			continue;
		else
			return err_set(err, PAWL_EUSAGE,
			               "%.300s: option %.40s of the URL: expected identity=FILE, known_hosts=FILE or "
			               "timeout=1..%d",
			               u->shown, part, MAX_TIMEOUT_S);
	}
	return 0;
}

/* "user@host:port" */
static int
read_host(char *text, struct url *u, struct pawl_error *err)
{
	long port;
	char *at = strrchr(text, '@'), *host = at != NULL ? at + 1 : text, *end;
	if (at != NULL) {
		*at = '\0';
		u->user = text;
		if (!is_name(u->user, "._-+@"))
			return refuse_address(SCHEME "...", "the user name is malformed", err);
	}
	if (host[0] == '[') { /* an IPv6 address */
		end = strchr(++host, ']');
		if (end == NULL)
			return refuse_address(SCHEME "...", "']' is missing", err);
		*end++ = '\0';
	} else {
		end = host + strcspn(host, ":");
	}
	if (*end == ':') {
		*end = '\0';
		u->port = end + 1;
		if (!is_number(u->port, 1, 65535, &port))
			return refuse_address(u->shown, "the port is not a number from 1 to 65535", err);
	} else if (*end != '\0') {
		return refuse_address(u->shown, "the host name is malformed", err);
	}
	u->host = host;
	return is_name(host, "._-:%") ? 0 : refuse_address(u->shown, "the host name is malformed", err);
}

static int
read_path(char *path, struct url *u, struct pawl_error *err)
{
	if (!decode_percent(path))
		return refuse_address(u->shown, "the path has an invalid % in it", err);
	size_t len = strlen(path);
	while (len > 1 && path[len - 1] == '/')
		path[--len] = '\0';
	if (strcmp(path, "/~") == 0)
		path = (char *)".";
	else if (strncmp(path, "/~/", 3) == 0)
		path += 3;
	if (path[0] == '\0' || strcmp(path, "/") == 0)
		return refuse_address(u->shown, "the path is missing", err);
	for (const char *c = path; *c != '\0'; c++)
		if ((unsigned char)*c < ' ')
			return refuse_address(u->shown, "the path has control characters", err);
	u->path = path;
	return 0;
}

/* Parses copies of both parts in place. */
static int
read_url(struct bump *memory, const char *url, struct url *u, struct pawl_error *err)
{
	const char *begin = url + strlen(SCHEME), *query = strchr(begin, '?');
	size_t len = query != NULL ? (size_t)(query - url) : strlen(url);
	const char *at = memchr(begin, '@', strcspn(begin, "/?")), *colon = strchr(begin, ':');
	if (at != NULL && colon != NULL && colon < at)
		return err_set(err, PAWL_EUSAGE,
		               SCHEME "...: a password in a URL is refused; expected a key or an agent");
	/* A password with a '/' in it looks like a port and a path: not shown (P18). */
	bool odd = colon != NULL && colon < begin + strcspn(begin, "/?") && strchr(colon, '@') != NULL;
	u->shown = odd ? SCHEME "..." : bump_strndup(memory, url, len);
	char *host = bump_strndup(memory, begin, strcspn(begin, "/?"));
	char *path = bump_strndup(memory, begin + strcspn(begin, "/?"), len - strlen(SCHEME) - strcspn(begin, "/?"));
	char *options = bump_strndup(memory, query != NULL ? query + 1 : "", query != NULL ? strlen(query + 1) : 0);
	if (u->shown == NULL || host == NULL || path == NULL || options == NULL)
		return err_nomem(err, SCHEME "...");
	TRY(read_query(options, u, err));
	TRY(read_host(host, u, err));
	return read_path(path, u, err);
}

struct args {
	struct bump *memory;
	char **argv;
	size_t n;
	bool failed;
};

static void
add_option(struct args *a, const char *word, const char *value)
{
	char *text = value != NULL ? bump_printf(a->memory, "%s%s", word, value) : bump_printf(a->memory, "%s", word);
	a->failed = a->failed || text == NULL;
	a->argv[a->n++] = text;
}

static int
make_argv(struct ssh_config *c, const struct url *u, struct pawl_error *err)
{
	static const char *const always[] = {
		"-oBatchMode=yes",   "-oServerAliveInterval=15", "-oServerAliveCountMax=4", "-oClearAllForwardings=yes",
		"-oForwardAgent=no", "-oForwardX11=no",          "-oPermitLocalCommand=no", "-oRequestTTY=no"};
	const char *given = getenv("PAWL_SSH");
	char **first;
	TRY(proc_split(given != NULL && given[0] != '\0' ? given : "ssh", &c->memory, &first, err));
	size_t n_first = 0;
	while (first[n_first] != NULL)
		n_first++;
	struct args a = {.memory = &c->memory};
	a.argv = bump_array(&c->memory, n_first + MAX_ARGS, sizeof a.argv[0]);
	if (a.argv == NULL)
		return err_nomem(err, u->shown);
	for (; a.n < n_first; a.n++)
		a.argv[a.n] = first[a.n];
	for (size_t i = 0; i < sizeof always / sizeof always[0]; i++)
		add_option(&a, always[i], NULL);
	char *limit = bump_printf(&c->memory, "-oConnectTimeout=%ld", u->timeout_s < 30 ? u->timeout_s : 30);
	a.failed = a.failed || limit == NULL;
	a.argv[a.n++] = limit;
	if (u->identity != NULL) {
		add_option(&a, "-oIdentitiesOnly=yes", NULL);
		add_option(&a, "-i", NULL);
		add_option(&a, u->identity, NULL);
	}
	if (u->known_hosts != NULL)
		add_option(&a, "-oUserKnownHostsFile=", u->known_hosts);
	if (u->port != NULL)
		add_option(&a, "-oPort=", u->port);
	if (u->user != NULL)
		add_option(&a, "-oUser=", u->user);
	add_option(&a, "-s", NULL);
	add_option(&a, "--", NULL);
	add_option(&a, u->host, NULL);
	add_option(&a, "sftp", NULL);
	c->argv = a.argv;
	return a.failed ? err_nomem(err, u->shown) : 0;
}

int
ssh_config_read(const char *url, struct ssh_config *ret, struct pawl_error *err)
{
	struct url u = {.timeout_s = DEFAULT_TIMEOUT_S};
	*ret = (struct ssh_config){0};
	int rc = read_url(&ret->memory, url, &u, err);
	if (rc == 0)
		rc = make_argv(ret, &u, err);
	if (rc < 0) {
		bump_clear(&ret->memory);
		return rc;
	}
	ret->root = u.shown;
	ret->path = u.path;
	ret->timeout_ms = (int64_t)u.timeout_s * 1000;
	return 0;
}
