/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tune_yaml: any bytes end in a document or in an error that is filled in. A document is
 * printed as JSON, which reads back as the same document.
 */
#include <stdint.h>
#include <string.h>

#include "base/value.h"
#include "document_yaml.h"
#include "fuzz.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pawl_error err = {0};
	struct value *once = NULL, *twice = NULL;
	char *text = mem_alloc(size), *json;
	int rc;

	check(text != NULL);
	memcpy(text, data, size);
	rc = document_yaml_read(text, size, "fuzz", &once, &err);
	mem_free(text);
	if (rc < 0) {
		check(once == NULL && err.code == rc && err.message[0] != '\0');
		check(rc == PAWL_EUSAGE || rc == PAWL_ELIMIT);
		return 0;
	}
	json = value_print(once);
	check(json != NULL && value_parse(json, SIZE_MAX, "again", &twice, &err) == 0);
	check(value_equal(once, twice));
	mem_free(json);
	value_free(twice);
	value_free(once);
	return 0;
}
