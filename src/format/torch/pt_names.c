/* SPDX-License-Identifier: Apache-2.0 */
/* pt_names: see pt_names.h. The table is sorted by module, then by name, as pickle.h wants it. */
#include "format/torch/pt_names.h"

#include <string.h>

#define VALUE(name, tag) {"torch", name, tag, 0}
#define OBJECT (PICKLE_NEW | PICKLE_STATE)
#define SHARDED(name, tag, uses) {"torch.distributed._shard.sharded_tensor.metadata", name, tag, uses}
#define DCP(name, tag, uses) {"torch.distributed.checkpoint.metadata", name, tag, uses}
#define NUMPY(module)                                                       \
	{module, "_reconstruct", PT_NP_MAKE, PICKLE_CALLED | PICKLE_STATE}, \
	{                                                                   \
		module, "scalar", PT_NP_SCALAR, PICKLE_CALLED               \
	}
#define UTIL(name, tag) {"torch._utils", name, tag, PICKLE_CALLED}

const struct pickle_global pt_globals[] = {
	{"__builtin__", "bytes", PT_NO_BYTES, PICKLE_CALLED},
	{"_codecs", "encode", PT_ENCODE, PICKLE_CALLED},
	{"collections", "OrderedDict", PT_ORDERED, PICKLE_CALLED | PICKLE_ORDERED},
	{"datetime", "timedelta", PT_TIME, PICKLE_CALLED},
	{"numpy", "dtype", PT_NP_DTYPE, PICKLE_CALLED | PICKLE_STATE},
	{"numpy", "ndarray", PT_NP_ARRAY, 0},
	NUMPY("numpy._core.multiarray"),
	NUMPY("numpy.core.multiarray"),
	{"pathlib", "PosixPath", PT_PATH, PICKLE_CALLED},
	{"pathlib", "PurePosixPath", PT_PATH, PICKLE_CALLED},
	{"pathlib", "WindowsPath", PT_PATH, PICKLE_CALLED},
	{"pathlib._local", "PosixPath", PT_PATH, PICKLE_CALLED},
	{"pathlib._local", "WindowsPath", PT_PATH, PICKLE_CALLED},
	VALUE("BFloat16Storage", PT_STORAGE + PAWL_BF16),
	VALUE("BoolStorage", PT_STORAGE + PAWL_BOOL),
	VALUE("ByteStorage", PT_STORAGE + PAWL_U8),
	VALUE("CharStorage", PT_STORAGE + PAWL_I8),
	VALUE("ComplexDoubleStorage", PT_STORAGE + PAWL_C128),
	VALUE("ComplexFloatStorage", PT_STORAGE + PAWL_C64),
	VALUE("DoubleStorage", PT_STORAGE + PAWL_F64),
	VALUE("FloatStorage", PT_STORAGE + PAWL_F32),
	VALUE("HalfStorage", PT_STORAGE + PAWL_F16),
	VALUE("IntStorage", PT_STORAGE + PAWL_I32),
	VALUE("LongStorage", PT_STORAGE + PAWL_I64),
	VALUE("QInt32Storage", PT_STORAGE),
	VALUE("QInt8Storage", PT_STORAGE),
	VALUE("QUInt2x4Storage", PT_STORAGE),
	VALUE("QUInt4x2Storage", PT_STORAGE),
	VALUE("QUInt8Storage", PT_STORAGE),
	VALUE("ShortStorage", PT_STORAGE + PAWL_I16),
	{"torch", "Size", PT_SIZE, PICKLE_CALLED},
	VALUE("Tensor", PT_CLASS),
	VALUE("bfloat16", PT_DTYPE + PAWL_BF16),
	VALUE("bits16", PT_DTYPE),
	VALUE("bits1x8", PT_DTYPE),
	VALUE("bits2x4", PT_DTYPE),
	VALUE("bits4x2", PT_DTYPE),
	VALUE("bits8", PT_DTYPE),
	VALUE("bool", PT_DTYPE + PAWL_BOOL),
	VALUE("complex128", PT_DTYPE + PAWL_C128),
	VALUE("complex32", PT_DTYPE),
	VALUE("complex64", PT_DTYPE + PAWL_C64),
	VALUE("float16", PT_DTYPE + PAWL_F16),
	VALUE("float32", PT_DTYPE + PAWL_F32),
	VALUE("float4_e2m1fn_x2", PT_DTYPE + PAWL_F4),
	VALUE("float64", PT_DTYPE + PAWL_F64),
	VALUE("float8_e4m3fn", PT_DTYPE + PAWL_F8_E4M3),
	VALUE("float8_e4m3fnuz", PT_DTYPE + PAWL_F8_E4M3FNUZ),
	VALUE("float8_e5m2", PT_DTYPE + PAWL_F8_E5M2),
	VALUE("float8_e5m2fnuz", PT_DTYPE + PAWL_F8_E5M2FNUZ),
	VALUE("float8_e8m0fnu", PT_DTYPE + PAWL_F8_E8M0),
	VALUE("int1", PT_DTYPE),
	VALUE("int16", PT_DTYPE + PAWL_I16),
	VALUE("int2", PT_DTYPE),
	VALUE("int3", PT_DTYPE),
	VALUE("int32", PT_DTYPE + PAWL_I32),
	VALUE("int4", PT_DTYPE),
	VALUE("int5", PT_DTYPE),
	VALUE("int6", PT_DTYPE),
	VALUE("int64", PT_DTYPE + PAWL_I64),
	VALUE("int7", PT_DTYPE),
	VALUE("int8", PT_DTYPE + PAWL_I8),
	VALUE("per_channel_affine", PT_SCHEME),
	VALUE("per_channel_affine_float_qparams", PT_SCHEME),
	VALUE("per_channel_symmetric", PT_SCHEME),
	VALUE("per_tensor_affine", PT_SCHEME),
	VALUE("per_tensor_symmetric", PT_SCHEME),
	VALUE("qint32", PT_DTYPE),
	VALUE("qint8", PT_DTYPE),
	VALUE("quint2x4", PT_DTYPE),
	VALUE("quint4x2", PT_DTYPE),
	VALUE("quint8", PT_DTYPE),
	VALUE("uint1", PT_DTYPE),
	VALUE("uint16", PT_DTYPE + PAWL_U16),
	VALUE("uint2", PT_DTYPE),
	VALUE("uint3", PT_DTYPE),
	VALUE("uint32", PT_DTYPE + PAWL_U32),
	VALUE("uint4", PT_DTYPE),
	VALUE("uint5", PT_DTYPE),
	VALUE("uint6", PT_DTYPE),
	VALUE("uint64", PT_DTYPE + PAWL_U64),
	VALUE("uint7", PT_DTYPE),
	VALUE("uint8", PT_DTYPE + PAWL_U8),
	{"torch._tensor", "_rebuild_from_type_v2", PT_FROM_TYPE, PICKLE_CALLED},
	UTIL("_rebuild_device_tensor_from_cpu_tensor", PT_FROM_NUMPY),
	UTIL("_rebuild_device_tensor_from_numpy", PT_FROM_NUMPY),
	UTIL("_rebuild_meta_tensor_no_storage", PT_META),
	UTIL("_rebuild_nested_tensor", PT_NESTED),
	UTIL("_rebuild_parameter", PT_PARAMETER),
	UTIL("_rebuild_parameter_with_state", PT_PARAMETER),
	UTIL("_rebuild_qtensor", PT_QUANTISED),
	UTIL("_rebuild_sparse_tensor", PT_SPARSE),
	UTIL("_rebuild_tensor", PT_TENSOR_V1),
	UTIL("_rebuild_tensor_v2", PT_TENSOR_V2),
	UTIL("_rebuild_tensor_v3", PT_TENSOR_V3),
	UTIL("_rebuild_wrapper_subclass", PT_SUBCLASS),
	SHARDED("MEM_FORMAT_ENCODING", PT_DCP_ENCODING, PICKLE_CALLED),
	SHARDED("TensorProperties", PT_DCP_PROPERTIES, OBJECT),
	{"torch.distributed.checkpoint.filesystem", "_StorageInfo", PT_DCP_STORAGE, OBJECT},
	DCP("BytesStorageMetadata", PT_DCP_BYTES, OBJECT),
	DCP("ChunkStorageMetadata", PT_DCP_CHUNK, OBJECT),
	DCP("Metadata", PT_DCP_METADATA, OBJECT),
	DCP("MetadataIndex", PT_DCP_INDEX, OBJECT),
	DCP("StorageMeta", PT_DCP_META, OBJECT),
	DCP("TensorProperties", PT_DCP_PROPERTIES, OBJECT),
	DCP("TensorStorageMetadata", PT_DCP_TENSOR, OBJECT),
	DCP("_MEM_FORMAT_ENCODING", PT_DCP_ENCODING, PICKLE_CALLED),
	{"torch.nn.parameter", "Parameter", PT_CLASS, 0},
	{"torch.serialization", "_get_layout", PT_LAYOUT, PICKLE_CALLED},
	{"torch.storage", "UntypedStorage", PT_UNTYPED, 0},
	{"torch.torch_version", "TorchVersion", PT_VERSION, PICKLE_NEW},
};
const size_t pt_n_globals = sizeof(pt_globals) / sizeof(pt_globals[0]);

int
pt_dtype(const char *name)
{
	for (size_t i = 0; i < pt_n_globals; i++) {
		if (pt_is_dtype(pt_globals[i].tag) && strcmp(pt_globals[i].name, name) == 0)
			return pt_globals[i].tag - PT_DTYPE;
	}
	return 0;
}
