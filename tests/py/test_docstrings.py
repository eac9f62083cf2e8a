# SPDX-License-Identifier: Apache-2.0
"""The docstring of everything that pawl and its submodules export (``__all__``) names each parameter, says what is
returned, and has a section of errors where the function itself raises one. The sources are read, so no framework is
needed."""

from __future__ import annotations

import ast
import functools
import inspect
import pathlib
import re
from collections.abc import Iterator

import pytest

import pawl
from pawl._pawl import Ticket

ROOT = pathlib.Path(__file__).resolve().parents[2] / "python" / "pawl"
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Found = tuple[str, Definition]  # its module and its definition

# Methods that a framework calls: its base class describes them.
HOOKS = {
    "composer.CheckpointSaver": {
        "run_event",
        "init",
        "fit_start",
        "batch_checkpoint",
        "epoch_checkpoint",
        "iteration_checkpoint",
        "fit_end",
    },
    "huggingface.Saver": {
        "on_train_begin",
        "on_epoch_begin",
        "on_step_begin",
        "on_step_end",
        "on_epoch_end",
        "on_evaluate",
        "on_log",
        "on_train_end",
    },
    "lightning.CheckpointIO": {"save_checkpoint", "remove_checkpoint"},
    "lightning.Saver": {
        "setup",
        "on_exception",
        "teardown",
        "state_dict",
        "load_state_dict",
    },
    "torch.StorageReader": {
        "reset",
        "validate_checkpoint_id",
        "read_metadata",
        "set_up_storage_reader",
        "prepare_local_plan",
        "prepare_global_plan",
        "read_data",
    },
    "torch.StorageWriter": {
        "stage",
        "reset",
        "validate_checkpoint_id",
        "storage_meta",
        "set_up_storage_writer",
        "prepare_local_plan",
        "prepare_global_plan",
        "write_data",
        "finish",
    },
}


# ---- the sources ----


@functools.cache
def source(module: str) -> ast.Module | None:
    """Of a module by its name below pawl; "" is pawl itself."""
    place = ROOT.joinpath(*module.split(".")) if module else ROOT
    for file in (place / "__init__.py", place.with_suffix(".py"), place.with_suffix(".pyi")):
        if file.is_file():
            return ast.parse(file.read_text(encoding="utf-8"))
    return None


def modules() -> Iterator[str]:
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        parts = parts[:-1] if parts[-1] == "__init__" else parts
        if not any(part.startswith("_") for part in parts):
            yield ".".join(parts)


def exported(module: str) -> list[str]:
    for node in getattr(source(module), "body", []):
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return [str(name) for name in ast.literal_eval(node.value)]
    return []


def imported(module: str, node: ast.ImportFrom) -> str | None:
    """The module below pawl that names are imported from; None of others, and where modules are imported."""
    if node.level == 0 or node.module is None:
        return None
    is_package = (ROOT.joinpath(*module.split(".")) / "__init__.py").is_file() if module else True
    above = [part for part in module.split(".") if part]
    above = above[: len(above) - (node.level - (1 if is_package else 0))]
    return ".".join([*above, *node.module.split(".")]).strip(".")


def resolve(module: str, name: str) -> Found | None:
    """The definition of a name, wherever in pawl it is."""
    nodes = getattr(source(module), "body", [])
    for node in [*nodes, *(inner for one in nodes if isinstance(one, ast.If) for inner in one.body)]:
        if isinstance(node, Definition) and node.name == name:
            return module, node
        if isinstance(node, ast.ImportFrom) and (above := imported(module, node)) is not None:
            for alias in node.names:
                if (alias.asname or alias.name) == name:
                    return resolve(above, alias.name)
        is_alias = isinstance(node, ast.Assign) and isinstance(node.value, ast.Name)
        if is_alias and ast.unparse(node.targets[0]) == name:
            return resolve(module, node.value.id)
    return None


def is_value(module: str, name: str) -> bool:
    """Whether it is a module or a constant, which have no parameters."""
    for node in getattr(source(module), "body", []):
        if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
            return True
        if isinstance(node, ast.ImportFrom) and name in [alias.asname or alias.name for alias in node.names]:
            above = imported(module, node)
            return above is None or is_value(above, name)
    return False


def family(module: str, node: ast.ClassDef) -> list[Found]:
    """A class and its bases in pawl, nearest first."""
    found: list[Found] = [(module, node)]
    for base in node.bases:
        above = resolve(module, ast.unparse(base).split("[")[0])
        if above is not None and isinstance(above[1], ast.ClassDef):
            found += family(above[0], above[1])
    return found


# ---- what is asked of a docstring ----


def sections(text: str) -> dict[str, set[str]]:
    """Of each section the names that begin its lines."""
    found: dict[str, set[str]] = {}
    title = ""
    for line in text.splitlines():
        if re.fullmatch(r"(Args|Attributes|Returns|Yields|Raises):", line):
            title = line[:-1]
            found[title] = set()
        elif line and not line.startswith(" "):
            title = ""
        elif title and (name := re.match(r"    (\w+): ", line)):
            found[title].add(name[1])
    return found


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> set[str]:
    a = node.args
    every = [*a.posonlyargs, *a.args, *a.kwonlyargs, *(one for one in (a.vararg, a.kwarg) if one is not None)]
    return {one.arg for one in every} - {"self", "cls", "_"}


def raises(node: ast.AST) -> bool:
    return any(isinstance(inner, ast.Raise) and inner.exc is not None for inner in ast.walk(node))


def problems(node: ast.FunctionDef | ast.AsyncFunctionDef, text: str) -> Iterator[str]:
    decorators = {ast.unparse(one) for one in node.decorator_list}
    found = sections(text)
    named = found.get("Args", set()) | (found.get("Attributes", set()) if node.name == "__init__" else set())
    if not text:
        yield "has no docstring"
        return
    if "property" in decorators:
        return
    if missing := parameters(node) - named:
        yield f"does not name {', '.join(sorted(missing))}"
    if stale := found.get("Args", set()) - parameters(node):
        yield f"names {', '.join(sorted(stale))}, which it does not take"
    result = "None" if node.returns is None else ast.unparse(node.returns)
    has_result = node.name != "__init__" and result not in ("None", "NoReturn", "Self")
    if has_result and not {"Returns", "Yields"} & found.keys():
        yield f"does not say what it returns ({result})"
    if raises(node) and "Raises" not in found:
        yield "does not say what it raises"


def is_record(node: ast.ClassDef) -> bool:
    return any("dataclass" in ast.unparse(one) for one in node.decorator_list)


def problems_of_class(module: str, node: ast.ClassDef) -> Iterator[str]:
    text = ast.get_docstring(node) or ""
    if not text:
        yield "has no docstring"
    classes = family(module, node)
    hooks = set().union(*(HOOKS.get(f"{where}.{one.name}", set()) for where, one in classes))
    texts = [ast.get_docstring(one) or "" for _, one in classes]
    fields, methods = set(), dict[str, list[ast.FunctionDef | ast.AsyncFunctionDef]]()
    for _, one in classes:
        assert isinstance(one, ast.ClassDef)
        for inner in one.body:
            if isinstance(inner, ast.AnnAssign) and is_record(one) and "ClassVar" not in ast.unparse(inner.annotation):
                fields.add(ast.unparse(inner.target))
            elif isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                if not any("overload" in ast.unparse(decorator) for decorator in inner.decorator_list):
                    methods.setdefault(inner.name, []).append(inner)
    public = {name for name in fields if not name.startswith("_")}
    if missing := public - sections(text).get("Attributes", set()):
        yield f"does not name {', '.join(sorted(missing))}"
    for name, same in methods.items():
        if (name.startswith("_") and name != "__init__") or name in hooks:
            continue
        of_method = next((found for one in same if (found := ast.get_docstring(one))), "")
        if name == "__init__":  # the class describes its arguments, or the base that takes them
            own = [ast.get_docstring(one) or "" for one in same]
            of_method = next((one for one in [*own, *texts] if {"Args", "Attributes"} & sections(one).keys()), text)
        for problem in problems(same[0], of_method):
            yield f"{name} {problem}"


@pytest.mark.parametrize("module", [name for name in modules() if exported(name)], ids=lambda name: f"pawl.{name}")
def test_docstrings_are_complete(module: str) -> None:
    wrong = []
    for name in exported(module):
        found = resolve(module, name)
        if found is None:
            assert is_value(module, name), name
            continue
        if found[0] == "_pawl":  # tested below
            continue
        where, node = found
        if isinstance(node, ast.ClassDef):
            wrong += [f"{name}: {problem}" for problem in problems_of_class(where, node)]
        else:
            wrong += [f"{name}: {problem}" for problem in problems(node, ast.get_docstring(node) or "")]
    assert wrong == []


def test_docstrings_of_the_extension_are_complete() -> None:
    wrong = []
    for name in exported(""):
        found = resolve("", name)
        if found is None or found[0] != "_pawl":
            continue
        what, node = getattr(pawl, name), found[1]
        if not isinstance(node, ast.ClassDef):
            wrong += [f"{name}: {problem}" for problem in problems(node, inspect.getdoc(what) or "")]
            continue
        if not what.__doc__ or what.__doc__ == Exception.__doc__:
            wrong.append(f"{name}: has no docstring")
        for inner in node.body:
            if isinstance(inner, ast.FunctionDef) and not inner.name.startswith("_"):
                text = inspect.getdoc(getattr(what, inner.name)) or ""
                wrong += [f"{name}.{inner.name}: {problem}" for problem in problems(inner, text)]
    assert wrong == []


def lines_of_section(text: str, title: str) -> dict[str, str]:
    """What a section says of each name."""
    section = re.search(rf"^{title}:\n((?:    .*\n?|\n)+)", text, re.MULTILINE)
    assert section, text
    rows = re.findall(r"^    (\w+): ((?:.*\n?)(?:^     .*\n?)*)", section[1], re.MULTILINE)
    return {name: " ".join(row.split()) for name, row in rows}


GROUPS = [pawl.IO, pawl.Mirror, pawl.Naming, pawl.Packs, pawl.Ranks, pawl.Retention, pawl.Staging, pawl.Timeouts]


@pytest.mark.parametrize("kind", [pawl.CheckpointManager, pawl.Uploads, *GROUPS], ids=lambda kind: kind.__name__)
def test_each_option_has_a_line_with_its_default(kind: type) -> None:
    is_group = kind is not pawl.CheckpointManager
    text = inspect.cleandoc((kind if is_group else kind.__init__).__doc__ or "")  # type: ignore[misc]
    rows = lines_of_section(text, "Attributes" if is_group else "Args")
    optional = [each.name for each in inspect.signature(kind).parameters.values() if each.default is not each.empty]
    assert [name for name in optional if "Default: " not in rows[name]] == []


UNITS = {"Duration": "duration|seconds", "Size": "size|bytes", "Interval": "number of steps"}


@pytest.mark.parametrize("kind", [pawl.CheckpointManager, pawl.Uploads, *GROUPS], ids=lambda kind: kind.__name__)
def test_the_line_of_an_option_names_its_unit_and_its_true_default(kind: type) -> None:
    is_group = kind is not pawl.CheckpointManager
    text = inspect.cleandoc((kind if is_group else kind.__init__).__doc__ or "")  # type: ignore[misc]
    rows = lines_of_section(text, "Attributes" if is_group else "Args")
    wrong = []
    for each in inspect.signature(kind.__init__).parameters.values():  # type: ignore[misc]
        if each.default is each.empty:
            continue
        row, default = rows[each.name], each.default
        shown = f'"{default}"' if isinstance(default, str) else "none" if default == () else str(default)
        if not re.search(rf"Default: {re.escape(shown)}\b|Default: {re.escape(shown)}[.,]", row):
            wrong.append(f"{each.name}: the default is {shown}")
        wrong += [
            f"{each.name}: no unit ({words})"
            for name, words in UNITS.items()
            if re.search(rf"\b{name}\b", str(each.annotation)) and not re.search(rf"\b({words})\b", row, re.IGNORECASE)
        ]
    assert wrong == []


def test_the_methods_of_frameworks_exist() -> None:
    for place, names in HOOKS.items():
        module, _, name = place.rpartition(".")
        found = resolve(module, name)
        assert found is not None and isinstance(found[1], ast.ClassDef)
        assert names <= {
            inner.name
            for _, one in family(found[0], found[1])
            for inner in ast.walk(one)
            if isinstance(inner, ast.FunctionDef)
        }


def test_a_parameter_that_is_not_named_is_found() -> None:
    [node] = ast.parse("def f(a, *, b=1) -> int:\n    if a:\n        raise ValueError(a)\n    return b").body
    assert isinstance(node, ast.FunctionDef)
    assert list(problems(node, "Text.\n\nArgs:\n    a: It.\n    c: It.")) == [
        "does not name b",
        "names c, which it does not take",
        "does not say what it returns (int)",
        "does not say what it raises",
    ]
    complete = "Text.\n\nArgs:\n    a: It.\n    b: It.\n\nReturns:\n    It.\n\nRaises:\n    ValueError: Always."
    assert list(problems(node, complete)) == [] and list(problems(node, "")) == ["has no docstring"]


def test_each_key_of_the_statistics_of_a_save_is_described() -> None:
    with pawl.CheckpointManager("mem:") as manager:
        keys = set(manager.save(1, {"n": 1}, wait=True).stats)
    page = (ROOT.parents[1] / "docs/reference/python.md").read_text(encoding="utf-8")
    assert keys <= set(re.findall(r"\w+", inspect.getdoc(Ticket.stats) or ""))
    assert keys <= set(re.findall(r"`(\w+)`", page))


def test_the_value_of_a_rank_is_described() -> None:
    assert "of this rank" in (inspect.getdoc(pawl.PerRank.value) or "")
