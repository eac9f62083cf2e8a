/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_info: describes checkpoints, one or all, for users. */
#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "catalog/mirrors.h"
#include "run/run.h"

struct pawl_list {
	struct bump memory;
	struct pawl_info *infos;
	size_t n;
};

/* The same for all infos of a list. */
struct outlook {
	const struct catalog *catalog;
	const struct pawl_retention *policy;
	const struct catalog_entry *latest, *best;
	struct bump *memory;
};

/* What may be another one, since a checkpoint cannot be read, is not marked. */
static struct outlook
make_outlook(const struct catalog *c, const struct pawl_retention *policy, struct bump *memory)
{
	const struct catalog_entry *latest = catalog_latest(c);

	return (struct outlook){.catalog = c,
	                        .policy = policy,
	                        .latest = catalog_denied(c, latest) ? NULL : latest,
	                        .best = catalog_denied(c, NULL) ? NULL : catalog_best(c, policy),
	                        .memory = memory};
}

/* The complete path or URL of a checkpoint, here or in the only mirror that has it. The part of a
 * URL after "?" stays at its end. */
static const char *
path_of(const struct outlook *o, const struct catalog_entry *e)
{
	const char *root = e->at ? e->at->root : o->catalog->store->root;
	const char *folder = o->catalog->kind->folder;
	const char *sign = strstr(root, "://");
	const size_t least = sign ? (size_t)(sign - root) + 3 : 1; /* of "memory://" no slash goes */
	size_t len = sign ? strcspn(root, "?") : strlen(root);
	const char *rest = root + len;

	while (len > least && root[len - 1] == '/')
		len--;
	return bump_printf(o->memory, "%.*s%s%s%s%s", (int)len, root, root[len - 1] == '/' ? "" : "/", folder, e->name,
	                   rest);
}

/* Copies everything, since the entry may be removed while the info is in use. */
static bool
copy_strings(const struct outlook *o, const struct catalog_entry *e, struct pawl_info *ret)
{
	const char *run_id = e->summary ? e->summary->run_id : "";
	const char *problem = e->problem ? e->problem : "";
	struct pawl_metric *metrics = bump_array(o->memory, e->n_metrics, sizeof(*metrics));

	ret->name = bump_strndup(o->memory, e->name, strlen(e->name));
	ret->path = path_of(o, e);
	ret->run_id = bump_strndup(o->memory, run_id, strlen(run_id));
	ret->problem = bump_strndup(o->memory, problem, strlen(problem));
	ret->metrics = metrics;
	ret->n_metrics = e->n_metrics;
	for (size_t i = 0; metrics && i < e->n_metrics; i++) {
		metrics[i] = e->metrics[i];
		metrics[i].name = bump_strndup(o->memory, e->metrics[i].name, strlen(e->metrics[i].name));
		if (!metrics[i].name)
			return false;
	}
	return ret->name && ret->path && ret->run_id && ret->problem && metrics;
}

static void
copy_score(const struct outlook *o, struct pawl_info *ret)
{
	for (size_t i = 0; o->policy->n_scores && i < ret->n_metrics; i++) {
		if (ret->metrics[i].not_a_number || strcmp(ret->metrics[i].name, o->policy->score_attributes[0]) != 0)
			continue;
		ret->score = ret->metrics[i].value;
		ret->has_score = 1;
	}
}

static void
copy_summary(const struct manifest *m, struct pawl_info *ret)
{
	ret->step = m->step;
	ret->attempt = m->attempt;
	ret->unix_seconds = (double)m->unix_ns / 1e9;
	ret->progress = m->progress;
	ret->bytes = m->bytes;
	ret->new_bytes = m->new_bytes;
	ret->plain_bytes = m->plain_bytes ? m->plain_bytes : m->bytes;
	ret->n_tensors = m->n_tensors;
	ret->n_files = m->n_files;
	while (m->files && ret->n_files > 0 && m->files[ret->n_files - 1].memory) /* only in name (foreign_tree.h) */
		ret->n_files--;
	ret->world_size = m->world_size;
	ret->blocked_seconds = m->blocked_seconds;
	ret->format = m->format ? m->format : ret->format;
}

static int
fill_info(const struct outlook *o, const struct catalog_entry *e, struct pawl_info *ret, struct pawl_error *err)
{
	struct pawl_info info = {.id = e->id, .progress = PAWL_PROGRESS_INIT, .format = "pawl", .here = !e->at};

	if (!copy_strings(o, e, &info))
		return err_nomem(err, "catalog");
	copy_score(o, &info);
	if (e->summary)
		copy_summary(e->summary, &info);
	info.marks = (e == o->latest ? PAWL_MARK_LATEST : 0u) | (e == o->best ? PAWL_MARK_BEST : 0u) |
	             (e->pinned ? PAWL_MARK_PINNED : 0u) | (e->held ? PAWL_MARK_HELD : 0u) |
	             (e->summary && e->summary->nonfinite ? PAWL_MARK_NONFINITE : 0u) |
	             (e->problem ? PAWL_MARK_BAD : 0u) | (e->code == PAWL_EAUTH ? PAWL_MARK_DENIED : 0u) |
	             (catalog_is_unfinished(o->catalog, e) ? PAWL_MARK_UNFINISHED : 0u);
	info.code = e->is_running ? PAWL_EBUSY : catalog_may_be_intact(e) ? e->code : e->problem ? PAWL_ECORRUPT : 0;
	info.level = mirrors_level(o->catalog->mirrors, o->catalog, e);
	info.n_mirrors = mirrors_count(o->catalog->mirrors, e);
	*ret = info;
	return 0;
}

int
catalog_info(const struct catalog *c, const struct catalog_entry *e, const struct pawl_retention *policy,
             struct bump *memory, struct pawl_info *ret, struct pawl_error *err)
{
	const struct outlook o = make_outlook(c, policy, memory);

	return fill_info(&o, e, ret, err);
}

void
pawl_list_free(struct pawl_list *list)
{
	if (!list)
		return;
	bump_clear(&list->memory);
	mem_free(list);
}

size_t
pawl_list_count(const struct pawl_list *list)
{
	return list->n;
}

const struct pawl_info *
pawl_list_get(const struct pawl_list *list, size_t i)
{
	return i < list->n ? &list->infos[i] : NULL;
}

PAWL_DEFINE_CLEAN(struct pawl_list, pawl_list_free);

static int
fill_list(const struct pawl *run, int with_bad, struct pawl_list *list, struct pawl_error *err)
{
	const struct catalog *c = run->catalog;
	const struct outlook o = make_outlook(c, &run->settings.retention, &list->memory);

	list->infos = bump_array(&list->memory, c->n, sizeof(*list->infos));
	if (!list->infos)
		return err_nomem(err, "list");
	for (size_t i = 0; i < c->n; i++) {
		if (c->entries[i].summary || with_bad > c->entries[i].is_running)
			TRY(fill_info(&o, &c->entries[i], &list->infos[list->n++], err));
	}
	return 0;
}

int
pawl_list_open(struct pawl *run, int with_bad, struct pawl_list **ret, struct pawl_error *err)
{
	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "list: expected a run and a pointer that receives the list, found NULL");
	PAWL_CLEAN(pawl_list_free_clean) struct pawl_list *list = mem_zalloc(1, sizeof(*list));
	if (!list)
		return err_nomem(err, "list");
	run_lock(run);
	int rc = fill_list(run, with_bad, list, err);
	run_unlock(run);
	TRY(rc);
	*ret = steal(&list);
	return 0;
}

int
pawl_metadata(struct pawl *run, uint64_t id, struct pawl_state **ret, struct pawl_error *err)
{
	struct manifest *m = NULL;

	if (!run || !ret)
		return err_set(err, PAWL_EUSAGE,
		               "metadata: expected a run and a pointer that receives the state, found NULL");
	TRY(mirrors_manifest(run, id, true, &m, err));
	*ret = steal(&m->metadata);
	manifest_free(m);
	return 0;
}
