/* SPDX-License-Identifier: Apache-2.0 */
/* catalog_list: which folders there are, and their manifests, many at a time where they are far away. For catalog.c only. */
#ifndef PAWL_CATALOG_LIST_H
#define PAWL_CATALOG_LIST_H

#include "catalog/catalog.h"

#define CATALOG_LOOKS 100u /* at a run that changes each time */

struct catalog_found {
	const char *name;
	/* Changes when the checkpoint does: the folder's time. In a flat store, whose folders have none, made of the manifest's
	 * time and size; 0 = read it again. */
	int64_t mtime_ns;
	bool is_known_empty; /* of a flat store: there is no manifest, nobody need ask for it */
	bool has_packs;      /* of a flat store: there is more than a manifest */
};

struct catalog_listing {
	struct bump memory;
	struct catalog_found *found; /* sorted by name once complete */
	size_t n, cap;
	bool single;  /* of the name that the user gave */
	bool is_file; /* not a folder */
};

void catalog_listing_clear(struct catalog_listing *l);
/* Have both the same names? */
bool catalog_listing_is_same(const struct catalog_listing *a, const struct catalog_listing *b);
int catalog_list_folders(const struct catalog *c, struct catalog_listing *l, struct pawl_error *err);
/* The time of one folder as list_folders gives it. */
int catalog_list_time(const struct catalog *c, const char *name, int64_t *ret_ns, struct pawl_error *err);

/* One manifest to be read. */
struct catalog_want {
	const struct catalog_found *found;
	struct catalog_entry *ret;
};
/* Reads n of them; side by side where the store is far away. */
int catalog_list_read(const struct catalog *c, const struct catalog_want *wants, size_t n, struct pawl_error *err);

#endif
