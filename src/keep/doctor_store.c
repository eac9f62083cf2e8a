/* SPDX-License-Identifier: Apache-2.0 */
/*
 * doctor_store: finds the abilities of a store that is not a folder, by trials with small objects
 * of their own names, which are removed afterwards. No row holds a secret (P18): an engine's
 * notes only name where credentials come from.
 */
#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"
#include "base/text.h"
#include "keep/doctor.h"

static const char probe[] = "pawl doctor\n";
#define PROBE_BYTES (sizeof(probe) - 1)

static int
take_note(void *arg, const char *key, const char *value)
{
	struct pawl_rows *rows = arg;

	char *copy = bump_printf(&rows->memory, "%s", key);
	if (!copy)
		rows->failed = true;
	else
		doctor_state(rows, copy, bump_printf(&rows->memory, "%s", value));
	return 0;
}

/* "yes", or "no" with the reason. */
static void
add_answer(struct pawl_rows *rows, const char *key, int rc, const struct pawl_error *why)
{
	doctor_state(rows, key,
	             rc < 0 ? bump_printf(&rows->memory, "no: %s", why->message) : bump_printf(&rows->memory, "yes"));
}

struct looked_for {
	const char *name;
	bool found;
};

static int
note_name(void *arg, const struct store_entry *entry)
{
	struct looked_for *l = arg;

	l->found = l->found || strcmp(entry->name, l->name) == 0;
	return 0;
}

static int
try_listing(struct store *store, const char *key, struct pawl_error *err)
{
	struct looked_for l = {.name = key};

	TRY(store_list(store, "", note_name, &l, err));
	return l.found ? 0 : err_set(err, PAWL_EIO, "an object is not listed at once");
}

static int
try_reading(struct store *store, const char *key, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf text = {0};

	TRY(store_get(store, key, 4096, &text, err));
	if (text.len != PROBE_BYTES || memcmp(text.ptr, probe, PROBE_BYTES) != 0)
		return err_set(err, PAWL_ECORRUPT, "the bytes read differ from those put");
	return 0;
}

/* The key exists: an exclusive put must be refused. */
static int
try_exclusive(struct store *store, const char *key, struct pawl_error *err)
{
	int rc = store_put_bytes(store, key, probe, PROBE_BYTES, STORE_EXCLUSIVE, err);

	if (rc == PAWL_EEXISTS)
		return 0;
	return rc < 0 ? rc : err_set(err, PAWL_EUNSUPPORTED, "the condition is ignored");
}

static int
try_copy(struct store *store, const char *key, struct pawl_error *err)
{
	char to[80];

	snprintf(to, sizeof(to), "%.60s.copy", key);
	int rc = store_link(store, key, to, err);
	store_remove(store, to, NULL);
	return rc;
}

static void
describe_caps(struct pawl_rows *rows, struct store *store)
{
	struct store_caps caps;
	char text[32];

	store_get_caps(store, &caps);
	if (caps.max_object_bytes) {
		text_bytes((double)caps.max_object_bytes, text);
		doctor_state(rows, "largest object", bump_printf(&rows->memory, "%s", text));
	}
	if (caps.unit_bytes) {
		text_bytes((double)caps.unit_bytes, text);
		doctor_state(rows, "parts", bump_printf(&rows->memory, "of %s or more", text));
	}
	doctor_state(rows, "commit of a checkpoint",
	             bump_printf(&rows->memory, "%s",
	                         caps.rename_folder ? "by renaming its folder"
	                         : caps.exclusive_put
	                                 ? "by its manifest, put last and exclusively"
	                                 : "by its manifest, put last; one writer at a time is up to you"));
	if (!caps.exclusive_put)
		doctor_state(rows, "warning",
		             bump_printf(&rows->memory, "%s",
		                         "conditional puts are not honoured, so nothing keeps two writers apart: no "
		                         "lease, no jobs of many ranks, one process at a time"));
}

int
doctor_try_store(struct pawl_rows *rows, struct store *store, struct pawl_error *err)
{
	struct pawl_error why = {0};
	char key[HIDDEN_NAME_BYTES];

	TRY(hidden_name("doctor", HIDDEN_TMP, key, err));
	if (store_notes(store, take_note, rows, &why) < 0)
		doctor_state(rows, "notes", bump_printf(&rows->memory, "none: %s", why.message));
	int rc = store_put_bytes(store, key, probe, PROBE_BYTES, STORE_DURABLE, &why);
	add_answer(rows, "writable", rc, &why);
	if (rc < 0)
		return 0;
	add_answer(rows, "reads what was written", try_reading(store, key, &why), &why);
	add_answer(rows, "lists what was written", try_listing(store, key, &why), &why);
	add_answer(rows, "exclusive put", try_exclusive(store, key, &why), &why);
	add_answer(rows, "copies within the store", try_copy(store, key, &why), &why);
	rc = store_remove(store, key, &why);
	add_answer(rows, "removes", rc, &why);
	describe_caps(rows, store);
	return 0;
}
