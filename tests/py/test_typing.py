# SPDX-License-Identifier: Apache-2.0
"""mypy --strict and pyright accept the examples and typed_use.py with the installed package, as in a user's project.
Modules of frameworks that are not installed count as Any."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence

import pytest

HERE = pathlib.Path(__file__).resolve().parent
EXAMPLES = HERE.parents[1] / "examples"
USE = HERE / "typed_use.py"

_MYPY = """\
[mypy]
strict = true
untyped_calls_exclude = torch
explicit_package_bases = true
mypy_path = {bases}
cache_dir = {cache}

[mypy-{absent}]
ignore_missing_imports = true

[mypy-examples.jax.train]
disallow_subclassing_any = false
disallow_untyped_decorators = false
warn_return_any = false
"""
_ABSENT = ("composer", "flax", "lightning", "optax", "ray", "transformers")


def run(words: Sequence[str], folder: pathlib.Path) -> tuple[int, str]:
    found = subprocess.run([sys.executable, "-m", *words], cwd=folder, capture_output=True, text=True, check=False)
    return found.returncode, found.stdout + found.stderr


def mypy(folder: pathlib.Path, names: Sequence[str]) -> tuple[int, str]:
    """Programs that import a file next to them are in a base of their own."""
    bases = [name for name in ("examples/demo", "examples/tune") if (folder / name).is_dir()]
    absent = ",".join(f"{name}.*" for name in _ABSENT)
    text = _MYPY.format(bases=":".join(bases) or ".", absent=absent, cache=folder / "cache")
    (folder / "mypy.ini").write_text(text)
    return run(("mypy", "--no-error-summary", *names), folder)


def pyright(folder: pathlib.Path, names: Sequence[str]) -> tuple[int, str]:
    """Each folder of programs is a root of its own: examples/ray is not the module ray."""
    roots = sorted({str(pathlib.Path(name).parent) for name in names})
    settings = {
        "include": list(names),
        "reportMissingImports": "none",
        "executionEnvironments": [{"root": root} for root in roots],
    }
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    return run(("pyright", "--pythonpath", sys.executable), folder)


@pytest.mark.long
@pytest.mark.parametrize("check", [mypy, pyright])
def test_the_examples_have_types(tmp_path: pathlib.Path, check: Callable[..., tuple[int, str]]) -> None:
    shutil.copytree(EXAMPLES, tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    programs = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.glob("examples/*/*.py"))
    assert len(programs) > 10
    code, text = check(tmp_path, programs)
    assert code == 0, text


@pytest.mark.parametrize("check", [mypy, pyright])
def test_types_are_those_that_callers_rely_on(tmp_path: pathlib.Path, check: Callable[..., tuple[int, str]]) -> None:
    shutil.copy(USE, tmp_path)
    code, text = check(tmp_path, [USE.name])
    assert code == 0, text
    wrong = USE.read_text().replace("assert_type(restored.state, State)", "assert_type(restored.state, int)")
    (tmp_path / USE.name).write_text(wrong)
    code, text = check(tmp_path, [USE.name])
    assert code == 1, "the assertions are not looked at"
    assert re.search(r"assert.type", text), text
