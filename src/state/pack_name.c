/* SPDX-License-Identifier: Apache-2.0 */
/* pack_name: see pack_name.h. Pure. Promise P17. */
#include "state/pack_name.h"

#include <stdio.h>
#include <string.h>

#include "base/err.h"

/* Reads the digits at *at as a number. It needs at least five, as the writer formats it. */
static bool
parse_number(const char **at, uint32_t *ret)
{
	size_t n = strspn(*at, "0123456789");
	uint64_t value = 0;

	if (n < 5 || n > 9 || (n > 5 && **at == '0'))
		return false;
	for (size_t i = 0; i < n; i++)
		value = value * 10 + (uint64_t)((*at)[i] - '0');
	*at += n;
	*ret = (uint32_t)value;
	return true;
}

static const char *const codecs[] = {"zst", "planes"};

const char *
pack_codec_name(size_t i)
{
	return i < sizeof(codecs) / sizeof(*codecs) ? codecs[i] : NULL;
}

const struct codec *
pack_codec(const char *name)
{
	const struct codec *codec = codec_of_name(name);

	for (size_t i = 0; codec && pack_codec_name(i); i++)
		if (strcmp(codec_name(codec), pack_codec_name(i)) == 0)
			return codec;
	return NULL;
}

/* Finds a codec by one of these names; PAWL_EUSAGE lists them all. */
static int
pack_find_codec(const char *name, const struct codec **ret, struct pawl_error *err)
{
	char file_name[16];

	if (strlen(name) < 8) {
		snprintf(file_name, sizeof(file_name), "x.%s", name);
		*ret = pack_codec(file_name);
		if (*ret)
			return 0;
	}
	char known[32] = "";

	for (size_t i = 0; pack_codec_name(i); i++) {
		const size_t used = strlen(known);

		snprintf(known + used, sizeof(known) - used, "%s, ", pack_codec_name(i));
	}
	return err_set(err, PAWL_EUSAGE, "compression: expected %snone or, of a run, auto, found '%.40s'", known, name);
}

int
pack_check_compression(const char *name, int level, const struct codec **ret, struct pawl_error *err)
{
	*ret = NULL;
	if (!name || !*name || strcmp(name, "none") == 0)
		return level ? err_set(err, PAWL_EUSAGE, "compression_level: expected a compression as well") : 0;
	TRY(pack_find_codec(name, ret, err));
	return codec_check_level(*ret, level, err);
}

bool
pack_parse_name(const char *name, uint32_t *ret_rank, uint32_t *ret_index)
{
	const char *at = name + 4;
	uint32_t rank, index;

	if (strncmp(name, "rank", 4) != 0 || !parse_number(&at, &rank) || *at++ != '-' || !parse_number(&at, &index))
		return false;
	if (*at == '-' && strspn(at + 1, "0123456789abcdef") == PACK_TOKEN_LEN)
		at += 1 + PACK_TOKEN_LEN;
	const struct codec *codec = pack_codec(at);
	const size_t len = codec ? codec_stem_len(codec, at) : strlen(at);

	if (len != strlen(PACK_SUFFIX) || strncmp(at, PACK_SUFFIX, len) != 0)
		return false;
	*ret_rank = rank;
	*ret_index = index;
	return true;
}

bool
pack_same_place(const char *a, const char *b)
{
	uint32_t rank_a, rank_b, index_a, index_b;

	return pack_parse_name(a, &rank_a, &index_a) && pack_parse_name(b, &rank_b, &index_b) && rank_a == rank_b &&
	       index_a == index_b;
}
