/* SPDX-License-Identifier: Apache-2.0 */
/*
 * store_ssh: the engine for folders of another machine: ssh://user@host/path. See
 * docs/how-to/stores/ssh.md.
 *
 * Only the retry layer decides what is tried again. The engine starts the user's own ssh and uses
 * SFTP over its pipe. So whatever ssh can do works: keys, agents, jumps, configuration. A store has
 * one connection. One exchange at a time runs on it, each with many requests under way. If the
 * connection is lost, the current call fails with PAWL_ETRANSIENT, and the next call makes a new
 * one. Promises:
 *
 *   P2   Objects appear complete, by rename.
 *   P3   fsync@openssh.com, where the server has it.
 *   P10  Exclusive by link.
 *   P15  After an unknown outcome the result is examined.
 *   P16  Every wait has an end.
 *   P18  No password, no secret.
 */
#include "store/ssh/store_ssh.h"

#include <string.h>

#include "base/clock.h"
#include "base/err.h"
#include "base/hidden.h"

#define END_MS 1000 /* how long ssh may take to end, once its pipe is closed */
#define UNIT_BYTES (UINT64_C(1) << 20)

/* --------------------------------------------------------------- connection */

static void
hang_up(struct ssh_store *s)
{
	sftp_free(s->sftp);
	s->sftp = NULL;
	child_end(&s->ssh, 0);
}

/* Derives the error code from the messages of ssh. */
static int
code_of_words(const char *words, int code)
{
	static const struct {
		const char *part;
		int code;
	} known[] = {{"ermission denied", PAWL_EAUTH},
	             {"Host key verification failed", PAWL_EAUTH},
	             {"No matching host key", PAWL_EAUTH},
	             {"no matching host key", PAWL_EAUTH},
	             {"Too many authentication failures", PAWL_EAUTH},
	             {"Could not resolve hostname", PAWL_ENOTFOUND},
	             {"subsystem request failed", PAWL_EUNSUPPORTED},
	             {"Bad configuration option", PAWL_EUSAGE},
	             {"no such identity", PAWL_ENOTFOUND}};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strstr(words, known[i].part) != NULL)
			return known[i].code;
	return code;
}

/* ssh failed during the greeting: waits for its last output and makes an error from it. */
static int
explain_greeting(struct ssh_store *s, int code, const struct pawl_error *why, struct pawl_error *err)
{
	PAWL_CLEAN(buf_clear) struct buf said = {0};
	char words[200];
	size_t n = 0;
	for (int64_t end = clock_mono_ms() + END_MS; !child_has_ended(&s->ssh) && clock_mono_ms() < end;)
		clock_sleep_ms(5);
	child_listen(s->ssh.said, &said, 4096);
	const char *text = buf_str(&said), *line = text;
	const char *told = strstr(text, "Host key verification failed") != NULL ? "Host key verification failed" : NULL;
	for (const char *c = text; *c != '\0'; c++) /* finds the last line that is not blank */
		if (c[0] == '\n' && (unsigned char)c[1] > ' ')
			line = c + 1;
	for (line = told != NULL ? told : line; *line != '\0' && *line != '\n' && n + 1 < sizeof words; line++)
		if (*line != '\r')
			words[n++] = *line < ' ' || *line > '~' ? '?' : *line;
	words[n] = '\0';
	if (n == 0)
		return err_set(err, code, "%s: %s", s->base.root, why->message);
	return err_set(err, code_of_words(words, code), "%s: cannot connect: %s", s->base.root, words);
}

static int
connect_to(struct ssh_store *s, struct pawl_error *err)
{
	struct pawl_error why = {0};
	TRY(child_start(s->config.argv, CHILD_TALK, &s->ssh, err));
	/* Only explain_greeting reads the output of ssh before the greeting. */
	int rc = sftp_new(s->ssh.talk, -1, s->config.timeout_ms, &s->sftp, &why);
	if (rc < 0) {
		rc = explain_greeting(s, rc, &why, err);
		hang_up(s);
		return rc;
	}
	sftp_listen(s->sftp, s->ssh.said);
	s->generation++;
	return 0;
}

int
ssh_enter(struct ssh_store *s, struct pawl_error *err)
{
	pthread_mutex_lock(&s->lock);
	int rc = s->sftp == NULL ? connect_to(s, err) : 0;
	if (rc < 0)
		pthread_mutex_unlock(&s->lock);
	return rc;
}

int
ssh_leave(struct ssh_store *s, const char *key, int rc, struct pawl_error *err)
{
	if (s->sftp != NULL && sftp_is_lost(s->sftp))
		hang_up(s);
	pthread_mutex_unlock(&s->lock);
	return rc < 0 ? err_prefix(err, rc, "%s", key[0] != '\0' ? key : s->base.root) : rc;
}

/* -------------------------------------------------------------------- paths */

char *
ssh_path(const struct ssh_store *s, const char *key)
{
	return key[0] != '\0' ? mem_printf("%s/%s", s->config.path, key) : mem_strdup(s->config.path);
}

int
ssh_temp_path(const struct ssh_store *s, const char *key, char **ret, struct pawl_error *err)
{
	char temp[HIDDEN_NAME_BYTES];
	const char *slash = strrchr(key, '/'), *name = slash != NULL ? slash + 1 : key;
	TRY(hidden_name(name, HIDDEN_TMP, temp, err));
	*ret = mem_printf("%s/%.*s%s", s->config.path, (int)(name - key), key, temp);
	return *ret == NULL ? err_nomem(err, NULL) : 0;
}

int
ssh_look(struct ssh_store *s, const char *path, struct sftp_attrs *ret, struct pawl_error *err)
{
	int rc = sftp_lstat(s->sftp, path, ret, err);
	return rc == PAWL_ENOTFOUND ? 1 : rc;
}

/* Calls fn for every folder above the key's name, from the root on. */
static int
each_folder_above(struct ssh_store *s, const char *key,
                  int (*fn)(struct ssh_store *, const char *, struct pawl_error *), struct pawl_error *err)
{
	PAWL_FREE char *path = ssh_path(s, key);
	if (path == NULL)
		return err_nomem(err, NULL);
	for (char *c = path + strlen(s->config.path) + 1; (c = strchr(c, '/')) != NULL; c++) {
		*c = '\0';
		TRY(fn(s, path, err));
		*c = '/';
	}
	return 0;
}

static int
make_one(struct ssh_store *s, const char *path, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	struct pawl_error why = {0};
	int rc = sftp_mkdir(s->sftp, path, &why);
	if (rc == 0)
		return 0;
	if (!sftp_is_lost(s->sftp) && sftp_lstat(s->sftp, path, &attrs, NULL) == 0) {
		if (ssh_is_folder(&attrs))
			return 0;
		return err_set(err, ssh_is_link(&attrs) ? PAWL_EUNSUPPORTED : PAWL_EEXISTS, "%s is %s",
		               strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path,
		               ssh_is_link(&attrs) ? "a symbolic link, which is not followed" : "not a folder");
	}
	if (err != NULL)
		*err = why;
	return rc;
}

int
ssh_make_folders(struct ssh_store *s, const char *key, struct pawl_error *err)
{
	return each_folder_above(s, key, make_one, err);
}

int
ssh_explain(struct ssh_store *s, const char *key, const char *path, int rc, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	uint64_t left;
	(void)key;
	if ((rc != PAWL_EIO && rc != PAWL_EEXISTS) || sftp_is_lost(s->sftp))
		return rc;
	if (sftp_lstat(s->sftp, path, &attrs, NULL) == 0) {
		if (ssh_is_folder(&attrs))
			return err_set(err, PAWL_EEXISTS, "is a folder, expected a file or nothing");
		if (ssh_is_link(&attrs))
			return err_set(err, PAWL_EUNSUPPORTED, "is a symbolic link, which is not followed");
	}
	if (rc == PAWL_EIO && (s->features & SFTP_STATVFS) &&
	    sftp_free_bytes(s->sftp, s->config.path, &left, NULL) == 0 && left < UNIT_BYTES)
		return err_set(err, PAWL_ENOSPACE, "there is no space left on the server");
	return rc;
}

int
ssh_create_file(struct ssh_store *s, const char *key, const char *path, struct sftp_handle *ret, struct pawl_error *err)
{
	const unsigned flags = SFTP_WRITE | SFTP_CREATE | SFTP_EXCLUSIVE;
	struct pawl_error why = {0};
	int rc = sftp_open(s->sftp, path, flags, ret, &why);
	if (rc == PAWL_ENOTFOUND || (rc == PAWL_EIO && !sftp_is_lost(s->sftp))) {
		TRY(ssh_make_folders(s, key, err));
		rc = sftp_open(s->sftp, path, flags, ret, &why);
	}
	if (rc < 0 && err != NULL)
		*err = why;
	return rc < 0 ? ssh_explain(s, key, path, rc, err) : 0;
}

int
ssh_rename(struct ssh_store *s, const char *from, const char *to, bool exclusive, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	struct pawl_error why = {0};
	int rc;
	if (!exclusive && (s->features & SFTP_POSIX_RENAME))
		rc = sftp_rename(s->sftp, from, to, true, &why);
	else if (exclusive && (s->features & SFTP_HARDLINK))
		rc = sftp_hardlink(s->sftp, from, to, &why);
	else {
		/* This rename fails if the target exists, so replacing takes two steps. */
		if (!exclusive && ssh_look(s, to, &attrs, NULL) == 0 && !ssh_is_folder(&attrs))
			sftp_remove(s->sftp, to, NULL);
		rc = sftp_rename(s->sftp, from, to, false, &why);
	}
	if (rc == 0 && exclusive && (s->features & SFTP_HARDLINK))
		sftp_remove(s->sftp, from, NULL); /* until then the object has a second name */
	if (rc == PAWL_EIO && exclusive && !sftp_is_lost(s->sftp) && ssh_look(s, to, &attrs, NULL) == 0)
		return err_set(err, PAWL_EEXISTS, "already exists");
	if (rc < 0 && err != NULL)
		*err = why;
	return rc < 0 ? ssh_explain(s, "", to, rc, err) : 0;
}

/* SFTP cannot sync a folder. The journals of the usual file systems keep their order. So syncing a
 * file in the folder also brings all earlier changes of its names to the disk. */
int
ssh_sync_names(struct ssh_store *s, const char *key, struct pawl_error *err)
{
	PAWL_FREE char *path = NULL;
	struct sftp_handle h;
	if ((s->features & SFTP_FSYNC) == 0)
		return 0;
	TRY(ssh_temp_path(s, key, &path, err));
	TRY(sftp_open(s->sftp, path, SFTP_WRITE | SFTP_CREATE | SFTP_EXCLUSIVE, &h, err));
	int rc = sftp_fsync(s->sftp, &h, err);
	if (!sftp_is_lost(s->sftp)) {
		sftp_close(s->sftp, &h, NULL);
		sftp_remove(s->sftp, path, NULL);
	}
	return rc;
}

/* ------------------------------------------------------------ small objects */

static int
fill_file(struct ssh_store *s, const struct sftp_handle *h, const struct pawl_slice *parts, size_t n_parts,
          bool durable, struct pawl_error *err)
{
	uint64_t at = 0;
	for (size_t i = 0; i < n_parts; at += parts[i++].len)
		if (parts[i].len > 0)
			TRY(sftp_write(s->sftp, h, at, parts[i].ptr, parts[i].len, err));
	return durable && (s->features & SFTP_FSYNC) ? sftp_fsync(s->sftp, h, err) : 0;
}

static int
put_whole(struct ssh_store *s, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
          struct pawl_error *err)
{
	PAWL_FREE char *path = ssh_path(s, key);
	PAWL_FREE char *temp = NULL;
	struct sftp_handle h;
	if (path == NULL)
		return err_nomem(err, NULL);
	TRY(ssh_temp_path(s, key, &temp, err));
	TRY(ssh_create_file(s, key, temp, &h, err));
	int rc = fill_file(s, &h, parts, n_parts, flags & STORE_DURABLE, err);
	if (rc < 0)
		rc = ssh_explain(s, key, temp, rc, err);
	if (!sftp_is_lost(s->sftp)) {
		struct pawl_error closing = {0};
		int closed = sftp_close(s->sftp, &h, &closing);
		if (rc == 0 && closed < 0 && err != NULL)
			*err = closing;
		rc = rc < 0 ? rc : closed;
	}
	if (rc == 0)
		rc = ssh_rename(s, temp, path, flags & STORE_EXCLUSIVE, err);
	if (rc < 0 && !sftp_is_lost(s->sftp))
		sftp_remove(s->sftp, temp, NULL);
	if (rc == 0 && (flags & STORE_DURABLE)) {
		rc = ssh_sync_names(s, key, err);
		if (rc < 0 && (flags & STORE_EXCLUSIVE) && !sftp_is_lost(s->sftp))
			sftp_remove(s->sftp, path, NULL); /* a failed put leaves nothing */
	}
	return rc;
}

static int
ssh_put(struct store *base, const char *key, const struct pawl_slice *parts, size_t n_parts, int flags,
        struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	TRY(ssh_enter(s, err));
	return ssh_leave(s, key, put_whole(s, key, parts, n_parts, flags, err), err);
}

static int
append_at_end(struct ssh_store *s, const char *key, const char *path, const void *ptr, size_t len,
              struct pawl_error *err)
{
	const unsigned flags = SFTP_WRITE | SFTP_CREATE | SFTP_APPEND;
	struct sftp_handle h;
	struct sftp_attrs attrs;
	struct pawl_error why = {0};
	int rc = sftp_open(s->sftp, path, flags, &h, &why);
	if (rc == PAWL_ENOTFOUND) {
		TRY(ssh_make_folders(s, key, err));
		rc = sftp_open(s->sftp, path, flags, &h, &why);
	}
	if (rc < 0) {
		if (err != NULL)
			*err = why;
		return ssh_explain(s, key, path, rc, err);
	}
	/* The server appends at any offset. One that does not know the append flag needs the
	 * correct offset. */
	rc = sftp_fstat(s->sftp, &h, &attrs, err);
	if (rc == 0)
		rc = sftp_write(s->sftp, &h, attrs.nbytes, ptr, len, err);
	if (rc < 0)
		rc = ssh_explain(s, key, path, rc, err);
	if (sftp_is_lost(s->sftp))
		return rc;
	int closed = sftp_close(s->sftp, &h, rc == 0 ? err : NULL);
	return rc < 0 ? rc : closed;
}

static int
ssh_append(struct store *base, const char *key, const void *ptr, size_t len, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	PAWL_FREE char *path = ssh_path(s, key);
	if (path == NULL)
		return err_nomem(err, key);
	TRY(ssh_enter(s, err));
	return ssh_leave(s, key, append_at_end(s, key, path, ptr, len, err), err);
}

/* ---------------------------------------------------------------- the store */

static int
ssh_space(struct store *base, uint64_t *ret_free_bytes, struct pawl_error *err)
{
	struct ssh_store *s = (struct ssh_store *)base;
	*ret_free_bytes = UINT64_MAX;
	if ((s->features & SFTP_STATVFS) == 0)
		return 0;
	TRY(ssh_enter(s, err));
	return ssh_leave(s, "", sftp_free_bytes(s->sftp, s->config.path, ret_free_bytes, err), err);
}

static void
ssh_caps(struct store *base, struct store_caps *ret)
{
	struct ssh_store *s = (struct ssh_store *)base;
	*ret = (struct store_caps){.rename_folder = true,
	                           .exclusive_put = true,
	                           .link = s->features & SFTP_HARDLINK,
	                           .symlink = s->features & SFTP_OPENSSH};
}

static void
ssh_close(struct store *base)
{
	struct ssh_store *s = (struct ssh_store *)base;
	sftp_free(s->sftp);
	child_end(&s->ssh, END_MS);
	pthread_mutex_destroy(&s->lock);
	bump_clear(&s->config.memory);
}

static const struct store_ops ssh_ops = {
	.put = ssh_put,
	.create = ssh_create,
	.write = ssh_write,
	.finish = ssh_finish,
	.abort = ssh_abort,
	.remove = ssh_remove,
	.remove_folder = ssh_remove_folder,
	.open = ssh_open,
	.read = ssh_read,
	.close_reader = ssh_close_reader,
	.stat = ssh_stat,
	.list = ssh_list,
	.close = ssh_close,
	.caps = ssh_caps,
	.space = ssh_space,
	.seal = ssh_seal,
	.append = ssh_append,
	.pointer = ssh_pointer,
	.sync = ssh_sync,
	.link = ssh_link,
	.move = ssh_move,
	.publish = ssh_publish,
};

/* A server without hard links must at least not replace an existing target when it renames. */
static int
check_exclusive(struct ssh_store *s, struct pawl_error *err)
{
	static const char key[] = ".probe";
	char *path[2] = {NULL, NULL};
	struct sftp_handle h;
	int rc = 0;
	for (int i = 0; i < 2 && rc == 0; i++) {
		rc = ssh_temp_path(s, key, &path[i], err);
		if (rc == 0)
			rc = ssh_create_file(s, key, path[i], &h, err);
		if (rc == 0)
			rc = sftp_close(s->sftp, &h, err);
	}
	bool replaces = rc == 0 && sftp_rename(s->sftp, path[0], path[1], false, NULL) == 0;
	for (int i = 0; i < 2; i++) {
		if (path[i] != NULL && !sftp_is_lost(s->sftp))
			sftp_remove(s->sftp, path[i], NULL);
		mem_free(path[i]);
	}
	return replaces ? err_set(err, PAWL_EUNSUPPORTED,
	                          "the server replaces files that exist when it renames, so that two "
	                          "writers could not be kept apart")
	                : rc;
}

/* Makes the root and the folders that lead to it. */
static int
make_root(struct ssh_store *s, struct sftp_attrs *ret, struct pawl_error *err)
{
	struct pawl_error why = {0};
	PAWL_FREE char *path = mem_strdup(s->config.path);
	if (path == NULL)
		return err_nomem(err, NULL);
	for (char *c = path + 1; (c = strchr(c, '/')) != NULL; c++) {
		*c = '\0';
		sftp_mkdir(s->sftp, path, NULL); /* exists already, mostly */
		*c = '/';
	}
	int made = sftp_mkdir(s->sftp, path, &why);
	int rc = sftp_stat(s->sftp, path, ret, err);
	return rc == PAWL_ENOTFOUND && made < 0 ? err_give(err, made, &why) : rc;
}

static int
look_at_root(struct ssh_store *s, struct pawl_error *err)
{
	struct sftp_attrs attrs;
	s->features = sftp_features(s->sftp);
	int rc = sftp_stat(s->sftp, s->config.path, &attrs, err);
	if (rc == PAWL_ENOTFOUND && s->create)
		rc = make_root(s, &attrs, err);
	TRY(rc);
	if (!ssh_is_folder(&attrs))
		return err_set(err, PAWL_EUSAGE, "is not a folder");
	return s->create && (s->features & SFTP_HARDLINK) == 0 ? check_exclusive(s, err) : 0;
}

int
store_ssh_open(const char *url, bool create, struct store **ret, struct pawl_error *err)
{
	struct ssh_config config;
	TRY(ssh_config_read(url, &config, err));
	struct ssh_store *s = mem_zalloc(1, sizeof *s);
	int rc = s ? store_init(&s->base, &ssh_ops, "ssh", config.root, err) : err_nomem(err, "ssh");
	if (rc < 0) {
		mem_free(s);
		bump_clear(&config.memory);
		return rc;
	}
	s->config = config;
	s->create = create;
	s->ssh = (struct child)CHILD_INIT;
	pthread_mutex_init(&s->lock, NULL);
	rc = ssh_enter(s, err);
	if (rc == 0)
		rc = ssh_leave(s, "", look_at_root(s, err), err);
	if (rc < 0) {
		store_close(&s->base);
		return rc;
	}
	*ret = &s->base;
	return 0;
}
