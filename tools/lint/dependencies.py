# SPDX-License-Identifier: Apache-2.0
"""The table of docs/reference/dependencies.md names every dependency of the build files and of tests/requirements.txt,
with its version, and nothing else."""

from __future__ import annotations

import re

import common

PAGE = "docs/reference/dependencies.md"
CALL = re.compile(r"(?:\bdependency|\.find_library)\('([^']+)'(?:, version: '([^']+)')?")


def of_build() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in common.files("meson.build", "*/meson.build", "*/*/meson.build", "*/*/*/meson.build"):
        text = re.sub(r"#.*", "", common.text_of(path))
        for name, version in CALL.findall(text):
            found[name] = version or found.get(name, "–")
    return found


def of_tests() -> dict[str, str]:
    lines = common.text_of(common.ROOT / "tests" / "requirements.txt").splitlines()
    parts = [re.fullmatch(r"([\w-]+)(.*)", line.partition("#")[0].strip()) for line in lines]
    return {part[1]: part[2] or "–" for part in parts if part}


def of_page() -> dict[str, str]:
    text = common.text_of(common.ROOT / PAGE)
    return {name: version.strip("`") for name, version in re.findall(r"^\| `([^`]+)` \| ([^|]+) \|", text, re.M)}


def main() -> None:
    needed, listed = of_build() | of_tests(), of_page()
    problems = [f"{PAGE}: {name} is missing" for name in needed if name not in listed]
    problems += [f"{PAGE}: nothing needs {name}" for name in listed if name not in needed]
    problems += [
        f"{PAGE}: {name}: version {listed[name]}, but {version} is demanded"
        for name, version in needed.items()
        if listed.get(name, version) != version
    ]
    common.finish(problems, len(needed), "dependencies")


if __name__ == "__main__":
    main()
