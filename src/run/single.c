/* SPDX-License-Identifier: Apache-2.0 */
/* single: see single.h. */
#include "run/single.h"

#include <string.h>
#include <sys/stat.h>

#include "base/err.h"
#include "base/fd.h"
#include "base/mem.h"
#include "store/layers/kept/store_kept.h"

/* Splits the path of a single checkpoint into the parent folder (the store) and the name. */
static int
split_path(struct pawl *run, const char *root, char **ret_parent, struct pawl_error *err)
{
	PAWL_FREE char *copy = mem_strdup(root);
	char *slash;

	if (!copy)
		return err_nomem(err, "run");
	const char *sign = strstr(copy, "://"); /* of "memory://name" the root is "memory://" */
	const size_t least = sign ? (size_t)(sign - copy) + 3 : 1;

	for (size_t n = strlen(copy); n > least && copy[n - 1] == '/'; n--)
		copy[n - 1] = 0;
	slash = strrchr(copy, '/');
	run->home.single_name = mem_strdup(slash ? slash + 1 : copy);
	if (run->home.single_name && (!*run->home.single_name || strcmp(run->home.single_name, ".") == 0 ||
	                              strcmp(run->home.single_name, "..") == 0))
		return err_set(err, PAWL_EUSAGE,
		               "%s: expected a path that ends in the name of a checkpoint, found '%s'", root,
		               run->home.single_name);
	if (slash)
		slash[slash == copy || (sign && sign + 2 == slash) ? 1 : 0] = 0;
	*ret_parent = mem_strdup(slash ? copy : ".");
	if (!run->home.single_name || !*ret_parent)
		return err_nomem(err, "run");
	return 0;
}

static int
open_once(struct pawl *run, const char *root, const char *path, struct pawl_error *err)
{
	PAWL_FREE char *parent = NULL;
	struct store_caps caps;

	TRY(split_path(run, path, &parent, err));
	TRY(run_open_store(run, parent, err));
	TRY(store_set_place(run->store, root, err));
	store_get_caps(run->store, &caps);
	return run->opts.read_only && caps.local ? store_kept_wrap(&run->store, run->home.single_name, err) : 0;
}

int
single_open_store(struct pawl *run, const char *root, struct pawl_error *err)
{
	PAWL_FREE char *before = NULL;

	if (strcmp(root, "mem:") == 0)
		return err_set(
			err, PAWL_EUSAGE,
			"mem: holds a run, and is lost when it is closed; a single checkpoint needs a path or a URL");
	for (;;) {
		PAWL_FREE char *real = NULL;
		struct stat st;
		struct pawl_error why = {0};
		const bool is_found = run->opts.read_only && fd_follow(root, &real, &st, NULL) == 0;
		int rc = open_once(run, root, is_found ? real : root, &why);

		if (rc == PAWL_ENOTFOUND && run->store && (!is_found || (before && strcmp(before, real) == 0)))
			return 0; /* the catalog reports what is missing */
		if (rc != PAWL_ENOTFOUND || !is_found || (before && strcmp(before, real) == 0))
			return err_give(err, rc, &why);
		store_close(run->store);
		run->store = NULL;
		mem_free(run->home.single_name);
		run->home.single_name = NULL;
		mem_free(before);
		before = steal(&real);
	}
}
