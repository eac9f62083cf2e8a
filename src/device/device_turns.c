/* SPDX-License-Identifier: Apache-2.0 */
/* device_turns: see device_turns.h. */
#include "device/device_turns.h"

#include "base/err.h"
#include "base/mem.h"

int
device_turns_init(struct device_turns *t, size_t n, size_t n_groups, const size_t *group_of, struct pawl_error *err)
{
	PAWL_FREE struct device_turns_group *groups = mem_zalloc(n_groups, sizeof(*groups));
	PAWL_FREE size_t *items = mem_zalloc(n + 1, sizeof(*items));

	if (!groups || !items)
		return err_nomem(err, "device");
	for (size_t i = 0; i < n; i++)
		groups[group_of ? group_of[i] : 0].end++;
	for (size_t g = 0, begin = 0, n_here; g < n_groups; g++, begin += n_here) {
		n_here = groups[g].end;
		groups[g].next = groups[g].end = begin;
	}
	for (size_t i = 0; i < n; i++)
		items[groups[group_of ? group_of[i] : 0].end++] = i;
	*t = (struct device_turns){.n_groups = n_groups, .items = steal(&items), .groups = steal(&groups)};
	pthread_mutex_init(&t->lock, NULL);
	return 0;
}

void
device_turns_clear(struct device_turns *t)
{
	if (!t->groups)
		return;
	pthread_mutex_destroy(&t->lock);
	mem_free(t->groups);
	mem_free(t->items);
	*t = (struct device_turns){0};
}

size_t
device_turns_join(struct device_turns *t)
{
	pthread_mutex_lock(&t->lock);
	const size_t group = t->n_joined++ % t->n_groups;

	t->groups[group].n_threads++;
	pthread_mutex_unlock(&t->lock);
	return group;
}

static bool
has_items(const struct device_turns_group *g)
{
	return g->next < g->end;
}

/* A thread whose group has no items left joins another one. The lock is held. */
static size_t
change_group(struct device_turns *t, size_t group)
{
	size_t best = group;

	t->groups[group].n_threads--;
	for (size_t i = 0; i < t->n_groups; i++) {
		const struct device_turns_group *g = &t->groups[i], *b = &t->groups[best];

		if (has_items(g) && (!has_items(b) || g->n_threads < b->n_threads))
			best = i;
	}
	t->groups[best].n_threads++;
	return best;
}

bool
device_turns_take(struct device_turns *t, size_t *group, size_t *ret)
{
	pthread_mutex_lock(&t->lock);
	if (!has_items(&t->groups[*group]))
		*group = change_group(t, *group);
	struct device_turns_group *g = &t->groups[*group];
	const bool has = has_items(g);

	if (has)
		*ret = t->items[g->next++];
	pthread_mutex_unlock(&t->lock);
	return has;
}
