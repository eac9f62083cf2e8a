/* SPDX-License-Identifier: Apache-2.0 */
/* to_device: see to_device.h. */
#include "read/to_device.h"

#include "base/err.h"
#include "base/mem.h"

struct to_device {
	const struct reshard_binding *bindings;
	size_t n;
	struct device_line **lines;       /* per binding; NULL = host memory */
	VEC(struct device_line *) in_use; /* each of them once */
};

static int
note_line(struct to_device *t, uint32_t binding, struct device_line *line, struct pawl_error *err)
{
	size_t i = 0;

	t->lines[binding] = line;
	while (i < t->in_use.n && t->in_use.items[i] != line)
		i++;
	if (i < t->in_use.n)
		return 0;
	struct device_line **added = vec_add(&t->in_use);

	if (!added)
		return err_nomem(err, "reading");
	*added = line;
	return 0;
}

/* Has no earlier destination the same line and stream? Nearly always all streams are equal. */
static bool
is_first(const struct to_device *t, const struct device_line *line, uint32_t binding)
{
	uint32_t i = 0;

	while (i < binding && (t->lines[i] != line || t->bindings[i].dst.stream != t->bindings[binding].dst.stream))
		i++;
	return i == binding;
}

/* Orders copies, or the processor's writes to managed memory, after the caller's work. */
static int
begin_binding(struct to_device *t, struct device_set *set, uint32_t binding, struct pawl_error *err)
{
	const struct pawl_tensor *dst = &t->bindings[binding].dst;
	struct device_line *line;
	bool is_managed;

	TRY(device_set_find(set, dst, &is_managed, &line, err));
	if (!line)
		return 0;
	if (!is_first(t, line, binding)) {
		t->lines[binding] = line;
		return 0;
	}
	pthread_mutex_lock(&line->lock);
	int rc = device_queue_after(line->queue, dst->stream, err);

	if (rc == 0 && is_managed)
		rc = device_queue_drain(line->queue, err);
	pthread_mutex_unlock(&line->lock);
	return rc < 0 || is_managed ? rc : note_line(t, binding, line, err);
}

int
to_device_new(struct device_set *set, const struct fetch_job *job, struct to_device **ret, struct pawl_error *err)
{
	const struct reshard_plan *plan = job->plan;
	const struct reshard_binding *bindings = job->bindings;
	bool has_device = false;
	size_t n = 0;

	*ret = NULL;
	for (size_t i = 0; i < plan->n_moves; i++) {
		n = plan->moves[i].binding >= n ? (size_t)plan->moves[i].binding + 1 : n;
		has_device = has_device || bindings[plan->moves[i].binding].dst.device;
	}
	return has_device ? to_device_new_bindings(set, bindings, n, ret, err) : 0;
}

int
to_device_new_bindings(struct device_set *set, const struct reshard_binding *bindings, size_t n, struct to_device **ret,
                       struct pawl_error *err)
{
	PAWL_CLEAN(to_device_free_clean) struct to_device *t = mem_zalloc(1, sizeof(*t));

	if (!t)
		return err_nomem(err, "reading");
	t->bindings = bindings;
	t->n = n;
	t->lines = mem_zalloc(n, sizeof(struct device_line *));
	if (!t->lines)
		return err_nomem(err, "reading");
	for (uint32_t i = 0; i < n; i++)
		if (bindings[i].dst.device && bindings[i].dst.data)
			TRY(begin_binding(t, set, i, err));
	*ret = steal(&t);
	return 0;
}

void
to_device_free(struct to_device *t)
{
	if (!t)
		return;
	mem_free(t->lines);
	vec_free(&t->in_use);
	mem_free(t);
}

int
to_device_fence(const struct to_device *t, struct pawl_error *err)
{
	for (uint32_t i = 0; t && i < t->n; i++) {
		struct pawl_error why = {0};

		if (!t->lines[i] || !is_first(t, t->lines[i], i))
			continue;
		const int rc = device_queue_fence(t->lines[i]->queue, t->bindings[i].dst.stream, &why);

		if (rc < 0 && rc != PAWL_EBUSY) /* a graph is being captured: the host has waited */
			return err_give(err, rc, &why);
	}
	return 0;
}

bool
to_device_has(const struct to_device *t, uint32_t binding)
{
	return t && binding < t->n && t->lines[binding];
}

/* The first line that a unit is copied on, or NULL. */
static const struct device_line *
line_of(const struct to_device *t, const struct reshard_plan *plan, const struct reshard_unit *unit)
{
	for (size_t i = 0; t && i < unit->n_parts; i++) {
		const uint32_t binding = plan->moves[plan->parts[unit->first_part + i].move].binding;

		if (to_device_has(t, binding))
			return t->lines[binding];
	}
	return NULL;
}

bool
to_device_has_unit(const struct to_device *t, const struct reshard_plan *plan, const struct reshard_unit *unit)
{
	return line_of(t, plan, unit) != NULL;
}

int
to_device_share_units(const struct to_device *t, const struct reshard_plan *plan, struct device_turns *ret,
                      struct pawl_error *err)
{
	const size_t n_lines = t ? t->in_use.n : 0;

	if (n_lines < 2)
		return device_turns_init(ret, plan->n_units, 1, NULL, err);
	PAWL_FREE size_t *group_of = mem_zalloc(plan->n_units + 1, sizeof(*group_of));

	if (!group_of)
		return err_nomem(err, "reading");
	for (size_t u = 0; u < plan->n_units; u++) {
		const struct device_line *line = line_of(t, plan, &plan->units[u]);

		while (line && t->in_use.items[group_of[u]] != line)
			group_of[u]++;
	}
	return device_turns_init(ret, plan->n_units, n_lines, group_of, err);
}

struct device_pin *
to_device_pin(const struct to_device *t, char *buffers, size_t buffer_bytes, size_t n)
{
	PAWL_CLEAN(device_spans_clear) struct device_spans spans = {0};
	struct device_pin *pin = NULL;

	if (!t || !t->in_use.n)
		return NULL;
	const struct device_line *first = t->in_use.items[0];

	for (size_t i = 0; i < n; i++)
		if (!device_spans_add(&spans, i * buffer_bytes, t->in_use.items[i % t->in_use.n]->node))
			return NULL;
	(void)device_pin_new(first->device, first->ordinal, &spans, buffers, n * buffer_bytes, &pin, NULL);
	return pin;
}

static int
list_copies(const struct reshard_binding *b, struct device_copies *copies, uint64_t at, uint64_t nbytes,
            const char *bytes, struct pawl_error *err)
{
	if (!b->contiguous)
		return device_copies_add(copies, &b->dst, (uint64_t)pawl_dtype_bits(b->dst.dtype) / 8, at, nbytes,
		                         (uint64_t)(uintptr_t)bytes, true, err);
	struct device_copy *copy = vec_add(&copies->list);

	if (!copy)
		return err_nomem(err, "reading");
	*copy = (struct device_copy){.to = (uint64_t)(uintptr_t)b->dst.data + at,
	                             .from = (uint64_t)(uintptr_t)bytes,
	                             .nbytes = nbytes,
	                             .rows = 1};
	return 0;
}

/* Copies what is listed. */
static int
flush_copies(struct to_device_load *load, struct pawl_error *err)
{
	struct device_line *line = load->line;
	uint64_t unit = 0;

	if (!load->copies.list.n)
		return 0;
	device_copies_drop_twins(&load->copies);
	int rc = device_line_copy(line, DEVICE_FROM_HOST, &load->copies, &unit, err);

	load->copies.list.n = 0;
	if (rc == 0)
		rc = device_queue_wait(line->queue, unit, err);
	if (rc < 0)
		(void)device_queue_drain(line->queue, NULL);
	return rc;
}

void
to_device_add(struct to_device *t, struct to_device_load *load, uint32_t binding, uint64_t at, uint64_t nbytes,
              const char *bytes)
{
	struct device_line *line = t->lines[binding];
	int rc = load->error.code;

	if (rc == 0 && load->line != line)
		rc = flush_copies(load, &load->error);
	load->line = line;
	if (rc == 0)
		rc = list_copies(&t->bindings[binding], &load->copies, at, nbytes, bytes, &load->error);
	load->error.code = rc;
}

int
to_device_finish(struct to_device_load *load, struct pawl_error *err)
{
	const int rc = load->error.code ? load->error.code : flush_copies(load, err);

	if (load->error.code)
		err_give(err, rc, &load->error);
	load->error = (struct pawl_error){0};
	load->copies.list.n = 0;
	return rc;
}

void
to_device_clear(struct to_device_load *load)
{
	device_copies_clear(&load->copies);
}
