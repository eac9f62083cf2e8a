# SPDX-License-Identifier: Apache-2.0
"""The shared library exports exactly the functions that the public headers declare."""

from __future__ import annotations

import re
import subprocess

import common


def declared(header: str) -> set[str]:
    text = re.sub(r"^[ \t]*#.*(\\\n.*)*", "", common.strip_c(header), flags=re.MULTILINE)
    return set(re.findall(r"PAWL_API\b[^;{]*?\b(pawl_\w+)[ \t]*\(", text))


def exported(library: str) -> set[str]:
    out = subprocess.run(["nm", "-D", "--defined-only", library], check=True, capture_output=True, text=True).stdout
    fields = [line.split() for line in out.splitlines()]
    return {f[-1].split("@")[0] for f in fields if len(f) >= 3 and f[-2] != "A"}


def main() -> None:
    build = common.arguments().build
    header = declared("".join(common.text_of(path) for path in common.files("include/*.h")))
    libraries = sorted(path for path in (build / "src").glob("libpawl.so*") if path.is_file() and not path.is_symlink())
    libraries = [path for path in libraries if path.suffix != ".p"]
    problems = []
    for library in libraries:
        found = exported(str(library))
        problems += [f"{library.name}: {name} is declared but not exported" for name in sorted(header - found)]
        problems += [f"{library.name}: {name} is exported but not declared" for name in sorted(found - header)]
    common.finish(problems, len(header) if libraries else 0, "exported functions")


if __name__ == "__main__":
    main()
