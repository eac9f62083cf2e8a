/* SPDX-License-Identifier: Apache-2.0 */
/* object_none: stands for the engines of object stores where pawl was built without libcurl or OpenSSL. Called by
 * store.c. */
#include "store/store.h"

#include "base/err.h"

static int
refuse(const char *url, const char *what, struct pawl_error *err)
{
	return err_set(err, PAWL_EUNSUPPORTED,
	               "%s: this build of pawl has no %s: it was built without libcurl or OpenSSL", url, what);
}

int
store_s3_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	(void)create, (void)ret;
	return refuse(url, "S3", err);
}

int
store_gcs_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	(void)create, (void)ret;
	return refuse(url, "Google Cloud Storage", err);
}

int
store_azure_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	(void)create, (void)ret;
	return refuse(url, "Azure Blob storage", err);
}
