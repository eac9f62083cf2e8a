/* SPDX-License-Identifier: Apache-2.0 */
/*
 * small_run: a run in a folder of its own that small states are saved to, and access to its files.
 * For tests of what is done with checkpoints; include after cmocka.h. Failures of the library fail
 * the test.
 */
#ifndef PAWL_TESTS_SMALL_RUN_H
#define PAWL_TESTS_SMALL_RUN_H

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "pawl.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

#define OK(call)                                                                                                \
	do {                                                                                                    \
		struct pawl_error err_ = {0}, *err = &err_;                                                     \
		if ((call) < 0)                                                                                 \
			fail_msg("%s:%d: %s: %s", __FILE__, __LINE__, pawl_code_name(err->code), err->message); \
	} while (0)

/* The call fails with the code, and its message holds the text. */
#define FAILS(code_, text_, call)                                                                    \
	do {                                                                                         \
		struct pawl_error err_ = {0}, *err = &err_;                                          \
		int rc_ = (call);                                                                    \
		if (rc_ != (code_) || !strstr(err->message, (text_)))                                \
			fail_msg("%s:%d: expected %s \"%s\", got %s \"%s\"", __FILE__, __LINE__,     \
			         pawl_code_name(code_), (text_), pawl_code_name(rc_), err->message); \
	} while (0)

/* The call succeeds, and does not touch the error that it is given. */
#define QUIET(call)                                                                                  \
	do {                                                                                         \
		struct pawl_error err_, before_, *err = &err_;                                       \
		memset(&err_, 0x5a, sizeof(err_));                                                   \
		err_.message[sizeof(err_.message) - 1] = '\0';                                       \
		memcpy(&before_, &err_, sizeof(err_));                                               \
		int rc_ = (call);                                                                    \
		if (rc_ < 0 || memcmp(&err_, &before_, sizeof(err_)) != 0)                           \
			fail_msg("%s:%d: %s: %d: %s", __FILE__, __LINE__, #call, rc_, err->message); \
	} while (0)

struct small_run {
	char root[128];
	struct pawl *run;
	struct pawl_open_opts opts; /* of the next opening */
};

static const char *const small_scores[] = {"accuracy"};

static inline int
small_setup(void **state)
{
	struct small_run *r = calloc(1, sizeof(*r));

	assert_non_null(r);
	/* In memory where that is to be had: these tests do not ask what survives a power cut. */
	const char *place = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/var/tmp";
	snprintf(r->root, sizeof(r->root), "%s/pawl-small-XXXXXX", place);
	assert_ptr_equal(mkdtemp(r->root), r->root);
	r->opts = (struct pawl_open_opts)PAWL_OPEN_OPTS_INIT;
	r->opts.root = r->root;
	*state = r;
	return 0;
}

static inline int
small_remove_one(const char *path, const struct stat *st, int flag, struct FTW *ftw)
{
	(void)st, (void)flag, (void)ftw;
	return remove(path);
}

static inline int
small_teardown(void **state)
{
	struct small_run *r = *state;

	pawl_close(r->run, NULL);
	nftw(r->root, small_remove_one, 16, FTW_DEPTH | FTW_PHYS);
	free(r);
	return 0;
}

static inline void
small_open(struct small_run *r)
{
	pawl_close(r->run, NULL);
	r->run = NULL;
	OK(pawl_open(&r->opts, &r->run, err));
}

/* Gives the state a tensor of one dimension, which the caller keeps until it has been saved. */
static inline void
small_add(struct pawl_state *state, const char *path, int dtype, uint64_t n, void *data)
{
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;

	tensor.dtype = dtype;
	tensor.ndim = 1;
	tensor.shape = &n;
	tensor.data = data;
	OK(pawl_state_set_tensor(state, path, &tensor, err));
}

/* Saves a state whose tensor holds the step, and waits. NaN: no metric. */
static inline void
small_save(struct small_run *r, int64_t step, double accuracy)
{
	struct pawl_metric metric = {.name = "accuracy", .value = accuracy};
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_state *state;
	float data[64];

	for (size_t i = 0; i < COUNT(data); i++)
		data[i] = (float)step + (float)i;
	OK(pawl_state_new(&state, err));
	small_add(state, "model/w", PAWL_F32, COUNT(data), data);
	OK(pawl_state_set_int(state, "step", step, err));
	save.step = step;
	save.metrics = &metric;
	save.n_metrics = isnan(accuracy) ? 0u : 1u;
	OK(pawl_save(r->run, &save, state, NULL, err));
	OK(pawl_wait(r->run, -1, err));
	pawl_state_free(state);
}

/* The ids of a list as text, bad ones as "name!"; e.g. "1 2 checkpoint_000003!". */
static inline const char *
small_ids(struct pawl *run, char *out, size_t cap)
{
	struct pawl_list *list;
	size_t len = 0;

	OK(pawl_list_open(run, 1, &list, err));
	out[0] = '\0';
	for (size_t i = 0; i < pawl_list_count(list) && len < cap; i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if (info->marks & PAWL_MARK_BAD)
			len += (size_t)snprintf(out + len, cap - len, "%s%s!", len ? " " : "", info->name);
		else
			len += (size_t)snprintf(out + len, cap - len, "%s%llu", len ? " " : "",
			                        (unsigned long long)info->id);
	}
	pawl_list_free(list);
	return out;
}

#define ASSERT_IDS(expected, run)                                                      \
	do {                                                                           \
		char ids_[1024];                                                       \
		assert_string_equal(small_ids((run), ids_, sizeof(ids_)), (expected)); \
	} while (0)

/* ------------------------------------------------------------------- files */

struct small_path {
	char text[1024];
};

static inline struct small_path
small_path(const struct small_run *r, const char *below)
{
	struct small_path p;

	snprintf(p.text, sizeof(p.text), "%s/%s", r->root, below);
	return p;
}

static inline int
small_exists(const struct small_run *r, const char *below)
{
	struct stat st;

	return lstat(small_path(r, below).text, &st) == 0;
}

static inline void
small_write(const struct small_run *r, const char *below, const void *ptr, size_t len)
{
	FILE *f = fopen(small_path(r, below).text, "wb");

	assert_non_null(f);
	assert_int_equal(fwrite(ptr, 1, len, f), len);
	assert_int_equal(fclose(f), 0);
}

/* The caller frees. */
static inline char *
small_read(const struct small_run *r, const char *below, size_t *ret_len)
{
	FILE *f = fopen(small_path(r, below).text, "rb");
	char *text = calloc(1, 1 << 20);

	assert_non_null(f);
	assert_non_null(text);
	*ret_len = fread(text, 1, (1 << 20) - 1, f);
	fclose(f);
	return text;
}

static inline void
small_mkdir(const struct small_run *r, const char *below)
{
	assert_int_equal(mkdir(small_path(r, below).text, 0777), 0);
}

static inline void
small_remove(const struct small_run *r, const char *below)
{
	nftw(small_path(r, below).text, small_remove_one, 16, FTW_DEPTH | FTW_PHYS);
}

static inline void
small_rename(const struct small_run *r, const char *from, const char *to)
{
	assert_int_equal(rename(small_path(r, from).text, small_path(r, to).text), 0);
}

/* Copies a folder of plain files, as a person would. */
static inline void
small_copy(const struct small_run *r, const char *from, const char *to)
{
	DIR *dir = opendir(small_path(r, from).text);

	assert_non_null(dir);
	small_mkdir(r, to);
	for (struct dirent *d; (d = readdir(dir));) {
		char source[512], target[512];
		size_t len;

		if (d->d_name[0] == '.')
			continue;
		snprintf(source, sizeof(source), "%s/%s", from, d->d_name);
		snprintf(target, sizeof(target), "%s/%s", to, d->d_name);
		char *bytes = small_read(r, source, &len);
		small_write(r, target, bytes, len);
		free(bytes);
	}
	closedir(dir);
}

/* Changes one byte. */
static inline void
small_damage(const struct small_run *r, const char *below, long offset)
{
	FILE *f = fopen(small_path(r, below).text, "r+b");
	int c;

	assert_non_null(f);
	assert_int_equal(fseek(f, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
	c = fgetc(f);
	assert_int_equal(fseek(f, offset, offset < 0 ? SEEK_END : SEEK_SET), 0);
	assert_int_equal(fputc(c ^ 1, f), c ^ 1);
	assert_int_equal(fclose(f), 0);
}

/* How many entries a folder has; 0 when it is not there. */
static inline size_t
small_count(const struct small_run *r, const char *below)
{
	DIR *dir = opendir(small_path(r, below).text);
	size_t n = 0;

	if (!dir)
		return 0;
	for (struct dirent *d; (d = readdir(dir));)
		n += strcmp(d->d_name, ".") != 0 && strcmp(d->d_name, "..") != 0;
	closedir(dir);
	return n;
}

/* Sets the time of last change, in seconds before now. */
static inline void
small_age(const struct small_run *r, const char *below, long seconds)
{
	struct timespec times[2];

	clock_gettime(CLOCK_REALTIME, &times[0]);
	times[0].tv_sec -= seconds;
	times[1] = times[0];
	assert_int_equal(utimensat(AT_FDCWD, small_path(r, below).text, times, AT_SYMLINK_NOFOLLOW), 0);
}

#endif
