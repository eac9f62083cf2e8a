/* SPDX-License-Identifier: Apache-2.0 */
/* holds: see holds.h. Promises P6, P8, P17. */
#include "catalog/holds.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"

#define HOLD_SUFFIX ".json"
#define HOLD_MAX_BYTES 4096u
#define MAX_HOLDS 100000u
#define SECOND_NS 1000000000

struct found {
	struct hold hold;
	int64_t mtime_ns;
	struct found *next;
};

struct listing {
	struct bump *memory;
	struct found *first;
	size_t n;
};

static int
visit_entry(void *arg, const struct store_entry *entry)
{
	struct listing *l = arg;

	if (entry->is_folder || entry->is_link || strlen(entry->name) != 32 + strlen(HOLD_SUFFIX) ||
	    strspn(entry->name, "0123456789abcdef") != 32 || strcmp(entry->name + 32, HOLD_SUFFIX) != 0)
		return 0;
	if (l->n == MAX_HOLDS)
		return PAWL_ELIMIT;
	struct found *f = bump_alloc(l->memory, sizeof(*f));
	if (!f)
		return PAWL_ENOMEM;
	f->hold.key = bump_printf(l->memory, HOLDS_FOLDER "/%s", entry->name);
	if (!f->hold.key)
		return PAWL_ENOMEM;
	f->hold.name = "";
	f->hold.nbytes = entry->nbytes;
	f->mtime_ns = entry->mtime_ns;
	f->next = l->first;
	l->first = f;
	l->n++;
	return 0;
}

static int
decode_hold(const struct buf *text, struct bump *memory, struct hold *ret, struct clock_process *process,
            int64_t *ret_made_ns, struct pawl_error *err)
{
	const struct json_limits limits = {.max_bytes = HOLD_MAX_BYTES};
	const char *what = ret->key, *name, *host, *boot, *machine = "";
	struct json *root;
	uint64_t made = 0;

	TRY(json_parse(what, text->ptr, text->len, &limits, memory, &root, err));
	TRY(json_get_str(what, root, "name", &name, err));
	TRY(json_get_str(what, root, "host", &host, err));
	TRY(json_get_str(what, root, "boot", &boot, err));
	TRY(json_get_i64(what, root, "pid", &process->pid, err));
	TRY(json_get_u64(what, root, "start", &process->start_ticks, err));
	if (json_get(root, "machine"))
		TRY(json_get_str(what, root, "machine", &machine, err));
	text_copy(process->machine, sizeof(process->machine), machine);
	if (json_get(root, "made"))
		TRY(json_get_u64(what, root, "made", &made, err));
	*ret_made_ns = made < INT64_MAX / SECOND_NS ? (int64_t)made * SECOND_NS : 0;
	if (!text_copy(process->host, sizeof(process->host), host) ||
	    !text_copy(process->boot, sizeof(process->boot), boot))
		return err_set(err, PAWL_ECORRUPT, "%s: the host's name is too long", what);
	ret->name = name;
	return 0;
}

static bool
is_alive(const struct clock_process *process, int64_t made_ns)
{
	int alive = clock_seen_process_alive(process, made_ns);

	if (alive < 0)
		alive = (clock_unix_ns() - made_ns) / SECOND_NS < HOLDS_FOREIGN_SECONDS;
	return alive == 1;
}

static int
read_hold(struct store *store, struct buf *scratch, struct bump *memory, struct found *f, struct pawl_error *err)
{
	struct clock_process process = {0};
	int64_t made_ns = 0;

	scratch->len = 0;
	int rc = store_get(store, f->hold.key, HOLD_MAX_BYTES, scratch, err);
	if (rc == 0)
		rc = decode_hold(scratch, memory, &f->hold, &process, &made_ns, err);
	if (rc == 0)
		f->hold.alive = is_alive(&process, f->mtime_ns ? f->mtime_ns : made_ns);
	/* Gone since the listing, or torn: its process has ended. */
	return rc == PAWL_ENOTFOUND || rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT ? 0 : rc;
}

int
holds_read(struct store *store, struct bump *memory, struct hold **ret, size_t *ret_n, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf scratch = {0};
	struct listing l = {.memory = memory};
	size_t n = 0;

	int rc = store_list(store, HOLDS_FOLDER, visit_entry, &l, err);
	if (rc == PAWL_ENOMEM)
		return err_nomem(err, HOLDS_FOLDER);
	if (rc == PAWL_ELIMIT)
		return err_set(err, rc, HOLDS_FOLDER ": expected at most %u holds, found more", MAX_HOLDS);
	if (rc < 0 && rc != PAWL_ENOTFOUND)
		return rc;
	struct hold *holds = bump_array(memory, l.n, sizeof(*holds));
	if (!holds)
		return err_nomem(err, HOLDS_FOLDER);
	for (struct found *f = l.first; f; f = f->next) {
		TRY(read_hold(store, &scratch, memory, f, err));
		holds[n++] = f->hold;
	}
	*ret = holds;
	*ret_n = n;
	return 0;
}

int
holds_make(struct store *store, const char *name, struct buf *key, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {.max = HOLD_MAX_BYTES};
	struct clock_process self;
	char token[33];

	TRY(clock_this_process(&self, err));
	TRY(clock_token(token, err));
	buf_putc(&text, '{');
	json_add_text(&text, "name", name);
	json_add_text(&text, "host", self.host);
	json_add_text(&text, "boot", self.boot);
	json_add_text(&text, "machine", self.machine);
	json_add_i64(&text, "pid", self.pid);
	json_add_u64(&text, "start", self.start_ticks);
	json_add_i64(&text, "made", clock_unix_ns() / SECOND_NS);
	buf_puts(&text, "}\n");
	TRY(buf_check(&text, name, err));
	buf_printf(key, HOLDS_FOLDER "/%s" HOLD_SUFFIX, token);
	TRY(buf_check(key, name, err));
	/* The name is unique, so no exclusive put is needed, which not every store has. */
	return store_put_bytes(store, buf_str(key), text.ptr, text.len, 0, err);
}
