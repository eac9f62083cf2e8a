#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs the system packages of the named groups (default: build test) by apt. Says and asks nothing when
# they are all there. Without root or sudo it prints the line to run and fails.
#
#   usage: tools/install-deps.sh [build] [test] [wheel] [packages] [cross] [demo] [bench] [rgw] [azurite] [ssh] [swift] [slurm] [browser]
set -eu

installed() { dpkg-query -W -f='${Status}' "$1" 2>/dev/null | grep -q '^install ok installed$'; }

# The compiler's own runtime (sanitizers, libFuzzer) is a package of its own, named after the version.
clang_runtime() {
	version=$(apt-cache depends --important clang 2>/dev/null | sed -n 's/.*Depends: clang-\([0-9][0-9]*\)$/\1/p' | head -n 1)
	[ -z "$version" ] || echo "libclang-rt-$version-dev"
}

packages_of() {
	case $1 in
	build) echo gcc libc6-dev make pkg-config ninja-build libxxhash-dev libisal-dev libcurl4-openssl-dev libexpat1-dev zlib1g-dev \
		libbz2-dev liblz4-dev liblzma-dev libzstd-dev libyaml-dev python3 python3-venv python3-dev ;;
	test) echo clang "$(clang_runtime)" clang-tidy cppcheck libcmocka-dev binutils strace mandoc e2fsprogs xfsprogs util-linux \
		openmpi-bin libopenmpi-dev mpich libmpich-dev spin bzip2 lz4 lzop xz-utils zstd ;;
	wheel) echo dpkg-dev patchelf nasm autoconf automake libtool ;;
	packages) echo mmdebstrap debhelper dh-python lintian fakeroot cmake ;;
	cross) echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user-static ;;
	demo) echo bible-kjv ;;
	bench) echo fio ;;
	ssh) echo openssh-client openssh-server rsync iproute2 ;;
	swift) echo swift-proxy swift-account swift-container swift-object memcached ;;
	slurm) echo slurmd slurmctld slurm-client ;;
	browser) echo chromium ;;
	rgw) echo radosgw ceph-mon ceph-osd ceph-common ceph-base ;;
	azurite) command -v npm >/dev/null 2>&1 || echo nodejs npm ;;
	*) echo "install-deps.sh: unknown group '$1' (known: build test wheel packages cross demo bench rgw azurite browser ssh swift slurm)" >&2; return 2 ;;
	esac
}

if ! command -v apt-get >/dev/null 2>&1; then
	echo "install-deps.sh: no apt here; install by hand: a C compiler, pkg-config, ninja, xxHash, ISA-L, libcurl, expat, zlib, bzip2, lz4, xz (liblzma), zstd, libyaml, cmocka, Python 3.11 or later" >&2
	exit 0
fi

missing() {
	for group in "$@"; do
		names=$(packages_of "$group") || return 2
		for name in $names; do installed "$name" || printf '%s ' "$name"; done
	done
}

[ $# -gt 0 ] || set -- build test
wanted=$(missing "$@") || exit 2
[ -n "$wanted" ] || exit 0

as_root=
if [ "$(id -u)" != 0 ]; then
	if command -v sudo >/dev/null 2>&1 && sudo -n true 2>/dev/null; then
		as_root='sudo -n'
	elif command -v sudo >/dev/null 2>&1 && [ -t 0 ]; then
		as_root=sudo
	else
		echo "install-deps.sh: these system packages are missing; run this as root, then try again:" >&2
		echo "    apt-get update && apt-get install -y --no-install-recommends $wanted" >&2
		exit 1
	fi
fi

log=$(mktemp)
trap 'rm -f "$log"' EXIT
run() {
	$as_root env DEBIAN_FRONTEND=noninteractive "$@" </dev/null >"$log" 2>&1 || { tail -n 20 "$log" >&2; return 1; }
}
echo "installing system packages: $wanted"
run apt-get -o DPkg::Lock::Timeout=600 update -q || echo "install-deps.sh: the package lists could not be refreshed; the old ones are used" >&2
# The lists may be new: on a bare machine the runtime's name was not known before.
wanted=$(missing "$@")
# shellcheck disable=SC2086
run apt-get -o DPkg::Lock::Timeout=600 install -q -y --no-install-recommends $wanted
