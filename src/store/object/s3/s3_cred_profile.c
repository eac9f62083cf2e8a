/* SPDX-License-Identifier: Apache-2.0 */
/*
 * s3_cred_profile: reads one profile from ~/.aws/credentials and ~/.aws/config
 * (AWS_SHARED_CREDENTIALS_FILE, AWS_CONFIG_FILE). See s3_cred.h.
 *
 * In the first file a section is named [name], in the second [profile name] ([default] in both). A
 * setting with an empty value may be followed by indented ones: "s3 =" and then "  addressing_style
 * = path". A key in the credentials file takes precedence.
 */
#include "store/object/s3/s3_cred.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"
#include "base/os.h"
#include "base/text.h"

const char *
s3_profile_get(const struct s3_profile *p, const char *key)
{
	for (const struct s3_setting *s = p->first; s != NULL; s = s->next)
		if (strcmp(s->key, key) == 0 && s->value[0] != '\0')
			return s->value;
	return NULL;
}

void
s3_profile_clear(struct s3_profile *p)
{
	for (struct s3_setting *s = p->first; s != NULL; s = s->next)
		os_wipe(s->value, strlen(s->value));
	bump_clear(&p->memory);
	p->first = NULL;
}

/* Trims the surrounding blanks in place. */
static char *
trim_blanks(char *text)
{
	while (*text == ' ' || *text == '\t')
		text++;
	size_t len = strlen(text);
	while (len > 0 && strchr(" \t\r", text[len - 1]) != NULL)
		text[--len] = '\0';
	return text;
}

/* The text inside "[profile x]" or "[x]", without quotes; NULL if there is no ']'. */
static char *
section_name(char *line)
{
	char *end = strchr(line, ']');
	if (end == NULL)
		return NULL;
	*end = '\0';
	return trim_blanks(line + 1);
}

/* True if this section of the file has the profile's settings. `kind` is "" or "profile" or
 * "services". */
static bool
is_section(char *section, const char *kind, const char *name)
{
	size_t len = strlen(kind);
	if (len > 0) {
		if (strncmp(section, kind, len) != 0 || (section[len] != ' ' && section[len] != '\t'))
			return false;
		section = trim_blanks(section + len);
	}
	size_t n = strlen(section);
	if (n > 1 && (section[0] == '"' || section[0] == '\'') && section[n - 1] == section[0]) {
		section[n - 1] = '\0';
		section++;
	}
	return strcmp(section, name) == 0;
}

static int
add_setting(struct s3_profile *p, const char *prefix, const char *parent, const char *key, const char *value,
            struct pawl_error *err)
{
	struct s3_setting *s = bump_alloc(&p->memory, sizeof *s);
	const char *full = bump_printf(&p->memory, "%s%s%s%s", prefix, parent, parent[0] != '\0' ? "." : "", key);
	char *copy = bump_strndup(&p->memory, value, strlen(value));
	if (s == NULL || full == NULL || copy == NULL)
		return err_nomem(err, p->name);
	*s = (struct s3_setting){full, copy, NULL};
	struct s3_setting **last = &p->first;
	while (*last != NULL)
		last = &(*last)->next;
	*last = s;
	return 0;
}

struct section {
	const char *kind, *name, *prefix;
	bool also_default; /* the config file may write [default] without "profile" */
};

static int
read_section(struct s3_profile *p, char *text, const struct section *wanted, bool *ret_found, struct pawl_error *err)
{
	bool inside = false;
	char parent[64] = "";
	for (char *line = text, *next; line != NULL; line = next) {
		next = strchr(line, '\n');
		if (next != NULL)
			*next++ = '\0';
		bool indented = line[0] == ' ' || line[0] == '\t';
		char *body = trim_blanks(line);
		if (body[0] == '\0' || body[0] == '#' || body[0] == ';')
			continue;
		if (body[0] == '[' && !indented) {
			char *section = section_name(body);
			inside = section != NULL && ((wanted->also_default && strcmp(section, "default") == 0) ||
			                             is_section(section, wanted->kind, wanted->name));
			*ret_found = *ret_found || inside;
			parent[0] = '\0';
			continue;
		}
		char *equals = strchr(body, '=');
		if (!inside || equals == NULL)
			continue;
		*equals = '\0';
		const char *key = trim_blanks(body), *value = trim_blanks(equals + 1);
		if (!indented)
			text_copy(parent, sizeof parent, value[0] == '\0' ? key : "");
		if (value[0] != '\0')
			TRY(add_setting(p, wanted->prefix, indented ? parent : "", key, value, err));
	}
	return 0;
}

static int
read_file_section(struct s3_profile *p, const char *path, const struct section *wanted, bool *ret_found,
                  struct pawl_error *err)
{
	PAWL_CLEAN(cred_wipe_buf) struct buf text = {0};
	TRY(cred_read_file(path, &text, err));
	if (text.len == 0)
		return 0;
	buf_str(&text);
	return read_section(p, text.ptr, wanted, ret_found, err);
}

static char *
path_of(struct s3_profile *p, const char *variable, const char *name)
{
	const char *path = cred_env(variable), *home = cred_env("HOME");
	if (path != NULL && strncmp(path, "~/", 2) == 0 && home != NULL)
		return bump_printf(&p->memory, "%s%s", home, path + 1);
	if (path != NULL)
		return bump_strndup(&p->memory, path, strlen(path));
	return bump_printf(&p->memory, "%s/.aws/%s", home != NULL ? home : ".", name);
}

static int
read_profile(struct s3_profile *p, struct pawl_error *err)
{
	const char *credentials = path_of(p, "AWS_SHARED_CREDENTIALS_FILE", "credentials");
	const char *config = path_of(p, "AWS_CONFIG_FILE", "config");
	if (credentials == NULL || config == NULL)
		return err_nomem(err, p->name);
	bool is_default = strcmp(p->name, "default") == 0;
	TRY(read_file_section(p, credentials, &(struct section){"", p->name, "", false}, &p->found, err));
	TRY(read_file_section(p, config, &(struct section){"profile", p->name, "", is_default}, &p->found, err));
	const char *services = s3_profile_get(p, "services");
	bool ignored = false;
	if (services != NULL)
		TRY(read_file_section(p, config, &(struct section){"services", services, "services.", false}, &ignored,
		                      err));
	if (p->named && !p->found)
		return err_set(err, PAWL_EUSAGE, "profile \"%s\" (AWS_PROFILE) is neither in %s nor in %s", p->name,
		               credentials, config);
	return 0;
}

int
s3_profile_read(struct s3_profile *ret, struct pawl_error *err)
{
	const char *name = cred_env("AWS_PROFILE");
	*ret = (struct s3_profile){.named = name != NULL};
	if (!text_copy(ret->name, sizeof ret->name, name != NULL ? name : "default"))
		return err_set(err, PAWL_EUSAGE, "AWS_PROFILE: the name is too long");
	int rc = read_profile(ret, err);
	if (rc < 0)
		s3_profile_clear(ret);
	return rc;
}
