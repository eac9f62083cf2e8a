/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_mem_table: keys and contents of the memory engine. Private to store_mem*.c. These functions
 * take no lock; the engine does.
 */
#ifndef PAWL_STORE_STORE_MEM_TABLE_H
#define PAWL_STORE_STORE_MEM_TABLE_H

#include "store/engine.h"

/* Contents, shared by keys and readers. */
struct mem_blob {
	char *ptr;
	size_t len, cap;
	uint64_t n_keys, n_readers;
};

/* NULL when out of memory; the bytes are not initialised. */
struct mem_blob *mem_blob_new(size_t len, size_t cap);
/* Frees a blob that neither key nor reader holds; NULL is fine. */
void mem_blob_drop(struct mem_blob *b);
void mem_blob_clean(struct mem_blob **pb);

struct mem_object {
	char *key;
	struct mem_blob *blob;
	int64_t mtime_ns;
};

/* Sorted by key, so that a folder is one run of neighbours. Zero-initialised = empty. */
struct mem_table {
	struct mem_object *objects;
	size_t n_objects, cap_objects;
};

void mem_table_clear(struct mem_table *t);
struct mem_object *mem_table_find(const struct mem_table *t, const char *key); /* NULL if there is none */
/* The objects inside a folder are [*begin, *end). "" is everything. */
void mem_table_find_folder(const struct mem_table *t, const char *folder, size_t *begin, size_t *end);
bool mem_table_is_folder(const struct mem_table *t, const char *key);
/* Refuses what a filesystem would refuse. PAWL_EEXISTS: an object inside an object, or in the place
 * of a folder. */
int mem_table_check_place(const struct mem_table *t, const char *key, struct pawl_error *err);
/* Binds a key to this blob. Replaces what the key had before, or returns PAWL_EEXISTS if
 * exclusive. */
int mem_table_bind(struct mem_table *t, const char *key, struct mem_blob *blob, bool exclusive, struct pawl_error *err);
/* Removes objects: [begin, end), or one. */
void mem_table_unbind(struct mem_table *t, size_t begin, size_t end);
void mem_table_unbind_one(struct mem_table *t, const struct mem_object *object);
/* Renames all keys of a folder at once, or none; exclusive. */
int mem_table_rename_folder(struct mem_table *t, const char *from, const char *to, struct pawl_error *err);

#endif
