/* SPDX-License-Identifier: Apache-2.0 */
/* registry: see registry.h. To add an engine, add its row here. */
#include "store/registry.h"

#include <string.h>

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

static const struct store_kind kinds[] = {
	{"file", "file://path", NULL, false, false, NULL},
	OBJECT_STORE("s3", "s3://bucket/prefix", store_s3_open),
	OBJECT_STORE("gs", "gs://bucket/prefix", store_gcs_open),
	OBJECT_STORE("az", "az://container/prefix", store_azure_open),
	SSH_STORE("ssh://user@host/path"),
	{"mem", "mem:", NULL, false, false, NULL},
};
#define N_KINDS (sizeof(kinds) / sizeof(kinds[0]))

const struct store_kind *
registry_find(const char *url)
{
	const size_t len = strcspn(url, ":");

	for (size_t i = 0; i < N_KINDS; i++)
		if (strlen(kinds[i].scheme) == len && strncmp(url, kinds[i].scheme, len) == 0 && url[len] == ':')
			return &kinds[i];
	return NULL;
}

void
registry_describe(struct buf *out, bool remote)
{
	const char *before = "", *last = "a path";

	for (size_t i = 0; i < N_KINDS; i++)
		if (kinds[i].is_remote || !remote) {
			buf_printf(out, "%s%s", before, last);
			before = ", ";
			last = kinds[i].example;
		}
	buf_printf(out, " or %s", last);
}

const char *
pawl_url_scheme(size_t i)
{
	return i < N_KINDS ? kinds[i].scheme : NULL;
}
