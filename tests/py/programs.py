# SPDX-License-Identifier: Apache-2.0
"""The programs of tests/ and tools/ as modules, to call their functions."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
from types import ModuleType

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent


def load_program(path: str) -> ModuleType:
    """The program at a path below the project's folder; its `main` is not called."""
    spec = importlib.util.spec_from_file_location(pathlib.Path(path).stem.replace("-", "_"), ROOT / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module
