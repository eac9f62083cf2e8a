# SPDX-License-Identifier: Apache-2.0
"""docs/reference/events.md has every event of the library with the fields that the code gives it, and each field's
meaning. Its last column is what python/pawl/_events.py calls the event."""

from __future__ import annotations

import re

import common

PAGE = common.ROOT / "docs/reference/events.md"
HOOKS = common.ROOT / "python/pawl/_events.py"
FUNCTION = re.compile(r"^(\w+)\([^;{]*\)\n\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
KEY = re.compile(r'\\"(\w+)\\":|\bjson_add_\w+\([^,;]*, "(\w+)"')
ALWAYS = {"unix_seconds", "what", "attempt"}  # added by events_add itself


def keys_of(text: str) -> set[str]:
    of_error = {"code", "error"} if "events_put_error(" in text else set()
    return {written or added for written, added in KEY.findall(text)} - ALWAYS | of_error


def events_of(text: str) -> list[tuple[list[str], set[str]]]:
    """For each function of a file that adds events: their names, and the fields that it gives them."""
    found = []
    for function in FUNCTION.finditer(text):
        for call in re.finditer(r"\bevents_add\(([^;]*)\);", function[2]):
            names = re.findall(r'"([^"]+)"', call[1])
            if not names:  # an argument: what the calls of this function give
                calls = re.findall(rf"\b{function[1]}\(([^;]*)\);", text)
                names = [name for arguments in calls for name in re.findall(r'"([^"]+)"', arguments)]
            found.append((names, keys_of(function[2]) or keys_of(text)))
    return found


def page_of(text: str) -> tuple[dict[str, set[str]], dict[str, str], set[str]]:
    """The events of the page with their fields, what Python calls them, and the fields that it describes."""
    shown: dict[str, set[str]] = {}
    kinds, described = {}, set()
    for line in re.findall(r"^\| `.*$", text, re.MULTILINE):
        cells = line.split("|")[1:-1]
        names = re.findall(r"`([^`]+)`", cells[0])
        if len(cells) == 2:
            described |= set(names)
            continue
        fields = set(re.findall(r"`([^`]+)`", cells[2]))
        for other in re.findall(r"those of `([^`]+)`", cells[2]):
            fields = fields - {other} | shown[other]
        shown[names[0]], kinds[names[0]] = fields, cells[3].strip(" `")
    return shown, kinds, described


def main() -> None:
    shown, kinds, described = page_of(common.text_of(PAGE))
    known: dict[str, set[str]] = {}
    problems = []
    for path in common.files("src/**/*.c"):
        text = common.text_of(path)
        found = events_of(text)
        if len(found) != len(re.findall(r"^\t.*\bevents_add\(", text, re.MULTILINE)) or not all(
            names for names, _ in found
        ):
            problems.append(f"{common.name(path)}: an event whose name this script does not find")
        for names, keys in found:
            for name in names:
                known[name] = known.get(name, set()) | keys
            missing = keys - {field for name in names for field in shown.get(name, ())}
            problems += [
                f"{common.name(path)}: the event '{names[0]}' has '{key}', the page does not" for key in missing
            ]
    problems += [f"events.md: the event '{name}' is missing" for name in known if name not in shown]
    problems += [f"events.md: no code adds '{name}'" for name in shown if name not in known]
    for name, fields in shown.items():
        problems += [f"events.md: '{name}' never has '{field}'" for field in fields - known.get(name, fields)]
        problems += [f"events.md: '{field}' is not described" for field in fields - described]
    hooks = dict(re.findall(r'^    "([^"]+)": "(\w+)",$', common.text_of(HOOKS), re.MULTILINE))
    problems += [
        f"events.md: in Python '{name}' is '{hooks.get(name, '')}'"
        for name in shown
        if kinds[name] != hooks.get(name, "")
    ]
    common.finish(problems, len(known), "events")


if __name__ == "__main__":
    main()
