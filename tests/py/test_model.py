# SPDX-License-Identifier: Apache-2.0
"""The protocol of a save of many ranks, checked exhaustively by spin (tests/model; docs/explanation/multi-rank.md)."""

from __future__ import annotations

import importlib.util
import pathlib
import sys
import types

import pytest

pytestmark = pytest.mark.long


def load() -> types.ModuleType:
    path = pathlib.Path(__file__).resolve().parent.parent / "model" / "check.py"
    spec = importlib.util.spec_from_file_location("model_check", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # its dataclasses look their module up
    spec.loader.exec_module(module)
    return module


model = load()


def named(cases: list) -> list:
    return [pytest.param(case, id=case.name) for case in cases if not case.large]


@pytest.mark.parametrize("case", named(model.HOLDS))
def test_P2_P6_P7_P10_P11_hold_in_every_state_of_the_model(case, tmp_path: pathlib.Path) -> None:
    result = model.check(case, tmp_path)
    assert result.wrong == "", result.text
    assert result.states > 10000


@pytest.mark.parametrize("case", named(model.REACHED))
def test_what_the_model_is_about_can_happen_in_it(case, tmp_path: pathlib.Path) -> None:
    assert model.check(case, tmp_path).wrong == case.wrong


@pytest.mark.parametrize("case", named(model.MISTAKES))
def test_a_mistake_in_the_protocol_is_found(case, tmp_path: pathlib.Path) -> None:
    assert model.check(case, tmp_path).wrong == case.wrong
