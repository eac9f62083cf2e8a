/* SPDX-License-Identifier: Apache-2.0 */
/* lease_text: see lease_text.h. */
#include "run/lease_text.h"

#include <stdio.h>
#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/json.h"
#include "run/lease.h"

int
lease_encode(const struct lease_text *t, struct buf *out, struct pawl_error *err)
{
	buf_putc(out, '{');
	json_add_u64(out, "pawl_lease", 1);
	json_add_text(out, "host", t->holder.host);
	json_add_text(out, "boot", t->holder.boot);
	json_add_text(out, "machine", t->holder.machine);
	json_add_i64(out, "pid", t->holder.pid);
	json_add_u64(out, "start", t->holder.start_ticks);
	json_add_text(out, "token", t->token);
	json_add_i64(out, "renewed_unix_ns", t->renewed_unix_ns);
	json_add_i64(out, "until_mono_ms", t->until_mono_ms);
	buf_puts(out, "}\n");
	return buf_check(out, LEASE_KEY, err);
}

int
lease_decode(const struct buf *text, struct lease_text *ret, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json_limits limits = {.max_bytes = LEASE_MAX_BYTES};
	struct json *root;
	const char *host, *boot, *token, *machine = "";

	TRY(json_parse(LEASE_KEY, text->ptr, text->len, &limits, &memory, &root, err));
	TRY(json_get_str(LEASE_KEY, root, "host", &host, err));
	TRY(json_get_str(LEASE_KEY, root, "boot", &boot, err));
	TRY(json_get_str(LEASE_KEY, root, "token", &token, err));
	if (json_get(root, "machine"))
		TRY(json_get_str(LEASE_KEY, root, "machine", &machine, err));
	TRY(json_get_i64(LEASE_KEY, root, "pid", &ret->holder.pid, err));
	TRY(json_get_u64(LEASE_KEY, root, "start", &ret->holder.start_ticks, err));
	TRY(json_get_i64(LEASE_KEY, root, "renewed_unix_ns", &ret->renewed_unix_ns, err));
	if (json_get(root, "until_mono_ms"))
		TRY(json_get_i64(LEASE_KEY, root, "until_mono_ms", &ret->until_mono_ms, err));
	if (ret->renewed_unix_ns < 0)
		return err_set(err, PAWL_ECORRUPT, LEASE_KEY ": renewed_unix_ns: expected a number from 0, found %lld",
		               (long long)ret->renewed_unix_ns);
	snprintf(ret->holder.host, sizeof(ret->holder.host), "%s", host);
	snprintf(ret->holder.boot, sizeof(ret->holder.boot), "%s", boot);
	snprintf(ret->holder.machine, sizeof(ret->holder.machine), "%s", machine);
	snprintf(ret->token, sizeof(ret->token), "%s", token);
	return 0;
}
