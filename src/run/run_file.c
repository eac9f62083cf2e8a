/* SPDX-License-Identifier: Apache-2.0 */
/* run_file: see run_file.h. */
#include "run/run_file.h"

#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/json.h"
#include "base/text.h"
#include "policy/retain.h"
#include "run/run.h"

#define RUN_MAX_BYTES 65536u
#define RUN_MAX_SCORES 16 /* as retain_check allows */

/* Takes over the score rules of run.json, which decide what is best and so kept. num_to_keep still
 * counts the newest. Unknown rules are left out. */
static int
adopt_scores(struct pawl *run, const struct json *scores, struct pawl_error *err)
{
	struct pawl_retention *r = &run->settings.retention;
	size_t n = scores && scores->type == JSON_ARRAY && scores->len <= RUN_MAX_SCORES ? scores->len : 0, at = 0;
	const char **names = bump_array(&run->settings.strings, n + 1, sizeof(*names));
	int *orders = bump_array(&run->settings.strings, n + 1, sizeof(*orders));

	if (!names || !orders)
		return err_nomem(err, "run");
	for (const struct json *row = n ? scores->first : NULL; row; row = row->next) {
		if (row->type != JSON_ARRAY || row->len != 2 || row->first->type != JSON_STRING ||
		    row->first->next->type != JSON_INT)
			return 0;
		names[at] = row->first->str;
		TRY(run_options_copy_text(run, &names[at], err));
		orders[at++] = row->first->next->i < 0 ? -1 : 1;
	}
	r->score_attributes = names;
	r->score_orders = orders;
	r->n_scores = at;
	retain_count_newest(r);
	return 0;
}

static int
take_run_file(struct pawl *run, const struct buf *text, struct pawl_error *err)
{
	PAWL_CLEAN(bump_clear) struct bump memory = {0};
	const struct json *created, *stored;
	struct json *root;
	const char *id;
	uint64_t version, attempt;

	TRY(json_parse(RUN_KEY, text->ptr, text->len, NULL, &memory, &root, err));
	if (root->type == JSON_OBJECT && !json_get(root, "pawl_run"))
		return err_set(err, PAWL_EEXISTS,
		               RUN_KEY ": belongs to another program (it has no \"pawl_run\"); choose another folder");
	TRY(json_get_u64(RUN_KEY, root, "pawl_run", &version, err));
	if (version > PAWL_FORMAT_VERSION)
		return err_set(err, PAWL_EVERSION,
		               RUN_KEY ": written in format version %llu, this library reads up to %d",
		               (unsigned long long)version, PAWL_FORMAT_VERSION);
	TRY(json_get_str(RUN_KEY, root, "run", &id, err));
	TRY(json_get_u64(RUN_KEY, root, "attempt", &attempt, err));
	if (!text_is_hex32(id))
		return err_set(err, PAWL_ECORRUPT,
		               RUN_KEY ": expected a run id of 32 lower-case hex digits, found '%.80s'", id);
	memcpy(run->self.run_id, id, 33);
	run->self.attempt = attempt;
	stored = json_get(root, "last_id");
	if (stored && (stored->type == JSON_INT || stored->type == JSON_UINT) && stored->u < UINT64_MAX / 2)
		run->self.stored_id = run->self.last_id = stored->u;
	created = json_get(root, "created_unix_ns");
	if (created && created->type == JSON_INT)
		run->self.created_ns = created->i;
	return run->settings.retention.n_scores ? 0 : adopt_scores(run, json_get(root, "scores"), err);
}

int
run_file_read(struct pawl *run, bool *ret_found, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};
	struct pawl_error why = {0};
	int rc = store_get(run->store, RUN_KEY, RUN_MAX_BYTES, &text, &why);

	*ret_found = false;
	if (rc == PAWL_ENOTFOUND)
		return 0;
	if (rc == 0)
		rc = store_at_root(run->store, RUN_KEY, take_run_file(run, &text, &why), &why);
	if (rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT) {
		run->self.file_damage = mem_strdup(why.message);
		return run->self.file_damage ? 0 : err_nomem(err, "run");
	}
	*ret_found = true;
	return err_give(err, rc, &why);
}

void
run_file_warn(struct pawl *run)
{
	struct pawl_error why = {0};

	if (!run->self.file_damage)
		return;
	err_set(&why, PAWL_ECORRUPT, "%s", run->self.file_damage);
	events_warn(&run->events, &why);
}

int
run_file_write(struct pawl *run, struct pawl_error *err)
{
	const struct pawl_retention *r = &run->settings.retention;
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	if (!run->self.created_ns)
		run->self.created_ns = clock_unix_ns();
	buf_putc(&text, '{');
	json_add_u64(&text, "pawl_run", PAWL_FORMAT_VERSION);
	json_add_text(&text, "run", run->self.run_id);
	json_add_i64(&text, "created_unix_ns", run->self.created_ns);
	json_add_u64(&text, "attempt", run->self.attempt);
	json_add_u64(&text, "last_id", run->self.stored_id);
	json_add_key(&text, "scores");
	buf_putc(&text, '[');
	for (size_t i = 0; i < r->n_scores; i++) {
		buf_printf(&text, "%s[", i ? "," : "");
		json_put_string(&text, r->score_attributes[i], strlen(r->score_attributes[i]));
		buf_printf(&text, ",%d]", r->score_orders[i]);
	}
	buf_printf(&text, "]}\n");
	TRY(buf_check(&text, RUN_KEY, err));
	return store_put_bytes(run->store, RUN_KEY, text.ptr, text.len, STORE_DURABLE, err);
}

int
run_file_remember_id(struct pawl *run, uint64_t id, struct pawl_error *err)
{
	uint64_t before = run->self.stored_id;

	if (run->home.single_name || id <= before)
		return 0;
	run->self.stored_id = id;
	int rc = run_file_write(run, err);

	if (rc < 0)
		run->self.stored_id = before;
	return rc;
}

int
run_file_adopt(struct pawl *run, const struct buf *text, struct pawl_error *err)
{
	struct pawl_error why = {0};
	int rc = take_run_file(run, text, &why);

	return rc < 0 ? err_set(err, rc, "%s: %s", run->home.root, why.message) : 0;
}

uint64_t
run_file_last_id(struct pawl *run)
{
	pthread_mutex_lock(&run->self.lock);
	const uint64_t id = run->self.last_id;

	pthread_mutex_unlock(&run->self.lock);
	return id;
}

void
run_file_raise_id(struct pawl *run, uint64_t id)
{
	pthread_mutex_lock(&run->self.lock);
	if (id > run->self.last_id)
		run->self.last_id = id;
	pthread_mutex_unlock(&run->self.lock);
}

uint64_t
run_file_give_id(struct pawl *run, uint64_t id)
{
	if (run->home.single_name)
		return id ? id : 1;
	pthread_mutex_lock(&run->self.lock);
	id = id ? id : run->self.last_id + 1;
	if (id > run->self.last_id)
		run->self.last_id = id;
	pthread_mutex_unlock(&run->self.lock);
	return id;
}
