# SPDX-License-Identifier: Apache-2.0
"""Pins and late scores in mirrors: those of the run follow to the mirror, those made there stay (docs/how-to/mirrors.md)."""

from __future__ import annotations

import json
import pathlib
import shutil
from typing import Any

import numpy as np
import pytest
from waiting import HANG_SECONDS, wait_until

import cli
import pawl


@pytest.fixture(name="root")
def run_root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"


@pytest.fixture(name="mirror")
def mirror_root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "mirror"


def train(root: pathlib.Path, mirror: pathlib.Path) -> pawl.CheckpointManager:
    return pawl.CheckpointManager(root, mirrors=pawl.Mirror(mirror, keep=pawl.Retention(keep_last=1)))


def save(m: pawl.CheckpointManager, *steps: int) -> None:
    """One upload after the other: the mirror's rules decide after each."""
    for step in steps:
        m.save(step, {"w": np.full(1000, step)}, metrics={"loss": float(step)}, wait=True)
        arrive(m)


def arrive(m: pawl.CheckpointManager) -> None:
    m.wait_until_finished(level="remote", timeout=HANG_SECONDS)


def ask(*words: str) -> None:
    answer = cli.run(*words)
    assert answer.returncode == 0, answer.stderr


def kept(place: pathlib.Path) -> list[int]:
    return sorted(int(p.name[-6:]) for p in (place / "checkpoints").iterdir())


def journal_of(root: pathlib.Path) -> pathlib.Path:
    (journal,) = (root / ".pawl" / "mirrors").iterdir()
    return journal


# --------------------------------------------------------------- made in the mirror


def test_P6_a_pin_made_in_the_mirror_stays_when_the_run_scores(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with train(root, mirror) as m:
        save(m, 1)
        ask("pin", f"{mirror}@1")
        m.score(1, {"late": 0.5})
        arrive(m)
        save(m, 2, 3)
    assert kept(mirror) == [1, 3]
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert [info.pinned for info in there.checkpoints()] == [True, False]
        assert there.metrics(1) == {"loss": 1.0, "late": 0.5}


def lose(journal: pathlib.Path) -> None:
    shutil.rmtree(journal.parent)


def make_old(journal: pathlib.Path) -> None:
    """As it was written before it recorded marks."""
    rows: dict[str, Any] = json.loads(journal.read_text())
    rows.pop("marks", None)
    journal.write_text(json.dumps(rows))


@pytest.mark.parametrize("change", [None, make_old, lose])
def test_P6_a_pin_made_in_the_mirror_stays_when_the_run_is_opened_again(
    root: pathlib.Path, mirror: pathlib.Path, change: Any
) -> None:
    with train(root, mirror) as m:
        save(m, 1)
        m.score(1, {"late": 0.5})
    ask("pin", f"{mirror}@1")
    if change:
        change(journal_of(root))
    with train(root, mirror) as m:
        arrive(m)
        save(m, 2)
    assert kept(mirror) == [1, 2]


@pytest.mark.parametrize("first", ["run", "mirror"])
def test_P6_a_pin_made_in_the_mirror_stays_when_the_run_ends_its_own(
    root: pathlib.Path, mirror: pathlib.Path, first: str
) -> None:
    with train(root, mirror) as m:
        save(m, 1)
        if first == "mirror":
            ask("pin", f"{mirror}@1")
        m.pin(1)
        arrive(m)
        ask("pin", f"{mirror}@1")
        m.unpin(1)
        arrive(m)
        save(m, 2)
    assert kept(mirror) == [1, 2]


# ------------------------------------------------------------------ made in the run


def test_a_pin_of_the_run_ends_in_the_mirror_too(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with train(root, mirror) as m:
        save(m, 1)
        m.pin(1)
        arrive(m)
        save(m, 2)
        assert kept(mirror) == [1, 2]
        m.unpin(1)
        arrive(m)
        save(m, 3)
    assert kept(mirror) == [3]


def test_what_the_run_removes_between_two_trainings_ends_in_the_mirror_too(
    root: pathlib.Path, mirror: pathlib.Path
) -> None:
    with train(root, mirror) as m:
        save(m, 1)
        m.pin(1)
        arrive(m)
        save(m, 2)
        m.score(2, {"loss": 9.0})
    assert len(list((mirror / ".pawl" / "marks").iterdir())) == 2
    ask("unpin", f"{root}@1")
    ask("score", f"{root}@2", "loss=2")  # the value that was saved: no mark is left
    with train(root, mirror) as m:
        arrive(m)
        assert list((mirror / ".pawl" / "marks").iterdir()) == []
        save(m, 3)
    assert kept(mirror) == [3]


def test_marks_that_have_not_changed_are_not_put_again(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with train(root, mirror) as m:
        save(m, 1)
        m.pin(1)
        m.score(1, {"loss": 9.0, "late": 0.1, "nan": float("nan")})
    (mark,) = (mirror / ".pawl" / "marks").iterdir()
    before = (mark.stat().st_mtime_ns, mark.stat().st_ino)
    with train(root, mirror) as m:
        arrive(m)
    assert (mark.stat().st_mtime_ns, mark.stat().st_ino) == before


def test_a_journal_with_marks_reads_like_one_of_before(root: pathlib.Path, mirror: pathlib.Path) -> None:
    """A row with a third value is of a checkpoint that was deleted in the mirror."""
    with train(root, mirror) as m:
        save(m, 1)
        m.pin(1)
    rows = json.loads(journal_of(root).read_text())
    assert [len(row) for row in rows["done"]] == [2]
    assert [(row[0], len(row[1])) for row in rows["marks"]] == [(1, 32)]


# -------------------------------------------------------------------------- failures


def test_P6_nothing_is_pruned_while_a_mirror_of_the_run_is_not_known(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with train(root, mirror) as m:
        save(m, 1, 2, 3)
    journal = journal_of(root)
    journal.write_text("{")
    answer = cli.run("prune", root, "--keep-last", "1", "--yes", status=4)
    assert journal.name in answer.stderr and "open the run with its mirrors" in answer.stderr
    assert kept(root) == [1, 2, 3]
    cli.run("ls", root)
    with train(root, mirror) as m:
        save(m, 4)
    cli.run("prune", root, "--keep-last", "1", "--yes")
    assert kept(root) == [4]


def test_marks_that_could_not_be_put_are_no_error_once_they_are(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with train(root, mirror) as m:
        save(m, 1)
        (mirror / ".pawl").write_text("in the way")
        m.pin(1)
        wait_until(lambda: m.mirrors()[0]["n_failed"], "a failed try")
        assert m.mirrors()[0]["error"]
        (mirror / ".pawl").unlink()
        arrive(m)
        assert not m.mirrors()[0]["error"]
        m.check_for_errors()
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert there.checkpoints()[0].pinned


def test_marks_that_could_not_be_put_are_an_error_of_close(root: pathlib.Path, mirror: pathlib.Path) -> None:
    m = train(root, mirror)
    save(m, 1)
    (mirror / ".pawl").write_text("in the way")
    m.pin(1)
    with pytest.raises(pawl.PawlError):
        m.close()
