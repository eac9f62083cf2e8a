/* SPDX-License-Identifier: Apache-2.0 */
/* registry: the table of URL schemes. To add an engine, add its row here
 * (docs/how-to/extending.md). */
#include "store/registry.h"

#include "base/parts.h"

#ifdef PAWL_WITHOUT_OBJECT_STORES
#define OBJECT_STORE(scheme, example, fn) {scheme, example, NULL, true, true, "it was built without libcurl or expat"}
#else
#define OBJECT_STORE(scheme, example, fn) {scheme, example, fn, true, true, NULL}
#endif
#ifdef PAWL_WITHOUT_SSH
#define SSH_STORE(example) {"ssh", example, NULL, true, false, "it was built without stores on other machines"}
#else
#define SSH_STORE(example) {"ssh", example, store_ssh_open, true, false, NULL}
#endif

const struct store_kind registry_kinds[] = {
	{"file", "file://path", NULL, false, false, NULL},
	OBJECT_STORE("s3", "s3://bucket/prefix", store_s3_open),
	OBJECT_STORE("gs", "gs://bucket/prefix", store_gcs_open),
	OBJECT_STORE("az", "az://container/prefix", store_azure_open),
	SSH_STORE("ssh://user@host/path"),
	{"mem", "mem:", NULL, false, false, NULL},
	{NULL, NULL, NULL, false, false, NULL},
};
