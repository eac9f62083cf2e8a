# SPDX-License-Identifier: Apache-2.0
"""Files stay under about 600 lines (650 fails), functions under a page (70 is named, 120 fails), lines within 120
columns where that can be (literals and the comments of headers may be longer; 150 fails)."""

from __future__ import annotations

import re

import common

FILE_WARN, FILE_FAIL = 600, 650
FUNCTION_WARN, FUNCTION_FAIL = 70, 120
COLUMNS_FAIL = 150
# The public header is a manual and stays in one piece.
LONG_FILES = {"include/pawl.h": 1200}


def functions(text: str) -> list[tuple[str, int, int]]:
    """(name, first line, lines) of each function, which begins and ends with a brace in the first column."""
    found = []
    lines = common.strip_c(text).split("\n")
    begin = 0
    for number, line in enumerate(lines):
        if line.startswith("{"):
            begin = number
        elif line.startswith("}") and begin:
            head = " ".join(lines[max(0, begin - 6) : begin])
            names = re.findall(r"(\w+)\s*\([^()]*(?:\([^()]*\)[^()]*)*\)\s*$", head.rstrip())
            found.append((names[-1] if names else "?", begin + 1, number - begin + 1))
            begin = 0
    return found


def main() -> None:
    problems, warnings, longest = [], [], []
    paths = common.files(
        "include/*.h", "src/**/*.[ch]", "tune/*.[ch]", "cli/**/*.[ch]", "python/**/*.[ch]", "examples/**/*.[ch]"
    )
    paths += common.files("tests/**/*.[ch]", "tests/**/*.py", "python/**/*.py", "examples/**/*.py", "bench/*.py")
    paths += common.files("tools/**/*.py")
    for path in paths:
        name, text = common.name(path), common.text_of(path)
        lines = text.split("\n")
        limit = LONG_FILES.get(name, FILE_FAIL)
        # A test program is a list of cases: it may be longer than what it tests.
        count = len(lines) // 2 if name.startswith("tests/") else len(lines)
        if count > limit:
            problems.append(f"{name}: {len(lines)} lines (at most about {FILE_WARN})")
        elif count > max(FILE_WARN, LONG_FILES.get(name, 0)):
            warnings.append(f"{name}: {len(lines)} lines (at most about {FILE_WARN})")
        if path.suffix in (".c", ".h"):
            for number, line in enumerate(lines, 1):
                columns = len(line.expandtabs(8))
                if columns > COLUMNS_FAIL:
                    problems.append(f"{name}:{number}: {columns} columns (at most {COLUMNS_FAIL})")
            longest += [(n, f"{name}:{first}: {function}") for function, first, n in functions(text)]
    longest.sort(reverse=True)
    problems += [f"{where} has {n} lines (at most {FUNCTION_FAIL})" for n, where in longest if n > FUNCTION_FAIL]
    warnings += [f"{where} has {n} lines" for n, where in longest if FUNCTION_WARN < n <= FUNCTION_FAIL]
    for warning in warnings:
        print("note:", warning)
    print("longest functions: " + "; ".join(f"{where} {n}" for n, where in longest[:5]))
    common.finish(problems, len(paths), "files")


if __name__ == "__main__":
    main()
