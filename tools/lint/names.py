# SPDX-License-Identifier: Apache-2.0
"""Names of functions. A function for other files begins with the first word of its file, so that the name tells where
it is; in the engines and layers of stores (store_NAME.c) with NAME or store. A static function has at least two words.
Names of the public headers are free."""

from __future__ import annotations

import re

import common

# A function's name stands at the start of a line, below its type.
DEFINITION = re.compile(
    r"^((?!typedef|extern|struct \w+ \{)(?:[\w *]|__attribute__\(\(.*?\)\))+)\n(\w+)\([^;{]*\n\{", re.MULTILINE
)
PUBLIC = re.compile(r"\b((?:pawl|tune)_\w+)\(")


def words_of(stem: str) -> set[str]:
    """The first words that functions of a file may have; a plural and its singular count as one."""
    names = (stem, stem.removeprefix("store_"), stem.removeprefix("cmd_"), stem.removeprefix("_"))
    first = {name.split("_")[0].removesuffix("s") for name in names} - {""}
    return first | {word + "s" for word in first}


def main() -> None:
    headers = [*common.files("include/*.h"), common.ROOT / "tune" / "tune.h"]
    public = {name for path in headers for name in PUBLIC.findall(common.text_of(path))} | {"main", "PyInit__pawl"}
    problems, seen = [], 0
    for path in common.files(
        "src/**/*.[ch]", "tune/*.[ch]", "cli/*.[ch]", "python/**/*.[ch]", "tests/extending/*.[ch]"
    ):
        name, text = common.name(path), common.strip_c(common.text_of(path))
        words = words_of(path.stem)
        for match in DEFINITION.finditer(text):
            function = match[2]
            where = f"{name}:{common.line_of(text, match.start(2))}"
            is_own = "static" in match[1].split() and path.suffix == ".c"
            seen += 1
            if is_own and "_" not in function:
                problems.append(f"{where}: {function}: expected at least two words, a verb and an object")
            # the checksums of crc.c are called crc32c and crc64nvme
            first = re.sub(r"(?<=^crc)\d\w*", "", function.split("_")[0])
            if not is_own and function not in public and first not in words:
                problems.append(f"{where}: {function}: expected a name that begins with '{path.stem.split('_')[0]}_'")
    if seen < 1000:
        problems.append(f"only {seen} functions were found: the pattern no longer fits the code")
    common.finish(problems, seen, "functions")


if __name__ == "__main__":
    main()
