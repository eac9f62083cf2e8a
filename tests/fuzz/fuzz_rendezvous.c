/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Any bytes as the files through which ranks meet: an attempt, a rank's request, a file's name.
 * They are refused, or come back the same. The first byte chooses which. Promises P11, P17.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "ranks/rendezvous_text.h"
#include "fuzz.h"

static void
check_refusal(int rc, const struct pawl_error *err)
{
	check(rc == PAWL_ECORRUPT || rc == PAWL_ELIMIT || rc == PAWL_EVERSION);
	check(err->code == rc && strncmp(err->message, "fuzz: ", 6) == 0);
}

static void
try_attempt(const struct buf *text)
{
	struct bump memory = {0};
	struct buf first = {0}, second = {0};
	struct rendezvous_attempt a = {0}, again = {0};
	struct pawl_error err = {0};
	int rc = rendezvous_get_attempt("fuzz", text, &memory, &a, &err);

	if (rc < 0) {
		check_refusal(rc, &err);
	} else {
		check(a.world > 0 && a.world <= RENDEZVOUS_MAX_WORLD && strlen(a.pass.token) == 32);
		rendezvous_put_attempt(&a, &first);
		check(buf_check(&first, "fuzz", NULL) == 0);
		check(rendezvous_get_attempt("fuzz", &first, &memory, &again, NULL) == 0);
		rendezvous_put_attempt(&again, &second);
		check(first.len == second.len && memcmp(first.ptr, second.ptr, first.len) == 0);
	}
	buf_clear(&first);
	buf_clear(&second);
	bump_clear(&memory);
}

static void
try_request(const struct buf *text)
{
	struct buf first = {0};
	struct rendezvous_request r = {0}, again = {0};
	struct pawl_error err = {0};
	int rc = rendezvous_get_request("fuzz", text, &r, &err);

	if (rc < 0) {
		check_refusal(rc, &err);
		return;
	}
	check(r.world > 0 && r.world <= RENDEZVOUS_MAX_WORLD && r.rank < RENDEZVOUS_MAX_WORLD && strlen(r.nonce) == 32);
	if (r.process.pid >= 0) {
		rendezvous_put_request(&r, &first);
		check(rendezvous_get_request("fuzz", &first, &again, NULL) == 0);
		check(r.rank == again.rank && r.world == again.world && strcmp(r.nonce, again.nonce) == 0 &&
		      strcmp(r.process.host, again.process.host) == 0 && r.process.pid == again.process.pid &&
		      r.process.start_ticks == again.process.start_ticks);
		buf_clear(&first);
	}
}

static void
try_name(const struct buf *text)
{
	char *name = strndup(text->ptr ? text->ptr : "", text->len), nonce[33] = "";
	uint32_t rank = 0;

	check(name != NULL);
	if (rendezvous_parse_join(name, &rank, nonce)) {
		check(rank < 1000000 && strlen(nonce) == 32 && strstr(name, nonce));
		check(strncmp(name, "join-", 5) == 0 && !rendezvous_parse_name(name, "part", &rank, nonce));
	}
	free(name);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static void (*const tries[])(const struct buf *) = {try_attempt, try_request, try_name};
	struct buf text = {0};

	if (size == 0)
		return 0;
	buf_put(&text, data + 1, size - 1);
	tries[data[0] % 3](&text);
	buf_clear(&text);
	return 0;
}
