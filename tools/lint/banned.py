# SPDX-License-Identifier: Apache-2.0
"""Functions that must not be called: unbounded copies, hidden state, the shell, ending or printing from the library,
and heap or threads outside the one module for them."""

from __future__ import annotations

import re

import common

EVERYWHERE = {
    "strcpy": "use text_copy, snprintf or mem_strdup",
    "strcat": "use buf",
    "strncpy": "does not terminate",
    "strncat": "use buf",
    "stpcpy": "use buf",
    "sprintf": "use snprintf",
    "vsprintf": "use vsnprintf",
    "gets": "unbounded",
    "strtok": "keeps hidden state",
    "atoi": "no errors",
    "atol": "no errors",
    "atoll": "no errors",
    "atof": "no errors",
    "system": "no shell",
    "popen": "no shell",
    "tmpnam": "races",
    "tempnam": "races",
    "mktemp": "races",
    "rand": "not random",
    "srand": "not random",
    "alloca": "unbounded stack",
    "localtime": "use localtime_r",
    "gmtime": "use gmtime_r",
    "ctime": "use strftime",
    "asctime": "use strftime",
    "setjmp": "no jumps",
    "longjmp": "no jumps",
}
LIBRARY = {
    "strerror": "use err_sys",
    "printf": "the library never prints",
    "fprintf": "the library never prints",
    "vfprintf": "the library never prints",
    "puts": "the library never prints",
    "putchar": "the library never prints",
    "perror": "the library never prints",
    "exit": "the library never exits",
    "_exit": "the library never exits",
    "quick_exit": "the library never exits",
    "abort": "the library never aborts",
    "setenv": "the environment is the program's",
    "putenv": "the environment is the program's",
    "chdir": "the working folder is the program's",
    "umask": "the mask is the program's",
    "fork": "the library makes no processes",
}
HEAP = dict.fromkeys(
    ("malloc", "calloc", "realloc", "free", "strdup", "strndup", "asprintf"), "all heap goes through base/mem.h"
)
THREADS = {"pthread_create": "threads are made in base/pool.c only"}
# (file, function): why it is right there.
EXCEPTIONS = {
    ("src/open.c", "free"): "of what realpath has allocated",
    ("src/mirror/mirror.c", "free"): "of what realpath has allocated",
}


def banned_in(name: str) -> dict[str, str]:
    rules = dict(EVERYWHERE)
    if name.startswith(("src/", "include/")):
        rules |= LIBRARY
        if name != "src/base/mem.c":
            rules |= HEAP
        if name != "src/base/pool.c":
            rules |= THREADS
    return rules


def main() -> None:
    paths = common.files(
        "include/*.h", "src/**/*.[ch]", "tune/*.[ch]", "cli/**/*.[ch]", "python/**/*.[ch]", "examples/**/*.[ch]"
    )
    problems = []
    for path in paths:
        name = common.name(path)
        text = common.strip_c(common.text_of(path))
        rules = banned_in(name)
        for match in re.finditer(r"(?<![\w.>])(\w+)[ \t]*\(", text):
            if match[1] in rules and (name, match[1]) not in EXCEPTIONS:
                where = f"{name}:{common.line_of(text, match.start())}"
                problems.append(f"{where}: {match[1]} is banned: {rules[match[1]]}")
        problems += [
            f"{name}:{common.line_of(text, match.start())}: no typedef of structs"
            for match in re.finditer(r"\btypedef\s+struct\b", text)
        ]
    common.finish(problems, len(paths), "C files")


if __name__ == "__main__":
    main()
