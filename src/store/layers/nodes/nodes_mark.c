/* SPDX-License-Identifier: Apache-2.0 */
/* nodes_mark: see nodes_mark.h. */
#include "store/layers/nodes/nodes_mark.h"

#include <inttypes.h>
#include <string.h>

#include "base/hidden.h"
#include "base/mem.h"

#define PACK_SUFFIX ".safetensors"

/* Parses a plain decimal number up to max, and moves *text behind it. */
static bool
parse_number(const char **text, uint64_t max, uint64_t *ret)
{
	uint64_t value = 0;
	const char *p = *text;

	if (*p < '0' || *p > '9' || (*p == '0' && p[1] >= '0' && p[1] <= '9'))
		return false;
	for (; *p >= '0' && *p <= '9'; p++)
		if (!mem_mul_ok(value, 10, &value) || !mem_add_ok(value, (uint64_t)(*p - '0'), &value) || value > max)
			return false;
	*text = p;
	*ret = value;
	return true;
}

static bool
parse_nodes(const char **text, struct mark *m)
{
	for (;;) {
		uint64_t node;

		if (m->n_nodes == NODES_MAX_COPIES || !parse_number(text, NODES_MAX_NODES - 1, &node))
			return false;
		m->nodes[m->n_nodes++] = (uint32_t)node;
		if (**text != '.')
			return true;
		(*text)++;
	}
}

static bool
is_pack(const char *name)
{
	static const char *const compressed[] = {".zst", ".planes"};
	const char *tail = strstr(name, PACK_SUFFIX);

	if (!tail || tail == name || name[0] == '.')
		return false;
	tail += strlen(PACK_SUFFIX);
	if (*tail == '\0')
		return true;
	for (size_t i = 0; i < sizeof(compressed) / sizeof(*compressed); i++)
		if (strcmp(tail, compressed[i]) == 0)
			return true;
	return false;
}

bool
nodes_mark_parse(const char *name, struct mark *ret)
{
	struct mark m = {.n_nodes = 0};
	const char *p = name + strlen(MARK_DONE);

	m.is_done = strncmp(name, MARK_DONE, strlen(MARK_DONE)) == 0;
	if ((!m.is_done && strncmp(name, MARK_BEGUN, strlen(MARK_BEGUN)) != 0) || !hidden_is_token(p) ||
	    p[MARK_TOKEN_LEN] != '=')
		return false;
	memcpy(m.token, p, MARK_TOKEN_LEN);
	p += MARK_TOKEN_LEN + 1;
	if (!parse_number(&p, INT64_MAX, &m.nbytes) || *p++ != '=' || !parse_nodes(&p, &m) || *p++ != '=' ||
	    !is_pack(p))
		return false;
	m.pack = p;
	*ret = m;
	return true;
}

void
nodes_mark_format(const struct mark *m, struct buf *out)
{
	buf_printf(out, "%s%s=%" PRIu64 "=", m->is_done ? MARK_DONE : MARK_BEGUN, m->token, m->nbytes);
	for (uint32_t i = 0; i < m->n_nodes; i++)
		buf_printf(out, "%s%" PRIu32, i ? "." : "", m->nodes[i]);
	buf_printf(out, "=%s", m->pack);
}

bool
nodes_mark_folder_token(const char *name, size_t len, char token[MARK_TOKEN_LEN + 1])
{
	const size_t tail = strlen(HIDDEN_PARTIAL), all = 1 + MARK_TOKEN_LEN + tail;

	if (len <= all || memcmp(name + len - tail, HIDDEN_PARTIAL, tail) != 0 || name[len - all] != '.' ||
	    !hidden_is_token(name + len - all + 1))
		return false;
	memcpy(token, name + len - all + 1, MARK_TOKEN_LEN);
	token[MARK_TOKEN_LEN] = 0;
	return true;
}

bool
nodes_mark_pack_key(const char *key, size_t *ret_folder_len, char token[MARK_TOKEN_LEN + 1], const char **ret_pack)
{
	const char *slash = strrchr(key, '/');

	if (!slash || !is_pack(slash + 1) || !nodes_mark_folder_token(key, (size_t)(slash - key), token))
		return false;
	*ret_folder_len = (size_t)(slash - key);
	*ret_pack = slash + 1;
	return true;
}

void
nodes_mark_node_key(const char *run_id, const char *token, const char *pack, struct buf *out)
{
	buf_printf(out, "packs/%s/%s%s%s", run_id, token, pack ? "/" : "", pack ? pack : "");
}
