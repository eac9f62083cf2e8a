/* SPDX-License-Identifier: Apache-2.0 */
/* gather: see gather.h. Promises P11, P16. */
#include "ranks/gather.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/bump.h"
#include "base/err.h"
#include "base/json.h"
#include "base/mem.h"
#include "base/pool.h"
#include "ranks/missing_ranks.h"
#include "ranks/rendezvous_text.h"
#include "state/manifest.h"

#define VERDICT "verdict.json"
#define FAULT_MAX_BYTES ((size_t)8192)
#define LOOK_MS 250      /* between two looks whether processes still live */
#define FAR_LOOK_MS 2000 /* the same in a bucket */
#define TELL_MS 2000
#define SETTLE_MS 1000
#define JOIN_GRACE_MS 120000 /* a rank that has not joined this long after rank 0 will not join */
#define READERS 16           /* thousands of parts, read one after the other, would take too long */

/* How often to look: in a bucket every look is a request, which takes time and costs money. */
struct pace {
	int64_t first_ms, last_ms, pause_ms;
	int64_t look_ms; /* between two looks whether processes still live */
};

static struct pace
pace_of(struct store *store)
{
	struct store_caps caps;

	store_get_caps(store, &caps);
	struct pace p = {.first_ms = caps.flat ? 20 : 1,
	                 .last_ms = caps.flat ? 1000 : 200,
	                 .look_ms = caps.flat ? FAR_LOOK_MS : LOOK_MS};

	p.pause_ms = p.first_ms;
	return p;
}

static void
sleep_pause(struct pace *p, int64_t deadline_ms)
{
	int64_t left_ms = deadline_ms - clock_mono_ms();

	clock_sleep_ms(left_ms < 1 ? 1 : left_ms < p->pause_ms ? left_ms : p->pause_ms);
	p->pause_ms = p->pause_ms * 2 < p->last_ms ? p->pause_ms * 2 : p->last_ms;
}

/* ---- writing */

static int
put_part(struct store *store, const char *token, const char *name, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	buf_printf(&key, RENDEZVOUS_FOLDER "/%s/%s", token, name);
	TRY(buf_check(&key, "save", err));
	TRY(buf_check(text, "save", err));
	return store_put_bytes(store, buf_str(&key), text->ptr, text->len, 0, err);
}

int
gather_put_part(struct store *store, const struct rendezvous *m, const char *token, const struct buf *text,
                struct pawl_error *err)
{
	char name[64];

	snprintf(name, sizeof(name), "part-%05u-%s.json", rendezvous_rank(m), rendezvous_nonce(m));
	return put_part(store, token, name, text, err);
}

/* {"code":-7,"message":"..."} */
static void
put_error(struct buf *out, const struct pawl_error *why)
{
	buf_putc(out, '{');
	json_add_i64(out, "code", why->code < 0 ? why->code : PAWL_EINTERNAL);
	json_add_text(out, "message", why->message);
	buf_puts(out, "}\n");
}

void
gather_put_fault(struct store *store, const struct rendezvous *m, const char *token, const struct pawl_error *why)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	char name[64];

	snprintf(name, sizeof(name), "fault-%05u-%s.json", rendezvous_rank(m), rendezvous_nonce(m));
	put_error(&text, why);
	put_part(store, token, name, &text, NULL); /* if this fails, rank 0 waits until its deadline */
}

void
gather_put_verdict(struct store *store, const char *token, int code, const char *name, const struct pawl_error *why)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	if (code == 0) {
		buf_putc(&text, '{');
		json_add_text(&text, "name", name);
		buf_puts(&text, "}\n");
	} else {
		put_error(&text, why);
	}
	put_part(store, token, VERDICT, &text, NULL); /* a hint: without it the others find the result later */
}

void
gather_clear(struct store *store, const char *token)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	buf_printf(&key, RENDEZVOUS_FOLDER "/%s", token);
	if (!key.failed)
		store_remove_folder(store, buf_str(&key), NULL);
}

/* ---- reading */

static int
get_error(const char *what, const struct json *root, struct pawl_error *ret, struct pawl_error *err)
{
	const char *message;
	int64_t code;

	TRY(json_get_i64(what, root, "code", &code, err));
	TRY(json_get_str(what, root, "message", &message, err));
	*ret = (struct pawl_error){.code = code < 0 && code >= PAWL_EINTERNAL ? (int)code : PAWL_EINTERNAL};
	snprintf(ret->message, sizeof(ret->message), "%s", message);
	return 0;
}

struct gathering {
	const struct gather_round *round;
	struct store *store; /* the round's */
	struct rendezvous *m;
	const char *token;
	gather_fn *fn;
	void *arg;
	bool *seen;   /* per rank */
	char *nonces; /* per rank 33 bytes: of the process whose part is waited for; "" = not known yet */
	uint32_t n_seen;
	struct bump memory;
	const char **keys; /* of one listing: the parts that are new */
	uint32_t *ranks;
	size_t n_keys;
	const char *fault;
	uint32_t fault_rank;
	struct pool *readers; /* made when there is more than one part to read */
};

static void
gathering_clear(struct gathering *g)
{
	pool_free(g->readers);
	mem_free(g->seen);
	mem_free(g->nonces);
	mem_free(g->keys);
	mem_free(g->ranks);
	bump_clear(&g->memory);
}

static int
visit_file(void *arg, const struct store_entry *entry)
{
	struct gathering *g = arg;
	char nonce[33], wanted[33];
	uint32_t rank;
	bool is_fault = false;

	if (entry->is_folder || entry->is_link)
		return 0;
	if (!rendezvous_parse_name(entry->name, "part", &rank, nonce)) {
		if (!rendezvous_parse_name(entry->name, "fault", &rank, nonce))
			return 0;
		is_fault = true;
	}
	if (rank == 0 || rank >= rendezvous_world(g->m) || g->seen[rank])
		return 0;
	rendezvous_nonce_of(g->m, rank, wanted);
	if (strcmp(nonce, wanted) != 0)
		return 0; /* of another process than the one that was admitted */
	const char *key = bump_printf(&g->memory, RENDEZVOUS_FOLDER "/%s/%s", g->token, entry->name);

	if (!key)
		return PAWL_ENOMEM;
	if (is_fault) {
		g->fault = key;
		g->fault_rank = rank;
		return 0;
	}
	if (g->n_keys < rendezvous_world(g->m)) {
		g->ranks[g->n_keys] = rank;
		g->keys[g->n_keys++] = key;
	}
	return 0;
}

static int
report_fault(struct gathering *g, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct json *root;
	struct pawl_error why;

	TRY(store_get(g->store, g->fault, FAULT_MAX_BYTES, &text, err));
	TRY(json_parse(g->fault, text.ptr, text.len, NULL, &memory, &root, err));
	TRY(get_error(g->fault, root, &why, err));
	return err_set(err, why.code, "rank %u: %s", g->fault_rank, why.message);
}

struct reading {
	struct store *store;
	const char *key;
	struct buf text;
	int rc;
	struct pawl_error why;
};

/* Job. */
static void
read_part(void *arg)
{
	struct reading *r = arg;

	r->rc = store_get(r->store, r->key, MANIFEST_MAX_BYTES, &r->text, &r->why);
}

/* Reads n parts from the i-th key on, at once where there are threads for it. */
static void
read_parts(struct gathering *g, size_t i, size_t n, struct reading *ret)
{
	struct pool_group group;

	if (n > 1 && !g->readers && pool_new("pawl-parts", READERS, &g->readers, NULL) < 0)
		g->readers = NULL;
	pool_group_init(&group);
	for (size_t k = 0; k < n; k++) {
		ret[k] = (struct reading){.store = g->store, .key = g->keys[i + k]};
		if (!g->readers || pool_add(g->readers, &group, read_part, &ret[k], NULL) < 0)
			read_part(&ret[k]);
	}
	pool_group_wait(&group);
	pool_group_clear(&group);
}

static int
take_part(struct gathering *g, uint32_t rank, const struct reading *r, struct pawl_error *err)
{
	if (r->rc < 0)
		return err_set(err, r->rc, "%s", r->why.message);
	TRY(g->fn(g->arg, rank, &r->text, err));
	g->seen[rank] = true;
	g->n_seen++;
	return 0;
}

static int
take_parts(struct gathering *g, struct pawl_error *err)
{
	for (size_t i = 0; i < g->n_keys; i += READERS) {
		struct reading window[READERS];
		size_t n = g->n_keys - i < READERS ? g->n_keys - i : READERS;
		int rc = 0;

		read_parts(g, i, n, window);
		for (size_t k = 0; k < n; k++) {
			if (rc == 0)
				rc = take_part(g, g->ranks[i + k], &window[k], err);
			buf_clear(&window[k].text);
		}
		TRY(rc);
	}
	return 0;
}

static int
look_once(struct gathering *g, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf folder = {0};

	bump_clear(&g->memory);
	g->n_keys = 0;
	g->fault = NULL;
	buf_printf(&folder, RENDEZVOUS_FOLDER "/%s", g->token);
	TRY(buf_check(&folder, "save", err));
	int rc = store_list(g->store, buf_str(&folder), visit_file, g, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (g->fault)
		return report_fault(g, err);
	return take_parts(g, err);
}

/* Has any missing rank died or been started again? */
static int
check_missing(struct gathering *g, struct pawl_error *err)
{
	uint32_t world = rendezvous_world(g->m);
	PAWL_FREE bool *unseen = mem_zalloc(world, sizeof(*unseen));
	bool any = false;

	if (!unseen)
		return err_nomem(err, "save");
	for (uint32_t r = 1; r < world; r++) {
		char nonce[33], who[160], why[256], *before = g->nonces + 33 * (size_t)r;

		if (g->seen[r])
			continue;
		enum rendezvous_state state = rendezvous_look(g->m, r, who, sizeof(who));

		rendezvous_nonce_of(g->m, r, nonce);

		if (state == RENDEZVOUS_DEAD)
			return err_set(err, PAWL_ECANCELLED, "rank %u has died (%s)", r, who);
		if (*before && strcmp(before, nonce) != 0)
			return err_set(err, PAWL_ECANCELLED, "rank %u was started again (%s)", r, who);
		memcpy(before, nonce, 33);
		if (state == RENDEZVOUS_UNSEEN && rendezvous_refused(g->m, r, why, sizeof(why)))
			return err_set(err, PAWL_EMISMATCH, "%s", why);
		unseen[r] = state == RENDEZVOUS_UNSEEN;
		any = any || unseen[r];
	}
	int64_t since_ms = clock_mono_ms() - rendezvous_since_ms(g->m);

	if (any && since_ms >= JOIN_GRACE_MS)
		return missing_ranks_in_opening(g->round, unseen, since_ms, err);
	missing_ranks_note(g->round, g->seen, unseen);
	return 0;
}

int64_t
gather_patience_ms(uint32_t rank, int64_t timeout_ms)
{
	const int64_t twentieth = timeout_ms / 20, tenth = timeout_ms / 10;
	/* Time for the verdict to arrive, and for a rank whose wait has ended to abort the save. */
	const int64_t to_tell_ms = twentieth + (tenth < TELL_MS ? tenth : TELL_MS);
	const int64_t to_settle_ms = twentieth < SETTLE_MS ? twentieth : SETTLE_MS;

	return timeout_ms - (rank == 0 ? to_tell_ms : to_settle_ms);
}

/* A rank writes its part, or why it has none, before it ends. So the files of a rank that is found
 * dead are read once more before it is reported. */
static int
check_missing_twice(struct gathering *g, struct pawl_error *err)
{
	if (check_missing(g, NULL) == 0)
		return 0;
	TRY(look_once(g, err));
	return check_missing(g, err);
}

int
gather_parts(const struct gather_round *round, gather_fn *fn, void *arg, struct pawl_error *err)
{
	struct store *store = round->store;
	struct rendezvous *m = round->m;
	uint32_t world = rendezvous_world(m);
	int64_t begin_ms = clock_mono_ms(), looked_ms = 0;
	int64_t deadline_ms = begin_ms + gather_patience_ms(0, round->timeout_ms);
	struct pace pace = pace_of(store);
	PAWL_CLEAN(gathering_clear)
	struct gathering g = {
		.round = round, .store = store, .m = m, .token = round->token, .fn = fn, .arg = arg, .n_seen = 1};

	g.seen = mem_zalloc(world, sizeof(*g.seen));
	g.nonces = mem_zalloc(world, 33);
	g.keys = mem_zalloc(world, sizeof(*g.keys));
	g.ranks = mem_zalloc(world, sizeof(*g.ranks));
	if (!g.seen || !g.nonces || !g.keys || !g.ranks)
		return err_nomem(err, "save");
	for (;;) {
		uint32_t before = g.n_seen;

		TRY(look_once(&g, err));
		if (g.n_seen == world)
			return 0;
		int64_t now_ms = clock_mono_ms();

		if (now_ms >= deadline_ms)
			return missing_ranks_in_parts(round, g.seen, now_ms - begin_ms, err);
		if (now_ms >= looked_ms + pace.look_ms) {
			TRY(check_missing_twice(&g, err));
			looked_ms = now_ms;
			if (g.n_seen == world)
				return 0;
		}
		if (g.n_seen > before)
			pace.pause_ms = pace.first_ms;
		sleep_pause(&pace, deadline_ms);
	}
}

/* 1 and *ret_name; 0 = no verdict yet; or the save's error. A verdict that cannot be read counts as
 * missing, also for lack of memory: an error means that the save has failed everywhere. */
static int
read_verdict(struct store *store, const char *key, char **ret_name, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	struct pawl_error why;
	const char *name;
	struct json *root;

	if (store_get(store, key, FAULT_MAX_BYTES, &text, NULL) < 0 ||
	    json_parse(key, text.ptr, text.len, NULL, &memory, &root, NULL) < 0)
		return 0;
	if (json_get_str(key, root, "name", &name, NULL) == 0) {
		*ret_name = mem_strdup(name);
		return *ret_name ? 1 : 0;
	}
	if (get_error(key, root, &why, NULL) < 0)
		return 0;
	if (err)
		*err = why;
	return why.code;
}

int
gather_read_verdict(struct store *store, const char *token, char **ret_name, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0};

	buf_printf(&key, RENDEZVOUS_FOLDER "/%s/" VERDICT, token);
	return key.failed ? 0 : read_verdict(store, buf_str(&key), ret_name, err);
}

int
gather_verdict(const struct gather_round *round, char **ret_name, struct pawl_error *err)
{
	int64_t begin_ms = clock_mono_ms(), looked_ms = begin_ms;
	int64_t deadline_ms = begin_ms + gather_patience_ms(rendezvous_rank(round->m), round->timeout_ms);
	struct pace pace = pace_of(round->store);

	if (round->ticket)
		ticket_note(round->ticket, "the verdict of rank 0");
	for (;;) {
		bool gone = false;
		int64_t now_ms = clock_mono_ms();

		if (now_ms >=
		    looked_ms + pace.look_ms) { /* before the verdict is read: rank 0 may have written it last */
			gone = rendezvous_check_host(round->m, err) < 0;
			looked_ms = now_ms;
		}
		int rc = gather_read_verdict(round->store, round->token, ret_name, err);

		if (rc != 0)
			return rc;
		if (gone)
			return 0;
		if (now_ms >= deadline_ms) {
			missing_ranks_in_verdict(round, now_ms - begin_ms, err);
			return 0;
		}
		sleep_pause(&pace, deadline_ms);
	}
}
