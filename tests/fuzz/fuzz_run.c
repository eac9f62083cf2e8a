/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as a run.json, then (behind a line feed and "@") any text as a selector, in a run
 * folder with one checkpoint that has no manifest. The run is refused, or has the id in the file,
 * or a new one if the file is damaged. A folder of its own in /dev/shm, else in /tmp. Promises P8,
 * P17.
 */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/json.h"
#include "pawl.h"
#include "fuzz.h"

static char root[64];

static void
remove_root(void)
{
	static const char *const parts[] = {"/run.json", "/checkpoints/checkpoint_000007", "/checkpoints", ""};
	char path[128];

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		snprintf(path, sizeof(path), "%s%s", root, parts[i]);
		(void)remove(path);
	}
}

static void
make_root(void)
{
	char path[128];

	snprintf(root, sizeof(root), "/dev/shm/fuzz_run.XXXXXX");
	if (!mkdtemp(root)) {
		snprintf(root, sizeof(root), "/tmp/fuzz_run.XXXXXX");
		check(mkdtemp(root) != NULL);
	}
	snprintf(path, sizeof(path), "%s/checkpoints", root);
	check(mkdir(path, 0700) == 0);
	snprintf(path, sizeof(path), "%s/checkpoints/checkpoint_000007", root);
	check(mkdir(path, 0700) == 0);
	atexit(remove_root);
}

static void
put_run_file(const uint8_t *data, size_t size)
{
	char path[128];

	snprintf(path, sizeof(path), "%s/run.json", root);
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	check(fd >= 0 && write(fd, data, size) == (ssize_t)size && close(fd) == 0);
}

static bool
is_id(const char *text)
{
	return strlen(text) == 32 && strspn(text, "0123456789abcdef") == 32;
}

/* A file that names a run makes the run that one. Any other file is damaged and counts as lost:
 * then the run has a new id. */
static bool
agrees(const uint8_t *data, size_t size, const char *run_id)
{
	struct bump memory = {0};
	struct json *json = NULL;
	const char *found = "";
	uint64_t version, attempt;
	bool is_whole = json_parse("run.json", data, size, NULL, &memory, &json, NULL) == 0 &&
	                json_get_u64("run.json", json, "pawl_run", &version, NULL) == 0 &&
	                json_get_u64("run.json", json, "attempt", &attempt, NULL) == 0 &&
	                json_get_str("run.json", json, "run", &found, NULL) == 0 && is_id(found);
	bool holds = is_whole ? strcmp(found, run_id) == 0 : is_id(run_id);

	bump_clear(&memory);
	return holds;
}

/* No checkpoint can be found. */
static void
try_selector(struct pawl *run, const uint8_t *text, size_t len)
{
	struct pawl_error err = {0};
	char *selector = strndup((const char *)text, len);
	uint64_t id = 0;

	check(selector != NULL);
	int rc = pawl_find(run, selector, &id, &err);
	check((rc == PAWL_ENOTFOUND || rc == PAWL_EUSAGE) && err.code == rc && strstr(err.message, root) && id == 0);
	free(selector);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl *run = NULL;
	struct pawl_error err = {0};
	const uint8_t *selector = size ? memmem(data, size, "\n@", 2) : NULL;
	size_t len = selector ? (size_t)(selector - data) : size;

	if (!root[0])
		make_root();
	put_run_file(data, len);
	opts.root = root;
	opts.read_only = 1;
	int rc = pawl_open(&opts, &run, &err);
	if (rc < 0) {
		check(!run && err.code == rc && strstr(err.message, "run.json"));
		check(rc == PAWL_EEXISTS || rc == PAWL_EVERSION); /* another program's, or a later one of ours */
		return 0;
	}
	check(agrees(data, len, pawl_run_id(run)));
	if (selector)
		try_selector(run, selector + 2, size - len - 2);
	check(pawl_close(run, NULL) == 0);
	return 0;
}
