/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fetch_crc: see fetch_crc.h. Blocks come in any order, so each adds its share to the CRC of the
 * complete range (crc.h). A range that is read only in part cannot be checked. Promise P1, as far
 * as a CRC-32 can keep it.
 */
#include "read/fetch_crc.h"

#include <stdatomic.h>

#include "base/crc.h"
#include "base/err.h"

struct tally {
	atomic_uint parts;
	_Atomic uint64_t nbytes; /* read so far */
};

struct fetch_crc {
	const struct manifest *m;
	struct tally *tallies; /* one for each member */
};

int
fetch_crc_new(const struct manifest *m, struct fetch_crc **ret, struct pawl_error *err)
{
	*ret = NULL;
	if (m->n_members == 0)
		return 0;
	struct fetch_crc *c = mem_zalloc(1, sizeof(*c));
	if (c)
		c->tallies = mem_zalloc(m->n_members, sizeof(*c->tallies));
	if (!c || !c->tallies) {
		fetch_crc_free(c);
		return err_nomem(err, "reading");
	}
	c->m = m;
	*ret = c;
	return 0;
}

void
fetch_crc_free(struct fetch_crc *c)
{
	if (!c)
		return;
	mem_free(c->tallies);
	mem_free(c);
}

void
fetch_crc_add(struct fetch_crc *c, uint32_t file, uint64_t begin, uint64_t end, const char *bytes)
{
	if (!c)
		return;
	for (size_t i = manifest_find_member(c->m, file, begin); i < c->m->n_members; i++) {
		const struct manifest_member *member = &c->m->members[i];
		const uint64_t member_end = member->begin + member->nbytes;
		if (member->file != file || member->begin >= end)
			return;
		uint64_t from = member->begin > begin ? member->begin : begin, to = member_end < end ? member_end : end;
		uint32_t part = crc32_part(bytes + (from - begin), (size_t)(to - from), member_end - to);

		atomic_fetch_xor(&c->tallies[i].parts, part);
		atomic_fetch_add(&c->tallies[i].nbytes, to - from);
	}
}

const struct manifest_member *
fetch_crc_next_bad(const struct fetch_crc *c, size_t *at, uint32_t *ret_found)
{
	while (c && *at < c->m->n_members) {
		const struct manifest_member *member = &c->m->members[*at];
		struct tally *t = &c->tallies[(*at)++];

		if (atomic_load(&t->nbytes) != member->nbytes)
			continue;
		*ret_found = crc32_whole(atomic_load(&t->parts), member->nbytes);
		if (*ret_found != member->crc)
			return member;
	}
	return NULL;
}
