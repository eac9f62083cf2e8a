/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disks: full disks and power cuts, on file systems that the proof makes and mounts itself (root and loop devices
 * needed).
 *
 * A power cut is the file system's own shutdown ioctl with the journal not flushed: what was not made durable is gone
 * at the next mount. The negative control runs the same with fsync doing nothing: then losses must show.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cases.h"
#include "shim.h"

#define SHUTDOWN_IOCTL _IOR('X', 125, uint32_t)
#define SHUTDOWN_LOSE_LOG 2u /* nothing is flushed; 1 would flush the journal first */

static int
shell(const char *format, const char *a, const char *b)
{
	char command[2000];

	snprintf(command, sizeof(command), format, a, b);
	return system(command);
}

static void
train(const struct scenario *sc, const char *root, enum shim_mode mode, long nth, struct shared *shared)
{
	memset((void *)shared, 0, sizeof(*shared));
	pid_t pid = fork();

	if (pid == 0) {
		alarm(60);
		shim_arm(mode, nth, 0, false);
		scenario_run(sc, root, &shared->progress, NULL);
		shared->calls = shim_calls();
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

/* One training on a disk of this size, then somebody makes room. Returns 1 if bad. */
static int
on_full_disk(const struct scenario *sc, const char *root, enum shim_mode mode, long kib, struct shared *shared)
{
	char options[64], why[1200] = "cannot be mounted";
	int bad = 1;

	snprintf(options, sizeof(options), "size=%ldk", kib);
	if (mount("pawl-proof", root, "tmpfs", 0, options) == 0) {
		train(sc, root, mode, 0, shared);
		mount("pawl-proof", root, "tmpfs", MS_REMOUNT, "size=64m");
		bad = scenario_check(sc, root, &shared->progress, 1, why, sizeof(why)) < 0;
		umount2(root, MNT_DETACH);
	}
	if (bad && mode != SHIM_LIE_FULL)
		fprintf(stderr, "  scenario '%s' on %ld KiB: %s\n", sc->name, kib, why);
	return bad;
}

void
prove_space(const char *root, long every, struct shared *shared, long *cases, long *bad)
{
	static const int which[] = {0, 2, 5, 9, 23}; /* keep all, by score, recycle, ring, everything */

	if (geteuid() != 0 || mkdir(root, 0700) < 0 || mount("pawl-proof", root, "tmpfs", 0, "size=64k") < 0) {
		*cases = -1;
		rmdir(root);
		return;
	}
	umount2(root, MNT_DETACH);
	for (size_t i = 0; i < sizeof(which) / sizeof(*which); i++) {
		for (long kib = 16; kib <= 1600; kib += 4 * every) {
			/* Asked beforehand the save is refused; blind, the disk fills up under it. */
			*bad += on_full_disk(&scenarios[which[i]], root, SHIM_COUNT, kib, shared);
			*bad += on_full_disk(&scenarios[which[i]], root, SHIM_BLIND, kib, shared);
			*cases += 2;
		}
	}
	rmdir(root);
}

/* On a disk that is too small, with the errors of writing hidden from the library. */
int
control_space(const char *root, struct shared *shared)
{
	int caught = 0;

	mkdir(root, 0700);
	for (long kib = 100; kib <= 700 && !caught; kib += 100)
		caught = on_full_disk(&scenarios[0], root, SHIM_LIE_FULL, kib, shared);
	rmdir(root);
	return caught;
}

static int
cut(const char *mount_point)
{
	int fd = open(mount_point, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	uint32_t flag = SHUTDOWN_LOSE_LOG;
	int rc = fd < 0 ? -1 : ioctl(fd, SHUTDOWN_IOCTL, &flag);

	if (fd >= 0)
		close(fd);
	return rc;
}

/* One training, killed at its n-th call, the power cut at once, then mounted again and checked. Returns 1 if bad. */
static int
one_cut(const struct scenario *sc, const char *image, const char *mnt, enum shim_mode mode, long nth,
        struct shared *shared, char *why, size_t len)
{
	char run[700];

	snprintf(run, sizeof(run), "%s/run", mnt);
	train(sc, run, mode, nth, shared);
	if (cut(mnt) < 0 || umount2(mnt, 0) < 0) {
		snprintf(why, len, "cannot be cut or unmounted: %s", strerror(errno));
		return 1;
	}
	if (shell("mount -o loop '%s' '%s' 2>/dev/null", image, mnt) != 0) {
		snprintf(why, len, "cannot be mounted again");
		return 1;
	}
	int bad = scenario_check(sc, run, &shared->progress, 1, why, len) < 0;

	shell("rm -rf -- '%s'; sync -f '%s'", run, mnt);
	return bad;
}

static void
cut_one_file_system(const char *kind, const char *base, long every, struct shared *shared, long *cases, long *bad,
                    int *caught)
{
	static const int which[] = {1, 2, 5, 6, 17, 23};
	char image[600], mnt[600], why[1900];

	snprintf(image, sizeof(image), "%s.%s.img", base, kind);
	snprintf(mnt, sizeof(mnt), "%s.%s.mnt", base, kind);
	mkdir(mnt, 0700);
	char command[2600];

	snprintf(command, sizeof(command), "mkfs.%s -q '%s' >/dev/null 2>&1 && mount -o loop '%s' '%s' 2>/dev/null",
	         kind, image, image, mnt);
	int fd = open(image, O_RDWR | O_CREAT | O_CLOEXEC, 0600);

	if (fd < 0 || ftruncate(fd, (off_t)320 << 20) < 0 || close(fd) < 0 || system(command) != 0) {
		if (*cases == 0)
			*cases = -1;
	} else {
		if (*cases < 0)
			*cases = 0;
		for (size_t i = 0; i < sizeof(which) / sizeof(*which); i++) {
			char run[700];

			snprintf(run, sizeof(run), "%s/run", mnt);
			train(&scenarios[which[i]], run, SHIM_COUNT, 0, shared);
			shell("rm -rf -- '%s'; sync -f '%s'", run, mnt);
			for (long nth = 1, n = shared->calls + 2; nth <= n; nth += every) {
				++*cases;
				if (one_cut(&scenarios[which[i]], image, mnt, SHIM_KILL, nth, shared, why,
				            sizeof(why))) {
					++*bad;
					fprintf(stderr, "  %s, scenario '%s', call %ld: %s\n", kind,
					        scenarios[which[i]].name, nth, why);
				}
			}
		}
		for (int k = 0; k < 3; k++) /* without fsync what was acknowledged must get lost */
			*caught |= one_cut(&scenarios[k], image, mnt, SHIM_NO_SYNC, 0, shared, why, sizeof(why));
	}
	umount2(mnt, MNT_DETACH);
	unlink(image);
	rmdir(mnt);
}

void
prove_power(const char *root, long every, struct shared *shared, long *cases, long *bad, int *control_caught)
{
	if (geteuid() != 0) {
		*cases = -1;
		return;
	}
	cut_one_file_system("ext4", root, every * 8, shared, cases, bad, control_caught);
	cut_one_file_system("xfs", root, every * 8, shared, cases, bad, control_caught);
}
