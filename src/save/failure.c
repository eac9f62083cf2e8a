/* SPDX-License-Identifier: Apache-2.0 */
/* failure: the first error of a save. Later units of a failed save are skipped. */
#include "save/save.h"

int
save_fail(struct save *s, int code, const struct pawl_error *err)
{
	pthread_mutex_lock(&s->lock);
	if (!s->failed) {
		s->failed = code;
		if (err)
			s->error = *err;
		s->error.code = code;
	}
	pthread_mutex_unlock(&s->lock);
	return code;
}

bool
save_has_failed(struct save *s)
{
	bool failed;

	pthread_mutex_lock(&s->lock);
	failed = s->failed != 0;
	pthread_mutex_unlock(&s->lock);
	return failed;
}
