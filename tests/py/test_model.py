# SPDX-License-Identifier: Apache-2.0
"""The protocol of a save of many ranks, checked exhaustively by spin (tests/model; docs/explanation/multi-rank.md)."""

from __future__ import annotations

import pathlib

import pytest
from programs import load_program

pytestmark = pytest.mark.long


model = load_program("tests/model/check.py")


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
