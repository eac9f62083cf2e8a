/* SPDX-License-Identifier: Apache-2.0 */
/* copy: see copy.h. */
#include "copy.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/err_path.h"
#include "base/fd.h"
#include "base/hidden.h"
#include "base/text.h"

const char *
copy_parent(struct keep *keep, const char *path)
{
	const size_t len = text_parent_len(path);

	return len == 0 ? "." : keep_strndup(keep, path, len);
}

static bool
has_file(struct keep *keep, const char *folder, const char *name)
{
	struct stat st;

	return stat(keep_printf(keep, "%s/%s", folder, name), &st) == 0;
}

/* A manifest.json alone is not enough: other programs write one, too. */
static bool
is_checkpoint(struct keep *keep, const char *folder)
{
	static const char begin[] = "{\"pawl_manifest\"";
	char found[sizeof(begin)] = "";
	FILE *file = fopen(keep_printf(keep, "%s/manifest.json", folder), "rb");

	if (file == NULL)
		return false;
	size_t n = fread(found, 1, sizeof(begin) - 1, file);
	(void)fclose(file);
	return n == sizeof(begin) - 1 && strcmp(found, begin) == 0;
}

int
copy_check_suffix(struct cli *cli, const char *command, const char *dest, struct pawl_error *err)
{
	static const char *const suffixes[] = {".safetensors", ".pt", ".pth", ".npz", ".npy"};
	const size_t len = strlen(dest);

	for (size_t i = 0; i < sizeof(suffixes) / sizeof(suffixes[0]); i++) {
		const size_t n = strlen(suffixes[i]);

		if (len > n && strcmp(dest + len - n, suffixes[i]) == 0)
			return err_set(err, PAWL_EUSAGE,
			               "%s: 'pawl %s' writes a folder; 'pawl convert %s %s' writes a file", dest,
			               command, cli->operands[0], dest);
	}
	return 0;
}

int
copy_check_place(struct cli *cli, const char *path, struct pawl_error *err)
{
	const char *parent = copy_parent(&cli->keep, path);

	if (text_begins_as_url(text_skip_file(path)))
		return err_set(err, PAWL_EUSAGE,
		               "%s: a URL has two slashes, expected %.*s:/%s%s; a folder of this name is ./%s", path,
		               (int)strcspn(path, ":"), path, strncmp(path, "file:", 5) == 0 ? "/" : "",
		               strchr(path, ':') + 1, path);

	char *real = realpath(parent, NULL);

	while (real == NULL && errno == ENOENT && strcmp(parent, copy_parent(&cli->keep, parent)) != 0) {
		parent = copy_parent(&cli->keep, parent);
		real = realpath(parent, NULL);
	}
	const char *at = real != NULL ? keep_printf(&cli->keep, "%s", real) : "";

	free(real);
	for (; strlen(at) > 1; at = copy_parent(&cli->keep, at)) {
		const char *above = copy_parent(&cli->keep, at), *name = strrchr(at, '/') + 1;
		bool is_run = (strcmp(name, "checkpoints") == 0 || strcmp(name, ".pawl") == 0) &&
		              has_file(&cli->keep, above, "run.json");

		if (is_run || is_checkpoint(&cli->keep, at))
			return err_set(err, PAWL_EUSAGE, "%s is inside the %s %s, where only pawl may write", path,
			               is_run ? "run" : "checkpoint", is_run ? above : at);
	}
	return 0;
}

int
copy_publish(const char *from, const char *to, struct pawl_error *err)
{
	errno = hidden_folder_appear(AT_FDCWD, from, AT_FDCWD, to, true);
	if (errno != 0)
		return err_path_new(err, errno, to, "cannot create");
	return fd_sync_parent(AT_FDCWD, to, err);
}

void
copy_remove(const char *path)
{
	(void)fd_remove_tree(AT_FDCWD, path, NULL);
}
