/* SPDX-License-Identifier: Apache-2.0 */
/* pt_names: the names that may occur in files of torch, for pt*.c and dcp.c. */
#ifndef PAWL_FORMAT_PT_NAMES_H
#define PAWL_FORMAT_PT_NAMES_H

#include "format/torch/pt.h"

/* Tags of names. That of a dtype or a storage class is PT_DTYPE or PT_STORAGE plus an enum
 * pawl_dtype; 0 = one that pawl does not have. */
enum {
	PT_ENCODE = 1, /* _codecs.encode: bytes in protocol 2 */
	PT_ORDERED,    /* collections.OrderedDict */
	PT_SIZE,       /* torch.Size */
	PT_CLASS,      /* torch.Tensor, Parameter: the type of a tensor with attributes */
	PT_TENSOR_V1,  /* torch._utils._rebuild_tensor */
	PT_TENSOR_V2,  /* _rebuild_tensor_v2 */
	PT_TENSOR_V3,  /* _rebuild_tensor_v3 */
	PT_PARAMETER,  /* _rebuild_parameter, with or without state */
	PT_FROM_TYPE,  /* torch._tensor._rebuild_from_type_v2 */
	PT_SPARSE,
	PT_QUANTISED,
	PT_NESTED,
	PT_META,
	PT_SUBCLASS,
	PT_FROM_NUMPY,
	PT_LAYOUT,
	PT_SCHEME,       /* of quantising */
	PT_UNTYPED,      /* torch.storage.UntypedStorage: bytes */
	PT_PATH,         /* pathlib.PosixPath and others */
	PT_DCP_METADATA, /* of torch.distributed.checkpoint: see dcp.c */
	PT_DCP_TENSOR,
	PT_DCP_BYTES,
	PT_DCP_CHUNK,
	PT_DCP_INDEX,
	PT_DCP_PROPERTIES,
	PT_DCP_STORAGE,
	PT_DCP_META,
	PT_DCP_ENCODING,
	PT_NO_BYTES, /* bytes(): b"" in protocol 2 */
	PT_TIME,     /* datetime.timedelta: see pt_plain.c */
	PT_VERSION,  /* torch.torch_version.TorchVersion */
	PT_NP_MAKE,  /* numpy: _reconstruct, scalar, ndarray, dtype */
	PT_NP_SCALAR,
	PT_NP_ARRAY,
	PT_NP_DTYPE,
	PT_DTYPE = 100,
	PT_STORAGE = 200,
};

extern const struct pickle_global pt_globals[];
extern const size_t pt_n_globals;

static inline bool
pt_is_dtype(int tag)
{
	return tag >= PT_DTYPE && tag < PT_STORAGE;
}

/* pt_tensor.c: a call that makes a tensor, resolved once. *ret NULL: it is a call of something
 * else. */
int pt_make_tensor(const struct pt *pt, struct pickle_node *node, const struct pt_tensor **ret, struct pawl_error *err);
/* Of a shape or strides: integers, none negative; memory is the pt's. */
int pt_read_extents(const struct pt *pt, const struct pickle_node *node, uint32_t *ret_n, const uint64_t **ret,
                    struct pawl_error *err);
/* pt_plain.c: 1 = a call that makes one, 0 = another one. */
int pt_read_plain(const struct pt *pt, struct pickle_node *node, struct pt_value *v, struct pawl_error *err);

#endif
