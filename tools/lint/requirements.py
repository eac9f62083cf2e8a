# SPDX-License-Identifier: Apache-2.0
"""tests/requirements.md has one row for each number; a row that says done, or in part, names a test, all tests that it
names exist, and one of them carries the number (R27) in its name or docstring."""

from __future__ import annotations

import re

import common

NUMBERS = range(1, 161)
ROW = re.compile(r"^\|\s*R(\d+)\s*\|(.*)\|\s*$", re.MULTILINE)
IN_C = re.compile(r"^(test_\w+)\(void", re.MULTILINE)
IN_PYTHON = re.compile(r'^def (test_\w+)\(.*?\).*?:\n(?:    """(.*?)""")?', re.MULTILINE | re.DOTALL)


def numbers(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\bR(\d+)\b", text)}


def carried() -> dict[str, set[int]]:
    """The numbers of each test function."""
    found: dict[str, set[int]] = {}
    for path in common.files("tests/**/test_*.c"):
        for name in IN_C.findall(common.text_of(path)):
            found[name] = numbers(name.replace("_", " "))
    for path in common.files("tests/**/test_*.py"):
        for name, text in IN_PYTHON.findall(common.text_of(path)):
            found[name] = numbers(name.replace("_", " ")) | numbers(text)
    return found


def check(number: int, rest: str, tests: dict[str, set[int]]) -> list[str]:
    where = f"tests/requirements.md: R{number}"
    status = rest.split("|")[-1].strip().lower()
    named = re.findall(r"`(test_\w+)`", rest)
    problems = [f"{where} names {test}, which does not exist" for test in named if test not in tests]
    if not status.startswith(("done", "in part", "later: ")):
        problems.append(f"{where}: the status is done, in part or later: with the reason, not '{status}'")
    if status.startswith(("done", "in part")) and not any(number in tests.get(test, ()) for test in named):
        problems.append(f"{where} is called {status.split(';')[0]}, but names no test that carries its number")
    return problems


def main() -> None:
    tests = carried()
    table = common.ROOT / "tests/requirements.md"
    rows = [(int(match[1]), match[2]) for match in ROW.finditer(common.text_of(table))]
    problems = [problem for number, rest in rows for problem in check(number, rest, tests)]
    present = [number for number, _ in rows]
    problems += [f"tests/requirements.md: R{n} has {present.count(n)} rows" for n in NUMBERS if present.count(n) != 1]
    common.finish(problems, len(rows), "requirements")


if __name__ == "__main__":
    main()
