/* SPDX-License-Identifier: Apache-2.0 */
/* disk: see disk.h. Links are not followed. */
#include "disk.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "target.h"
#include "base/folder.h"
#include "base/table.h"

struct disk {
	struct cli *cli;
	struct disk_run sum;
	struct table seen; /* files with several names, by device and inode */
};

/* Stands for a file: 63 bits are enough for a sum that people read. */
static uint64_t
hash_file(const struct stat *st)
{
	return table_mix(table_mix(1, (uint64_t)st->st_dev), (uint64_t)st->st_ino);
}

/* Is the file met for the first time? */
static bool
is_new(struct disk *d, const struct stat *st)
{
	uint64_t hash = hash_file(st);
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

/* depth 1: the folder of all checkpoints, in which hidden names are unfinished. A file counts where
 * it is met first. Hidden names come last, so that only what no checkpoint has counts there. */
static void
add_folder(struct disk *d, const char *folder, int depth, bool is_leftover)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};

	(void)folder_list(AT_FDCWD, folder, folder, &names, NULL);
	for (size_t i = names.n; i-- > 0;) {
		const char *name = names.items[i], *path = keep_printf(&d->cli->keep, "%s/%s", folder, name);
		bool is_hidden = is_leftover || (depth == 1 && name[0] == '.');
		struct stat st;

		if (lstat(path, &st) < 0)
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

/* False: it is in no folder of this host, or is a file of another program. */
static bool
list_files(const struct pawl_info *info, struct folder_names *ret)
{
	return info->path[0] == '/' && folder_list(AT_FDCWD, info->path, info->path, ret, NULL) == 0;
}

void
disk_of_checkpoint(struct cli *cli, const struct pawl_info *info, struct disk_use *ret)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};

	*ret = (struct disk_use){0};
	if (!list_files(info, &names)) {
		*ret = (struct disk_use){info->bytes, info->bytes};
		return;
	}
	for (size_t i = 0; i < names.n; i++) {
		struct stat st;

		if (lstat(keep_printf(&cli->keep, "%s/%s", info->path, names.items[i]), &st) < 0 ||
		    !S_ISREG(st.st_mode))
			continue;
		ret->bytes += (uint64_t)st.st_size;
		ret->own += st.st_nlink < 2 ? (uint64_t)st.st_size : 0;
	}
}

/* ---- what a deletion frees ---- */

struct disk_file {
	uint64_t hash, bytes, n_names;
};

struct disk_files {
	size_t n_checkpoints;
	size_t *begins; /* of each checkpoint and of the end, in files */
	struct disk_file *files;
};

/* Adds the files of a checkpoint, or one entry where their sizes are known from its manifest. */
static void
note_files(struct cli *cli, const struct pawl_info *info, struct disk_file **files, size_t *n, size_t *room)
{
	PAWL_CLEAN(folder_names_clear) struct folder_names names = {0};
	struct disk_file file = {.bytes = info->bytes, .n_names = 1};
	const bool is_listed = list_files(info, &names);
	const size_t n_files = is_listed ? names.n : 1;
	struct stat st;

	for (size_t i = 0; i < n_files; i++) {
		if (is_listed) {
			if (lstat(keep_printf(&cli->keep, "%s/%s", info->path, names.items[i]), &st) < 0 ||
			    !S_ISREG(st.st_mode))
				continue;
			file = (struct disk_file){hash_file(&st), (uint64_t)st.st_size, (uint64_t)st.st_nlink};
		}
		if (*n == *room) {
			struct disk_file *more = keep_alloc(&cli->keep, 2 * *room + 64, sizeof(*more));

			if (*n > 0)
				memcpy(more, *files, *n * sizeof(*more));
			*files = more;
			*room = 2 * *room + 64;
		}
		(*files)[(*n)++] = file;
	}
}

struct disk_files *
disk_files_of(struct cli *cli, const struct pawl_list *list)
{
	struct disk_files *ret = keep_alloc(&cli->keep, 1, sizeof(*ret));
	size_t n = 0, room = 0;

	ret->n_checkpoints = pawl_list_count(list);
	ret->begins = keep_alloc(&cli->keep, ret->n_checkpoints + 1, sizeof(*ret->begins));
	for (size_t i = 0; i < ret->n_checkpoints; i++) {
		ret->begins[i] = n;
		note_files(cli, pawl_list_get(list, i), &ret->files, &n, &room);
	}
	ret->begins[ret->n_checkpoints] = n;
	return ret;
}

static int
compare_hashes(const void *a, const void *b)
{
	const struct disk_file *x = a, *y = b;

	return (x->hash > y->hash) - (x->hash < y->hash);
}

/* A file is free once all its names are deleted. */
uint64_t
disk_freed(struct cli *cli, const struct disk_files *files, const bool *is_deleted)
{
	struct disk_file *gone = keep_alloc(&cli->keep, files->begins[files->n_checkpoints] + 1, sizeof(*gone));
	uint64_t ret = 0;
	size_t n = 0;

	for (size_t i = 0; i < files->n_checkpoints; i++)
		for (size_t f = files->begins[i]; is_deleted[i] && f < files->begins[i + 1]; f++)
			if (files->files[f].n_names < 2)
				ret += files->files[f].bytes;
			else
				gone[n++] = files->files[f];
	if (n > 0)
		qsort(gone, n, sizeof(*gone), compare_hashes);
	for (size_t i = 0, same; i < n; i += same) {
		for (same = 1; i + same < n && gone[i + same].hash == gone[i].hash;)
			same++;
		if (same == gone[i].n_names)
			ret += gone[i].bytes;
	}
	return ret;
}
