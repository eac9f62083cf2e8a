/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes as the JSON form of a state: refused, or a state whose form comes back the same.
 * Promise P17. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "state/state.h"
#include "fuzz.h"

static struct pawl_state *
decode(const void *text, size_t len)
{
	struct json_limits limits = {.max_depth = 1000, .max_values = 100000};
	struct bump memory = {0};
	struct json *value;
	struct pawl_state *s = NULL;
	struct pawl_error err = {0};
	int rc = json_parse("fuzz", text, len, &limits, &memory, &value, &err);

	if (rc == 0)
		rc = state_decode("fuzz", value, &s, &err);
	bump_clear(&memory);
	if ((rc == 0) != (s != NULL) || (rc < 0 && (err.code != rc || err.message[0] == '\0')))
		abort();
	return s;
}

/* Every path leads to a node, and names lead to their rows. */
static void
look_around(struct pawl_state *s)
{
	struct buf component = {0};
	size_t index = 0;
	const struct pawl_node *root = pawl_state_root(s);

	for (const struct pawl_node *n = pawl_node_first(root); n && index < 50; n = pawl_node_next(n), index++) {
		component.len = 0;
		state_put_component(&component, root, n, index);
		if (component.len > 0 && !pawl_state_at(s, buf_str(&component)))
			abort();
	}
	buf_clear(&component);
	for (size_t i = 0; i < s->n_tensors && i < 50; i++) {
		if (state_find_tensor(s, s->tensors[i].info.name) != &s->tensors[i])
			abort();
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct buf first = {0}, second = {0};
	struct pawl_state *s = decode(data, size);

	if (!s)
		return 0;
	look_around(s);
	if (state_encode(s, &first, NULL) < 0)
		abort();
	pawl_state_free(s);
	s = decode(first.ptr, first.len);
	if (!s || state_encode(s, &second, NULL) < 0)
		abort();
	if (first.len != second.len || memcmp(first.ptr, second.ptr, first.len) != 0)
		abort();
	pawl_state_free(s);
	buf_clear(&first);
	buf_clear(&second);
	return 0;
}
