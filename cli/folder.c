/* SPDX-License-Identifier: Apache-2.0 */
/* folder: finds what is in a folder. Files are recognised by their names or first bytes. */
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "folder_own.h"
#include "target.h"

#define MAX_LOOKS 1000u /* files of one listing whose first bytes are read */

static const char *
base_name(const char *path)
{
	const char *slash = strrchr(path, '/');

	return slash != NULL ? slash + 1 : path;
}

/* A link counts, whatever it leads to: opening the place reports what is wrong with it. */
static bool
has_name(struct cli *cli, const char *folder, const char *name)
{
	struct stat st;

	return lstat(keep_printf(&cli->keep, "%s/%s", folder, name), &st) == 0;
}

/* "rank00000-00012.safetensors", "__0_0.distcp" (DCP): a part of a checkpoint. Only its manifest
 * explains it. */
static bool
is_pack_name(const char *name)
{
	const size_t len = strlen(name), n = strlen(".distcp");

	if (len > n && strcmp(name + len - n, ".distcp") == 0)
		return true;
	return strncmp(name, "rank", 4) == 0 && strspn(name + 4, "0123456789") == 5 && name[9] == '-' &&
	       strspn(name + 10, "0123456789") == 5 && strncmp(name + 15, ".safetensors", 12) == 0;
}

/* "ep1-ba42-rank0.pt", "model.pt.zst", "weights.tar.gz": one of the words between dots decides. */
static bool
is_checkpoint_name(const char *name)
{
	static const char *const words[] = {"pt", "pth", "ckpt", "tar", "tgz", "safetensors", "npz"};

	if (is_pack_name(name))
		return false;
	for (const char *dot = strchr(name, '.'); dot != NULL; dot = strchr(dot + 1, '.')) {
		size_t len = strcspn(dot + 1, ".");

		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++)
			if (strlen(words[i]) == len && strncmp(dot + 1, words[i], len) == 0)
				return true;
	}
	return false;
}

/* Does the local file begin as torch.save writes one? That is a zip archive whose first file is
 * NAME/data.pkl. Composer's files need no suffix. */
static bool
looks_like_checkpoint(struct found *f, const struct pawl_place *place)
{
	enum { NAME_LEN_AT = 26, NAME_AT = 30 };
	static const char last[] = "/data.pkl";
	unsigned char head[NAME_AT + 300];
	int fd;

	/* A device has no bytes, and is not opened. */
	if (target_is_url(f->root) || place->bytes <= NAME_AT || is_pack_name(base_name(place->path)) ||
	    f->n_looks++ >= MAX_LOOKS)
		return false;
	fd = open(target_join(f->cli, f->root, place->path), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return false;
	const ssize_t n = read(fd, head, sizeof(head));

	(void)close(fd);
	if (n < NAME_AT || memcmp(head, "PK\003\004", 4) != 0)
		return false;
	const size_t len = head[NAME_LEN_AT] | (size_t)head[NAME_LEN_AT + 1] << 8, n_last = sizeof(last) - 1;

	return len > n_last && NAME_AT + len <= (size_t)n && memcmp(head + NAME_AT + len - n_last, last, n_last) == 0;
}

/* The number after a word in a name, such as "ep" in "ep1-ba42". The word is at the beginning, or
 * after a dash or an underscore. */
static int64_t
number_after(const char *name, const char *word)
{
	for (const char *at = strstr(name, word); at != NULL; at = strstr(at + 1, word)) {
		const char *digits = at + strlen(word);

		if ((at == name || at[-1] == '-' || at[-1] == '_') && *digits >= '0' && *digits <= '9')
			return strtoll(digits, NULL, 10);
	}
	return -1;
}

static void
add_link(struct found *f, struct file *file, const char *link)
{
	file->links = keep_printf(&f->cli->keep, "%s%s%s", file->links != NULL ? file->links : "",
	                          file->links != NULL ? ", " : "", base_name(link));
}

/* Adds a link to the file in its folder that it leads to, if that file is known. */
static void
note_link(struct found *f, const char *link)
{
	const size_t folder = (size_t)(base_name(link) - link);
	char to[PATH_MAX];
	ssize_t len = readlink(target_join(f->cli, f->root, link), to, sizeof(to) - 1);

	if (len <= 0)
		return;
	to[len] = '\0';
	for (size_t i = 0; i < f->n_files; i++) {
		struct file *file = &f->files[i];
		const char *name = base_name(file->name);

		if ((size_t)(name - file->name) == folder && strncmp(file->name, link, folder) == 0 &&
		    strcmp(name, base_name(to)) == 0)
			add_link(f, file, link);
	}
}

/* The same for a text object, which holds the name of a file from the beginning of the store. */
static void
note_pointer(struct found *f, const struct pawl_place *place)
{
	const char *target = keep_printf(&f->cli->keep, "/%s", place->target);
	const size_t len = strlen(target);

	for (size_t i = 0; i < f->n_files; i++) {
		if (strcmp(base_name(f->files[i].name), base_name(target)) != 0)
			continue;
		const char *path = target_join(f->cli, f->root, f->files[i].name);
		const size_t n = target_is_url(path) ? strcspn(path, "?") : strlen(path);

		if (n >= len && strncmp(path + n - len, target, len) == 0)
			add_link(f, &f->files[i], keep_printf(&f->cli->keep, "%s", place->path));
	}
}

static void
add_file(struct found *f, const struct pawl_place *place)
{
	const char *path = keep_printf(&f->cli->keep, "%s", place->path), *name = base_name(path);

	f->files[f->n_files++] = (struct file){.name = path,
	                                       .bytes = place->bytes,
	                                       .unix_seconds = place->unix_seconds,
	                                       .epoch = number_after(name, "ep"),
	                                       .batch = number_after(name, "ba")};
}

static void
add_run(struct found *f, const struct pawl_place *place)
{
	f->runs[f->n_runs++] = (struct run){
		.name = keep_printf(&f->cli->keep, "%s", place->path),
		.single = place->kind == PAWL_KIND_CHECKPOINT,
		.search = place->kind == PAWL_KIND_SEARCH,
		.unix_seconds = place->unix_seconds,
		.problem = place->problem != NULL ? keep_printf(&f->cli->keep, "%s", place->problem) : NULL,
	};
	if (place->problem != NULL)
		f->problem = PAWL_EAUTH;
}

/* Is the real path that of a listed place, or of something in one? */
static bool
is_listed(struct found *f, const struct pawl_places *places, const char *real)
{
	char root[PATH_MAX];
	const size_t len = realpath(f->root, root) != NULL ? strlen(root) : 0;

	if (len == 0 || strncmp(real, root, len) != 0)
		return false;
	real += len + strspn(real + len, "/");
	for (size_t i = 0; i < pawl_places_count(places); i++) {
		const struct pawl_place *place = pawl_places_get(places, i);
		const size_t n = strlen(place->path);

		if (place->kind != PAWL_KIND_OTHER && strncmp(real, place->path, n) == 0 &&
		    (real[n] == '\0' || real[n] == '/'))
			return true;
	}
	return false;
}

/* A link in the root itself to a run or a checkpoint that is not listed already. */
static void
add_linked_run(struct found *f, const struct pawl_places *places, const struct pawl_place *link)
{
	char real[PATH_MAX];
	struct stat st;

	if (target_is_url(f->root) || strchr(link->path, '/') != NULL ||
	    realpath(target_join(f->cli, f->root, link->path), real) == NULL || stat(real, &st) < 0 ||
	    !S_ISDIR(st.st_mode) || is_listed(f, places, real))
		return;
	const int kind = pawl_kind_of(real, NULL, NULL);

	if (kind == PAWL_KIND_RUN || kind == PAWL_KIND_CHECKPOINT)
		add_run(f, &(struct pawl_place){.path = link->path, .kind = kind});
}

/* Sorts the places below the root into runs and files. */
static void
sort_out(struct found *f, const struct pawl_places *places)
{
	const size_t n = pawl_places_count(places);

	f->runs = keep_alloc(&f->cli->keep, n + 1, sizeof(*f->runs));
	f->files = keep_alloc(&f->cli->keep, n + 1, sizeof(*f->files));
	for (size_t i = 0; i < n; i++) {
		const struct pawl_place *place = pawl_places_get(places, i);

		if (place->problem != NULL || place->kind != PAWL_KIND_OTHER)
			add_run(f, place);
		else if (place->is_link)
			add_linked_run(f, places, place);
		else if (is_checkpoint_name(base_name(place->path)) || looks_like_checkpoint(f, place))
			add_file(f, place);
	}
	for (size_t i = 0; i < n; i++) {
		const struct pawl_place *place = pawl_places_get(places, i);

		if (place->target != NULL)
			note_pointer(f, place);
		else if (place->is_link && !target_is_url(f->root))
			note_link(f, place->path);
	}
}

/* Is the local path a folder that is neither a run, nor a checkpoint, nor a part of one? */
static bool
is_other(struct cli *cli, const char *path)
{
	return pawl_kind_of(path, NULL, NULL) == PAWL_KIND_OTHER && !target_is_foreign(cli, path, true) &&
	       !has_name(cli, keep_printf(&cli->keep, "%s/..", path), "run.json") &&
	       !has_name(cli, keep_printf(&cli->keep, "%s/../..", path), "run.json");
}

/* PAWL_ENOTFOUND: the folder is something else, or has nothing. */
int
folder_find_all(struct found *f, struct pawl_error *err)
{
	struct pawl_places *places = NULL;

	if (!target_is_url(f->root) && !is_other(f->cli, f->root))
		return PAWL_ENOTFOUND;
	TRY(pawl_places_open(f->root, f->opts->recursive, &places, err));
	sort_out(f, places);
	pawl_places_free(places);
	return f->n_runs > 0 || f->n_files > 0 ? 0 : PAWL_ENOTFOUND;
}

size_t
folder_find(struct cli *cli, const char *path, const char ***ret)
{
	const struct folder_opts opts = {.recursive = true};
	struct found f = {.cli = cli, .opts = &opts, .root = path};

	if (folder_find_all(&f, NULL) < 0)
		return 0;
	*ret = keep_alloc(&cli->keep, f.n_runs + f.n_files, sizeof(**ret));
	for (size_t i = 0; i < f.n_runs; i++)
		(*ret)[i] = target_join(cli, path, f.runs[i].name);
	for (size_t i = 0; i < f.n_files; i++)
		(*ret)[f.n_runs + i] = target_join(cli, path, f.files[i].name);
	return f.n_runs + f.n_files;
}

const char *
folder_newest_file(struct cli *cli, const char *path)
{
	const struct folder_opts opts = {0};
	struct found f = {.cli = cli, .opts = &opts, .root = path};
	const struct file *newest = NULL;

	if (folder_find_all(&f, NULL) < 0 || f.n_runs > 0)
		return NULL;
	for (size_t i = 0; i < f.n_files; i++) {
		const struct file *file = &f.files[i];

		if (file->links != NULL && strstr(file->links, "latest") != NULL)
			return target_join(cli, path, file->name);
		if (newest == NULL || file->unix_seconds >= newest->unix_seconds)
			newest = file;
	}
	return target_join(cli, path, newest->name);
}
