/* SPDX-License-Identifier: Apache-2.0 */
/* save_fail: the first error of a save. Later units of a failed save are skipped. */
#include "save/save.h"

int
save_fail(struct save_progress *p, int code, const struct pawl_error *err)
{
	pthread_mutex_lock(&p->lock);
	if (!p->failed) {
		p->failed = code;
		if (err)
			p->error = *err;
		p->error.code = code;
	}
	pthread_mutex_unlock(&p->lock);
	return code;
}

bool
save_has_failed(struct save_progress *p)
{
	bool failed;

	pthread_mutex_lock(&p->lock);
	failed = p->failed != 0;
	pthread_mutex_unlock(&p->lock);
	return failed;
}
