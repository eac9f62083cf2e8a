# SPDX-License-Identifier: Apache-2.0
"""The include rule: base sees pawl.h and base; format and store see base, never each other; src sees all three;
the search (tune) sees pawl.h and its own folder; the command, the Python extension and the examples see pawl.h, tune.h
and their own folder only. A source file's own header comes first."""

from __future__ import annotations

import re

import common

INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)
# First match wins: folder of the including file -> what it may include.
RULES = [
    (r"src/base/", r"pawl\.h|base/.*"),
    (r"src/format/", r"pawl\.h|(base|format)/.*"),
    (r"src/store/", r"pawl\.h|(base|store)/.*"),
    (r"src/", r"pawl\.h|(base|format|store)/.*|[a-z_]+\.h"),
    (r"tune/", r"(pawl|[a-z_]+)\.h"),
    (r"(cli|python|examples)/", r"pawl\.h|[a-z_]+\.h"),
    (r"tests/", r".*"),
]
OUTER = {path.name for folder in ("cli", "python", "examples") for path in common.files(f"{folder}/**/*.h")}
TUNE = {path.name for path in common.files("tune/*.h")}


def check(name: str, text: str, is_header: bool) -> list[str]:
    problems = []
    allowed = next((rule for folder, rule in RULES if re.match(folder, name)), None)
    included = INCLUDE.findall(common.strip_c(text, keep_strings=True))
    for what in included:
        if allowed and not re.fullmatch(allowed, what):
            problems.append(f'{name}: may not include "{what}" (allowed: {allowed})')
        inner = re.match(r"cli|python|examples", name) and what not in OUTER | {"pawl.h", "tune.h"}
        if inner:
            problems.append(f'{name}: "{what}" is a header of the library; only pawl.h may be used here')
        if name.startswith("tune/") and what not in TUNE | {"pawl.h"}:
            problems.append(
                f'{name}: "{what}" is a header of the library; only pawl.h and those of tune may be used here'
            )
    if name.startswith("src/") and not is_header:
        own = re.sub(r"^src/|\.c$", "", name) + ".h"
        has_own = (common.ROOT / "src" / own).exists()
        if has_own and included[:1] != [own] and own != "pawl.h":
            problems.append(f'{name}: its own header "{own}" must come first')
    return problems


def main() -> None:
    paths = common.files(
        "include/*.h", "src/**/*.[ch]", "tune/*.[ch]", "cli/**/*.[ch]", "python/**/*.[ch]", "examples/**/*.[ch]"
    )
    problems = []
    for path in paths:
        problems += check(common.name(path), common.text_of(path), path.suffix == ".h")
    common.finish(problems, len(paths), "C files")


if __name__ == "__main__":
    main()
