/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pt: reads what torch.save wrote (the zip archive of torch 1.6 and later): its values, and where
 * the bytes of every tensor are. It sees bytes only and runs nothing (pickle.h).
 *
 * A tensor is a view: a range of elements of a storage, by shape and strides. Tensors can share a
 * storage. These are refused by name: sparse, quantised, nested and meta tensors, tensors with a
 * conjugate or negative bit, and subclasses. So are dtypes that pawl does not have, big-endian
 * files and TorchScript programs. pt_plain.c also reads what trainers save: arrays and scalars of
 * NumPy, durations and the version of torch. Left out are attributes of a tensor or of an
 * OrderedDict (a state_dict's _metadata), backward hooks, and the device of a tensor.
 */
#ifndef PAWL_FORMAT_PT_H
#define PAWL_FORMAT_PT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

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
	const char *memory; /* NULL; or the bytes are here, and not in the source: of an array in the object itself */
	const char *kind;   /* as pawl names it: "torch", "torch_grad", "torch_parameter", .. */
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
	PT_ODICT, /* as PT_DICT */
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

struct pt {
	const struct source *source;
	struct bump *memory;
	struct pickle_node *root;
	struct zip zip;
};

#define PT_SNIFF_BYTES 4u
/* Did torch.save write this file, judging by its first n bytes? */
bool pt_looks(const unsigned char *first, size_t n);
/* Decodes the object; pt_value reads what it refers to. Memory is the bump's; it and the source
 * must outlive pt. PAWL_ECORRUPT, PAWL_ELIMIT, PAWL_EUNSUPPORTED. */
int pt_open(const struct source *source, struct bump *memory, struct pt *ret, struct pawl_error *err);
/* The value of a node: root, or an item of another value. Items can contain each other in a circle,
 * so a walk must limit depth and steps. Messages do not name the value's place. */
int pt_value(const struct pt *pt, struct pickle_node *node, struct pt_value *ret, struct pawl_error *err);

#endif
