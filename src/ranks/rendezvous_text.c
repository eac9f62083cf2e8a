/* SPDX-License-Identifier: Apache-2.0 */
/* rendezvous_text: see rendezvous_text.h. Promise P17: bytes from other processes are not
 * trusted. */
#include "ranks/rendezvous_text.h"

#include <string.h>

#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

void
rendezvous_put_attempt(const struct rendezvous_attempt *a, struct buf *out)
{
	const char *comma = "";

	buf_putc(out, '{');
	json_add_u64(out, "pawl_attempt", 1);
	json_add_text(out, "token", a->pass.token);
	json_add_text(out, "run", a->pass.run_id);
	json_add_text(out, "lease", a->pass.lease);
	json_add_u64(out, "attempt", a->pass.attempt);
	json_add_u64(out, "last_id", a->pass.last_id);
	json_add_u64(out, "created_unix_ns", (uint64_t)a->pass.created_ns);
	json_add_u64(out, "world_size", a->world);
	json_add_text(out, "job", a->job);
	json_add_key(out, "members");
	buf_putc(out, '[');
	for (uint32_t r = 0; a->members && r < a->world; r++) {
		if (!a->members[r].nonce[0])
			continue;
		buf_printf(out, "%s[%u,\"%s\",%llu]", comma, r, a->members[r].nonce,
		           (unsigned long long)a->members[r].last_id);
		comma = ",";
	}
	buf_putc(out, ']');
	json_add_key(out, "refused");
	buf_putc(out, '[');
	for (size_t i = 0; i < a->n_refusals; i++) {
		buf_printf(out, "%s[\"%s\",", i ? "," : "", a->refusals[i].nonce);
		json_put_string(out, a->refusals[i].why, strlen(a->refusals[i].why));
		buf_putc(out, ']');
	}
	buf_puts(out, "]}\n");
}

/* A member of 32 hex digits, or with empty_is_fine none. */
static int
get_hex(const char *what, const struct json *object, const char *key, bool empty_is_fine, char ret[33],
        struct pawl_error *err)
{
	const char *text;

	TRY(json_get_str(what, object, key, &text, err));
	if (!text_is_hex32(text) && !(empty_is_fine && !*text))
		return err_set(err, PAWL_ECORRUPT, "%s: %s: expected 32 lower-case hex digits, found '%.60s'", what,
		               key, text);
	memcpy(ret, text, strlen(text) + 1);
	return 0;
}

static int
get_world(const char *what, const struct json *object, uint32_t *ret, struct pawl_error *err)
{
	uint64_t world;

	TRY(json_get_u64(what, object, "world_size", &world, err));
	if (world == 0 || world > RENDEZVOUS_MAX_WORLD)
		return err_set(err, PAWL_ECORRUPT, "%s: world_size: expected 1 to %u, found %llu", what,
		               RENDEZVOUS_MAX_WORLD, (unsigned long long)world);
	*ret = (uint32_t)world;
	return 0;
}

static bool
is_number(const struct json *value)
{
	return value && (value->type == JSON_UINT || (value->type == JSON_INT && value->i >= 0));
}

static int
get_members(const char *what, const struct json *rows, struct bump *memory, struct rendezvous_attempt *a,
            struct pawl_error *err)
{
	a->members = bump_array(memory, a->world, sizeof(*a->members));
	if (!a->members)
		return err_nomem(err, what);
	for (const struct json *row = rows->first; row; row = row->next) {
		const struct json *rank = row->type == JSON_ARRAY && row->len == 3 ? row->first : NULL;
		const struct json *nonce = rank ? rank->next : NULL;

		if (!is_number(rank) || rank->u >= a->world || nonce->type != JSON_STRING ||
		    !text_is_hex32(nonce->str) || !is_number(nonce->next))
			return err_set(err, PAWL_ECORRUPT, "%s: members: expected [rank, nonce, last id]", what);
		memcpy(a->members[rank->u].nonce, nonce->str, 33);
		a->members[rank->u].last_id = nonce->next->u;
	}
	return 0;
}

static int
get_refusals(const char *what, const struct json *rows, struct bump *memory, struct rendezvous_attempt *a,
             struct pawl_error *err)
{
	a->refusals = bump_array(memory, rows->len + 1, sizeof(*a->refusals));
	if (!a->refusals)
		return err_nomem(err, what);
	for (const struct json *row = rows->first; row; row = row->next) {
		const struct json *nonce = row->type == JSON_ARRAY && row->len == 2 ? row->first : NULL;

		if (!nonce || nonce->type != JSON_STRING || !text_is_hex32(nonce->str) ||
		    nonce->next->type != JSON_STRING)
			return err_set(err, PAWL_ECORRUPT, "%s: refused: expected [nonce, why]", what);
		struct rendezvous_refusal *r = &a->refusals[a->n_refusals++];

		memcpy(r->nonce, nonce->str, 33);
		r->why = bump_strndup(memory, nonce->next->str, nonce->next->len);
		if (!r->why)
			return err_nomem(err, what);
	}
	return 0;
}

int
rendezvous_get_attempt(const char *what, const struct buf *text, struct bump *memory, struct rendezvous_attempt *ret,
                       struct pawl_error *err)
{
	struct json_limits limits = {.max_bytes = RENDEZVOUS_MAX_ATTEMPT};
	struct rendezvous_attempt a = {0};
	const struct json *members, *refused;
	struct json *root;
	uint64_t version, created;

	TRY(json_parse(what, text->ptr, text->len, &limits, memory, &root, err));
	TRY(json_get_u64(what, root, "pawl_attempt", &version, err));
	if (version != 1)
		return err_set(err, PAWL_EVERSION, "%s: written by another version of pawl; all ranks need the same",
		               what);
	TRY(get_hex(what, root, "token", false, a.pass.token, err));
	TRY(get_hex(what, root, "run", false, a.pass.run_id, err));
	TRY(get_hex(what, root, "lease", true, a.pass.lease, err));
	TRY(get_hex(what, root, "job", true, a.job, err));
	TRY(json_get_u64(what, root, "attempt", &a.pass.attempt, err));
	TRY(json_get_u64(what, root, "last_id", &a.pass.last_id, err));
	TRY(json_get_u64(what, root, "created_unix_ns", &created, err));
	a.pass.created_ns = created <= INT64_MAX ? (int64_t)created : 0;
	TRY(get_world(what, root, &a.world, err));
	TRY(json_get_type(what, root, "members", JSON_ARRAY, &members, err));
	TRY(json_get_type(what, root, "refused", JSON_ARRAY, &refused, err));
	TRY(get_members(what, members, memory, &a, err));
	TRY(get_refusals(what, refused, memory, &a, err));
	*ret = a;
	return 0;
}

void
rendezvous_put_request(const struct rendezvous_request *r, struct buf *out)
{
	buf_putc(out, '{');
	json_add_u64(out, "pawl_join", 1);
	json_add_u64(out, "rank", r->rank);
	json_add_u64(out, "world_size", r->world);
	json_add_text(out, "nonce", r->nonce);
	json_add_text(out, "job", r->job);
	json_add_text(out, "host", r->process.host);
	json_add_text(out, "boot", r->process.boot);
	json_add_text(out, "machine", r->process.machine);
	json_add_u64(out, "pid", (uint64_t)r->process.pid);
	json_add_u64(out, "start", r->process.start_ticks);
	buf_puts(out, "}\n");
}

int
rendezvous_get_request(const char *what, const struct buf *text, struct rendezvous_request *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json_limits limits = {.max_bytes = RENDEZVOUS_MAX_JOIN};
	struct rendezvous_request r = {0};
	const char *host, *boot, *machine = "";
	struct json *root;
	uint64_t rank;

	TRY(json_parse(what, text->ptr, text->len, &limits, &memory, &root, err));
	TRY(json_get_u64(what, root, "rank", &rank, err));
	TRY(get_world(what, root, &r.world, err));
	if (rank >= RENDEZVOUS_MAX_WORLD)
		return err_set(err, PAWL_ECORRUPT, "%s: rank: %llu is too large", what, (unsigned long long)rank);
	r.rank = (uint32_t)rank;
	TRY(get_hex(what, root, "nonce", false, r.nonce, err));
	TRY(get_hex(what, root, "job", true, r.job, err));
	TRY(json_get_str(what, root, "host", &host, err));
	TRY(json_get_str(what, root, "boot", &boot, err));
	if (json_get(root, "machine"))
		TRY(json_get_str(what, root, "machine", &machine, err));
	TRY(json_get_i64(what, root, "pid", &r.process.pid, err));
	TRY(json_get_u64(what, root, "start", &r.process.start_ticks, err));
	if (!text_copy(r.process.host, sizeof(r.process.host), host) ||
	    !text_copy(r.process.boot, sizeof(r.process.boot), boot) ||
	    !text_copy(r.process.machine, sizeof(r.process.machine), machine))
		return err_set(err, PAWL_ECORRUPT, "%s: host, boot or machine is too long", what);
	*ret = r;
	return 0;
}

bool
rendezvous_parse_name(const char *name, const char *prefix, uint32_t *ret_rank, char ret_nonce[33])
{
	size_t len = strlen(prefix);
	uint64_t rank = 0;

	if (strncmp(name, prefix, len) != 0 || name[len] != '-')
		return false;
	const char *digits = name + len + 1;
	size_t n = strspn(digits, "0123456789");

	if (n < 5 || n > 6 || digits[n] != '-')
		return false;
	for (size_t i = 0; i < n; i++)
		rank = rank * 10 + (uint64_t)(digits[i] - '0');
	const char *nonce = digits + n + 1;

	if (strlen(nonce) != 32 + strlen(".json") || strspn(nonce, "0123456789abcdef") != 32 ||
	    strcmp(nonce + 32, ".json") != 0)
		return false;
	*ret_rank = (uint32_t)rank;
	memcpy(ret_nonce, nonce, 32);
	ret_nonce[32] = 0;
	return true;
}

bool
rendezvous_parse_join(const char *name, uint32_t *ret_rank, char ret_nonce[33])
{
	return rendezvous_parse_name(name, "join", ret_rank, ret_nonce);
}
