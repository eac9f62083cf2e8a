# SPDX-License-Identifier: Apache-2.0
"""The include rule. Each folder of src is a room; a room uses itself, the rooms before it in ROOMS, and pawl.h.
The trial runner and the command use pawl.h, base and their own headers; so that JSON, child processes and copies of
folders have one owner. The Python extension and the examples use the public headers and their own only. A source
file includes its own header first."""

from __future__ import annotations

import re

import common

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
SYSTEM = re.compile(r"^[ \t]*#[ \t]*include[ \t]+<([^>]+)>", re.MULTILINE)
ABOVE_ROOMS = "open.c"  # the one file of src that is in no room
# Folder of the including file -> headers of other folders that it may include.
PUBLIC = {"pawl.h", "pawl_jobs.h"}
BASE = {"base/" + header.name for header in common.files("src/base/*.h")}
OUTER = {
    "tune": PUBLIC | BASE,
    "cli": PUBLIC | BASE | {"tune.h"},
    "python": PUBLIC | {"tune.h"},
    "examples": PUBLIC,
}


def check_room(name: str, included: list[str]) -> list[str]:
    """name: path below src. ABOVE_ROOMS may include all rooms."""
    problems = []
    room = common.room_of(name)
    if room is None and name != ABOVE_ROOMS:
        problems.append(f"src/{name}: is in none of the rooms of tools/lint/common.py")
    for what in included:
        other = common.room_of(what)
        if what == "pawl.h" or other == room or (what == "pawl_jobs.h" and room == "jobs"):
            continue
        if other is None:
            problems.append(f'src/{name}: "{what}" is not in a room; write the path below src')
        elif room is not None and common.ROOMS.index(other) > common.ROOMS.index(room):
            problems.append(f'src/{name}: may not include "{what}": {other} is above {room}')
    own = re.sub(r"\.c$", ".h", name)
    if name.endswith(".c") and (common.ROOT / "src" / own).exists() and included[:1] != [own]:
        problems.append(f'src/{name}: its own header "{own}" must come first')
    return problems


def is_own(header: str) -> bool:
    return "/" in header and (common.ROOT / "src" / header).exists()


def main() -> None:
    problems = [] if check_room("nowhere/a.c", []) else ["a file in no room was not found"]
    paths = common.files("src/**/*.[ch]", *(f"{folder}/**/*.[ch]" for folder in OUTER))
    for path in paths:
        name = common.name(path)
        included = INCLUDE.findall(common.strip_c(common.text_of(path), keep_strings=True))
        folder, _, rest = name.partition("/")
        angled = SYSTEM.findall(common.text_of(path))
        problems += [f"{name}: <{what}> is our own; write it in quotes" for what in angled if is_own(what)]
        if folder == "src":
            problems += check_room(rest, included)
        else:
            allowed = OUTER[folder] | {header.name for header in common.files(f"{folder}/**/*.h")}
            problems += [f'{name}: may not include "{what}"' for what in included if what not in allowed]
    common.finish(problems, len(paths), "C files")


if __name__ == "__main__":
    main()
