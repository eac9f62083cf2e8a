/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_list: lists the folders of checkpoints and reads their manifests. Used only by the
 * catalog. */
#ifndef PAWL_CATALOG_LIST_H
#define PAWL_CATALOG_LIST_H

#include "base/vec.h"
#include "catalog/catalog.h"

#define CATALOG_LOOKS 100u /* attempts, if the run changes each time */

struct catalog_found {
	const char *name;
	/* Changes with the checkpoint: the folder's time, or in a flat store a mix of the
	 * manifest's time and size. 0 = read it again. */
	int64_t mtime_ns;
	bool is_known_empty; /* in a flat store: it has no manifest */
	bool has_packs;      /* in a flat store: it has more than a manifest */
};

struct catalog_listing {
	struct bump memory;
	VEC(struct catalog_found) found; /* sorted by name once complete */
	bool is_single;                  /* the user gave the name, so any name is valid */
	const struct catalog_kind *kind; /* of the catalog that is listed */
};

/* The kind of a catalog, by its single name, format and store. */
const struct catalog_kind *catalog_kind_of(const struct catalog *c, const struct store_caps *caps);

void catalog_listing_clear(struct catalog_listing *l);
/* Have both the same names? */
bool catalog_listing_is_same(const struct catalog_listing *a, const struct catalog_listing *b);
int catalog_list_folders(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err);
/* The time of one folder as catalog_list_folders gives it. */
int catalog_list_time(const struct catalog *c, const char *name, int64_t *ret_ns, struct pawl_error *err);

/* One manifest to be read. */
struct catalog_want {
	const struct catalog_found *found;
	struct catalog_entry *ret;
};
/* Reads n of them; several at a time in a flat store. */
int catalog_list_read(const struct catalog *c, const struct catalog_want *wants, size_t n, struct pawl_error *err);

#endif
