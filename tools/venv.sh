#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Makes the private virtual environment .venv in the clone and installs the named requirement files into it
# (default: tests/requirements.txt). A file that has not changed since is not looked at again.
#
#   usage: tools/venv.sh [requirements.txt ...]
#
# In a file whose name says "optional" every line is installed by itself, and one that cannot be had is only named.
set -eu
cd "$(dirname "$0")/.."
[ $# -gt 0 ] || set -- tests/requirements.txt

python=
for candidate in ${PYTHON:-} python3 python3.14 python3.13 python3.12 python3.11; do
	if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then
		python=$candidate
		break
	fi
done
if [ -z "$python" ]; then
	echo "venv.sh: no Python 3.11 or later with the venv module; on Debian and Ubuntu: apt-get install -y python3-venv" >&2
	exit 1
fi

if ! .venv/bin/python -c 'import pip' >/dev/null 2>&1; then
	rm -rf .venv
	echo "making the virtual environment .venv"
	"$python" -m venv .venv
fi

install() {
	.venv/bin/python -m pip install --quiet --quiet --disable-pip-version-check --no-input "$@" </dev/null
}

for file in "$@"; do
	stamp=.venv/.installed-$(echo "$file" | tr '/' '-')
	sum=$(sha256sum <"$file")
	if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$sum" ]; then
		continue
	fi
	echo "installing the packages of $file into .venv (a few minutes the first time)"
	case $file in
	*optional*)
		sed -e 's/#.*//' -e '/^ *$/d' "$file" | while read -r line; do
			install -c tests/requirements.txt "$line" 2>/dev/null || echo "venv.sh: $line cannot be installed here; it is left out"
		done
		;;
	*) install -r "$file" ;;
	esac
	echo "$sum" >"$stamp"
done
