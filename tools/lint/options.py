# SPDX-License-Identifier: Apache-2.0
"""docs/reference/options.md lists the options of a run as the library's table has them. `--write` makes it anew.

Every field of struct pawl_open_opts and its groups must be in the table, with its place and width. Choices and defaults
of CheckpointManager and its groups, also those that its docstrings name, must be the table's."""

from __future__ import annotations

import ast
import ctypes
import inspect
import re
from collections.abc import Iterator
from typing import NamedTuple

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


# ---- the options as the Python package has them; read as text, since the package may not be installed

PACKAGE = common.ROOT / "python" / "pawl"
MODULES = ("options", "manager", "_arguments", "_options")
UNITS = {"day": 86_400_000, "hour": 3_600_000, "minute": 60_000, "second": 1000}


class Keyword(NamedTuple):
    name: str  # "staging.mode", or the argument "on_busy" of CheckpointManager
    option: str  # of the table
    is_opposite: bool  # True means that the library's flag is not set
    annotation: str
    default: object  # no default: ...
    doc: str  # what the docstring says after "Default:"


def find(module: ast.Module, kind: type[ast.AST], name: str) -> ast.AST:
    """The last definition of that name; the ones before it are overloads."""
    found = [node for node in ast.walk(module) if isinstance(node, kind) and getattr(node, "name", "") == name]
    if not found:
        raise SystemExit(f"python/pawl has no {name}")
    return found[-1]


def assigned(module: ast.Module, name: str) -> ast.expr:
    """The value of a name of the module."""
    for node in module.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if isinstance(node, ast.Assign | ast.AnnAssign) and node.value and ast.unparse(targets[0]) == name:
            return node.value
    raise SystemExit(f"python/pawl/_options.py has no {name}")


def rows_of(table: ast.expr) -> dict[str, tuple[str, str]]:
    """A dict of pairs, as text."""
    assert isinstance(table, ast.Dict)
    pairs = ((ast.literal_eval(key), value) for key, value in zip(table.keys, table.values, strict=True) if key)
    return {
        key: (ast.unparse(value.elts[0]), ast.unparse(value.elts[1]))
        for key, value in pairs
        if isinstance(value, ast.Tuple)
    }


def documented(node: ast.AST, name: str) -> str:
    doc = ast.get_docstring(node) or ""  # type: ignore[arg-type]
    entry = re.search(rf"^    {name}: (.*(?:\n        .*)*)", inspect.cleandoc(doc), re.MULTILINE)
    return " ".join(entry[1].split()).rpartition("Default: ")[2] if entry else ""


def value_of(default: ast.expr | None) -> object:
    return ... if default is None else ast.literal_eval(default)


def keywords(text: dict[str, str], named: set[str]) -> Iterator[Keyword]:
    """Those with an option in the table. text: of each of MODULES."""
    modules = {name: ast.parse(text[name]) for name in MODULES}
    others = rows_of(assigned(modules["_options"], "_OTHERS"))
    without = ast.literal_eval(assigned(modules["_options"], "_WITHOUT_OPTION"))
    groups = assigned(modules["_options"], "_GROUPS")
    assert isinstance(groups, ast.Dict)
    for key, kind in zip(groups.keys, groups.values, strict=True):
        group = ast.literal_eval(key) if key else ""
        node = find(modules["options"], ast.ClassDef, ast.unparse(kind))
        for field in node.body:  # type: ignore[attr-defined]
            name = f"{group}.{ast.unparse(field.target)}" if isinstance(field, ast.AnnAssign) else ""
            if not name or name in without:
                continue
            option, convert = others.get(name, (repr(name), ""))
            annotation, doc = ast.unparse(field.annotation), documented(node, name.partition(".")[2])
            yield Keyword(
                name, ast.literal_eval(option), convert == "_opposite", annotation, value_of(field.value), doc
            )
    opens = find(modules["manager"], ast.FunctionDef, "__init__")
    assert isinstance(opens, ast.FunctionDef)
    types = {
        ast.unparse(field.target): ast.unparse(field.annotation)
        for field in find(modules["_arguments"], ast.ClassDef, "Options").body  # type: ignore[attr-defined]
        if isinstance(field, ast.AnnAssign)
    }
    for argument, default in zip(opens.args.kwonlyargs, opens.args.kw_defaults, strict=True):
        name = argument.arg
        found = [option for option in named if option in (name, f"retention.{name}", f"packs.{name}")]
        if found and argument.annotation:
            doc, annotation = documented(opens, name), ast.unparse(argument.annotation)
            yield Keyword(name, found[0], False, annotation, value_of(default), doc)
            if name in types:
                yield Keyword(name, found[0], False, types[name], value_of(default), doc)


def spelled(option: Option) -> str:
    """The value of zero, as docstrings name it."""
    milliseconds = {"milliseconds": 1, "seconds": 1000}.get(TYPES[option.type], 0) * option.zero_is
    for unit, length in UNITS.items():
        if milliseconds and milliseconds % length == 0:
            n = milliseconds // length
            return f"{n} {unit}{'s' if n != 1 else ''}"
    return default_of(option)


def check_keyword(keyword: Keyword, option: Option) -> Iterator[str]:
    kind, default = TYPES[option.type], keyword.default
    shown = f'"{default}"' if isinstance(default, str) else "none" if default == () else repr(default)
    if option.choices:
        words = [word.decode() for word in option.choices.split()]
        literal = f"Literal[{', '.join(map(repr, words))}]"
        if keyword.annotation != literal:
            yield f"{keyword.name}: the type is {keyword.annotation}, expected {literal}"
        is_default = default == words[0]
    elif kind == "flag":
        is_default = default is keyword.is_opposite
    else:  # zero, None and () are the table's default
        is_default = default in (None, ()) or (kind not in ("text", "C only") and type(default) is int and default == 0)
    if not is_default:
        yield f"{keyword.name}: the default is {shown}, not that of {keyword.option} in src/run/option_table.c"
        return
    if option.zero_is and not option.choices:
        shown += f", which is {spelled(option)}" if default == 0 else f", {spelled(option)}"
    if not re.match(rf"{re.escape(shown)}(?!\w)", keyword.doc):
        yield f"{keyword.name}: the docstring says 'Default: {keyword.doc}', expected 'Default: {shown}'"


def check_python(text: dict[str, str], options: list[Option]) -> tuple[list[str], int]:
    """The problems, and how many keywords there are."""
    by_name = {option.name.decode(): option for option in options}
    found = list(keywords(text, set(by_name)))
    problems = [f"{keyword.name}: {keyword.option} is no option" for keyword in found if keyword.option not in by_name]
    for keyword in found:
        if keyword.option in by_name:
            problems += check_keyword(keyword, by_name[keyword.option])
    return [f"python/pawl: {problem}" for problem in problems], len(found)


# Each change must be found: module, text, wrong text.
CONTROLS = (
    ("options", 'mode: Literal["snapshot", "ring", "direct"]', 'mode: Literal["snapshot", "ring"]'),
    ("options", 'device: Literal["off", "auto"] = "off"', 'device: Literal["off", "auto"] = "auto"'),
    ("options", "reuse: bool = True", "reuse: bool = False"),
    ("options", "strict_score: bool = False", "strict_score: bool = True"),
    ("options", "threads: int = 0", "threads: int = 8"),
    ("options", "Default: 0, which is 256 MiB", "Default: 0, which is 128 MiB"),
    ("options", "Default: None, 30 minutes", "Default: None, 20 minutes"),
    ("options", "n_partners: int", "n_copies: int"),
    ("manager", 'nonfinite: Literal["accept", "flag", "refuse"]', 'nonfinite: Literal["accept", "refuse"]'),
    (
        "manager",
        'on_busy: Literal["wait", "skip", "replace"] = "wait",\n        nonfinite',
        'on_busy: str = "wait",\n        nonfinite',
    ),
    ("_arguments", 'nonfinite: Literal["accept", "flag", "refuse"]', 'nonfinite: Literal["accept", "flags", "refuse"]'),
)


def check_controls(text: dict[str, str], options: list[Option]) -> list[str]:
    problems = []
    for module, right, wrong in CONTROLS:
        changed = text | {module: text[module].replace(right, wrong)}
        if changed == text or not check_python(changed, options)[0]:
            problems.append(f"tools/lint/options.py: was not found: {wrong} in python/pawl/{module}.py")
    return problems


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
    text = {name: common.text_of(PACKAGE / f"{name}.py") for name in MODULES}
    wrong, n_keywords = check_python(text, options)
    problems += wrong + check_controls(text, options)
    common.finish(problems, len(options) + n_keywords, "options")


if __name__ == "__main__":
    main()
