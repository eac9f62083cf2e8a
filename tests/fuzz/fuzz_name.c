/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any text as a name template: refused, or a name that cannot lead out of its folder. Filling in
 * twice (first what is known, then the rest) gives the same as at once. A variable that is not
 * mentioned does not matter. The first bytes choose the values. Promise P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "policy/name.h"
#include "fuzz.h"

static const struct name_values unknown = {.rank = -1,
                                           .local_rank = -1,
                                           .world_size = -1,
                                           .local_world_size = -1,
                                           .node_rank = -1,
                                           .progress = PAWL_PROGRESS_INIT};

static int
fill(const char *text, const struct name_values *values, bool partial, struct buf *out)
{
	struct pawl_error err = {0};

	out->len = 0;
	int rc = name_format(text, values, partial, out, &err);
	check(rc == 0 ||
	      ((rc == PAWL_EUSAGE || rc == PAWL_ELIMIT) && err.code == rc && strstr(err.message, "name template")));
	if (rc == 0) {
		const char *name = buf_str(out);
		check(name[0] && name[0] != '/' && strlen(name) <= 65536 && !strchr(name, '\\') &&
		      !strchr(name, '\n') && !strstr(name, "/../") && strcmp(name, "..") != 0);
	}
	return rc;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct name_values all = unknown, some = unknown;
	struct buf at_once = {0}, partly = {0}, twice = {0};
	char run_name[9] = {0};

	if (size < 18)
		return 0;
	memcpy(run_name, data, 8);
	all.run_name = run_name;
	memcpy(&all.progress.epoch, data + 8, sizeof(int64_t));
	memcpy(&all.progress.total_wct, data + 8, sizeof(double));
	all.id = (uint64_t)data[16] << (data[17] & 63);
	all.rank = data[17];
	all.world_size = all.local_world_size = 4;
	all.local_rank = all.node_rank = 0;
	all.progress.token = (int64_t)data[16] << 40;
	some.step = all.step = -(int64_t)data[17];
	if (data[16] & 1)
		some.run_name = all.run_name;
	if (data[16] & 2)
		some.progress = all.progress;
	if (data[16] & 4)
		some.id = all.id;
	if (data[16] & 8)
		some.rank = all.rank;

	char *text = strndup((const char *)data + 18, size - 18);
	check(text != NULL);
	int rc = fill(text, &all, false, &at_once), first = fill(text, &some, true, &partly);
	if (rc == 0 && first == 0) {
		check(fill(buf_str(&partly), &all, false, &twice) == 0);
		check(strcmp(buf_str(&at_once), buf_str(&twice)) == 0);
	}
	check(rc < 0 || first == 0 || first == PAWL_ELIMIT); /* braces are written twice */
	if (rc == 0 && !name_uses(text, "id")) {
		all.id ^= 1;
		check(fill(text, &all, false, &twice) == 0 && strcmp(buf_str(&at_once), buf_str(&twice)) == 0);
	}
	free(text);
	buf_clear(&at_once);
	buf_clear(&partly);
	buf_clear(&twice);
	return 0;
}
