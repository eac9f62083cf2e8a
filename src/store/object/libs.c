/* SPDX-License-Identifier: Apache-2.0 */
/* libs: see libs.h. The libraries stay loaded: threads of libcurl may outlive a run. */
#include "store/object/libs.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/err.h"

#define MIN_CURL 0x074400u /* 7.68.0 */

#ifdef __APPLE__
static const char *const curl_names[] = {"libcurl.4.dylib", NULL};
static const char *const crypto_names[] = {"libcrypto.3.dylib", NULL};
#define HOW_TO_INSTALL "brew install curl openssl@3"
#else
static const char *const curl_names[] = {"libcurl.so.4", "libcurl-gnutls.so.4", NULL};
static const char *const crypto_names[] = {"libcrypto.so.3", "libcrypto.so.1.1", NULL};
#define HOW_TO_INSTALL "'apt-get install libcurl4' or 'dnf install libcurl openssl-libs'"
#endif

struct symbol {
	const char *name, *older;
	size_t at; /* of the pointer in struct libs */
};

#define ROW(name) {"curl_" #name, NULL, offsetof(struct libs, name)},
static const struct symbol curl_symbols[] = {LIBS_CURL(ROW){NULL, NULL, 0}};
#undef ROW
#define ROW(type, name, older, arguments) {#name, older, offsetof(struct libs, name)},
static const struct symbol crypto_symbols[] = {LIBS_CRYPTO(ROW){NULL, NULL, 0}};
#undef ROW

/* Where distributions keep the certificates that they trust. */
static const char *const ca_files[] = {
	"/etc/ssl/certs/ca-certificates.crt",                /* Debian, Ubuntu, Arch, Alpine */
	"/etc/pki/tls/certs/ca-bundle.crt",                  /* Fedora, RHEL */
	"/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem", /* Fedora, RHEL, without the older links */
	"/etc/ssl/ca-bundle.pem",                            /* SUSE */
	"/etc/ssl/cert.pem",                                 /* Alpine, macOS */
};

struct loaded {
	struct libs libs;
	int rc;
	struct pawl_error err;
};

static int
load_library(const char *what, const char *const *names, const struct symbol *symbols, struct libs *ret,
             struct pawl_error *err)
{
	void *library = NULL;
	for (size_t i = 0; library == NULL && names[i] != NULL; i++)
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return err_set(err, PAWL_EUNSUPPORTED,
		               "object stores need %s, which is not installed; run " HOW_TO_INSTALL, what);
	for (const struct symbol *s = symbols; s->name != NULL; s++) {
		void *found = dlsym(library, s->name);
		if (found == NULL && s->older != NULL)
			found = dlsym(library, s->older);
		if (found == NULL)
			return err_set(err, PAWL_EUNSUPPORTED, "%s has no function %s; install a newer version", what,
			               s->name);
		memcpy((char *)ret + s->at, &found, sizeof found); /* POSIX: they have the same representation */
	}
	return 0;
}

/* libcurl knows where its own distribution keeps certificates. One from elsewhere may be wrong. */
static const char *
find_certificates(const struct libs *l)
{
	const curl_version_info_data *info = l->version_info(CURLVERSION_NOW);
	if (info->age < CURLVERSION_SEVENTH)
		return NULL;
	if ((info->cainfo != NULL && access(info->cainfo, R_OK) == 0) ||
	    (info->capath != NULL && access(info->capath, R_OK) == 0))
		return NULL;
	for (size_t i = 0; i < sizeof ca_files / sizeof ca_files[0]; i++)
		if (access(ca_files[i], R_OK) == 0)
			return ca_files[i];
	return NULL;
}

static int
load_both(struct libs *ret, struct pawl_error *err)
{
	TRY(load_library("libcurl", curl_names, curl_symbols, ret, err));
	TRY(load_library("libcrypto of OpenSSL", crypto_names, crypto_symbols, ret, err));
	const curl_version_info_data *info = ret->version_info(CURLVERSION_NOW);
	if (info->version_num < MIN_CURL)
		return err_set(err, PAWL_EUNSUPPORTED, "object stores need libcurl 7.68 or later; found %s",
		               info->version);
	ret->ca_file = find_certificates(ret);
	/* libcurl requires this once in a process, before its first thread. */
	ret->global_init(CURL_GLOBAL_DEFAULT);
	return 0;
}

static struct loaded *
libs_place(void)
{
	static struct loaded loaded;
	return &loaded;
}

static void
load_once(void)
{
	struct loaded *l = libs_place();
	l->rc = load_both(&l->libs, &l->err);
}

int
libs_load(struct pawl_error *err)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	pthread_once(&once, load_once);
	if (libs_place()->rc < 0 && err != NULL)
		*err = libs_place()->err;
	return libs_place()->rc;
}

const struct libs *
libs(void)
{
	return &libs_place()->libs;
}
