/* SPDX-License-Identifier: Apache-2.0 */
/* registry: the one table of URL schemes and the engines behind them. */
#ifndef PAWL_STORE_REGISTRY_H
#define PAWL_STORE_REGISTRY_H

#include <stdbool.h>

#include "store/store.h"

struct store_kind {
	const char *scheme;  /* "s3" of s3://bucket/prefix */
	store_open_fn *open; /* of an engine on another machine; NULL for this machine's, and where this build has none */
	bool is_remote;      /* on another machine: the retry layer goes around it */
	bool is_bucket;      /* an object store */
	const char *missing; /* why this build has no such engine, or NULL */
};

/* The kind that a URL names; NULL for plain paths and unknown schemes. */
const struct store_kind *store_kind_of(const char *url);

#endif
