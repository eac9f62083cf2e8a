# SPDX-License-Identifier: Apache-2.0
"""Examples in README.md and docs/*.md compile: blocks marked c by the compiler against pawl.h, blocks marked python by
Python's own parser, blocks marked json by its JSON reader. A block of C is a file, or statements of a function in
which the usual variables exist. A block below a comment "part of FILE" is a part of that file, which the tests
compile."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import textwrap

import common

BLOCK = re.compile(r"^( *)```(c|python|json)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
PART = re.compile(r"<!-- part of (\S+) -->\n\Z")
PRELUDE = """
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pawl.h>
"""
INSIDE = """
int snippet(struct pawl *run, struct pawl_state *state, struct pawl_ticket *ticket, struct pawl_restore *restore,
            struct pawl_tensor tensor, struct pawl_error err, int64_t step);
int
snippet(struct pawl *run, struct pawl_state *state, struct pawl_ticket *ticket, struct pawl_restore *restore,
        struct pawl_tensor tensor, struct pawl_error err, int64_t step)
{
	(void)run, (void)state, (void)ticket, (void)restore, (void)tensor, (void)err, (void)step;
	{
%s
	}
	return 0;
}
"""


def compile_c(text: str) -> str | None:
    """None, or what the compiler said."""
    command = [os.environ.get("CC", "gcc"), "-std=gnu17", "-D_GNU_SOURCE", "-Wall", "-Werror", "-Wno-unused-variable"]
    command += ["-Wno-unused-but-set-variable", "-fsyntax-only", "-I", str(common.ROOT / "include"), "-x", "c", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stderr


def check_c(code: str) -> str | None:
    whole = compile_c(PRELUDE + code)
    if whole is None or re.search(r"^int\s+main\b", code, re.MULTILINE):
        return whole
    return compile_c(PRELUDE + INSIDE % code)


def check_python(code: str) -> str | None:
    try:
        ast.parse(code)
    except SyntaxError as error:
        return str(error)
    return None


def check_json(code: str) -> str | None:
    try:
        json.loads(code)
    except ValueError as error:
        return str(error)
    return None


def check_part(path: str, code: str) -> str | None:
    try:
        return None if code in common.text_of(common.ROOT / path) else f"{path} has no such lines"
    except OSError as error:
        return str(error)


def main() -> None:
    check = {"c": check_c, "python": check_python, "json": check_json}
    problems, checked = [], 0
    for path in common.files("*.md", "docs/**/*.md"):
        text = common.text_of(path)
        for match in BLOCK.finditer(text):
            checked += 1
            part = PART.search(text, 0, match.start())
            wrong = check_part(part[1], match[3]) if part else check[match[2]](textwrap.dedent(match[3]))
            if wrong:
                where = f"{common.name(path)}:{common.line_of(text, match.start())}"
                problems.append(f"{where}: the {match[2]} example does not compile\n{textwrap.indent(wrong, '    ')}")
    common.finish(problems, checked, "examples")


if __name__ == "__main__":
    main()
