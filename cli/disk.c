/* SPDX-License-Identifier: Apache-2.0 */
/* disk: see disk.h. Links are not followed. */
#include "disk.h"

#include <dirent.h>
#include <string.h>
#include <sys/stat.h>

#include "target.h"
#include "base/table.h"

struct disk {
	struct cli *cli;
	struct disk_run sum;
	struct table seen; /* files with several names, by device and inode */
};

/* Is the file met for the first time? Its hash stands for it: 63 bits are enough for a sum that
 * people read. */
static bool
is_new(struct disk *d, const struct stat *st)
{
	uint64_t hash = table_mix(table_mix(1, (uint64_t)st->st_dev), (uint64_t)st->st_ino);
	size_t cursor = 0;
	uintptr_t value;

	if (st->st_nlink < 2)
		return true;
	if (table_next(&d->seen, hash, &cursor, &value))
		return false;
	if (table_reserve(&d->seen, 1) == 0)
		table_add(&d->seen, hash, 1);
	return true;
}

/* depth 1: the folder of all checkpoints, in which hidden names are unfinished. */
static void
add_folder(struct disk *d, const char *folder, int depth, bool is_leftover)
{
	struct dirent *entry;
	DIR *dir = opendir(folder);

	if (dir == NULL)
		return;
	while ((entry = readdir(dir)) != NULL) {
		const char *name = entry->d_name, *path = keep_printf(&d->cli->keep, "%s/%s", folder, name);
		bool is_hidden = is_leftover || (depth == 1 && name[0] == '.');
		struct stat st;

		if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || lstat(path, &st) < 0)
			continue;
		if (S_ISDIR(st.st_mode))
			add_folder(d, path, depth + 1, is_hidden);
		if (!S_ISREG(st.st_mode))
			continue;
		d->sum.bytes += is_hidden ? 0 : (uint64_t)st.st_size;
		if (!is_new(d, &st))
			continue;
		d->sum.used += (uint64_t)st.st_size;
		d->sum.leftover += is_hidden ? (uint64_t)st.st_size : 0;
	}
	(void)closedir(dir);
}

void
disk_of_run(struct cli *cli, const char *root, const struct pawl_list *list, struct disk_run *ret)
{
	struct disk d = {.cli = cli};

	if (target_is_url(root)) {
		for (size_t i = 0; i < pawl_list_count(list); i++)
			d.sum.bytes += pawl_list_get(list, i)->bytes;
		d.sum.used = d.sum.bytes;
	} else {
		add_folder(&d, keep_printf(&cli->keep, "%s/checkpoints", root), 1, false);
		add_folder(&d, keep_printf(&cli->keep, "%s/.pawl/recycle", root), 1, true);
	}
	*ret = d.sum;
	table_clear(&d.seen);
}

void
disk_of_checkpoint(struct cli *cli, const struct pawl_info *info, struct disk_use *ret)
{
	struct dirent *entry;
	DIR *dir;

	if (info->path[0] != '/') {
		*ret = (struct disk_use){info->bytes, info->bytes};
		return;
	}
	*ret = (struct disk_use){0};
	dir = opendir(info->path);
	if (dir == NULL) { /* a file of another program */
		*ret = (struct disk_use){info->bytes, info->bytes};
		return;
	}
	while ((entry = readdir(dir)) != NULL) {
		struct stat st;

		if (lstat(keep_printf(&cli->keep, "%s/%s", info->path, entry->d_name), &st) < 0 || !S_ISREG(st.st_mode))
			continue;
		ret->bytes += (uint64_t)st.st_size;
		ret->own += st.st_nlink < 2 ? (uint64_t)st.st_size : 0;
	}
	(void)closedir(dir);
}
