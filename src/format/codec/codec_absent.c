/* SPDX-License-Identifier: Apache-2.0 */
/* codec_absent: rows of the formats that this build leaves out. Files are recognized, and the error
 * names what is missing. */
#include "base/err.h"
#include "base/parts.h"
#include "format/codec/codec_own.h"

#if defined(PAWL_WITHOUT_BZ2) || defined(PAWL_WITHOUT_LZ4) || defined(PAWL_WITHOUT_XZ)

static int
refuse_absent(const char **why)
{
	*why = "this pawl was built without the format's library";
	return PAWL_EUNSUPPORTED;
}

static int
encoder_new(int level, void **ret, const char **why)
{
	(void)level;
	*ret = NULL;
	return refuse_absent(why);
}

static int
decoder_new(void **ret, const char **why)
{
	*ret = NULL;
	return refuse_absent(why);
}

/* Not called: no encoder or decoder exists. */
static int
absent_encode(void *encoder, const void *ptr, size_t n, bool last, struct buf *out, struct codec_frame *frame,
              const char **why)
{
	(void)encoder, (void)ptr, (void)n, (void)last, (void)out, (void)frame;
	return refuse_absent(why);
}

static int
absent_decode(void *decoder, struct codec_step *step, const char **why)
{
	(void)decoder, (void)step;
	return refuse_absent(why);
}

/* max and preset: levels, as in the row of a build that has the library. */
#define ABSENT(format, ending, max, preset)                                                                        \
	.name = format, .suffix = ending, .unit = format " stream", .max_level = (max), .default_level = (preset), \
	.one_stream = true, .frame_bytes = 1u << 20, .encoder_new = encoder_new, .encode = absent_encode,          \
	.encoder_free = mem_free, .decoder_new = decoder_new, .decode = absent_decode, .decoder_free = mem_free

#ifdef PAWL_WITHOUT_BZ2
const struct codec codec_bz2 = {ABSENT("bz2", ".bz2", 9, 9), .magic = {'B', 'Z', 'h'}, .n_magic = 3};
#endif
#ifdef PAWL_WITHOUT_LZ4
const struct codec codec_lz4 = {ABSENT("lz4", ".lz4", 12, 1), .magic = {0x04, 0x22, 0x4d, 0x18}, .n_magic = 4};
#endif
#ifdef PAWL_WITHOUT_XZ
const struct codec codec_lzma = {ABSENT("lzma", ".lzma", 9, 6)};
const struct codec codec_xz = {ABSENT("xz", ".xz", 9, 6), .magic = {0xfd, '7', 'z', 'X', 'Z', 0}, .n_magic = 6};
#endif

#endif
