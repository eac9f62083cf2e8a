/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device_nodes: a machine with two memory nodes, whatever the real one has: device 1 is next to
 * node 0, device 2 to node 1. Link with --wrap=device_node,--wrap=mem_prefer_node. Include after
 * device_run.h.
 */
#ifndef PAWL_TESTS_DEVICE_NODES_H
#define PAWL_TESTS_DEVICE_NODES_H

#include <pthread.h>

#include "device/device.h"

struct device_nodes_call {
	const char *ptr;
	size_t n;
	int node;
};
static struct {
	pthread_mutex_t lock;
	bool are_equal; /* both devices are next to node 0 */
	struct device_nodes_call calls[256];
	size_t n;
} device_nodes = {.lock = PTHREAD_MUTEX_INITIALIZER};

int __wrap_device_node(struct device *d, int ordinal);
void __wrap_mem_prefer_node(void *ptr, size_t nbytes, int node);

int
__wrap_device_node(struct device *d, int ordinal)
{
	(void)d;
	return device_nodes.are_equal ? 0 : ordinal - 1;
}

void
__wrap_mem_prefer_node(void *ptr, size_t nbytes, int node)
{
	pthread_mutex_lock(&device_nodes.lock);
	if (device_nodes.n < COUNT(device_nodes.calls))
		device_nodes.calls[device_nodes.n++] = (struct device_nodes_call){ptr, nbytes, node};
	pthread_mutex_unlock(&device_nodes.lock);
}

static inline void
device_nodes_reset(void)
{
	device_nodes.n = 0;
	device_nodes.are_equal = false;
}

/* Where a byte was put at last; -1 = nowhere. */
static inline int
device_nodes_of(const char *ptr)
{
	int node = -1;

	pthread_mutex_lock(&device_nodes.lock);
	for (size_t i = 0; i < device_nodes.n; i++) {
		const struct device_nodes_call *c = &device_nodes.calls[i];

		if (ptr >= c->ptr && ptr < c->ptr + c->n)
			node = c->node;
	}
	pthread_mutex_unlock(&device_nodes.lock);
	return node;
}

#endif
