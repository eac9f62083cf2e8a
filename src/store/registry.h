/* SPDX-License-Identifier: Apache-2.0 */
/* registry: the only table of URL schemes and of the engines behind them. */
#ifndef PAWL_STORE_REGISTRY_H
#define PAWL_STORE_REGISTRY_H

#include <stdbool.h>

#include "store/store.h"

struct store_kind {
	const char *scheme;  /* "s3" of s3://bucket/prefix */
	const char *example; /* of a URL, for messages */
	store_open_fn *open; /* opens an engine on another machine; NULL in a build without it */
	bool is_remote;      /* on another machine: the retry layer wraps it */
	bool is_bucket;      /* an object store */
	const char *missing; /* why this build has no such engine, or NULL */
};

/* Ends with a row without a scheme. A test may bring its own table. */
extern const struct store_kind registry_kinds[];

/* The kind of store that a URL names; NULL for paths and unknown schemes. */
const struct store_kind *registry_find(const char *url);
/* Appends "a path, file://path, s3://bucket/prefix, .. or mem:"; remote: only engines on other
 * machines. */
void registry_describe(struct buf *out, bool remote);

#endif
