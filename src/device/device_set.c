/* SPDX-License-Identifier: Apache-2.0 */
/* device_set: see device_set.h. */
#include "device/device_set.h"

#include "base/err.h"
#include "base/mem.h"

#define MOST_UNITS ((size_t)128)

void
device_set_init(struct device_set *s)
{
	*s = (struct device_set){.most_units = MOST_UNITS};
	pthread_mutex_init(&s->lock, NULL);
}

void
device_set_clear(struct device_set *s)
{
	for (size_t i = 0; i < s->lines.n; i++) {
		device_queue_free(s->lines.items[i]->queue);
		pthread_mutex_destroy(&s->lines.items[i]->lock);
		mem_free(s->lines.items[i]);
	}
	vec_free(&s->lines);
	for (size_t i = 0; i < sizeof(s->drivers) / sizeof(s->drivers[0]); i++)
		device_close(s->drivers[i]);
	pthread_mutex_destroy(&s->lock);
}

static int
find_line(struct device_set *s, int kind, int ordinal, struct device_line **ret, struct pawl_error *err)
{
	for (size_t i = 0; i < s->lines.n; i++) {
		*ret = s->lines.items[i];
		if ((*ret)->kind == kind && (*ret)->ordinal == ordinal)
			return 0;
	}
	PAWL_FREE struct device_line *line = mem_zalloc(1, sizeof(*line));

	if (!line || !vec_reserve(&s->lines, s->lines.n + 1))
		return err_nomem(err, "device");
	TRY(device_queue_new(s->drivers[kind], ordinal, &line->queue, err));
	line->device = s->drivers[kind];
	line->kind = kind;
	line->ordinal = ordinal;
	line->node = device_node(line->device, ordinal);
	pthread_mutex_init(&line->lock, NULL);
	s->lines.items[s->lines.n++] = *ret = steal(&line);
	return 0;
}

/* A driver that is missing is never PAWL_ENOTFOUND, which a restore takes for a missing file. */
static int
open_driver(struct device_set *s, int kind, struct pawl_error *err)
{
	struct pawl_error why = {0};
	const int rc = device_open((enum driver_kind)kind, true, &s->drivers[kind], &why);

	return rc < 0 ? err_give(err, rc == PAWL_ENOTFOUND ? PAWL_EDEVICE : rc, &why) : 0;
}

static int
find_device(struct device_set *s, const struct pawl_tensor *t, bool *ret_managed, struct device_line **ret,
            struct pawl_error *err)
{
	struct device_place place;

	if (!s->drivers[t->device])
		TRY(open_driver(s, t->device, err));
	TRY(device_find(s->drivers[t->device], (uint64_t)(uintptr_t)t->data, &place, err));
	*ret_managed = place.kind == DEVICE_PLACE_MANAGED;
	if (place.kind == DEVICE_PLACE_HOST)
		return 0;
	if (t->device_id >= 0 && t->device_id != place.ordinal)
		return err_set(err, PAWL_EUSAGE, "device_id is %d, but the memory is on device %d", t->device_id,
		               place.ordinal);
	return find_line(s, t->device, place.ordinal, ret, err);
}

int
device_set_find(struct device_set *s, const struct pawl_tensor *t, bool *ret_managed, struct device_line **ret,
                struct pawl_error *err)
{
	*ret = NULL;
	pthread_mutex_lock(&s->lock);
	int rc = find_device(s, t, ret_managed, ret, err);

	pthread_mutex_unlock(&s->lock);
	return rc;
}

int
device_line_copy(struct device_line *l, enum device_direction direction, const struct device_copies *copies,
                 uint64_t *ret_unit, struct pawl_error *err)
{
	if (!copies->list.n)
		return 0;
	pthread_mutex_lock(&l->lock);
	int rc = device_queue_copy(l->queue, direction, copies->list.items, copies->list.n, ret_unit, err);

	pthread_mutex_unlock(&l->lock);
	return rc;
}
