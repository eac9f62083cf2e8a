/* SPDX-License-Identifier: Apache-2.0 */
/* store_s3_none: stands for the S3 engine where pawl was built without libcurl or OpenSSL. Called by store.c. */
#include "store/store.h"

#include "base/err.h"

int
store_s3_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	(void)create, (void)ret;
	return err_set(err, PAWL_EUNSUPPORTED,
	               "%s: this build of pawl has no S3: it was built without libcurl or OpenSSL", url);
}
