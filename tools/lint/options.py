# SPDX-License-Identifier: Apache-2.0
"""docs/reference/options.md lists the options of a run as the library's table has them. `--write` makes it anew.

Every field of struct pawl_open_opts and its groups must be in the table, with its place and width."""

from __future__ import annotations

import ctypes
import re

import common

PAGE = common.ROOT / "docs/reference/options.md"
TYPES = ("flag", "choice", "number", "count", "bytes", "milliseconds", "seconds", "text", "C only")
HEAD = """# Options of a run

The options of `pawl_open`, as the library's own table has them (`pawl_option_get`). In C,
`staging.ring_bytes` is the field `opts.staging.ring_bytes` of `struct pawl_open_opts`. Zero, or an
option that is not given, means the default. [python.md](python.md) has the names that
`CheckpointManager` takes.

| option | type | default | what it does |
|---|---|---|---|
"""


class Option(ctypes.Structure):
    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int),
        ("offset", ctypes.c_size_t),
        ("width", ctypes.c_size_t),
        ("low", ctypes.c_int64),
        ("high", ctypes.c_int64),
        ("zero_is", ctypes.c_int64),
        ("choices", ctypes.c_char_p),
        ("what", ctypes.c_char_p),
    )


def default_of(option: Option) -> str:
    if option.choices:
        return str(option.choices.split()[0].decode())
    if not option.zero_is:
        return ""
    if TYPES[option.type] == "bytes" and option.zero_is % (1 << 20) == 0:
        return f"{option.zero_is >> 20} MiB"
    return f"{option.zero_is:,}"


def row(option: Option) -> str:
    kind = TYPES[option.type]
    if option.choices:
        kind = ", ".join(f"`{word.decode()}`" for word in option.choices.split())
    return f"| `{option.name.decode()}` | {kind} | {default_of(option)} | {option.what.decode()} |\n"


def table(build: str) -> list[Option]:
    get = ctypes.CDLL(build).pawl_option_get
    get.restype, get.argtypes = ctypes.POINTER(Option), (ctypes.c_size_t,)
    options = []
    while found := get(len(options)):
        options.append(found.contents)
    return options


def fields(header: str, struct: str) -> list[str]:
    """Paths of the fields of a struct, with those of the groups in it."""
    body = re.search(rf"struct {struct} \{{(.*?)\n\}};", header, re.DOTALL)
    found = []
    for line in (body[1] if body else "").split(";"):
        text = " ".join(line.split())
        if group := re.fullmatch(r"struct (pawl_\w+) (\w+)", text):
            found += [f"{group[2]}.{field}" for field in fields(header, group[1])]
        elif text:
            found += re.findall(r"(\w+)(?=,|$)", text.replace("*", ""))
    return [field for field in found if field.split(".")[-1] != "size"]


def main() -> None:
    arguments = common.arguments()
    libraries = sorted((arguments.build / "src").glob("libpawl.so"))
    options = table(str(libraries[0])) if libraries else []
    page = HEAD + "".join(row(option) for option in options)
    if arguments.write:
        PAGE.write_text(page, encoding="utf-8")
    problems = []
    if not PAGE.exists() or common.text_of(PAGE) != page:
        problems.append("docs/reference/options.md is not what the table says: tools/lint/options.py --write")
    header = common.strip_c(common.text_of(common.ROOT / "include" / "pawl.h"))
    named = {option.name.decode() for option in options}
    problems += [
        f"{field}: is not in src/run/option_table.c" for field in fields(header, "pawl_open_opts") if field not in named
    ]
    common.finish(problems, len(options), "options")


if __name__ == "__main__":
    main()
