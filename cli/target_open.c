/* SPDX-License-Identifier: Apache-2.0 */
/* target_open: opens what an argument names, finds the checkpoint in it and holds it. See
 * target.h. */
#include "human.h"
#include "target.h"
#include "work.h"

#include <stdlib.h>
#include <string.h>

#define FIND_LOOKS 100u /* attempts, if the checkpoints of the run are deleted each time */

int
target_note_wait(void *arg, int64_t waited_ms, const char *why, struct pawl_error *err)
{
	(void)err;
	if (waited_ms == 0)
		cli_warn(arg, "waiting for the lease: %s", why);
	return 0;
}

int
target_open(struct cli *cli, const struct target *target, bool writable, const struct score *score, struct pawl **ret,
            struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	int rc;

	if (target->file && writable)
		return err_set(err, PAWL_EUSAGE,
		               "%s was written by another program; '%s' changes only runs and "
		               "checkpoints of pawl",
		               target->root, cli->command->name);
	opts.root = target->root;
	opts.read_only = !writable;
	opts.single = target->single;
	opts.maintenance = 1;
	opts.ranks.node_folder = target->single ? NULL : cli->common.node_folder;
	opts.io.write_bytes_per_second = opts.io.read_bytes_per_second = target->bandwidth;
	if (target->bandwidth > 0)
		opts.io.meter = work_meter(cli->work);
	if (target->uploads != NULL)
		opts.uploads = *target->uploads;
	opts.timeouts.upload_ms = target->upload_ms;
	opts.on_lease_wait = target_note_wait;
	opts.on_lease_wait_arg = cli;
	if (score != NULL) {
		TRY(target_score(cli, score, &opts.retention, err));
	}
	rc = pawl_open(&opts, ret, err);
	if (rc == PAWL_ENOTFOUND && target->file)
		return err_set(
			err, PAWL_EUSAGE,
			"%s is a file; expected a run, a checkpoint's folder, RUN@SELECTOR, or a file of safetensors, "
			"torch.save or numpy",
			target->root);
	if (rc == 0 && score != NULL && score->by.n > 0)
		rc = target_check_metrics(cli, *ret, score, err);
	return rc;
}

/* Why the checkpoint that a selector names cannot be used; *ret_name is copied, err set. 0 = there
 * is none. */
static int
find_bad(struct cli *cli, struct pawl *run, const struct target *target, const char **ret_name, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;
	const char *selector = target->selector != NULL ? target->selector : "";
	uint64_t id = 0;
	char *end;

	if (pawl_list_open(run, 1, &list, NULL) < 0)
		return 0;
	if (strncmp(selector, "id:", 3) == 0) {
		id = strtoull(selector + 3, &end, 10);
		id = *end == '\0' ? id : 0;
	}
	for (size_t i = 0; i < pawl_list_count(list); i++) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if ((info->marks & PAWL_MARK_BAD) == 0 ||
		    !(target->single || strcmp(info->name, selector) == 0 || (id > 0 && info->id == id)))
			continue;
		*ret_name = keep_printf(&cli->keep, "%s", info->name);
		const size_t len = strlen(info->name);
		const bool named = strncmp(info->problem, info->name, len) == 0 && info->problem[len] == ':';

		return err_set(err, info->code < 0 && info->code != PAWL_ENOTFOUND ? info->code : PAWL_ECORRUPT,
		               "%s%s%s", named ? "" : info->name, named ? "" : ": ", info->problem);
	}
	return 0;
}

const char *
target_bad_name(struct cli *cli, struct pawl *run, const struct target *target)
{
	const char *name = NULL;

	return find_bad(cli, run, target, &name, NULL) < 0 ? name : NULL;
}

int
target_find(struct cli *cli, struct pawl *run, const struct target *target, uint64_t *ret_id, struct pawl_error *err)
{
	const char *name;
	int bad, rc;

	rc = pawl_find(run, target->selector != NULL ? target->selector : "latest", ret_id, err);
	bad = rc == PAWL_ENOTFOUND ? find_bad(cli, run, target, &name, err) : 0;
	return bad < 0 ? bad : rc;
}

int
target_check_row(struct pawl *run, const struct pawl_info *info, struct pawl_error *err)
{
	uint64_t id;

	if ((info->marks & PAWL_MARK_BAD) == 0 || info->code == PAWL_ECORRUPT)
		return 0;
	return pawl_find(run, info->name, &id, err); /* finds a good copy of it in a mirror */
}

void
target_note_unfinished(struct cli *cli, size_t n)
{
	cli_note(cli, "%s without a manifest, from running or interrupted saves; see 'pawl gc' and 'pawl repair'",
	         human_count(&cli->keep, n, "folder", "folders"));
}

const struct pawl_info *
target_copy_info(struct cli *cli, const struct pawl_info *from)
{
	struct pawl_metric *metrics = keep_alloc(&cli->keep, from->n_metrics + 1, sizeof(*metrics));
	struct pawl_info *info = keep_alloc(&cli->keep, 1, sizeof(*info));

	*info = *from;
	info->name = keep_printf(&cli->keep, "%s", from->name);
	info->path = keep_printf(&cli->keep, "%s", from->path);
	info->run_id = keep_printf(&cli->keep, "%s", from->run_id);
	info->problem = keep_printf(&cli->keep, "%s", from->problem);
	for (size_t m = 0; m < from->n_metrics; m++) {
		metrics[m] = from->metrics[m];
		metrics[m].name = keep_printf(&cli->keep, "%s", from->metrics[m].name);
	}
	info->metrics = metrics;
	return info;
}

int
target_info(struct cli *cli, struct pawl *run, uint64_t id, const struct pawl_info **ret, struct pawl_error *err)
{
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = NULL;

	TRY(pawl_list_open(run, 0, &list, err));
	for (size_t i = pawl_list_count(list); i-- > 0;) {
		const struct pawl_info *info = pawl_list_get(list, i);

		if (info->id != id || (info->marks & PAWL_MARK_BAD) != 0)
			continue;
		*ret = target_copy_info(cli, info);
		return 0;
	}
	return err_set(err, PAWL_ENOTFOUND, "%s: checkpoint %llu was deleted in the meantime", pawl_root(run),
	               (unsigned long long)id);
}

/* Finds the checkpoint by its selector and holds it. *ret_seen: it was found, so that
 * PAWL_ENOTFOUND means that it was deleted since. */
static int
hold_once(struct cli *cli, struct pawl *run, const struct target *target, const struct pawl_info **ret,
          struct pawl_hold **ret_hold, bool *ret_seen, struct pawl_error *err)
{
	uint64_t id;
	int rc = target_find(cli, run, target, &id, err);

	*ret_hold = NULL;
	*ret_seen = rc == 0;
	if (rc == 0)
		rc = target_info(cli, run, id, ret, err);
	if (rc == 0 && (*ret)->here)
		rc = pawl_hold_open(run, id, ret_hold, err);
	return rc == PAWL_ENOTFOUND || !*ret_seen ? rc : 0; /* a run that cannot be written to is read without a hold */
}

int
target_hold(struct cli *cli, struct pawl *run, const struct target *target, const struct pawl_info **ret,
            struct pawl_hold **ret_hold, struct pawl_error *err)
{
	struct target now = *target, before;
	bool seen;

	for (unsigned looks = 1;; looks++) {
		int rc = hold_once(cli, run, &now, ret, ret_hold, &seen, err);

		if (rc != PAWL_ENOTFOUND || looks == FIND_LOOKS)
			return rc;
		before = now;
		if (now.link && target_parse(cli, now.text, &now, NULL) == 0)
			seen = seen || strcmp(now.selector, before.selector) != 0;
		if (!seen)
			return rc;
		TRY(pawl_reload(run, err));
	}
}

void
target_close_hold(struct pawl_hold **hold)
{
	pawl_hold_close(*hold);
	*hold = NULL;
}

void
target_release(struct taken *taken)
{
	target_close_hold(&taken->hold);
	cli_close(&taken->run);
}

int
target_take(struct cli *cli, const char *text, const struct score *score, struct taken *ret, struct pawl_error *err)
{
	TRY(target_parse(cli, text, &ret->target, err));
	TRY(target_open(cli, &ret->target, false, score, &ret->run, err));
	return target_hold(cli, ret->run, &ret->target, &ret->info, &ret->hold, err);
}
