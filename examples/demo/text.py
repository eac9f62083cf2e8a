# SPDX-License-Identifier: Apache-2.0
"""Real English text to train on: the King James Bible of Debian's package bible-kjv (public domain, 4.2 MB). Where
that package is not installed: the licences and package notices that every Debian system has."""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess


def english_text() -> tuple[bytes, str]:
    """The text, and where it is from."""
    program = shutil.which("bible")
    if program:
        command = [program, "-f", "-p", "/usr/lib", "gen1:1-rev22:21"]
        out = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL).stdout
        text = re.sub(r"^\S+?\d+:\d+ ", "", out, flags=re.MULTILINE)
        if len(text) > 1_000_000:
            return text.encode("ascii", "ignore"), "the King James Bible (Debian package bible-kjv)"
    paths = sorted(pathlib.Path("/usr/share/common-licenses").glob("*"))
    paths += sorted(pathlib.Path("/usr/share/doc").glob("*/copyright"))
    seen: set[bytes] = set()
    for path in paths:
        if path.is_file():
            seen |= {block.strip() for block in path.read_bytes().split(b"\n\n") if len(block) > 200}
    return b"\n\n".join(sorted(seen)), "licences and notices below /usr/share (bible-kjv is not installed)"
