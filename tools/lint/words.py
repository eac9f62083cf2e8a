# SPDX-License-Identifier: Apache-2.0
"""The project speaks of itself alone: no notes to oneself, no ticket numbers, no paths of somebody's machine, no hosts
of package registries. Text ends with a line feed, has no trailing blanks, and every source says its licence."""

from __future__ import annotations

import re

import common

# Character classes keep the words out of this file itself.
WORDS = {
    r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b": "no notes to oneself",
    r"(?i)\bissue[ ]#?\d|(?<![\w&])#\d{1,4}\b(?!\w)": "no ticket numbers",
    r"(?i)\b(this|my|our|your|earlier|next|last) sessio[n]\b": "no sessions",
    r"(?<![\w.])/(wor[k]|roo[t]|hom[e])/\w": "no paths of somebody's machine",
    r"(?i)\b(pyp[i]|pythonhoste[d]|npmj[s]|pytorc[h])\.(org|com)\b": "no hosts of registries",
    r"(?i)\b(deb|ftp|archive|security)\.(debia[n]|ubunt[u])\.": "no hosts of registries",
}
# In the library nothing names a place in the file system either.
LIBRARY_WORDS = {r"(?<!\w)/tm[p]\b": "no fixed folders"}
TEXT = ("*", "*/*", "*/**/*")
SOURCES = (".c", ".h", ".py", ".sh", ".pyi")
BINARY = {".safetensors", ".bin", ".zip", ".pt", ".png", ".gz"}
NO_WORDS = {"LICENSE"}


def check(name: str, text: str) -> list[str]:
    problems = []
    words = dict(WORDS)
    if name.startswith(("src/", "include/", "tune/", "python/", "cli/")):
        words |= LIBRARY_WORDS
    for pattern, why in words.items():
        for match in re.finditer(pattern, text):
            if why == "no ticket numbers" and name.endswith((".py", ".c", ".h", ".csv")) and match[0].startswith("#"):
                continue  # colours, formats and preprocessor lines
            problems.append(f"{name}:{common.line_of(text, match.start())}: '{match[0]}': {why}")
    return problems


def main() -> None:
    problems, checked = [], 0
    for path in common.files(*TEXT):
        name = common.name(path)
        if path.suffix in BINARY or "/corpus/" in name or "/golden/" in name:
            continue
        try:
            text = common.text_of(path)
        except UnicodeDecodeError:
            continue
        checked += 1
        if name not in NO_WORDS:
            problems += check(name, text)
        if text and not text.endswith("\n"):
            problems.append(f"{name}: does not end with a line feed")
        if path.suffix != ".md":
            blanks = re.search(r"[ \t]+$", text, re.MULTILINE)
            if blanks:
                problems.append(f"{name}:{common.line_of(text, blanks.start())}: blanks at the end of a line")
        if path.suffix in SOURCES and text.strip() and "SPDX-License-Identifier: Apache-2.0" not in text[:300]:
            problems.append(f"{name}: has no SPDX line")
    common.finish(problems, checked, "text files")


if __name__ == "__main__":
    main()
