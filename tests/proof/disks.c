/* SPDX-License-Identifier: Apache-2.0 */
/*
 * disks: full disks and power cuts, on file systems that the proof makes and mounts itself (root
 * and loop devices needed).
 *
 * A power cut is the file system's own shutdown ioctl with the journal not flushed: what was not
 * made durable is gone at the next mount. The negative control runs the same with fsync doing
 * nothing: then an acknowledged checkpoint must be missing or damaged. A disk that cannot be cut or
 * mounted does not count as that.
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

static int
disk_mount(const struct disk *d)
{
	return shell("mount -o loop '%s' '%s' 2>/dev/null", d->image, d->mnt) == 0 ? 0 : -1;
}

int
disk_make(struct disk *d, const char *base, const char *kind)
{
	char format[200];

	*d = (struct disk){0};
	if (geteuid() != 0)
		return -1;
	snprintf(d->kind, sizeof(d->kind), "%s", kind);
	snprintf(d->image, sizeof(d->image), "%s.%s.img", base, kind);
	snprintf(d->mnt, sizeof(d->mnt), "%s.%s.mnt", base, kind);
	mkdir(d->mnt, 0700);
	int fd = open(d->image, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
	int rc = fd < 0 || ftruncate(fd, (off_t)320 << 20) < 0 ? -1 : 0;

	if (fd >= 0)
		close(fd);
	snprintf(format, sizeof(format), "mkfs.%s -q '%%s' >/dev/null 2>&1", kind);
	if (rc == 0 && shell(format, d->image, "") == 0 && disk_mount(d) == 0)
		return 0;
	disk_drop(d);
	return -1;
}

void
disk_drop(struct disk *d)
{
	if (!*d->kind)
		return;
	umount2(d->mnt, MNT_DETACH);
	unlink(d->image);
	rmdir(d->mnt);
	*d = (struct disk){0};
}

static void
train(const struct scenario *sc, const char *root, enum shim_mode mode, long nth, struct shared *shared)
{
	memset((void *)shared, 0, sizeof(*shared));
	pid_t pid = fork();

	if (pid == 0) {
		alarm(HANG_SECONDS);
		shim_arm(mode, nth, 0, false);
		scenario_run(sc, root, &shared->progress, NULL);
		shared->calls = shim_calls();
		_exit(0);
	}
	waitpid(pid, NULL, 0);
}

/* One training run on a disk of this size; then space is freed. Returns 0 or what scenario_check
 * found. */
static int
on_full_disk(const struct scenario *sc, const char *root, enum shim_mode mode, long kib, struct shared *shared)
{
	char options[64], why[1200] = "cannot be mounted";
	int bad = SCENARIO_BAD;

	snprintf(options, sizeof(options), "size=%ldk", kib);
	if (mount("pawl-proof", root, "tmpfs", 0, options) == 0) {
		train(sc, root, mode, 0, shared);
		mount("pawl-proof", root, "tmpfs", MS_REMOUNT, "size=64m");
		bad = scenario_check(sc, root, &shared->progress, 1, why, sizeof(why));
		umount2(root, MNT_DETACH);
	}
	if (bad && mode != SHIM_LIE_FULL)
		fprintf(stderr, "  scenario '%s' on %ld KiB: %s\n", sc->name, kib, why);
	return bad;
}

void
prove_space(const char *root, long every, long pass, struct shared *shared, struct totals *t)
{
	static const int which[] = {0, 2, 5, 9, 23}; /* keep all, by score, recycle, ring, everything */

	if (geteuid() != 0 || mkdir(root, 0700) < 0 || mount("pawl-proof", root, "tmpfs", 0, "size=64k") < 0) {
		t->not_run = 1;
		rmdir(root);
		return;
	}
	umount2(root, MNT_DETACH);
	for (size_t i = 0; i < sizeof(which) / sizeof(*which); i++) {
		const struct scenario sc = scenario_vary(which[i], pass);

		for (long kib = 16; kib <= 1600; kib += 4 * every) {
			/* If space is checked beforehand, the save is refused; if not, the disk
			 * becomes full during it. */
			t->bad += on_full_disk(&sc, root, SHIM_COUNT, kib, shared) != 0;
			t->bad += on_full_disk(&sc, root, SHIM_BLIND, kib, shared) != 0;
			t->cases += 2;
		}
	}
	rmdir(root);
}

/* On a disk that is too small, with the errors of writing hidden from the library. */
int
control_space(const char *root, struct shared *shared)
{
	const struct scenario sc = scenario_vary(0, 0);
	int caught = 0;

	mkdir(root, 0700);
	for (long kib = 100; kib <= 700 && !caught; kib += 100)
		caught = on_full_disk(&sc, root, SHIM_LIE_FULL, kib, shared) == SCENARIO_LOST;
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

/* One training run, killed at its n-th call. The power is cut at once, then the disk is mounted
 * again and checked. Returns 0 or what scenario_check found; SCENARIO_BAD also if the disk could
 * not be cut or mounted. */
static int
one_cut(const struct scenario *sc, const struct disk *d, enum shim_mode mode, long nth, struct shared *shared,
        char *why, size_t len)
{
	char run[700];

	snprintf(run, sizeof(run), "%s/run", d->mnt);
	train(sc, run, mode, nth, shared);
	if (cut(d->mnt) < 0 || umount2(d->mnt, 0) < 0) {
		snprintf(why, len, "cannot be cut or unmounted: %s", strerror(errno));
		return SCENARIO_BAD;
	}
	if (disk_mount(d) < 0) {
		snprintf(why, len, "cannot be mounted again");
		return SCENARIO_BAD;
	}
	int bad = scenario_check(sc, run, &shared->progress, 1, why, len);

	proof_wipe(run);
	shell("sync -f '%s'%s", d->mnt, "");
	return bad;
}

static void
cut_all(const struct disk *d, long every, long pass, struct shared *shared, struct totals *t)
{
	static const int which[] = {1, 2, 5, 6, 17, 23};
	const enum shim_mode mode = pass % 2 ? SHIM_KILL_TORN : SHIM_KILL;
	char run[700], why[1900];

	snprintf(run, sizeof(run), "%s/run", d->mnt);
	for (size_t i = 0; i < sizeof(which) / sizeof(*which); i++) {
		const struct scenario sc = scenario_vary(which[i], pass);

		train(&sc, run, SHIM_COUNT, 0, shared);
		proof_wipe(run);
		shell("sync -f '%s'%s", d->mnt, "");
		for (long nth = 1 + ((long)i * 7 + pass) % every, n = shared->calls + 2; nth <= n; nth += every) {
			t->cases++;
			if (one_cut(&sc, d, mode, nth, shared, why, sizeof(why)) != 0) {
				t->bad++;
				fprintf(stderr, "  %s, scenario '%s', call %ld: %s\n", d->kind, sc.name, nth, why);
			}
		}
	}
}

void
prove_power(const char *root, long every, long pass, struct shared *shared, struct totals *t)
{
	static const char *const kinds[] = {"ext4", "xfs"};
	struct disk d;

	t->not_run = 1;
	for (int i = 0; i < 2; i++) {
		if (disk_make(&d, root, kinds[i]) < 0)
			continue;
		cut_all(&d, every, pass, shared, t);
		disk_drop(&d);
		t->not_run = 0;
	}
}

int
control_power(const char *root, struct shared *shared)
{
	struct disk d;
	char why[1900];
	int caught = 0;

	if (disk_make(&d, root, "ext4") < 0 && disk_make(&d, root, "xfs") < 0)
		return 0;
	for (int k = 0; k < 3 && !caught; k++) {
		const struct scenario sc = scenario_vary(k, 0);

		caught = one_cut(&sc, &d, SHIM_NO_SYNC, 0, shared, why, sizeof(why)) == SCENARIO_LOST;
	}
	disk_drop(&d);
	return caught;
}
