#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the Debian packages of what is committed into dist/: libpawl0, libpawl-dev, pawl, python3-pawl.
#
#   usage: packaging/deb.sh
set -eu
cd "$(dirname "$0")/.."
version=$(sed -n "s/^ *version: '\(.*\)',/\1/p" meson.build)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct)
export SOURCE_DATE_EPOCH
# This machine's meson may be too old for Python's stable interface; then that of .venv builds (-d).
[ ! -x .venv/bin/meson ] || PATH=$PWD/.venv/bin:$PATH
unset NINJA MAKEFLAGS MFLAGS

rm -rf build-deb
mkdir -p "build-deb/pawl-$version" dist
git archive HEAD | tar -x -C "build-deb/pawl-$version"
cd "build-deb/pawl-$version"
cp -r packaging/debian debian
sed -e "s/@VERSION@/$version/" -e "s/@DATE@/$(date -u -R -d "@$SOURCE_DATE_EPOCH")/" debian/changelog.in >debian/changelog
rm debian/changelog.in
DEB_BUILD_OPTIONS=noautodbgsym dpkg-buildpackage -us -uc -b -d >../log 2>&1 || { tail -n 40 ../log >&2; exit 1; }
cd ../..
# It is not an upload to Debian, which would close the request for the package.
lintian --fail-on error,warning --suppress-tags initial-upload-closes-no-bugs build-deb/*.changes
rm -f dist/*.deb
mv build-deb/*.deb dist/
rm -rf build-deb
ls dist/*.deb
