# SPDX-License-Identifier: Apache-2.0
"""Names of functions. A function for other files begins with the first word of its file, so that the name tells where
it is; in the engines and layers of stores (store_NAME.c) with NAME or store. A static helper has at least two words:
a verb and an object. Names of the public headers are free."""

from __future__ import annotations

import re

import common

# A function's name stands at the start of a line, below its type.
DEFINITION = re.compile(r"^(static )?(?:inline )?(?!typedef|extern|struct \w+ \{)[\w][\w *]*\n(\w+)\([^;{]*\n\{", re.MULTILINE)
PUBLIC = re.compile(r"\b((?:pawl|tune)_\w+)\(")


def words_of(stem: str) -> set[str]:
    """The first words that functions of a file may have; a plural and its singular count as one."""
    name = stem.removeprefix("store_").removeprefix("cmd_")
    return {stem.split("_")[0], name.split("_")[0], name.split("_")[0].rstrip("s")}


def main() -> None:
    headers = [*common.files("include/*.h"), common.ROOT / "tune" / "tune.h"]
    public = {name for path in headers for name in PUBLIC.findall(common.text_of(path))}
    paths = common.files("src/**/*.c", "tune/*.c", "cli/*.c", "python/**/*.c")
    problems, seen = [], 0
    for path in paths:
        name, text = common.name(path), common.strip_c(common.text_of(path))
        words = words_of(path.stem)
        for match in DEFINITION.finditer(text):
            function = match[2]
            where = f"{name}:{common.line_of(text, match.start(2))}"
            seen += 1
            if match[1]:
                if "_" not in function:
                    problems.append(f"{where}: {function}: a helper's name has a verb and an object")
            elif function not in public and function != "main" and not function.startswith(tuple(words)):
                problems.append(f"{where}: {function}: expected a name that begins with '{path.stem.split('_')[0]}_'")
    if seen < 1000:
        problems.append(f"only {seen} functions were found: the pattern no longer fits the code")
    common.finish(problems, seen, "functions")


if __name__ == "__main__":
    main()
