# SPDX-License-Identifier: Apache-2.0
"""What the lint scripts share: finding files, and one way to end."""

from __future__ import annotations

import argparse
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
# The folders of src, ground floor first: each uses itself and those before it.
ROOMS = (
    *("base", "format", "store", "state", "layout", "policy", "run", "device", "read", "foreign", "catalog", "ranks"),
    *("copy", "restore", "keep", "mirror", "save", "jobs"),
)
SKIP = re.compile(r"^(build[^/]*|\.git|\.venv|runs|dist|\.[a-z]+_cache|\.hypothesis)(/|$)|__pycache__|\.egg-info")


def files(*patterns: str) -> list[pathlib.Path]:
    """Paths below the root that match a glob pattern, without what was built; sorted."""
    found = {path for pattern in patterns for path in ROOT.glob(pattern) if path.is_file()}
    return sorted(path for path in found if not SKIP.search(name(path)))


def name(path: pathlib.Path) -> str:
    return path.relative_to(ROOT).as_posix()


def room_of(below_src: str) -> str | None:
    """None for a file directly in src, and for what is not there at all."""
    folder = below_src.partition("/")[0]
    return folder if folder in ROOMS else None


def text_of(path: pathlib.Path) -> str:
    return path.read_text(encoding="utf-8")


def strip_c(text: str, keep_strings: bool = False) -> str:
    """C text with comments (and, unless they are kept, the contents of literals) blanked; line numbers stay."""

    def blank(match: re.Match[str]) -> str:
        found = match[0]
        if found[0] in "\"'":
            return found if keep_strings else found[0] * 2
        return re.sub(r"[^\n]", " ", found)

    return re.sub(r"""/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'""", blank, text, flags=re.DOTALL)


def line_of(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--write", action="store_true", help="write the file that is made, where there is one")
    return parser.parse_args()


def finish(problems: list[str], checked: int, what: str) -> None:
    """Prints the problems and ends the script; to have checked nothing is a problem, too."""
    if not checked:
        problems = [*problems, f"no {what} was found to check"]
    for problem in problems:
        print(problem)
    print(f"{checked} {what} checked, {len(problems)} problems")
    sys.exit(1 if problems else 0)
