/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tune_spec: any bytes end in a document of a search or in an error that is filled in. What
 * was accepted is the same after writing and reading it again, and its first trials have
 * configurations. Files are not read: a document that names one is skipped.
 */

#include "fuzz.h"
#include "tune.h"

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pawl_error err = {0};
	char *text = malloc(size + 1), *once = NULL, *twice = NULL, *config;
	uint64_t n = 0, again = 0;
	int rc;

	check(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	if (strstr(text, "file") != NULL || strchr(text, '\\') != NULL) {
		free(text);
		return 0;
	}
	rc = tune_spec_check(text, &once, &n, &err);
	free(text);
	if (rc < 0) {
		check(once == NULL && err.code == rc && err.message[0] != '\0');
		return 0;
	}
	check(tune_spec_check(once, &twice, &again, &err) == 0);
	check(strcmp(once, twice) == 0 && n == again);
	for (uint64_t i = 0; i < n && i < 3; i++)
		if (tune_spec_config(once, i, &config, &err) == 0)
			free(config);
	free(twice);
	free(once);
	return 0;
}
