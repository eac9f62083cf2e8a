#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the libraries that a wheel carries inside, as static archives of position-independent code, from the source
# packages of this Debian release. Distributions' own archives are not all position-independent, and their libxxhash.a
# does not choose vector instructions at run time.
#
#   usage: packaging/static-libs.sh FOLDER [HOST]      HOST: for a cross compiler, such as aarch64-linux-gnu
#
# FOLDER gets lib/, include/, lib/pkgconfig/, licences/ and versions.txt (package, version); for a cross compiler also
# cmocka for the unit tests, and the headers of Python and libcurl.
set -eu

[ $# -ge 1 ] || { sed -n 's/^#   //p' "$0" >&2; exit 2; }
mkdir -p "$1"
prefix=$(cd "$1" && pwd)
host=${2:-}
work=$prefix/work
packages="zlib bzip2 lz4 xz-utils libzstd expat libyaml xxhash libisal"
[ -z "$host" ] || packages="$packages cmocka"
stamp=$(cksum <"$0")
[ "$(cat "$prefix/.done" 2>/dev/null)" != "$stamp" ] || exit 0

rm -rf "$work" "$prefix/lib" "$prefix/include" "$prefix/licences" "$prefix/missing.txt"
mkdir -p "$work/lists/partial" "$prefix/lib/pkgconfig" "$prefix/include" "$prefix/licences"
: >"$prefix/versions.txt"

CC=${host:+$host-}gcc
AR=${host:+$host-}ar
RANLIB=${host:+$host-}ranlib
CFLAGS="-O2 -fPIC -ffunction-sections -fdata-sections -ffile-prefix-map=$work=."
export CC AR RANLIB CFLAGS
jobs=$(nproc)

# The release's own sources, with lists of their own: the machine's stay as they are.
get_sources() {
	for list in /etc/apt/sources.list.d/*.sources; do
		[ ! -f "$list" ] || { sed 's/^Types:.*/Types: deb-src/' "$list"; echo; }
	done >"$work/all.sources"
	for list in /etc/apt/sources.list /etc/apt/sources.list.d/*.list; do
		[ ! -f "$list" ] || sed -n 's/^deb /deb-src /p' "$list"
	done >"$work/all.list"
	[ -s "$work/all.sources" ] && list=$work/all.sources || list=$work/all.list
	own="-o Dir::Etc::sourcelist=$list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists -o APT::Sandbox::User="
	cd "$work"
	# shellcheck disable=SC2086
	apt-get -q $own update
	for package in $packages; do get_source "$package"; done
	[ -z "$host" ] || get_headers
}

# The headers of Python and libcurl for the other machine, from the packages of the release; nothing is installed.
get_headers() {
	arch=$(dpkg-architecture --host-type "$host" --query DEB_HOST_ARCH)
	mkdir -p "$work/headers/lists/partial"
	cd "$work/headers"
	sed -e 's/^Types:.*/Types: deb/' -e 's/^deb-src /deb /' "$list" >"all.${list##*.}"
	own="-o Dir::Etc::sourcelist=$PWD/all.${list##*.} -o Dir::Etc::sourceparts=- -o Dir::State::lists=$PWD/lists
		-o Dir::State::status=/dev/null -o APT::Architecture=$arch -o APT::Architectures=$arch -o APT::Sandbox::User="
	# shellcheck disable=SC2086
	apt-get -q $own update
	# shellcheck disable=SC2086
	python=$(apt-cache $own depends libpython3-dev | sed -n 's/.*Depends: lib\(python3\.[0-9]*\)-dev$/\1/p')
	# shellcheck disable=SC2086
	apt-get -q $own download "lib$python-dev" libcurl4-openssl-dev
	for package in ./*.deb; do dpkg-deb --extract "$package" .; done
	cp -r "usr/include/$host" "usr/include/$host/curl" "$prefix/include/"
	cp -r "usr/include/$python" "$prefix/include/python"
	version=$(dpkg-deb --field libcurl4-*.deb Version)
	pc libcurl "${version%%[-+]*}" ""
}

# The newest version that the mirror has; its index can name one that it lacks.
get_source() {
	# shellcheck disable=SC2086
	for version in $(apt-cache $own showsrc --only-source "$1" | sed -n 's/^Version: //p' | sort -rV | uniq); do
		apt-get -q $own source --only-source --download-only "$1=$version" && return
		rm -f "$work/$1"_*
		echo "static-libs.sh: the mirror lacks $1 $version; trying an older version" | tee -a "$prefix/missing.txt"
	done
	return 1
}

# unpack PACKAGE: sets $folder, $version.
unpack() {
	dsc=$(ls "$work/$1"_*.dsc)
	version=$(basename "$dsc" .dsc | sed "s/^$1_//")
	folder=$work/src-$1
	dpkg-source --no-check -x "$dsc" "$folder" >/dev/null
	cp "$folder/debian/copyright" "$prefix/licences/$1.txt"
	echo "$1 $version" >>"$prefix/versions.txt"
	cd "$folder"
}

configure() {
	[ -x configure ] || { [ -x autogen.sh ] && ./autogen.sh; } || autoreconf -i
	./configure --quiet --prefix="$prefix" --disable-shared --enable-static --with-pic ${host:+--host=$host} "$@"
}

# pc NAME VERSION FLAGS
pc() {
	printf 'Name: %s\nDescription: %s\nVersion: %s\nCflags: -I%s/include\nLibs: -L%s/lib %s\n' \
		"$1" "$1" "$2" "$prefix" "$prefix" "$3" >"$prefix/lib/pkgconfig/$1.pc"
}

# archive NAME FILE.c...: compiles and packs; extra flags in $flags.
archive() {
	name=$1
	shift
	# shellcheck disable=SC2086
	for file in "$@"; do $CC $CFLAGS ${flags:-} -c "$file" -o "$(basename "$file" .c).pic.o"; done
	$AR rcs "$prefix/lib/lib$name.a" ./*.pic.o
}

build() {
	unpack zlib
	CHOST=$host ./configure --static --prefix="$prefix"
	make -j"$jobs" libz.a
	make install
	unpack bzip2
	flags=-D_FILE_OFFSET_BITS=64 archive bz2 blocksort.c huffman.c crctable.c randtable.c compress.c decompress.c bzlib.c
	cp bzlib.h "$prefix/include/"
	pc bzip2 "${version%%-*}" -lbz2
	unpack lz4
	make -C lib -j"$jobs" liblz4.a CPPFLAGS=-DXXH_NAMESPACE=LZ4_
	make -C lib install PREFIX="$prefix" BUILD_SHARED=no CPPFLAGS=-DXXH_NAMESPACE=LZ4_
	unpack xz-utils
	configure --disable-xz --disable-xzdec --disable-lzmadec --disable-lzmainfo --disable-scripts --disable-doc --disable-nls
	make -j"$jobs" install
	unpack libzstd
	make -C lib -j"$jobs" libzstd.a ZSTD_LEGACY_SUPPORT=0 ZSTD_LIB_DICTBUILDER=0
	make -C lib install-static install-includes install-pc PREFIX="$prefix" ZSTD_LEGACY_SUPPORT=0 ZSTD_LIB_DICTBUILDER=0
	unpack expat
	[ ! -d expat ] || cd expat
	[ -f configure ] || ./buildconf.sh
	configure --without-docbook --without-xmlwf --without-examples --without-tests
	# arc4random is of glibc 2.36; without it expat uses getrandom.
	sed -i '/define HAVE_ARC4RANDOM/d' expat_config.h
	make -j"$jobs" install
	unpack libyaml
	configure
	make -j"$jobs" install
	unpack xxhash
	case ${host:-$(uname -m)} in x86_64*) dispatch=xxh_x86dispatch.c ;; *) dispatch= ;; esac
	# shellcheck disable=SC2086
	archive xxhash xxhash.c $dispatch
	cp xxhash.h xxh3.h "$prefix/include/"
	[ -z "$dispatch" ] || cp xxh_x86dispatch.h "$prefix/include/"
	pc libxxhash "${version%%-*}" -lxxhash
	unpack libisal
	configure
	make -j"$jobs" install
	# The unit tests of a cross build.
	[ -n "$host" ] || return 0
	unpack cmocka
	sed -i '$d' "$prefix/versions.txt"
	flags="-Iinclude -DHAVE_SIGNAL_H -DHAVE_CLOCK_REALTIME -DHAVE_STRUCT_TIMESPEC -DHAVE_INTTYPES_H -DHAVE_MALLOC_H -DHAVE_STRINGS_H"
	archive cmocka src/cmocka.c
	cp include/*.h "$prefix/include/"
	pc cmocka "${version%%-*}" -lcmocka
}

echo "building static libraries in $1 (a few minutes the first time)"
{ get_sources && (set -e; build); } >"$prefix/build.log" 2>&1 || { tail -n 30 "$prefix/build.log" >&2; exit 1; }
cat "$prefix/missing.txt" >&2 2>/dev/null || true
rm -rf "$work"
echo "$stamp" >"$prefix/.done"
