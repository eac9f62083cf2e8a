# SPDX-License-Identifier: Apache-2.0
"""Restoring into the caller's containers, in part, leniently, and from damaged runs."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
from typing import Any

import numpy as np
import pytest
import torch
from attack import digest
from common import same

import cli
import pawl


def pack_of(manager: pawl.CheckpointManager, step: int) -> pathlib.Path:
    folder = pathlib.Path(manager.checkpoint(step).path or "")
    return max(folder.glob("*.safetensors"), key=lambda f: f.stat().st_size)


def flip(path: pathlib.Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.unlink()  # a reused pack has other names
    path.write_bytes(data)


def saved_in_memory(state: Any) -> pawl.CheckpointManager:
    manager = pawl.CheckpointManager("mem:")
    manager.save(0, state, wait=True)
    return manager


def test_tensors_in_place_and_values_replaced_in_the_callers_containers() -> None:
    tensor, array = torch.zeros(3), np.zeros(4, np.float32)
    inner, pair = [tensor, 0], (array, 0)
    live: dict[str, Any] = {"epoch": 0, "deep": {"list": inner, "pair": pair, "best": None}, "name": ""}
    deep = live["deep"]
    state = {
        "epoch": 3,
        "deep": {"list": [torch.ones(3), 5], "pair": (np.arange(4, dtype=np.float32), 7), "best": 0.5},
        "name": "abc",
    }
    with saved_in_memory(state) as manager:
        restored = manager.restore(live)
    assert restored is not None
    assert live["epoch"] == 3
    assert live["name"] == "abc"
    assert live["deep"] is deep
    assert deep["list"] is inner
    assert inner[0] is tensor
    assert inner[1] == 5
    assert deep["best"] == 0.5
    assert deep["pair"][0] is array  # a tuple cannot change: a new one holds the same array
    assert deep["pair"][1] == 7
    assert torch.equal(tensor, torch.ones(3))
    np.testing.assert_array_equal(array, [0, 1, 2, 3])
    assert same(restored.state, state)
    assert restored.state["deep"]["list"][0] is tensor
    assert (restored.step, restored.id, restored.fallbacks, restored.report) == (0, 1, [], [])


def test_plain_data_becomes_what_was_saved_whatever_it_was() -> None:
    history: list[float] = []
    counts = {"old": 1}
    live = {
        "w": torch.zeros(1),
        "history": history,
        "counts": counts,
        "config": {"a": [1]},
        "n": None,
        "np": np.float32(0),
    }
    state = {
        "w": torch.ones(1),
        "history": [1.0, 2.0],
        "counts": {"new": 2, 3: 4},
        "config": {"a": {"b": 1}},
        "n": [1],
        "np": np.float32(2),
    }
    with saved_in_memory(state) as manager:
        manager.restore(live)
    assert history == [1.0, 2.0]
    assert counts == {"new": 2, 3: 4}
    assert live["config"] == {"a": {"b": 1}}
    assert live["n"] == [1]
    assert type(live["np"]) is np.float32
    assert live["np"] == 2


def test_strict_lists_every_difference_at_once_and_changes_nothing() -> None:
    live = {
        "same": torch.zeros(2),
        "shape": torch.zeros(2),
        "dtype": np.zeros(2),
        "here": 1,
        "kind": 5,
        "deep": [torch.zeros(1)],
        "epoch": 0,
    }
    state = {
        "same": torch.ones(2),
        "shape": torch.ones(3),
        "dtype": np.zeros(2, np.float32),
        "there": {"x": torch.ones(1)},
        "kind": torch.ones(1),
        "deep": [torch.ones(1), torch.ones(1)],
        "epoch": 9,
    }
    with saved_in_memory(state) as manager:
        with pytest.raises(pawl.MismatchError) as caught:
            manager.restore(live)
        *rows, way_out = str(caught.value).split(": ", 1)[1].split("; ")
        assert way_out.startswith("cast= converts floats, strict=False leaves")
        assert sorted(rows) == sorted(
            [
                "shape: shape: saved [3], live [2]",
                "dtype: dtype: saved F32, live F64",
                "missing: here",
                "unexpected: there",
                "type: kind: saved a tensor, live an int",
                "unexpected: deep/1",
            ]
        )
        assert live["epoch"] == 0
        assert torch.equal(live["same"], torch.zeros(2))
        restored = manager.restore(live, strict=False)
    assert restored is not None
    assert sorted(restored.report) == sorted(rows)
    assert torch.equal(live["same"], torch.ones(2))
    assert live["epoch"] == 9
    assert torch.equal(live["shape"], torch.zeros(2))
    assert torch.equal(restored.state["shape"], torch.ones(3))
    assert "there" not in live
    assert torch.equal(restored.state["there"]["x"], torch.ones(1))


def test_many_differences_are_all_in_the_report() -> None:
    with saved_in_memory({f"a{i:05}": torch.zeros(1) for i in range(500)}) as manager:
        live = {f"b{i:05}": torch.zeros(1) for i in range(500)}
        with pytest.raises(pawl.MismatchError, match="1000 differences"):
            manager.restore(live)
        restored = manager.restore(live, strict=False)
    assert restored is not None
    expected = [f"unexpected: a{i:05}" for i in range(500)] + [f"missing: b{i:05}" for i in range(500)]
    assert restored.report == expected


def test_frameworks_may_change_between_save_and_restore() -> None:
    with saved_in_memory(
        {"t": torch.arange(3.0), "n": np.arange(3, dtype=np.int16), "b": torch.ones(2, dtype=torch.bfloat16)}
    ) as manager:
        live = {
            "t": np.zeros(3, np.float32),
            "n": torch.zeros(3, dtype=torch.int16),
            "b": torch.zeros(2, dtype=torch.bfloat16),
        }
        manager.restore(live)
    np.testing.assert_array_equal(live["t"], [0, 1, 2])
    assert live["n"].tolist() == [0, 1, 2]


def test_arrays_that_cannot_be_written_are_replaced() -> None:
    locked, expanded = np.zeros(3), torch.zeros(1).expand(3)
    locked.flags.writeable = False
    live = {"locked": locked, "expanded": expanded, "scalar": np.float64(0)}
    with saved_in_memory({"locked": np.ones(3), "expanded": torch.ones(3), "scalar": np.float64(1)}) as manager:
        manager.restore(live)
    assert live["locked"].tolist() == [1, 1, 1]
    assert locked.tolist() == [0, 0, 0]
    assert torch.equal(live["expanded"], torch.ones(3))
    assert live["scalar"] == 1


STATE = {
    "model": {
        "layer1": {"weight": torch.arange(4.0), "bias": torch.arange(2.0)},
        "layer2": {"weight": torch.arange(3.0)},
    },
    "epoch": 5,
    "long": "x" * 10_000,
    "list": [1, torch.ones(1), "x" * 9000],
}


def test_partial_restore_by_globs_gives_only_what_matches() -> None:
    with saved_in_memory(STATE) as manager:
        restored = manager.restore(paths=["model/layer1/*", "epoch"])
        assert restored is not None
        assert same(restored.state, {"model": {"layer1": STATE["model"]["layer1"]}, "epoch": 5})
        restored = manager.restore(paths="*weight")
        assert restored is not None
        assert sorted(restored.state["model"]) == ["layer1", "layer2"]
        assert list(restored.state["model"]["layer1"]) == ["weight"]
        assert manager.restore(paths=["long"]).state == {"long": "x" * 10_000}  # type: ignore[union-attr]
        assert manager.restore(paths=["list/2"]).state == {"list": [None, None, "x" * 9000]}  # type: ignore[union-attr]
        with pytest.raises(pawl.MismatchError, match="no saved path matches 'nope/\\*'"):
            manager.restore(paths=["epoch", "nope/*"])


def test_partial_restore_leaves_everything_else_as_it_is() -> None:
    live: dict[str, Any] = {
        "model": {"layer1": {"weight": torch.zeros(4), "bias": torch.zeros(2)}, "layer2": {"weight": torch.zeros(3)}},
        "epoch": 0,
        "long": "mine",
        "list": [0, torch.zeros(1), ""],
        "extra": torch.zeros(2),
    }
    with saved_in_memory(STATE) as manager:
        manager.restore(live, paths=["model/layer1/weight", "list/0"])
    assert torch.equal(live["model"]["layer1"]["weight"], torch.arange(4.0))
    assert live["model"]["layer1"]["bias"].sum() == 0
    assert live["model"]["layer2"]["weight"].sum() == 0
    assert (live["epoch"], live["long"]) == (0, "mine")
    assert live["list"][0] == 1
    assert live["list"][1].sum() == 0


def test_partial_restore_of_plain_data_adds_and_drops_nothing_else() -> None:
    live = {"counts": {"mine": 1}, "w": torch.zeros(1)}
    with saved_in_memory({"counts": {"new": 2, "other": 3}, "w": torch.ones(1)}) as manager:
        manager.restore(live, paths=["counts/new"])
    assert live["counts"] == {"mine": 1, "new": 2}
    assert live["w"] == 0


def test_partial_restore_with_objects_loads_only_what_was_asked_for() -> None:
    model, other = torch.nn.Linear(2, 2), torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with saved_in_memory({"model": model, "optimizer": optimizer}) as manager:
        fresh = torch.optim.SGD(other.parameters(), lr=0.7)
        bias = other.bias.clone()
        manager.restore({"model": other, "optimizer": fresh}, paths=["model/weight"])
        assert torch.equal(other.weight, model.weight)
        assert torch.equal(other.bias, bias)
        assert fresh.param_groups[0]["lr"] == 0.7
        manager.restore({"model": other, "optimizer": fresh}, paths=["optimizer/*"])
        assert fresh.param_groups[0]["lr"] == 0.1
        assert torch.equal(other.bias, bias)


def test_shards_are_cut_anew() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    parts = [torch.zeros(2, 6), torch.zeros(4, 3), torch.zeros(3, 2)]
    with saved_in_memory({"w": whole}) as manager:
        for part, offsets in zip(parts, [(2, 0), (0, 3), (1, 4)], strict=True):
            manager.restore({"w": pawl.Shard(part, (4, 6), offsets)})
            assert torch.equal(part, whole[offsets[0] :, offsets[1] :][: part.shape[0], : part.shape[1]])
        with pytest.raises(pawl.MismatchError, match="shape: w: saved \\[4, 6\\], live \\[4, 7\\]"):
            manager.restore({"w": pawl.Shard(torch.zeros(4, 3), (4, 7), (0, 0))})


def test_by_step_id_and_best(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run", score_attribute="loss", score_order="min") as manager:
        for step, loss in [(10, 0.5), (20, 0.1), (30, 0.3)]:
            manager.save(step, {"step": step}, metrics={"loss": loss}, metadata={"n": step})
        manager.wait_until_finished()
        best = manager.restore(which="best")
        latest = manager.restore()
        third = manager.restore(step=10)
        second = manager.restore(id=2)
        assert best is not None and latest is not None and third is not None and second is not None
        assert [r.state["step"] for r in (best, latest, third, second)] == [20, 30, 10, 20]
        assert best.metrics == {"loss": 0.1}
        assert best.metadata == {"n": 20}
        assert best.path == tmp_path / "run/checkpoints/checkpoint_000002"
        for wrong in ({"step": 11}, {"id": 9}):
            with pytest.raises(pawl.NotFoundError):
                manager.restore(**wrong)  # type: ignore[arg-type]
        with pytest.raises(pawl.UsageError, match="not both"):
            manager.restore(step=1, id=1)
        with pytest.raises(pawl.UsageError, match='"latest", "best" or "good"'):
            manager.restore(which="newest")  # type: ignore[arg-type]


def test_a_fresh_run_gives_None_and_a_run_without_scores_no_silent_None(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run", score_attribute="a") as manager:
        assert manager.restore({"w": torch.zeros(1)}) is None
        assert manager.restore(which="best") is None
        assert manager.latest_step() is None
        assert manager.best_step() is None
        assert manager.all_steps() == []
        manager.save(0, {"w": torch.ones(1)}, metrics={"a": float("nan")}, wait=True)
        with pytest.raises(pawl.NotFoundError, match="best"):
            manager.restore(which="best")


def test_R137_a_damaged_checkpoint_falls_back_with_the_reason(tmp_path: pathlib.Path) -> None:
    """R136: the flipped bit is found; R137: the older one is taken, and that is reported in value and journal."""
    live = {"w": torch.zeros(100_000), "s": 0}
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for step in range(3):
            manager.save(step, {"w": torch.full((100_000,), float(step)), "s": step}, wait=True)
        flip(pack_of(manager, 2), 300_000)
        restored = manager.restore(live)
        assert restored is not None
        assert (restored.step, live["s"]) == (1, 1)
        assert torch.equal(live["w"], torch.full((100_000,), 1.0))
        assert len(restored.fallbacks) == 1
        assert restored.fallbacks[0].startswith("checkpoint_000003: ")
        with pytest.raises(pawl.CorruptError, match="checkpoint_000003") as caught:
            manager.restore(live, step=2)
        assert caught.value.code_name == "corrupt"
        assert any("may be overwritten in part" in note for note in caught.value.__notes__)
        findings = manager.verify()
        assert [(f.id, f.tensor) for f in findings] == [(3, "w")]
        assert findings[0].begin <= 300_000 < findings[0].end
        assert manager.verify(1) == []
    events = [json.loads(line) for line in (tmp_path / "run/events.jsonl").read_text().splitlines()]
    assert any("checkpoint_000003" in json.dumps(e) for e in events if e.get("event", e.get("what")) == "fallback")


def test_R137_strict_latest_and_all_damaged_are_errors_never_a_fresh_start(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for step in range(2):
            manager.save(step, {"w": torch.full((100_000,), float(step))}, wait=True)
        flip(pack_of(manager, 1), 300_000)
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        with pytest.raises(pawl.CorruptError):
            manager.restore({"w": torch.zeros(100_000)}, fallback=False)
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        flip(pack_of(manager, 0), 300_000)
        with pytest.raises(pawl.CorruptError):
            manager.restore({"w": torch.zeros(100_000)})
        for folder in (tmp_path / "run/checkpoints").iterdir():
            flip(folder / "manifest.json", 30)
    with pawl.CheckpointManager(tmp_path / "run") as manager, pytest.raises(pawl.CorruptError):
        manager.restore()


def write_in_newer_format(run: pathlib.Path, number: int) -> None:
    """Gives a checkpoint the version of a later release. Its checksum is right."""
    file = run / f"checkpoints/checkpoint_{number:06}/manifest.json"
    text, mark, _ = file.read_bytes().rpartition(b'\n"digest":"')
    text = re.sub(rb'(?<="pawl_manifest":)\d+', b"99", text, count=1)
    file.chmod(0o644)
    file.write_bytes(text + mark + digest(text).encode() + b'"}\n')


def test_R137_a_checkpoint_in_a_newer_format_is_not_damage(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    with pawl.CheckpointManager(run, score_attribute="acc") as manager:
        for step in (1, 2):
            manager.save(step, {"x": np.full(3, step)}, metrics={"acc": 3 - step}, wait=True)
    write_in_newer_format(run, 2)
    with pawl.CheckpointManager(run) as manager:
        for wanted in ({}, {"which": "best"}, {"step": 2}):
            with pytest.raises(
                pawl.VersionError, match="checkpoint_000002 cannot be read.*: written in format version 99"
            ):
                manager.restore(**wanted)
        restored = manager.restore(step=1)
        assert restored is not None
        assert restored.fallbacks == []
    with pytest.raises(pawl.VersionError, match="format version 99"):
        pawl.load(f"{run}@latest")
    with pytest.raises(pawl.VersionError, match="format version 99"):
        pawl.wait_for_new(run, after=1, timeout=0)
    done = cli.run("restore", run, tmp_path / "copy", status=1)
    assert "checkpoint_000002 cannot be read" in done.stderr


def test_R137_a_checkpoint_in_a_newer_format_in_a_mirror_is_not_skipped(tmp_path: pathlib.Path) -> None:
    run, mirror = tmp_path / "run", tmp_path / "mirror"
    with pawl.CheckpointManager(run, mirrors=mirror) as manager:
        for step in (1, 2):
            manager.save(step, {"x": np.full(3, step)}, wait=True)
    write_in_newer_format(mirror, 2)
    shutil.rmtree(run / "checkpoints/checkpoint_000002")
    with pytest.raises(pawl.VersionError, match="mirror .*: checkpoint_000002 cannot be read: written in"):
        pawl.CheckpointManager(run, mirrors=mirror)


def test_a_named_checkpoint_in_a_newer_format_is_a_version_error(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    with pawl.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, {"x": np.full(3, step)}, wait=True)
    write_in_newer_format(run, 2)
    says = "checkpoint_000002 cannot be read: written in format version 99"
    for place in (f"{run}@id:2", f"{run}@checkpoint_000002"):
        with pytest.raises(pawl.VersionError, match=says):
            pawl.load(place)
        assert says in cli.run("show", place, status=1).stderr


def test_R137_a_checkpoint_in_a_newer_format_is_not_verified_copied_or_listed_as_damaged(
    tmp_path: pathlib.Path,
) -> None:
    run, newest = tmp_path / "run", tmp_path / "run/checkpoints/checkpoint_000002"
    with pawl.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, {"x": np.full(3, step)}, wait=True)
    write_in_newer_format(run, 2)
    done = cli.run("verify", run, status=1)
    assert "not verified" in done.stdout and "corrupt" not in done.stdout
    assert "1 of 2 checkpoints could not be verified" in done.stderr
    done = cli.run("cp", run, tmp_path / "copy", status=1)
    assert "format version 99" in done.stderr and "damaged" not in done.stderr
    done = cli.run("ls", run)
    assert "1 more cannot be read: " in done.stderr and "damaged" not in done.stderr
    for call in (pawl.verify, pawl.load):
        with pytest.raises(pawl.VersionError, match="format version 99"):
            call(newest)
    with pytest.raises(pawl.VersionError, match="format version 99"):
        pawl.verify(run)
    with pytest.raises(pawl.VersionError, match="format version 99"):
        pawl.copy(run, tmp_path / "copy")
    with pytest.raises(pawl.VersionError, match="checkpoint_000002: the synced copy failed verification: .* 99"):
        pawl.Syncer(tmp_path / "back", remote=str(run)).down()


def test_a_repair_passes_over_a_checkpoint_in_a_newer_format(tmp_path: pathlib.Path) -> None:
    run, newest = tmp_path / "run", tmp_path / "run/checkpoints/checkpoint_000002/manifest.json"
    with pawl.CheckpointManager(run) as manager:
        for step in (1, 2):
            manager.save(step, {"x": np.full(3, step)}, wait=True)
    write_in_newer_format(run, 2)
    before = newest.read_bytes()
    assert "1 checkpoint cannot be read and may be intact" in cli.run("repair", run).stderr
    assert cli.run_json("repair", run)["checkpoints"] == [] == pawl.repair(run)
    assert newest.read_bytes() == before
    (run / "checkpoints/checkpoint_000001/manifest.json").unlink()
    assert [row["name"] for row in cli.run_json("repair", run, "-n")["checkpoints"]] == ["checkpoint_000001"]
    assert [(row.name, row.problem) for row in pawl.repair(run)] == [("checkpoint_000001", "")]
    assert "format version 99" in cli.run("repair", f"{run}@id:2", status=1).stderr


def test_falling_back_fits_the_older_structure(tmp_path: pathlib.Path) -> None:
    """The older checkpoint is matched again: it may have another shape, and is refused if it does not fit."""
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, {"w": torch.zeros(5)}, wait=True)
        manager.save(1, {"w": torch.ones(100_000)}, wait=True)
        flip(pack_of(manager, 1), 300_000)
        with pytest.raises(pawl.MismatchError, match="checkpoint_000001.*shape: w"):
            manager.restore({"w": torch.zeros(100_000)})
        restored = manager.restore()
        assert restored is not None
        assert restored.state["w"].shape == (5,)


def test_R137_a_checkpoint_that_is_deleted_after_its_tensors_were_read_is_restored(tmp_path: pathlib.Path) -> None:
    """Nothing is read again at the end, also not the metadata: a deletion may have begun meanwhile."""

    class Module:
        folder = tmp_path / "checkpoints" / "checkpoint_000001"

        def state_dict(self) -> dict[str, Any]:
            return {"x": 0}

        def load_state_dict(self, _: Any) -> None:
            self.folder.rename(tmp_path / "checkpoints" / ".going")

    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(7, {"m": {"x": 1}}, metadata={"why": "kept"}, wait=True)
        restored = manager.restore({"m": Module()})
    assert restored is not None
    assert restored.step == 7
    assert restored.metadata == {"why": "kept"}


def test_R137_a_single_checkpoint_in_a_newer_format_is_not_damaged_for_the_command(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"x": np.zeros(3)}, wait=True)
    write_in_newer_format(tmp_path / "run", 1)
    (tmp_path / "run/checkpoints/checkpoint_000001").rename(tmp_path / "single")
    for command in (["show"], ["diff", tmp_path / "single"], ["cp", tmp_path / "copy"]):
        done = cli.run(command[0], tmp_path / "single", *command[1:], status=1)
        assert "format version 99" in done.stderr and "single: single" not in done.stderr
