# SPDX-License-Identifier: Apache-2.0
"""Every requirement that docs/requirements.md calls done is named by a test (R27 in its name or docstring), and the
tests that the table names exist."""

from __future__ import annotations

import re

import common

ROW = re.compile(r"^\|\s*R?(\d+)\s*\|(.*)\|\s*$", re.MULTILINE)


def main() -> None:
    tests = common.files("tests/**/*.c", "tests/**/*.py", "tests/**/*.sh")
    texts = {path: common.text_of(path) for path in tests}
    everything = "\n".join(texts.values())
    named = {int(number) for number in re.findall(r"(?<![A-Za-z0-9])_?R(\d+)(?=[^0-9A-Za-z]|_|$)", everything)}
    named |= {int(number) for number in re.findall(r"_R(\d+)(?![0-9])", everything)}

    table = common.ROOT / "docs" / "requirements.md"
    problems, done = [], 0
    for match in ROW.finditer(common.text_of(table) if table.exists() else ""):
        number, rest = int(match[1]), match[2]
        status = rest.split("|")[-1].strip().lower()
        if not status.startswith("done"):
            continue
        done += 1
        if number not in named:
            problems.append(f"docs/requirements.md: R{number} is called done, but no test names it")
        for test in re.findall(r"`(test_\w+)`", rest):
            if not re.search(rf"\b{test}\b", everything) and not any(path.stem == test for path in tests):
                problems.append(f"docs/requirements.md: R{number} names {test}, which does not exist")
    common.finish(problems, done, "requirements called done")


if __name__ == "__main__":
    main()
