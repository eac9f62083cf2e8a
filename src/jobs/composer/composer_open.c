/* SPDX-License-Identifier: Apache-2.0 */
/*
 * composer_open: checks the options of a saver before anything is written. So bad options fail
 * here and not at the first save (R73-R76, R85-R91, R95).
 */
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/text.h"
#include "jobs/composer/composer.h"
#include "jobs/files/files.h"
#include "pawl_jobs.h"

static int
keep_text(const char *text, char **ret, struct pawl_error *err)
{
	*ret = text ? mem_strdup(text) : NULL;
	return text && !*ret ? err_nomem(err, "checkpoint saver") : 0;
}

int
composer_take_opts(const struct pawl_saver_opts *given, struct pawl_saver_opts *ret, struct pawl_error *err)
{
	*ret = (struct pawl_saver_opts){0};
	if (!given)
		return 0;
	if (!given->size)
		return err_set(err, PAWL_EUSAGE,
		               "checkpoint saver: the options have no size; start from PAWL_SAVER_OPTS_INIT");
	memcpy(ret, given, given->size < sizeof *ret ? given->size : sizeof *ret);
	return 0;
}

int
composer_take_rank(const struct pawl_rank *given, struct pawl_rank *ret, struct pawl_error *err)
{
	*ret = (struct pawl_rank)PAWL_RANK_INIT;
	if (!given)
		return pawl_rank_identify(ret, err);
	if (!given->size)
		return err_set(err, PAWL_EUSAGE, "checkpoint saver: the rank has no size; start from PAWL_RANK_INIT");
	memcpy(ret, given, given->size < sizeof *ret ? given->size : sizeof *ret);
	return 0;
}

/* A template that cannot be filled in, or whose suffix is not a format, fails now and not at the
 * first save. */
static int
try_template(const struct name_values *values, const char *text, struct pawl_error *err)
{
	struct files_target target = {0};
	PAWL_FREE char *name = NULL;
	if (!text)
		return 0;
	TRY(composer_fill(text, values, false, &name, err));
	if (composer_is_tar(name))
		return 0;
	int rc = files_target_set(name, composer_format(name), &target, err);
	files_target_clear(&target);
	if (rc == PAWL_EUSAGE && !composer_format(name))
		return err_set(err, PAWL_EUSAGE,
		               "\"%.200s\": expected .pt, .pth or .safetensors, one of these and .bz2, .gz, .lz4, "
		               ".lzma, .lzo, .planes, .xz or .zst, or .tar, .tar.gz, .tgz, .tar.bz2 or .tar.lzma",
		               name);
	return rc;
}

/* R85-R89: a remote name is in a store if it is a URL of one, or if the caller names the store. */
static int
keep_remote(struct pawl_saver *s, const struct pawl_saver_opts *opts, struct pawl_error *err)
{
	PAWL_FREE char *latest_root = NULL;
	if (!opts->remote_file_name)
		return 0;
	TRY(composer_split_url(opts->remote_file_name, &s->remote_root, &s->remote_name, err));
	if (opts->latest_filename && opts->latest_remote_file_name) {
		TRY(composer_split_url(opts->latest_remote_file_name, &latest_root, &s->remote_latest, err));
		if (latest_root && (!s->remote_root || strcmp(latest_root, s->remote_root) != 0))
			return err_set(err, PAWL_EUSAGE,
			               "latest_remote_file_name: expected a name in the store of "
			               "remote_file_name (%s), "
			               "found %s",
			               s->remote_root ? s->remote_root : "none", latest_root);
	}
	if (!s->remote_root && opts->remote)
		TRY(keep_text(opts->remote, &s->remote_root, err));
	s->by_caller = !s->remote_root && opts->uploads_by_caller;
	return 0;
}

static int
keep_rank(struct pawl_saver *s, const struct pawl_saver_opts *opts, struct pawl_error *err)
{
	TRY(composer_take_rank(opts->rank, &s->rank, err));
	if (s->rank.world_size < 1) {
		s->rank.rank = 0;
		s->rank.world_size = 1;
	}
	if (s->rank.world_size == 1 && s->rank.local_rank < 0) {
		s->rank.local_rank = s->rank.node_rank = 0;
		s->rank.local_world_size = 1;
	}
	return 0;
}

static int
check_options(const struct pawl_saver_opts *opts, struct pawl_error *err)
{
	if (!opts->folder || !opts->filename)
		return err_set(err, PAWL_EUSAGE, "checkpoint saver: expected a folder and a filename, found none");
	if (opts->num_checkpoints_to_keep < -1)
		return err_set(err, PAWL_EUSAGE,
		               "num_checkpoints_to_keep must be -1 (all of them) or a "
		               "non-negative integer, received %lld",
		               (long long)opts->num_checkpoints_to_keep);
	if (opts->upload_timeout_ms < 0)
		return err_set(err, PAWL_EUSAGE, "upload_timeout: expected 0 or more, found %lld ms",
		               (long long)opts->upload_timeout_ms);
	if (opts->num_concurrent_uploads > 64)
		return err_set(err, PAWL_EUSAGE, "num_concurrent_uploads must be at most 64, received %u",
		               opts->num_concurrent_uploads);
	return 0;
}

static int
keep_options(struct pawl_saver *s, const struct pawl_saver_opts *opts, struct pawl_error *err)
{
	TRY(keep_rank(s, opts, err));
	TRY(keep_text(opts->run_name, &s->run_name, err));
	TRY(keep_text(opts->folder, &s->folder_template, err));
	TRY(keep_text(opts->filename, &s->filename, err));
	TRY(keep_text(opts->latest_filename, &s->latest_filename, err));
	TRY(keep_remote(s, opts, err));
	s->has_interval = opts->save_interval != NULL;
	if (s->has_interval)
		TRY(triggers_parse_fixed(opts->save_interval, &s->interval, err));
	s->overwrite = opts->overwrite != 0;
	s->weights_only = opts->weights_only != 0;
	s->keep = opts->num_checkpoints_to_keep;
	s->timeout_ms = opts->upload_timeout_ms ? opts->upload_timeout_ms : 3600000;
	s->n_uploads = opts->num_concurrent_uploads ? opts->num_concurrent_uploads : 1;
	s->arena = opts->arena;
	s->raw_pickle = opts->raw_pickle != 0;
	TRY(text_check_list("ignore_keys", opts->ignore_keys, opts->n_ignore_keys, err));
	s->ignore = mem_zalloc(opts->n_ignore_keys + 1, sizeof *s->ignore);
	if (!s->ignore)
		return err_nomem(err, "checkpoint saver");
	for (; s->n_ignore < opts->n_ignore_keys; s->n_ignore++)
		TRY(keep_text(opts->ignore_keys[s->n_ignore], &s->ignore[s->n_ignore], err));
	return 0;
}

/* A name that is not used is checked, too, but needs no name of the run. */
static int
check_unused(const struct pawl_saver *s, const struct pawl_saver_opts *opts, struct pawl_error *err)
{
	struct name_values values = composer_values(s, NULL);
	PAWL_FREE char *root = NULL;
	PAWL_FREE char *name = NULL;
	if (s->remote_latest || !opts->latest_remote_file_name)
		return 0;
	if (!values.run_name)
		values.run_name = "run";
	TRY(composer_split_url(opts->latest_remote_file_name, &root, &name, err));
	return try_template(&values, name, err);
}

static int
check_saver(struct pawl_saver *s, const struct pawl_saver_opts *opts, struct pawl_error *err)
{
	struct name_values values = composer_values(s, NULL);
	TRY(composer_fill_folder(opts->folder, &values, &s->folder, err));
	TRY(try_template(&values, s->filename, err));
	TRY(try_template(&values, s->latest_filename, err));
	TRY(try_template(&values, s->remote_name, err));
	TRY(try_template(&values, s->remote_latest, err));
	TRY(check_unused(s, opts, err));
	if (s->keep == 0 && !s->remote_root && !s->by_caller)
		return err_set(err, PAWL_EUSAGE,
		               "num_checkpoints_to_keep=0 deletes what has been uploaded, "
		               "and nothing is uploaded here; "
		               "expected the URL of a store in remote_file_name");
	return 0;
}

static int
open_saver(const struct pawl_saver_opts *given, struct pawl_saver **ret, struct pawl_error *err)
{
	struct pawl_saver_opts taken;
	const struct pawl_saver_opts *const opts = &taken;
	TRY(composer_take_opts(given, &taken, err));
	TRY(check_options(opts, err));
	if (!ret)
		return err_set(err, PAWL_EUSAGE,
		               "checkpoint saver: expected a pointer that receives the handle, found NULL");
	struct pawl_saver *s = mem_zalloc(1, sizeof *s);
	if (!s)
		return err_nomem(err, "checkpoint saver");
	s->lock_fd = -1;
	s->next_seq = 1;
	pthread_mutex_init(&s->lock, NULL);
	pool_cond_init(&s->changed);
	int rc = keep_options(s, opts, err);
	if (rc == 0)
		rc = check_saver(s, opts, err);
	if (rc < 0) {
		pawl_saver_close(s, NULL);
		return rc;
	}
	*ret = s;
	return 0;
}

int
pawl_saver_open(const struct pawl_saver_opts *opts, struct pawl_saver **ret, struct pawl_error *err)
{
	struct pawl_error own = {0};

	return err_give(err, open_saver(opts, ret, &own), &own);
}
