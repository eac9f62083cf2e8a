/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt: what torch.save wrote -> values, and where the bytes of every tensor lie. Two forms: the zip archive of torch 1.6
 * and later, and the five pickles in a row of before. Sees bytes only, runs nothing (pickle.h).
 *
 * Tensors are views: a range of elements of a storage by shape and strides. Storages can be shared. Refused by name:
 * sparse, quantised, nested and meta tensors, tensors with a conjugate or negative bit, subclasses, dtypes that pawl
 * does not have, big-endian files, TorchScript programs. Arrays and scalars of numpy, times and the version of torch, which
 * trainers save, are read, too (pt_plain.c). Left out: attributes that somebody put on a tensor or on an
 * OrderedDict (a state_dict's _metadata), backward hooks (which cannot be saved), and the device a tensor was on.
 */
#ifndef PAWL_FORMAT_PT_H
#define PAWL_FORMAT_PT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/crc32.h"
#include "format/archive/zip.h"
#include "format/source.h"
#include "format/torch/pickle.h"

struct pt_tensor {
	int dtype; /* enum pawl_dtype */
	uint32_t ndim;
	const uint64_t *shape;
	const uint64_t *strides; /* in elements; NULL = C order */
	uint64_t begin;          /* of its first element, in the source */
	uint64_t nbytes;         /* of its logical contents */
	const char *memory;      /* NULL; or the bytes are here, and not in the source: of an array in the object itself */
	const char *kind;        /* as pawl names it: "torch", "torch_grad", "torch_parameter", .. */
};

enum pt_type {
	PT_NONE,
	PT_BOOL,  /* i */
	PT_INT,   /* i, or digits in text */
	PT_FLOAT, /* f */
	PT_STR,
	PT_BYTES,
	PT_LIST,
	PT_TUPLE,
	PT_DICT,  /* items: key, value, .. */
	PT_ODICT, /* likewise */
	PT_TENSOR,
};

struct pt_value {
	int type;
	int64_t i;
	double f;
	const char *text; /* not terminated */
	size_t len;
	struct pickle_node *const *items;
	size_t n;
	const struct pt_tensor *tensor; /* the same for the same node */
};

struct pt_storage {
	const char *key;
	size_t key_len;
	uint64_t begin, nbytes;
};

struct pt {
	const struct source *source;
	struct bump *memory;
	struct pickle_node *root;
	struct zip zip;                     /* n = 0: the older form */
	const struct pt_storage *storages;  /* older form: ascending by key */
	size_t n_storages;
};

#define PT_SNIFF_BYTES 4u
/* Do these first bytes look like one? */
bool pt_looks(const unsigned char *first, size_t n);
/* Decodes the object; what it refers to is looked at by pt_value. Memory is the bump's, and must stay as the source must.
 * PAWL_ECORRUPT, PAWL_ELIMIT, PAWL_EUNSUPPORTED. */
int pt_open(const struct source *source, const struct crc32 *crc, struct bump *memory, struct pt *ret,
            struct pawl_error *err);
/* What a node is: root, or an item of another value. Items can hold each other in a circle: who walks bounds depth and
 * steps. Messages do not say where the value stands. */
int pt_value(const struct pt *pt, struct pickle_node *node, struct pt_value *ret, struct pawl_error *err);
/* The dtype of a name of torch's such as "float32"; 0 if pawl has none. */
int pt_dtype(const char *name);

#endif
