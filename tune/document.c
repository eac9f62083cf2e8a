/* SPDX-License-Identifier: Apache-2.0 */
/* document: functions that need no experiment: reading YAML, and the command of a configuration;
 * see tune.h. */
#include <stdlib.h>
#include <string.h>

#include "base/err.h"
#include "base/value.h"
#include "command.h"
#include "document_yaml.h"
#include "tune.h"

int
tune_yaml_to_json(const char *text, size_t len, const char *name, char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *object = NULL;

	TRY(document_yaml_read(text, len, name, &object, err));
	*ret = value_print(object);
	return *ret != NULL ? 0 : err_nomem(err, NULL);
}

int
tune_command_text(const char *spec_json, const char *config_json, char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *spec = NULL;
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;
	struct strings argv = {0};
	size_t len = 1, at = 0;

	TRY(value_parse(spec_json, SIZE_MAX, "the document", &spec, err));
	TRY(value_parse(config_json, SIZE_MAX, "the configuration", &config, err));
	TRY(command_fill(value_get(spec, "run"), config, &argv, err));
	for (size_t i = 0; i < argv.n; i++)
		len += strlen(argv.items[i]) + 1;
	*ret = mem_alloc(len);
	for (size_t i = 0; i < argv.n && *ret != NULL; i++) {
		size_t n = strlen(argv.items[i]);

		memcpy(*ret + at, argv.items[i], n);
		at += n;
		(*ret)[at++] = i + 1 < argv.n ? '\n' : '\0';
	}
	strings_clear(&argv);
	return *ret != NULL ? 0 : err_nomem(err, NULL);
}
