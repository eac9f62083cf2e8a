/* SPDX-License-Identifier: Apache-2.0 */
/* cmd_version: versions of the library and of the format on disk. */
#include "cli.h"
#include "jsonout.h"

static int
run_version(struct cli *cli, const void *args)
{
	struct jsonout j;

	(void)args;
	if (!cli->common.json) {
		(void)printf("pawl %s (writes format %d)\n", pawl_version(), PAWL_FORMAT_VERSION);
		return 0;
	}
	jsonout_init(&j, stdout);
	cli->wrote_json = true;
	jsonout_begin_object(&j, NULL);
	jsonout_text(&j, "command", "version");
	jsonout_text(&j, "version", pawl_version());
	jsonout_int(&j, "format", PAWL_FORMAT_VERSION);
	jsonout_end(&j);
	return 0;
}

const struct command cmd_version = {
	.name = "version",
	.group = GROUP_MORE,
	.summary = "print the version",
	.about = "Prints the version of pawl and of the on-disk format that it writes. It reads that format and all "
		 "older ones.",
	.run = run_version,
};
