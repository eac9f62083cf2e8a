/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_tool: operations on any store, one by one, for tests that need a server:
 * tests/py/test_s3*.py and similar ones.
 *
 *   store_tool [--read] [--base-ms N] [--tries N] [--no-retry] URL OPERATION...
 *
 * Each operation is one argument of words ("put a/b text"). A line is printed for each, and one for
 * opening: "ok", "ok RESULT", or "CODE: message". If opening fails, the program ends; after any
 * other failure it continues. Exit status 0 unless it was misused.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/mem.h"
#include "store/store.h"

#define MAX_WORDS 6
#define MAX_TEXT (64u << 20)

static void
fill(unsigned char *bytes, uint64_t n, unsigned seed)
{
	for (uint64_t i = 0; i < n; i++)
		bytes[i] = (unsigned char)(((i + seed) * 2654435761u) >> 24 ^ (i >> 12));
}

/* What was left as if this process had died; remembered, so that no leak checker minds. */
static struct store_file *left[8];
static size_t n_left;

static int
write_object(struct store *s, char **w, bool leave, struct pawl_error *err)
{
	uint64_t n = strtoull(w[2], NULL, 10), piece = strtoull(w[4], NULL, 10);
	struct store_create opts = {.nbytes = n};
	struct store_file *f = NULL;
	PAWL_FREE unsigned char *bytes = mem_alloc((size_t)n);
	fill(bytes, n, (unsigned)strtoul(w[3], NULL, 10));
	TRY(store_create(s, w[1], &opts, &f, err));
	for (uint64_t at = 0; at < n; at += piece) {
		int rc = store_write(s, f, at, bytes + at, (size_t)(n - at < piece ? n - at : piece), err);
		if (rc < 0) {
			store_abort(s, f);
			return rc;
		}
	}
	if (!leave)
		return store_finish(s, f, err);
	left[n_left++ % 8] = f;
	return 0;
}

static int
check_object(struct store *s, char **w, struct pawl_error *err)
{
	uint64_t n = strtoull(w[2], NULL, 10), found;
	struct store_reader *r;
	PAWL_FREE unsigned char *want = mem_alloc((size_t)n + 1);
	PAWL_FREE unsigned char *got = mem_zalloc((size_t)n + 1, 1);
	fill(want, n, (unsigned)strtoul(w[3], NULL, 10));
	TRY(store_open_reader(s, w[1], &r, &found, err));
	int rc = found != n ? err_set(err, PAWL_EMISMATCH, "%s: has %" PRIu64 " bytes", w[1], found)
	                    : store_read(s, r, 0, got, (size_t)n, err);
	store_close_reader(s, r);
	if (rc == 0 && memcmp(want, got, (size_t)n) != 0)
		rc = err_set(err, PAWL_EMISMATCH, "%s: has other bytes", w[1]);
	return rc;
}

/* Reads the first n bytes so many times by one reader, and shows the result of each. */
static int
reread_object(struct store *s, char **w, struct buf *out, struct pawl_error *err)
{
	size_t n = (size_t)strtoull(w[2], NULL, 10);
	struct store_reader *r;
	PAWL_FREE unsigned char *got = mem_alloc(n + 1);
	TRY(store_open_reader(s, w[1], &r, NULL, err));
	for (unsigned long rest = strtoul(w[3], NULL, 10); rest > 0; rest--) {
		int rc = store_read(s, r, 0, got, n, err);
		buf_printf(out, " %s", rc < 0 ? pawl_code_name(rc) : "ok");
	}
	store_close_reader(s, r);
	return 0;
}

static int
add_name(void *arg, const struct store_entry *entry)
{
	buf_printf(arg, " %s%s", entry->name, entry->is_folder ? "/" : "");
	return 0;
}

static int
show_stat(struct store *s, const char *key, struct buf *out, struct pawl_error *err)
{
	struct store_entry entry;
	TRY(store_stat(s, key, &entry, err));
	if (entry.is_folder)
		buf_puts(out, " folder");
	else
		buf_printf(out, " %" PRIu64, entry.nbytes);
	return 0;
}

static int
show_caps(struct store *s, struct buf *out)
{
	struct store_caps caps;
	store_get_caps(s, &caps);
	buf_printf(out, "%s%s%s%s", caps.exclusive_put ? " exclusive_put" : "",
	           caps.rename_folder ? " rename_folder" : "", caps.link ? " link" : "", caps.flat ? " flat" : "");
	return 0;
}

static int
get_text(struct store *s, const char *key, struct buf *out, struct pawl_error *err)
{
	buf_putc(out, ' ');
	return store_get(s, key, MAX_TEXT, out, err);
}

static int
sweep(struct store *s, const char *seconds, struct buf *out, struct pawl_error *err)
{
	uint64_t n;
	TRY(store_sweep(s, clock_unix_ns() - (int64_t)strtoll(seconds, NULL, 10) * 1000000000, &n, err));
	buf_printf(out, " %" PRIu64, n);
	return 0;
}

static int
run(struct store *s, char **w, size_t n, struct buf *out, struct pawl_error *err)
{
	const char *op = w[0], *a = n > 1 ? w[1] : "", *b = n > 2 ? w[2] : "";
	if (strcmp(op, "put") == 0)
		return store_put_bytes(s, a, b, strlen(b), 0, err);
	if (strcmp(op, "putx") == 0)
		return store_put_bytes(s, a, b, strlen(b), STORE_EXCLUSIVE, err);
	if (strcmp(op, "putxd") == 0)
		return store_put_bytes(s, a, b, strlen(b), STORE_EXCLUSIVE | STORE_DURABLE, err);
	if (strcmp(op, "append") == 0)
		return store_append(s, a, b, strlen(b), err);
	if (strcmp(op, "get") == 0)
		return get_text(s, a, out, err);
	if (strcmp(op, "stat") == 0)
		return show_stat(s, a, out, err);
	if (strcmp(op, "list") == 0)
		return store_list(s, a, add_name, out, err);
	if (strcmp(op, "remove") == 0)
		return store_remove(s, a, err);
	if (strcmp(op, "rmtree") == 0)
		return store_remove_folder(s, a, err);
	if (strcmp(op, "link") == 0)
		return store_link(s, a, b, err);
	if (strcmp(op, "move") == 0)
		return store_move(s, a, b, err);
	if (strcmp(op, "publish") == 0)
		return store_publish(s, a, b, err);
	if (strcmp(op, "pointer") == 0)
		return store_pointer(s, a, b, err);
	if (strcmp(op, "caps") == 0)
		return show_caps(s, out);
	if (strcmp(op, "sweep") == 0)
		return sweep(s, a, out, err);
	if (n == 5 && (strcmp(op, "write") == 0 || strcmp(op, "abandon") == 0))
		return write_object(s, w, op[0] == 'a', err);
	if (n == 4 && strcmp(op, "check") == 0)
		return check_object(s, w, err);
	if (n == 4 && strcmp(op, "reread") == 0)
		return reread_object(s, w, out, err);
	return err_set(err, PAWL_EUSAGE, "unknown operation %s", op);
}

/* Errors name keys here, without the place of the store, which differs from test to test. s: NULL =
 * not opened. */
static void
report(const struct store *s, int rc, struct buf *out, const struct pawl_error *err)
{
	const size_t n = s ? strlen(s->root) : 0;
	const bool has_root = n > 0 && strncmp(err->message, s->root, n) == 0 && err->message[n] == '/';

	if (rc < 0)
		printf("%s: %s\n", pawl_code_name(rc), err->message + (has_root ? n + 1 : 0));
	else
		printf("ok%s\n", buf_str(out));
	fflush(stdout);
	out->len = 0;
}

static void
run_line(struct store *s, char *line)
{
	char *words[MAX_WORDS] = {0}, *rest = NULL;
	size_t n = 0;
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	struct pawl_error err = {0};
	for (char *word = strtok_r(line, " ", &rest); word != NULL && n < MAX_WORDS; word = strtok_r(NULL, " ", &rest))
		words[n++] = word;
	int rc = n > 0 ? run(s, words, n, &out, &err) : err_set(&err, PAWL_EUSAGE, "empty operation");
	report(s, rc, &out, &err);
}

struct options {
	bool read_only, no_retry;
	struct store_retry retry;
};

/* The engine alone, of those that the retry layer is put around; NULL for others. */
static store_open_fn *
remote_engine(const char *url)
{
	static const struct {
		const char *scheme;
		store_open_fn *fn;
	} engines[] = {{"s3://", store_s3_open},
	               {"gs://", store_gcs_open},
	               {"az://", store_azure_open},
	               {"ssh://", store_ssh_open}};
	for (size_t i = 0; i < sizeof engines / sizeof engines[0]; i++)
		if (strncmp(url, engines[i].scheme, strlen(engines[i].scheme)) == 0)
			return engines[i].fn;
	return NULL;
}

static int
open_engine(const void *fn, const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	return (*(store_open_fn *const *)fn)(url, create, ret, err);
}

static int
open_store(const char *url, const struct options *o, struct store **ret, struct pawl_error *err)
{
	store_open_fn *fn = remote_engine(url);
	if (fn == NULL || (o->retry.base_ms == 0 && o->retry.max_tries == 0 && !o->no_retry))
		return store_open(url, !o->read_only, false, ret, err);
	if (o->no_retry)
		return fn(url, !o->read_only, ret, err);
	return store_retry_open(open_engine, &fn, url, !o->read_only, &o->retry, ret, err);
}

int
main(int argc, char **argv)
{
	struct options o = {0};
	struct store *s = NULL;
	struct pawl_error err = {0};
	PAWL_CLEAN(buf_clear) struct buf out = {0};
	int i = 1;
	for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
		if (strcmp(argv[i], "--read") == 0)
			o.read_only = true;
		else if (strcmp(argv[i], "--no-retry") == 0)
			o.no_retry = true;
		else if (strcmp(argv[i], "--base-ms") == 0 && i + 1 < argc)
			o.retry.base_ms = (unsigned)strtoul(argv[++i], NULL, 10);
		else if (strcmp(argv[i], "--tries") == 0 && i + 1 < argc)
			o.retry.max_tries = (unsigned)strtoul(argv[++i], NULL, 10);
	}
	if (i >= argc) {
		fprintf(stderr, "usage: store_tool [--read] [--base-ms N] [--tries N] [--no-retry] URL OPERATION...\n");
		return 2;
	}
	int rc = open_store(argv[i], &o, &s, &err);
	report(NULL, rc, &out, &err);
	for (i++; rc == 0 && i < argc; i++)
		run_line(s, argv[i]);
	store_close(s);
	return 0;
}
