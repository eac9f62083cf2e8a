/* SPDX-License-Identifier: Apache-2.0 */
/* commit_settle: finds how a save ended when a request of its commit has failed. Promises P2, P10,
 * P11. */
#include <string.h>

#include "base/buf.h"
#include "base/err.h"
#include "ranks/rendezvous.h"
#include "ranks/abort_commit.h"
#include "run/lease.h"
#include "save/save.h"

/* Is the run still this job's? If not, another job may have removed the checkpoint. */
static int
check_ours(const struct save *s, struct pawl_error *err)
{
	const struct pawl *run = s->run;

	if (run->self.lease)
		return lease_check(run->self.lease, err);
	if (run->group.rendezvous && !rendezvous_is_current(run->group.rendezvous))
		return err_set(err, PAWL_ECONFLICT, "the run no longer belongs to this job");
	return 0;
}

/* 1 = the key holds the manifest of this save, 0 = something else, or nothing. */
static int
is_committed(const struct save *s, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf key = {0}, text = {0};
	struct manifest *m = NULL;

	buf_printf(&key, "%s/" MANIFEST_NAME, s->folder);
	TRY(buf_check(&key, s->folder, err));
	int rc = store_get(s->run->store, buf_str(&key), MANIFEST_MAX_BYTES, &text, err);

	if (rc == PAWL_ENOTFOUND)
		return 0;
	TRY(rc);
	if (manifest_is_withdrawn(text.ptr, text.len))
		return 0;
	TRY(manifest_decode(s->name, text.ptr, text.len, true, &m, err));
	rc = strcmp(m->token, s->image.token) == 0;
	manifest_free(m);
	return rc;
}

static int
decide_commit(struct save *s, struct pawl_error *err)
{
	bool decided = check_ours(s, NULL) < 0; /* then it is not ours to decide */

	/* If no save can be aborted, or no other process looks for this one, reading the key is
	 * enough. */
	if (!s->run->home.caps.exclusive_put || s->run->home.single_name)
		return is_committed(s, err);
	if (!decided) {
		int rc = abort_commit_put(s->run->store, s->folder, s->image.token, err);

		if (rc < 0 && rc != PAWL_EEXISTS)
			return rc;
		decided = rc == PAWL_EEXISTS;
	}
	if (decided) {
		int rc = is_committed(s, err);

		if (rc != 0)
			return rc;
	}
	/* A process that took the run over may have removed it and then aborted it. */
	return check_ours(s, err);
}

int
commit_settle(struct save *s, struct pawl_error *err)
{
	int rc = decide_commit(s, err);

	s->in_doubt = rc < 0;
	return rc;
}
