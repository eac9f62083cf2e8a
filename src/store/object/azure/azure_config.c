/* SPDX-License-Identifier: Apache-2.0 */
/*
 * azure_config: reads the account, endpoint and credentials of an az:// URL from the URL and the
 * environment, under the names that Azure's own tools use. See store_azure.h and
 * docs/how-to/stores/azure.md.
 *
 *   az://container/prefix                               the account is the environment's
 *   az://account.blob.core.windows.net/container/prefix
 *
 * AZURE_STORAGE_CONNECTION_STRING takes precedence over all other variables.
 */
#include "store/object/azure/store_azure.h"

#include <string.h>
#include <strings.h>

#include "base/err.h"
#include "base/os.h"
#include "base/text.h"

#define CONNECTION "AZURE_STORAGE_CONNECTION_STRING"
#define ENVIRONMENT "the environment"

/* The settings of the environment. Their strings are stored in memory. */
struct settings {
	struct bump memory;
	const char *source;
	const char *account, *key, *sas, *endpoint, *suffix, *protocol;
};

static void
settings_clear(struct settings *s)
{
	if (s->key != NULL)
		os_wipe((char *)(uintptr_t)s->key, strlen(s->key));
	if (s->sas != NULL)
		os_wipe((char *)(uintptr_t)s->sas, strlen(s->sas));
	bump_clear(&s->memory);
}

static const char **
field_of(struct settings *s, const char *name, size_t len)
{
	const struct {
		const char *name;
		const char **field;
	} fields[] = {{"AccountName", &s->account},       {"AccountKey", &s->key},
	              {"SharedAccessSignature", &s->sas}, {"BlobEndpoint", &s->endpoint},
	              {"EndpointSuffix", &s->suffix},     {"DefaultEndpointsProtocol", &s->protocol}};
	for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++)
		if (strlen(fields[i].name) == len && strncasecmp(fields[i].name, name, len) == 0)
			return fields[i].field;
	return NULL;
}

/* Parses "Name=value;Name=value"; values may hold '='. Names of other services are skipped. */
static int
read_connection(struct settings *s, const char *text, struct pawl_error *err)
{
	s->source = CONNECTION;
	while (text[0] != '\0') {
		size_t len = strcspn(text, ";"), name = strcspn(text, "=;");
		const char **field = name < len ? field_of(s, text, name) : NULL;
		if (field != NULL) {
			*field = bump_strndup(&s->memory, text + name + 1, len - name - 1);
			if (*field == NULL)
				return err_nomem(err, CONNECTION "");
		} else if (name == len && len > 0) {
			return err_set(err, PAWL_EUSAGE, CONNECTION ": expected parts of the form Name=value");
		}
		text += len + (text[len] == ';');
	}
	return 0;
}

static int
read_setting(struct settings *s, const char **field, const char *name, const char *other, struct pawl_error *err)
{
	const char *value = cred_env(name);
	if (value == NULL && other != NULL)
		value = cred_env(other);
	if (value == NULL)
		return 0;
	*field = bump_strndup(&s->memory, value, strlen(value));
	return *field != NULL ? 0 : err_nomem(err, name);
}

static int
read_settings(struct settings *s, struct pawl_error *err)
{
	const char *connection = cred_env(CONNECTION);
	if (connection != NULL)
		return read_connection(s, connection, err);
	s->source = ENVIRONMENT;
	TRY(read_setting(s, &s->account, "AZURE_STORAGE_ACCOUNT", "AZURE_STORAGE_ACCOUNT_NAME", err));
	TRY(read_setting(s, &s->key, "AZURE_STORAGE_KEY", "AZURE_STORAGE_ACCOUNT_KEY", err));
	TRY(read_setting(s, &s->sas, "AZURE_STORAGE_SAS_TOKEN", NULL, err));
	return read_setting(s, &s->endpoint, "AZURE_STORAGE_SERVICE_ENDPOINT", "AZURE_STORAGE_ENDPOINT", err);
}

/* ------------------------------------------------------------------ credentials */

/* The time of expiry in a shared access signature; 0 = it names no time (a stored policy does). */
static int
sas_expiry(const struct settings *s, int64_t *ret, struct pawl_error *err)
{
	*ret = 0;
	for (const char *at = s->sas; at != NULL && at[0] != '\0'; at = strchr(at, '&')) {
		at += at[0] == '&';
		if (strncmp(at, "se=", 3) != 0)
			continue;
		char text[64];
		size_t len = strcspn(at + 3, "&");
		if (len >= sizeof text)
			break;
		memcpy(text, at + 3, len);
		text[len] = '\0';
		object_decode(text);
		/* A date alone, or without seconds, is allowed. */
		if (strlen(text) == 10)
			text_copy(text + 10, sizeof text - 10, "T00:00:00Z");
		else if (strlen(text) == 17)
			text_copy(text + 16, sizeof text - 16, ":00Z");
		*ret = http_iso_time(text);
		if (*ret > 0)
			return 0;
		return err_set(err, PAWL_EAUTH, "%s: the time of expiry in the shared access signature is malformed",
		               s->source);
	}
	return 0;
}

static int
find_keys(struct settings *s, struct cred_keys *ret, struct pawl_error *err)
{
	PAWL_CLEAN(cred_wipe_buf) struct buf raw = {0};
	int64_t expires_s;
	TRY(read_settings(s, err));
	if (s->key != NULL) {
		if (text_get_base64(s->key, strlen(s->key), &raw, NULL) < 0 || raw.len == 0)
			return err_set(err, PAWL_EAUTH, "%s: the account key is malformed: expected base64", s->source);
		/* The account comes from the URL or the settings, and is checked when they are
		 * read. */
		return cred_keys_set(ret, s->source, s->account != NULL ? s->account : "-", s->key, NULL, NULL, err);
	}
	if (s->sas == NULL)
		return err_set(err, PAWL_EAUTH,
		               "no credentials for Azure Blob storage in the environment: " CONNECTION
		               ", AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN");
	if (s->sas[0] == '?')
		s->sas++;
	if (strpbrk(s->sas, "#/\\\"<>") != NULL || strstr(s->sas, "sig=") == NULL)
		return err_set(err, PAWL_EAUTH,
		               "%s: the shared access signature is malformed: expected \"sv=..&sig=..\"", s->source);
	TRY(sas_expiry(s, &expires_s, err));
	return cred_keys_set_token(ret, s->source, s->sas, expires_s, err);
}

int
azure_cred_find(const struct cred_where *where, struct cred_keys *ret, struct pawl_error *err)
{
	(void)where;
	PAWL_CLEAN(settings_clear) struct settings s = {0};
	return find_keys(&s, ret, err);
}

/* ---------------------------------------------------------------- the endpoint */

static bool
is_account(const char *name, size_t len)
{
	return len >= 3 && len <= 24 && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789") >= len;
}

/* A host in the URL names the account by its first label. Returns the position of the container. */
static const char *
take_host(struct object_config *c, const char *url, const char **ret_host)
{
	const char *begin = url + strlen("az://");
	size_t len = strcspn(begin, "/");
	*ret_host = NULL;
	if (memchr(begin, '.', len) == NULL)
		return begin;
	*ret_host = bump_strndup(&c->memory, begin, len);
	return begin + len + (begin[len] == '/');
}

static int
take_account(struct object_config *c, const struct settings *s, const char *url, const char *host,
             struct pawl_error *err)
{
	size_t len = host != NULL ? strcspn(host, ".") : 0;
	if (host != NULL && s->account != NULL && (strlen(s->account) != len || strncmp(host, s->account, len) != 0))
		return err_set(err, PAWL_EUSAGE, "%.300s: the credentials of %s are for account \"%.40s\"", url,
		               s->source, s->account);
	const char *account = host != NULL ? host : s->account;
	if (host == NULL)
		len = account != NULL ? strlen(account) : 0;
	if (account == NULL && s->endpoint == NULL)
		return err_set(err, PAWL_EUSAGE,
		               "%.300s: no storage account: expected az://ACCOUNT.blob.core.windows.net/.., "
		               "AZURE_STORAGE_ACCOUNT or " CONNECTION,
		               url);
	if (account == NULL && s->key != NULL)
		return err_set(err, PAWL_EUSAGE, "%.300s: an account key needs the name of its account", url);
	if (account != NULL && !is_account(account, len))
		return err_set(err, PAWL_EUSAGE, "%.300s: \"%.*s\" is not a name of a storage account", url,
		               len < 80 ? (int)len : 80, account);
	c->account = bump_strndup(&c->memory, account != NULL ? account : "", len);
	return c->account != NULL ? 0 : err_nomem(err, "azure");
}

static int
read_all(struct object_config *c, struct settings *s, const char *url, struct pawl_error *err)
{
	const char *host;
	TRY(read_settings(s, err));
	const char *begin = take_host(c, url, &host);
	TRY(object_read_url(c, url, begin, "container", err));
	TRY(take_account(c, s, url, host, err));
	c->path_style =
		true; /* the account is in the host name or the endpoint's path, the container always in the path */
	c->sum = OBJECT_SUM_MD5;
	bool plain = s->protocol != NULL && strcasecmp(s->protocol, "http") == 0;
	const char *suffix = s->suffix != NULL ? s->suffix : "core.windows.net";
	const char *endpoint = s->endpoint;
	if (host != NULL)
		endpoint = bump_printf(&c->memory, "https://%s", host);
	else if (endpoint == NULL)
		endpoint = bump_printf(&c->memory, "%s://%s.blob.%s", plain ? "http" : "https", c->account, suffix);
	if (endpoint == NULL)
		return err_nomem(err, "azure");
	return object_read_endpoint(c, "Azure Blob storage", endpoint, err);
}

int
azure_config_read(const char *url, struct object_config *ret, struct pawl_error *err)
{
	PAWL_CLEAN(settings_clear) struct settings s = {0};
	*ret = (struct object_config){0};
	int rc = read_all(ret, &s, url, err);
	if (rc < 0)
		bump_clear(&ret->memory);
	return rc;
}
