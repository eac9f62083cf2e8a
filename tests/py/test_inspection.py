# SPDX-License-Identifier: Apache-2.0
"""What the command does with checkpoints, from Python: typed answers, progress, little memory."""

from __future__ import annotations

import errno
import os
import pathlib
from typing import Any

import numpy as np
import pytest
import torch

import pawl
from cli import PACK, flip
from pawl import inspection
from pawl.inspection import TensorInfo


def state(step: int) -> dict[str, object]:
    weight = torch.arange(24, dtype=torch.float32).reshape(4, 6) * step
    return {
        "model": {"layers": [weight, torch.ones(3, dtype=torch.bfloat16)]},
        "table": np.arange(5, dtype=np.int16),
        "step": step,
        "a/b": {7: torch.zeros(2)},
    }


@pytest.fixture(name="run")
def saved_run(tmp_path: pathlib.Path) -> pathlib.Path:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for step in (1, 2, 3):
            manager.save(step, state(step)).wait()
    return tmp_path / "run"


def at(run: pathlib.Path, selector: object) -> str:
    return f"{run}@{selector}"


def unlistable(monkeypatch: pytest.MonkeyPatch, folder: pathlib.Path) -> None:
    """Makes a folder one that cannot be listed, for root as well."""
    real = os.scandir

    def scan(path: Any) -> Any:
        if os.fspath(path) == str(folder):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", scan)


def test_tree_shows_names_dtypes_and_shapes_without_reading(run: pathlib.Path) -> None:
    for pack in run.rglob("*.safetensors"):
        pack.write_bytes(b"")  # what is not read cannot be missed
    tree = pawl.tree(at(run, 2))
    first = tree["model"]["layers"][0]
    assert isinstance(first, TensorInfo) and (first.dtype, first.shape, first.kind) == ("F32", (4, 6), "torch")
    assert tree["table"].kind == "numpy" and tree["step"] == 2


def test_read_gives_one_tensor_or_a_part_of_it(run: pathlib.Path) -> None:
    whole = state(3)["model"]["layers"][0]  # type: ignore[index]
    assert torch.equal(pawl.read(at(run, 3), "model/layers/0"), whole)
    for index in [(slice(1, 3),), (slice(None), slice(2, 5)), (2,), (-1, slice(0, 2)), (0, 0), slice(1, 1)]:
        assert torch.equal(pawl.read(at(run, 3), "model/layers/0", index), whole[index]), index
    for index in [..., (..., 1), (1, ...), (0, ..., 1), (np.int64(1), slice(2))]:
        assert torch.equal(pawl.read(at(run, 3), "model/layers/0", index), whole[index]), index
    assert pawl.read(at(run, 3), "model/layers/1").dtype == torch.bfloat16
    table = pawl.read(at(run, "latest"), "table", slice(1, 3))
    assert isinstance(table, np.ndarray) and table.dtype == np.int16 and table.tolist() == [1, 2]
    assert torch.equal(pawl.read(at(run, 3), "a%2Fb/7"), torch.zeros(2))


@pytest.mark.parametrize(
    ("path", "index", "kind", "words"),
    [
        ("model/nothing", (), pawl.NotFoundError, "/run@1: 'model/nothing': no 'nothing'; there is: layers"),
        ("table", "0", pawl.UsageError, r"expected numbers, slices or \.\.\., received '0'"),
        ("table", (None,), pawl.UsageError, r"expected numbers, slices or \.\.\., received None"),
        ("step", (), pawl.UsageError, "/run@1: 'step' is not a tensor"),
        ("step/x", (), pawl.NotFoundError, "no 'x'; there is: int"),
        ("table/0", (), pawl.NotFoundError, "no '0'; there is: TensorInfo"),
        ("model/layers/²", (), pawl.NotFoundError, "no '²'; there is: list of 2"),
        ("model/layers/" + "9" * 5000, (), pawl.NotFoundError, "there is: list of 2"),
        ("a%2Fb/--5", (), pawl.NotFoundError, "no '--5'; there is: 7"),
        ("table", (0, 0), pawl.UsageError, "has 1 dimensions, received 2"),
        ("table", 5, pawl.UsageError, "index 5 is outside of a dimension of 5"),
        ("table", slice(0, 4, 2), pawl.UsageError, "a slice has step 1, received 2"),
    ],
)
def test_a_wrong_path_or_index_is_named(
    run: pathlib.Path, path: str, index: object, kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        pawl.read(at(run, 1), path, index)  # type: ignore[arg-type]


def test_tree_of_a_run_or_of_a_folder_of_runs_is_by_step_and_name(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pawl.copy(run, tmp_path / "sweep" / "trial10")
    pawl.copy(run, tmp_path / "sweep" / "trial2")
    calls: list[tuple[int, int]] = []
    trees = pawl.tree(run, progress=lambda done, total: calls.append((done, total)))
    assert list(trees) == [1, 2, 3] and trees[2] == pawl.tree(at(run, 2)) and calls[-1] == (3, 3)
    assert list(pawl.tree(tmp_path / "sweep")) == ["trial2", "trial10"]
    assert pawl.tree(tmp_path / "sweep")["trial10"] == trees
    (tmp_path / "empty").mkdir()
    with pytest.raises(pawl.NotFoundError, match="empty: no run and no checkpoint here"):
        pawl.tree(tmp_path / "empty")


def test_read_reports_the_bytes_that_it_has_read(run: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_READ_BYTES", 48)
    calls: list[tuple[int, int]] = []
    part = pawl.read(at(run, 3), "model/layers/0", slice(1, 4), progress=lambda *counts: calls.append(counts))
    assert torch.equal(part, state(3)["model"]["layers"][0][1:4])  # type: ignore[index]
    assert calls == [(48, 72), (72, 72)]


@pytest.mark.skipif(not hasattr(torch, "float4_e2m1fn_x2"), reason="a torch without float4")
def test_read_in_pieces_gives_the_same_float4_numbers(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inspection, "_READ_BYTES", 16)
    numbers = torch.arange(64, dtype=torch.uint8)
    flat = numbers.view(torch.float4_e2m1fn_x2)
    pawl.save({"flat": flat, "rows": flat.view(8, 8)}, tmp_path / "one")
    for path, index in [("flat", ()), ("flat", slice(8, 120)), ("rows", ()), ("rows", (slice(1, 7), slice(2, 10)))]:
        whole = pawl.read(tmp_path / "one", path, index).view(torch.uint8)
        assert torch.equal(pawl.read(tmp_path / "one", path, index, progress=print).view(torch.uint8), whole), index
    assert torch.equal(pawl.read(tmp_path / "one", "flat", slice(8, 12)).view(torch.uint8), numbers[4:6])
    for index in [slice(0, 1), slice(1, 3), 3]:
        for progress in (None, print):
            with pytest.raises(pawl.UsageError, match="a byte holds two elements of float4"):
                pawl.read(tmp_path / "one", "flat", index, progress=progress)


def test_verify_of_a_folder_that_cannot_be_listed_is_an_error(
    run: pathlib.Path, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unlistable(monkeypatch, run)
    with pytest.raises(pawl.AccessError, match="Permission denied: .*/run"):
        pawl.verify(tmp_path)


def test_diff_tells_what_changed(run: pathlib.Path) -> None:
    assert pawl.diff(at(run, 1), at(run, 1)) == []
    rows = {row.path: row for row in pawl.diff(at(run, 1), at(run, 3))}
    assert set(rows) == {"model/layers/0", "step"}
    assert rows["step"].was == "1" and rows["step"].now == "3" and rows["step"].max_abs is None
    assert rows["model/layers/0"].max_abs == 46.0 and rows["model/layers/0"].change == "changed"


def test_verify_finds_a_flipped_bit_and_reports_progress(run: pathlib.Path) -> None:
    calls: list[tuple[int, int]] = []
    assert pawl.verify(run, progress=lambda done, total: calls.append((done, total))) == []
    assert calls and calls[-1][0] > 0
    flip(run / "checkpoints" / "checkpoint_000002" / PACK, 4100)
    [found] = pawl.verify(run)
    assert found.id == 2 and found.file == PACK and found.begin <= 4100 < found.end and "model" in found.tensor
    assert pawl.verify(at(run, 3)) == [] and len(pawl.verify(at(run, 2))) == 1


def test_verify_of_a_folder_of_runs_names_the_run(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    pawl.copy(run, tmp_path / "other")
    flip(run / "checkpoints" / "checkpoint_000002" / PACK, 4100)
    calls: list[tuple[int, int]] = []
    [found] = pawl.verify(tmp_path, progress=lambda done, total: calls.append((done, total)))
    assert found.root == run.resolve() and found.id == 2
    assert calls == sorted(calls) and calls[-1][0] == calls[-1][1] > 0


def test_an_exception_of_the_progress_callback_ends_the_work(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    def stop(done: int, total: int) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        pawl.verify(run, progress=stop)
    with pytest.raises(ZeroDivisionError):
        pawl.convert(at(run, 2), tmp_path / "m.safetensors", progress=stop)


def test_copy_takes_a_checkpoint_or_a_run(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for was_there in (False, True):
        [row] = pawl.copy(at(run, 2), tmp_path / "one")
        assert (row.id, row.name, row.was_there, row.problem) == (2, "checkpoint_000002", was_there, "")
        assert row.nbytes > 0 and row.sent_bytes == (0 if was_there else row.nbytes)
    assert pawl.load(tmp_path / "one")["step"] == 2
    rows = pawl.copy(run, tmp_path / "all")
    assert sorted((row.id, row.was_there, row.problem) for row in rows) == [
        (1, False, ""),
        (2, False, ""),
        (3, False, ""),
    ]
    assert all(row.was_there for row in pawl.copy(run, tmp_path / "all"))


def test_gc_removes_what_crashes_left(run: pathlib.Path) -> None:
    partial = run / "checkpoints" / f".checkpoint_000099.{'a' * 32}.partial"
    partial.mkdir()
    (partial / PACK).write_bytes(b"x" * 5000)
    assert pawl.gc(run, dry_run=True).count == 1 and partial.exists()
    calls: list[tuple[int, int]] = []
    assert pawl.gc(run, progress=lambda *counts: calls.append(counts)).nbytes >= 5000 and not partial.exists()
    assert calls[-1][0] == calls[-1][1] >= 5000
    assert pawl.gc(run).count == 0


def test_prune_deletes_what_no_rule_keeps_and_counts_it(run: pathlib.Path) -> None:
    for progress in (None, lambda done, total: None):
        rows = pawl.prune(run, num_to_keep=1, dry_run=True, progress=progress)
        assert [row.keep for row in rows] == [False, False, True] and len(pawl.tree(run)) == 3
    calls: list[tuple[int, int]] = []
    rules = pawl.Retention(keep_every=10)
    rows = pawl.prune(run, num_to_keep=1, retention=rules, progress=lambda *counts: calls.append(counts))
    assert list(pawl.tree(run)) == [step for step, row in zip((1, 2, 3), rows, strict=True) if row.keep]
    gone = sum(not row.keep for row in rows)
    assert gone and calls[-1] == (gone, gone) and rows[-1].reason.startswith("latest")


def test_prune_needs_a_rule_and_a_metric_that_exists(run: pathlib.Path) -> None:
    with pytest.raises(pawl.UsageError, match="prune: no rule was given, expected num_to_keep or retention"):
        pawl.prune(run)
    with pytest.raises(pawl.UsageError, match=r"no checkpoint has the metric 'acc' \(expected one of: there are none"):
        pawl.prune(run, num_to_keep=1, score_attribute="acc")
    with pytest.raises(pawl.UsageError, match="num_to_keep must be 1 or more"):
        pawl.prune(run, num_to_keep=0)
    assert len(pawl.tree(run)) == 3


def test_repair_of_a_good_run_reports_its_end_too(run: pathlib.Path) -> None:
    calls: list[tuple[int, int]] = []
    assert pawl.repair(run, progress=lambda *counts: calls.append(counts)) == []
    assert calls == [(0, 0)]


def test_repair_rebuilds_a_lost_manifest(run: pathlib.Path) -> None:
    lost = run / "checkpoints" / "checkpoint_000002" / "manifest.json"
    lost.write_text("{")
    [found] = pawl.repair(run, dry_run=True)
    assert found.name == "checkpoint_000002" and found.problem == "" and lost.read_text() == "{"
    calls: list[tuple[int, int]] = []
    assert [each.problem for each in pawl.repair(run, progress=lambda *counts: calls.append(counts))] == [""]
    assert calls[-1][0] == calls[-1][1] > 0
    assert pawl.load(at(run, 2))["step"] == 2 and pawl.repair(run) == []


def test_doctor_tries_a_place(tmp_path: pathlib.Path) -> None:
    calls: list[tuple[int, int]] = []
    found = {row.about: row for row in pawl.doctor(tmp_path, progress=lambda *counts: calls.append(counts))}
    assert found["writable"].works and found["free space"].works is None and "iB" in found["free space"].found
    assert calls[-1] == (1, 1)
    with pytest.raises(pawl.NotFoundError, match="nowhere: no such file or folder"):
        pawl.doctor(tmp_path / "nowhere")


def test_convert_writes_the_model_alone(run: pathlib.Path, tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "plain") as manager:
        manager.save(1, {"model": {"w": torch.ones(2)}, "other": torch.zeros(3)}).wait()
    assert pawl.export(tmp_path / "plain@1", tmp_path / "m.pt", model=True).n_tensors == 1
    assert list(torch.load(tmp_path / "m.pt", weights_only=True)) == ["w"]
