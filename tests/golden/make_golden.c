/* SPDX-License-Identifier: Apache-2.0 */
/*
 * make_golden FOLDER: writes the golden checkpoints of today's format into a folder that does not exist yet: run/,
 * ranks/ and single/, and, of version 2, packed/, the same as run/ with compressed packs. Used once per format version;
 * what it made is committed as tests/golden/v<N> and never changed.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../helpers/golden.h"

static void
make(void **state)
{
	const char *folder = *state;
	char path[1024];

	assert_int_equal(mkdir(folder, 0777), 0);
	snprintf(path, sizeof(path), "%s/run", folder);
	golden_write_run(path, NULL);
	snprintf(path, sizeof(path), "%s/packed", folder);
	golden_write_run(path, "zst");
	snprintf(path, sizeof(path), "%s/ranks", folder);
	golden_write_ranks(path);
	snprintf(path, sizeof(path), "%s/single", folder);
	golden_write_single(path);
}

int
main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {cmocka_unit_test_prestate(make, argv[argc - 1])};

	return argc == 2 ? cmocka_run_group_tests(tests, NULL, NULL) : 2;
}
