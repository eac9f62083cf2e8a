/* SPDX-License-Identifier: Apache-2.0 */
/* document: functions that need no experiment: reading YAML, and the command of a configuration;
 * see tune.h. */
#include "base/buf.h"
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
	return *ret ? 0 : err_nomem(err, NULL);
}

int
tune_command_text(const char *spec_json, const char *config_json, char **ret, struct pawl_error *err)
{
	PAWL_CLEAN(value_free_clean) struct value *spec = NULL;
	PAWL_CLEAN(value_free_clean) struct value *config = NULL;
	PAWL_CLEAN(strings_clear) struct strings argv = {0};
	PAWL_CLEAN(buf_clear) struct buf joined = {0};

	TRY(value_parse(spec_json, SIZE_MAX, "the document", &spec, err));
	TRY(value_parse(config_json, SIZE_MAX, "the configuration", &config, err));
	TRY(command_fill(value_get(spec, "run"), config, &argv, err));
	for (size_t i = 0; i < argv.n; i++)
		buf_printf(&joined, "%s%s", i > 0 ? "\n" : "", argv.items[i]);
	buf_putc(&joined, '\0');
	if (joined.failed)
		return err_nomem(err, NULL);
	*ret = steal(&joined.ptr);
	return 0;
}
