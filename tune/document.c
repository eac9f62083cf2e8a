/* SPDX-License-Identifier: Apache-2.0 */
/* document: what is read before there is an experiment: TOML, and the command of a configuration; see tune.h. Called by
 * the command and the Python extension; calls toml, command, jsonx. */
#include <stdlib.h>
#include <string.h>

#include "command.h"
#include "jsonx.h"
#include "toml.h"
#include "tune.h"
#include "tune_err.h"

int
tune_toml_to_json(const char *text, size_t len, const char *name, char **ret, struct pawl_error *err)
{
	JSONX_CLEAN json_t *object = NULL;
	int rc = toml_read(text, len, name, &object, err);

	if (rc < 0)
		return rc;
	*ret = jsonx_dump(object);
	return *ret != NULL ? 0 : tune_no_memory(err);
}

int
tune_command_text(const char *spec_json, const char *config_json, char **ret, struct pawl_error *err)
{
	JSONX_CLEAN json_t *spec = NULL;
	JSONX_CLEAN json_t *config = NULL;
	struct strings argv = {0};
	size_t len = 1, at = 0;
	int rc = jsonx_parse(spec_json, SIZE_MAX, "the document", &spec, err);

	if (rc == 0)
		rc = jsonx_parse(config_json, SIZE_MAX, "the configuration", &config, err);
	if (rc == 0)
		rc = command_fill(json_object_get(spec, "run"), config, &argv, err);
	if (rc < 0)
		return rc;
	for (size_t i = 0; i < argv.n; i++)
		len += strlen(argv.items[i]) + 1;
	*ret = malloc(len);
	for (size_t i = 0; i < argv.n && *ret != NULL; i++) {
		size_t n = strlen(argv.items[i]);

		memcpy(*ret + at, argv.items[i], n);
		at += n;
		(*ret)[at++] = i + 1 < argv.n ? '\n' : '\0';
	}
	strings_clear(&argv);
	return *ret != NULL ? 0 : tune_no_memory(err);
}
