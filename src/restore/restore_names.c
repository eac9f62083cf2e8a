/* SPDX-License-Identifier: Apache-2.0 */
/*
 * restore_names: names and dtypes at restore. The saved state gets the caller's names and dtypes
 * before anything is matched. A tensor of another dtype is read into memory of its own and
 * converted after the read.
 */
#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/mem.h"
#include "base/names.h"
#include "base/text.h"
#include "base/vec.h"
#include "layout/cast.h"
#include "layout/rename.h"
#include "read/to_device.h"
#include "restore/restore.h"
#include "state/state_rename.h"
#include "state/walk.h"

#define CAST_ELEMENTS 65536u

int
restore_copy_texts(struct pawl_restore *r, const char *what, const char *const *texts, size_t n,
                   const char *const **ret, size_t *ret_n, struct pawl_error *err)
{
	TRY(text_check_list(what, texts, n, err));
	const char **copies = bump_array(&r->options, (uint64_t)n + 1, sizeof(*copies));

	if (!copies)
		return err_nomem(err, "restore");
	*ret = copies;
	for (size_t i = 0; i < n; i++) {
		copies[i] = bump_strndup(&r->options, texts[i], strlen(texts[i]));
		if (!copies[i])
			return err_nomem(err, "restore");
		(*ret_n)++;
	}
	return 0;
}

int
restore_check_rules(const struct restore_rules *r, struct pawl_error *err)
{
	for (size_t i = 0; i < r->n_rename; i++)
		TRY(rename_check(r->rename[i], err));
	for (size_t i = 0; i < r->n_cast; i++) {
		const char *equals = strrchr(r->cast[i], '=');

		if (!equals || equals == r->cast[i])
			return err_set(err, PAWL_EUSAGE, "cast '%s': expected GLOB=DTYPE, such as '*=float32'",
			               r->cast[i]);
		if (!cast_dtype(equals + 1))
			return err_set(err, PAWL_EUSAGE,
			               "cast of '%.*s' to '%s': expected float16, bfloat16, float32 or float64",
			               (int)(equals - r->cast[i]), r->cast[i], equals + 1);
	}
	return 0;
}

/* ---- the saved state */

enum rule_use { UNUSED = 0, IS_ABOVE, USED }; /* IS_ABOVE: it names a dict or a list */

struct renaming {
	const struct restore_rules *rules;
	enum rule_use *uses; /* of each rule */
};

static void
new_path(void *arg, const char *path, struct buf *ret)
{
	struct renaming *n = arg;
	const struct restore_rules *r = n->rules;
	const size_t rule = rename_apply(r->rename, r->n_rename, path, ret);

	if (rule < r->n_rename)
		n->uses[rule] = USED;
	for (size_t i = 0; i < r->n_rename; i++) {
		const size_t len = strcspn(r->rename[i], "=");

		if (n->uses[i] == UNUSED && strncmp(path, r->rename[i], len) == 0 && path[len] == '/')
			n->uses[i] = IS_ABOVE;
	}
}

struct search {
	const char *glob;
	char path[64]; /* names_nearest compares no longer ones */
};

static int
visit_near(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct search *s = arg;
	const char *both[] = {s->path, leaf->path};

	(void)err;
	if (strlen(leaf->path) < sizeof(s->path) && names_nearest(s->glob, both, 2) == leaf->path)
		memcpy(s->path, leaf->path, strlen(leaf->path) + 1);
	return 0;
}

/* Reports a rule that matches no path: as a row, or as an error. */
static int
report_unused(const char *what, const char *rule, size_t len, const char *hint, const struct manifest *m,
              struct restore_rows *rows, struct pawl_error *err)
{
	PAWL_FREE char *glob = mem_strndup(rule, len < 200 ? len : 200);
	struct search near = {.glob = glob};

	if (!glob)
		return err_nomem(err, what);
	TRY(walk_leaves(m->state->root, visit_near, &near, err));
	const bool found = near.path[0] != '\0' && !*hint;
	PAWL_FREE char *text = mem_printf("%s matches '%s'%s%s%s", what, glob, found ? "; did you mean " : hint,
	                                  found ? near.path : "", found ? "?" : "");

	if (rows)
		return restore_add_row(rows, steal(&text), err);
	return text ? err_set(err, PAWL_EMISMATCH, "%s", text) : err_nomem(err, what);
}

static int
apply_renames(const struct restore_rules *r, struct manifest *m, struct restore_rows *rows, struct pawl_error *err)
{
	PAWL_FREE enum rule_use *uses = mem_zalloc(r->n_rename + 1, sizeof(*uses));
	struct renaming n = {r, uses};

	if (!uses)
		return err_nomem(err, "rename");
	TRY(state_rename(m->state, new_path, &n, err));
	for (size_t i = 0; i < r->n_rename; i++) {
		const char *hint = n.uses[i] == IS_ABOVE ? "; for what is below it write '/*' after both paths" : "";

		if (n.uses[i] != USED)
			TRY(report_unused("rename: no saved path", r->rename[i], strcspn(r->rename[i], "="), hint, m,
			                  rows, err));
	}
	return 0;
}

/* The dtype that the rules give this path, or 0; marks the rule. */
static int
dtype_at(const struct restore_rules *r, const char *path, bool *used)
{
	char glob[1024];

	for (size_t i = 0; i < r->n_cast; i++) {
		const char *equals = strrchr(r->cast[i], '=');
		size_t len = (size_t)(equals - r->cast[i]);

		if (len >= sizeof(glob))
			continue;
		memcpy(glob, r->cast[i], len);
		glob[len] = '\0';
		if (text_glob(glob, path)) {
			used[i] = true;
			return cast_dtype(equals + 1);
		}
	}
	return 0;
}

struct casting {
	const struct restore_rules *rules;
	struct manifest *manifest;
	bool *used, *values; /* of each rule: it matches a tensor, a value */
};

/* The first leaf of a tied tensor decides. */
static int
visit_leaf(void *arg, const struct walk_leaf *leaf, struct pawl_error *err)
{
	struct casting *c = arg;

	(void)err;
	if (leaf->node->type != PAWL_TENSOR) {
		dtype_at(c->rules, leaf->path, c->values);
		return 0;
	}

	struct pawl_tensor_info *info = &c->manifest->state->tensors[leaf->node->tensor].info;
	const int saved = c->manifest->tensors[leaf->node->tensor].dtype, to = dtype_at(c->rules, leaf->path, c->used);

	if (to == 0 || !cast_is_float(saved) || info->dtype != saved)
		return 0;
	info->nbytes = info->nbytes / (pawl_dtype_bits(saved) / 8) * (pawl_dtype_bits(to) / 8);
	info->dtype = to;
	return 0;
}

static int
apply_casts(const struct restore_rules *r, struct manifest *m, struct restore_rows *rows, struct pawl_error *err)
{
	PAWL_FREE bool *used = mem_zalloc(2 * r->n_cast + 1, sizeof(*used));
	struct casting c = {r, m, used, used ? used + r->n_cast : NULL};

	if (!used)
		return err_nomem(err, "cast");
	TRY(walk_leaves(m->state->root, visit_leaf, &c, err));
	for (size_t i = 0; i < r->n_cast; i++) {
		const size_t len = (size_t)(strrchr(r->cast[i], '=') - r->cast[i]);

		if (!used[i] && !(len == 1 && r->cast[i][0] == '*')) /* "*" may also find nothing */
			TRY(report_unused(c.values[i] ? "cast: no saved tensor" : "cast: no saved path", r->cast[i],
			                  len, c.values[i] ? "; what it matches has no dtype" : "", m, rows, err));
	}
	return 0;
}

int
restore_apply_rules(const struct restore_rules *rules, struct manifest *m, struct restore_rows *rows,
                    struct pawl_error *err)
{
	if (rules->n_rename > 0)
		TRY(apply_renames(rules, m, rows, err));
	return rules->n_cast > 0 ? apply_casts(rules, m, rows, err) : 0;
}

int
restore_resolve(const struct pawl_restore *r, struct manifest *m, struct restore_rows *rows, struct pawl_error *err)
{
	if (r->run->group.world == m->world_size)
		state_resolve_ranks(m->state, r->run->group.rank);
	else if (r->rank_values == PAWL_RANK_VALUES_WRAP)
		state_resolve_ranks(m->state, r->run->group.rank % m->world_size);
	else
		state_resolve_ranks(m->state, SIZE_MAX);
	return restore_apply_rules(&r->rules, m, r->non_strict ? rows : NULL, err);
}

/* ---- conversions */

int
restore_add_cast(struct pawl_restore *r, int saved, struct pawl_tensor *dst, struct pawl_error *err)
{
	struct restore_cast cast = {
		.binding = r->n_bindings, .from = saved, .to = {.dst = *dst, .contiguous = tensor_is_contiguous(dst)}};
	uint64_t nbytes = 0;

	dst->dtype = saved;
	dst->strides = NULL;
	dst->device = PAWL_DEVICE_HOST;
	cast.to.dst.offsets = NULL;
	TRY(tensor_nbytes(dst, &nbytes, err));
	if (!array_reserve(r->casts, r->cap_casts, r->n_casts + 1))
		return err_nomem(err, "restore");
	cast.bytes = nbytes < SIZE_MAX ? mem_alloc((size_t)nbytes + 1) : NULL;
	if (!cast.bytes)
		return err_nomem(err, "restore");
	dst->data = cast.bytes;
	r->casts[r->n_casts++] = cast;
	return 0;
}

/* The destinations of all casts, and the room for some converted elements. */
struct conversion {
	struct reshard_binding *to;
	struct to_device *to_device;
	struct to_device_load load; /* from the room */
	void *room;
};

static void
clear_conversion(struct conversion *c)
{
	to_device_free(c->to_device);
	to_device_clear(&c->load);
	mem_free(c->to);
	mem_free(c->room);
}

static int
run_cast(struct conversion *c, const struct restore_cast *cast, uint32_t i, struct pawl_error *err)
{
	const struct pawl_tensor *dst = &cast->to.dst;
	const uint64_t from = pawl_dtype_bits(cast->from) / 8, to = pawl_dtype_bits(dst->dtype) / 8;
	const bool is_on_device = to_device_has(c->to_device, i);
	uint64_t nbytes = 0;

	TRY(tensor_nbytes(dst, &nbytes, err));
	for (uint64_t at = 0, n = nbytes / to, step; at < n; at += step) {
		step = n - at < CAST_ELEMENTS ? n - at : CAST_ELEMENTS;
		cast_floats(cast->from, (const char *)cast->bytes + at * from, dst->dtype, c->room, (size_t)step);
		if (!is_on_device) {
			tensor_scatter(dst, at * to, (size_t)(step * to), c->room);
			continue;
		}
		to_device_add(c->to_device, &c->load, i, at * to, step * to, c->room);
		TRY(to_device_finish(&c->load, err));
	}
	return 0;
}

int
restore_run_casts(struct pawl_restore *r, struct pawl_error *err)
{
	PAWL_CLEAN(clear_conversion) struct conversion c = {0};

	if (r->n_casts == 0)
		return 0;
	c.to = mem_zalloc(r->n_casts, sizeof(*c.to));
	c.room = mem_alloc(CAST_ELEMENTS * sizeof(double));
	if (!c.to || !c.room)
		return err_nomem(err, "restore");
	for (size_t i = 0; i < r->n_casts; i++)
		c.to[i] = r->casts[i].to;
	TRY(to_device_new_bindings(fetch_devices(r->fetch), c.to, r->n_casts, &c.to_device, err));
	for (size_t i = 0; i < r->n_casts; i++)
		TRY(run_cast(&c, &r->casts[i], (uint32_t)i, err));
	return to_device_fence(c.to_device, err);
}

void
restore_cut_casts(struct pawl_restore *r, size_t n)
{
	while (r->n_casts > 0 && r->casts[r->n_casts - 1].binding >= n)
		mem_free(r->casts[--r->n_casts].bytes);
}
