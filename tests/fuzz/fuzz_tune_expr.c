/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_tune_expr: any text is a number or an error that is filled in, the same each time; paths that are asked for are
 * not empty. The first byte chooses what is known.
 */
#include <math.h>

#include "expr.h"
#include "fuzz.h"

static bool
look_up(void *arg, const char *path, double *ret)
{
	const uint8_t *known = arg;

	check(strchr(path, '.') == NULL);
	*ret = (double)strlen(path) - 3;
	return (strlen(path) & *known) == 0;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pawl_error err = {0};
	double value[2] = {0, 0};
	uint8_t known;
	char *text;
	int rc;

	if (size == 0)
		return 0;
	known = data[0];
	text = malloc(size);
	check(text != NULL);
	memcpy(text, data + 1, size - 1);
	text[size - 1] = '\0';
	rc = expr_value(text, look_up, &known, &value[0], &err);
	check(rc == expr_value(text, look_up, &known, &value[1], NULL));
	if (rc < 0)
		check(rc == PAWL_EUSAGE && err.code == rc && err.message[0] != '\0');
	else
		check(value[0] == value[1] || (isnan(value[0]) && isnan(value[1])));
	free(text);
	return 0;
}
