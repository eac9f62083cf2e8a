/* SPDX-License-Identifier: Apache-2.0 */
/*
 * driver: see driver.h. An unversioned symbol of libcuda can be an older interface with 32-bit
 * pointers. So cuGetProcAddress_v2 is asked for the version that has the wanted signature, and
 * dlsym only for names with their suffix.
 */
#include "device/driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "base/err.h"

#define LEGACY_STREAM 1u /* CU_GET_PROC_ADDRESS_LEGACY_STREAM: what stream 0 means */

struct call_row {
	const char *cuda, *suffix, *hip;
	int version;
	bool optional;
	size_t at; /* of the pointer in struct driver */
};

static const struct call_row calls[DRIVER_N_CALLS] = {
#define ROW(member, arguments, cuda, suffix, version, hip, optional) \
	{cuda, suffix, hip, version, optional, offsetof(struct driver, member)},
	DRIVER_CALLS(ROW)
#undef ROW
};

static const char *const library_names[][4] = {
	[DRIVER_CUDA] = {"libcuda.so.1", NULL},
	[DRIVER_HIP] = {"libamdhip64.so", "libamdhip64.so.7", "libamdhip64.so.6", NULL},
};

static const char *
call_name(const struct driver *d, enum driver_call call)
{
	return d->kind == DRIVER_HIP ? calls[call].hip : calls[call].cuda;
}

typedef int get_address_fn(const char *symbol, void **ret, int version, uint64_t flags, int *status);

static void *
find_call(const struct driver *d, const struct call_row *row, get_address_fn *get_address)
{
	char symbol[64];
	void *found = NULL;

	if (d->kind == DRIVER_HIP)
		return dlsym(d->library, row->hip);
	if (get_address && get_address(row->cuda, &found, row->version, LEGACY_STREAM, NULL) == DRIVER_SUCCESS && found)
		return found;
	snprintf(symbol, sizeof(symbol), "%s%s", row->cuda, row->suffix);
	return dlsym(d->library, symbol);
}

static int
find_calls(struct driver *d, const char *library, struct pawl_error *err)
{
	void *found = d->kind == DRIVER_CUDA ? dlsym(d->library, "cuGetProcAddress_v2") : NULL;
	get_address_fn *get_address = NULL;

	memcpy(&get_address, &found, sizeof(found)); /* POSIX: they have the same representation */
	for (int i = 0; i < DRIVER_N_CALLS; i++) {
		const char *name = call_name(d, (enum driver_call)i);

		if (!*name)
			continue;
		found = find_call(d, &calls[i], get_address);
		if (!found && !calls[i].optional)
			return err_set(err, PAWL_EUNSUPPORTED, "%s has no %s; install a newer driver", library, name);
		memcpy((char *)d + calls[i].at, &found, sizeof(found));
	}
	return 0;
}

int
driver_load(enum driver_kind kind, bool load, struct driver *ret, struct pawl_error *err)
{
	const char *const *name = library_names[kind];
	struct driver d = {.kind = kind};

	/* RTLD_NODELETE: threads of the driver may run until the process ends. */
	for (; *name && !d.library; name += !d.library)
		d.library = dlopen(*name, RTLD_NOW | RTLD_NODELETE | RTLD_NOLOAD);
	for (name = d.library ? name : library_names[kind]; load && *name && !d.library; name += !d.library)
		d.library = dlopen(*name, RTLD_NOW | RTLD_NODELETE);
	if (!d.library)
		return err_set(err, PAWL_ENOTFOUND, "%s: %s", library_names[kind][0],
		               load ? "cannot be loaded; is the driver installed?" : "not loaded by this process");
	int rc = find_calls(&d, *name, err);

	if (rc == 0)
		*ret = d;
	else
		dlclose(d.library);
	return rc;
}

/* ------------------------------------------------------------------ errors */

static const char sticky[] = "an earlier operation of this process has failed on the device, which cannot be used "
			     "any more; earlier checkpoints are intact; restart the process";
static const char capture[] = "a graph is being captured; call again when the capture has ended";

/* Results are the same numbers in CUDA and HIP. */
static const struct {
	int first, last, code;
	bool is_lost;
	const char *advice;
} advices[] = {
	{2, 2, PAWL_ENOMEM, false, "device memory, or memory that can be registered, is used up"},
	{3, 3, PAWL_EUNSUPPORTED, false,
         "the driver is not initialised in this process; a forked child cannot use a device of its parent"},
	{4, 4, PAWL_ECANCELLED, false, "the driver has been shut down; close the run before the program exits"},
	{100, 101, PAWL_EDEVICE, false, "no such device; CUDA_VISIBLE_DEVICES decides which exist"},
	{201, 201, PAWL_EUSAGE, false, "the device's context is gone; it was reset or destroyed while in use"},
	{214, 214, PAWL_EDEVICE, true, sticky},
	{220, 220, PAWL_EDEVICE, true, sticky},
	{304, 304, PAWL_EDEVICE, false, "the operating system refused a call; is the memory lockable (ulimit -l)?"},
	{400, 400, PAWL_EUSAGE, false, "a stream was destroyed, or belongs to another device"},
	{700, 700, PAWL_EDEVICE, true, sticky},
	{702, 702, PAWL_EDEVICE, true, sticky},
	{709, 710, PAWL_EDEVICE, true, sticky},
	{712, 712, PAWL_EEXISTS, false, "the memory is registered already"},
	{714, 719, PAWL_EDEVICE, true, sticky},
	{800, 801, PAWL_EUNSUPPORTED, false, "not possible on this system"},
	{802, 802, PAWL_EDEVICE, false, "the system is not ready; is its fabric manager running?"},
	{900, 908, PAWL_EBUSY, false, capture},
};

int
driver_fail(const struct driver *d, enum driver_call call, int result, const char *where, bool *ret_lost,
            struct pawl_error *err)
{
	const char *name = NULL, *advice = "the driver reported an error";
	int code = PAWL_EDEVICE;
	bool is_lost = false;

	for (size_t i = 0; i < sizeof(advices) / sizeof(advices[0]); i++)
		if (result >= advices[i].first && result <= advices[i].last) {
			code = advices[i].code;
			is_lost = advices[i].is_lost;
			advice = advices[i].advice;
		}
	if (d->error_name(result, &name) != DRIVER_SUCCESS || !name)
		name = "unknown error";
	if (ret_lost)
		*ret_lost = is_lost;
	return err_set(err, code, "%s: %s: %s (%d): %s", where, call_name(d, call), name, result, advice);
}
