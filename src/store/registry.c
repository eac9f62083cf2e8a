/* SPDX-License-Identifier: Apache-2.0 */
/* registry: see registry.h. To add an engine, add its row here. */
#include "store/registry.h"

#include <string.h>

#ifdef PAWL_WITHOUT_OBJECT_STORES
#define OBJECT_STORE(scheme, fn) {scheme, NULL, true, true, "it was built without libcurl, OpenSSL or expat"}
#else
#define OBJECT_STORE(scheme, fn) {scheme, fn, true, true, NULL}
#endif
#ifdef PAWL_WITHOUT_SSH
#define SSH_STORE {"ssh", NULL, true, false, "it was built without stores on other machines"}
#else
#define SSH_STORE {"ssh", store_ssh_open, true, false, NULL}
#endif

static const struct store_kind kinds[] = {
	OBJECT_STORE("s3", store_s3_open),    OBJECT_STORE("gs", store_gcs_open),
	OBJECT_STORE("az", store_azure_open), SSH_STORE,
	{"file", NULL, false, false, NULL},   {"mem", NULL, false, false, NULL},
};

const struct store_kind *
store_kind_of(const char *url)
{
	const size_t len = strcspn(url, ":");

	for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++)
		if (strlen(kinds[i].scheme) == len && strncmp(url, kinds[i].scheme, len) == 0 && url[len] == ':')
			return &kinds[i];
	return NULL;
}
