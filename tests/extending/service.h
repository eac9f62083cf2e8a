/* SPDX-License-Identifier: Apache-2.0 */
/* service: a stand-in for a service that keeps bytes under keys, as a real engine has behind its
 * client library. Its objects are in memory. All calls are thread-safe. */
#ifndef PAWL_TESTS_SERVICE_H
#define PAWL_TESTS_SERVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct service;

enum service_result { SERVICE_DONE, SERVICE_MISSING, SERVICE_EXISTS, SERVICE_CHANGED, SERVICE_FULL };
#define SERVICE_NAME_BYTES 256 /* of a part of a key, with its end */

struct service_info {
	bool is_folder; /* then the rest is 0 */
	uint64_t nbytes, version;
	int64_t mtime_ns;
};

struct service *service_new(void); /* NULL without memory */
void service_free(struct service *s);
/* Replaces in one step. only_new: SERVICE_EXISTS if the key exists. */
enum service_result service_put(struct service *s, const char *key, const void *bytes, size_t nbytes, bool only_new);
/* A folder exists while an object is in it. Where an object has the same name, that is returned. */
enum service_result service_look(struct service *s, const char *key, struct service_info *ret);
/* SERVICE_CHANGED if the object has another version by now. */
enum service_result service_read(struct service *s, const char *key, uint64_t version, uint64_t offset, void *dst,
                                 size_t n);
/* One object, or all objects in a folder. */
void service_delete(struct service *s, const char *key, bool is_folder);
/* The child of a folder that follows `name` in the alphabet; replaces name. False at the end. Of an
 * object and a folder with one name, the object. */
bool service_next(struct service *s, const char *folder, char name[SERVICE_NAME_BYTES], struct service_info *ret);

#endif
