# SPDX-License-Identifier: Apache-2.0
"""The lists of sources (rooms of src, tune, tests, tests/fuzz, cli) miss no file and name none that is gone."""

from __future__ import annotations

import re

import common


def compare(listed: set[str], present: set[str], where: str) -> list[str]:
    problems = [f"{where}: {name} is not listed" for name in sorted(present - listed)]
    return problems + [f"{where}: {name} is listed but does not exist" for name in sorted(listed - present)]


def quoted(name: str) -> set[str]:
    text = re.sub(r"#.*", "", common.text_of(common.ROOT / name))
    return set(re.findall(r"'([^']+)'", text))


def main() -> None:
    problems, n_library = [], 0
    for room in common.ROOMS:
        present = {common.name(path).removeprefix(f"src/{room}/") for path in common.files(f"src/{room}/**/*.c")}
        if present:
            listed = {name for name in quoted(f"src/{room}/meson.build") if name.endswith(".c")}
            problems += compare(listed, present, f"src/{room}/meson.build")
            n_library += len(present)

    tune = {name for name in quoted("tune/meson.build") if name.endswith(".c")}
    problems += compare(tune, {path.name for path in common.files("tune/*.c")}, "tune/meson.build")

    tests = {name for name in quoted("tests/meson.build") if name.startswith("test_")}
    present_tests = {path.stem for path in common.files("tests/unit/*/test_*.c")}
    problems += compare(tests, present_tests, "tests/meson.build")

    fuzz = {name for name in quoted("tests/fuzz/meson.build") if name.startswith("fuzz_")}
    problems += compare(fuzz, {path.stem for path in common.files("tests/fuzz/fuzz_*.c")}, "tests/fuzz/meson.build")

    command = {name for name in quoted("cli/meson.build") if name.endswith(".c")}
    present_command = {path.name for path in common.files("cli/*.c")}
    problems += compare(command, present_command, "cli/meson.build")
    common.finish(problems, n_library + len(present_tests) + len(present_command), "sources")


if __name__ == "__main__":
    main()
