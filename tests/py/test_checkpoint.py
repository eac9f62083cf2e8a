# SPDX-License-Identifier: Apache-2.0
"""Single checkpoints: pawl.save, pawl.load and pawl.Checkpoint."""

from __future__ import annotations

import os
import pathlib
import re
import time
from typing import Any

import numpy as np
import pytest
import torch
from common import same
from safetensors.torch import load_file

import pawl

MODEL = torch.nn.Linear(4, 1)
DATA: dict[str, Any] = {"epoch": 4, "model_weights": MODEL.state_dict()}


def test_save_and_load_one_checkpoint(tmp_path: pathlib.Path) -> None:
    target = tmp_path / "one"
    state = {"w": torch.randn(5), "n": np.arange(3), "deep": [1, (2.5, None)]}
    pawl.save(state, target, metadata={"note": 1})
    assert same(pawl.load(target), state)
    assert same(pawl.load(str(target), paths=["w"]), {"w": state["w"]})
    live = {"w": torch.zeros(5), "n": np.zeros(3, int), "deep": [0, (0, 0)]}
    pawl.load(target, state=live)
    assert same(live, state)
    assert pawl.Checkpoint(target).get_metadata() == {"note": 1}


def test_save_does_not_overwrite_unless_told_to(tmp_path: pathlib.Path) -> None:
    pawl.save({"a": 1}, tmp_path / "one")
    with pytest.raises(FileExistsError):
        pawl.save({"a": 2}, tmp_path / "one")
    assert pawl.load(tmp_path / "one") == {"a": 1}
    pawl.save({"a": 2}, tmp_path / "one", overwrite=True)
    assert pawl.load(tmp_path / "one") == {"a": 2}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["one"]


def test_a_save_that_fails_leaves_nothing(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UnsupportedError):
        pawl.save({"a": ...}, tmp_path / "one")
    assert not (tmp_path / "one").exists()


@pytest.mark.parametrize("make", ["nothing", "empty", "file"])
def test_what_is_no_checkpoint_is_not_loaded(tmp_path: pathlib.Path, make: str) -> None:
    target = tmp_path / "x"
    if make == "empty":
        target.mkdir()
    if make == "file":
        target.write_text("no")
    with pytest.raises(pawl.PawlError) as caught:
        pawl.load(target)
    assert "x" in str(caught.value)


def test_the_tensor_files_open_with_safetensors(tmp_path: pathlib.Path) -> None:
    """No code of ours is needed to read the tensors."""
    state = {"model": {"w": torch.randn(3, 4), "b": torch.randn(4).bfloat16()}, "step": 3}
    pawl.save(state, tmp_path / "one")
    (pack,) = (tmp_path / "one").glob("*.safetensors")
    tensors = load_file(pack)
    assert torch.equal(tensors["model/w"], state["model"]["w"])
    assert torch.equal(tensors["model/b"], state["model"]["b"])


def test_R46_R48_from_dict_to_dict() -> None:
    checkpoint = pawl.Checkpoint.from_dict(DATA)
    data = checkpoint.to_dict()
    assert data["epoch"] == 4
    assert same(data["model_weights"], DATA["model_weights"])
    assert checkpoint.path is None
    assert bool(checkpoint)


def test_R47_to_dict_adds_three_keys() -> None:
    before = int(time.time())
    data = pawl.Checkpoint.from_dict(DATA).to_dict()
    assert set(data) == {"epoch", "model_weights", "_timestamp", "_preprocessor", "_current_checkpoint_id"}
    assert type(data["_timestamp"]) is int
    assert before <= data["_timestamp"] <= time.time()
    assert data["_preprocessor"] is None
    assert data["_current_checkpoint_id"] == 0


def test_R47_E1_the_id_counts_from_0_in_the_run_and_a_stored_one_stays(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for epoch in range(5):
            manager.save(epoch, {"epoch": epoch}, wait=True)
        data = manager.checkpoint().to_dict()
        assert (data["epoch"], data["_current_checkpoint_id"]) == (4, 4)
        assert manager.checkpoint(1).to_dict()["epoch"] == 1
    assert (
        pawl.Checkpoint.from_directory(tmp_path / "run/checkpoints/checkpoint_000003").to_dict()[
            "_current_checkpoint_id"
        ]
        == 2
    )
    stored = pawl.Checkpoint.from_dict({"_current_checkpoint_id": 7, "_timestamp": 5}).to_dict()
    assert (stored["_current_checkpoint_id"], stored["_timestamp"]) == (7, 5)


def test_checkpoints_of_one_place_are_equal(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager, pawl.CheckpointManager("mem:") as memory:
        for opened in (manager, memory):
            for step in (1, 2):
                opened.save(step, {"n": step}, wait=True)
            assert opened[1] == opened[1] and opened[1] != opened[2] and opened[1] != 1
            assert len({opened[1], opened[1], opened[2]}) == 2
        assert manager[1] != memory[1] and manager[1] == pawl.Checkpoint(tmp_path / "run@1")
    one = pawl.Checkpoint.from_dict({"n": 1})
    assert one == one and one != pawl.Checkpoint.from_dict({"n": 1})


def test_R57_the_resume_idiom(tmp_path: pathlib.Path) -> None:
    def start(checkpoint: pawl.Checkpoint | None) -> int:
        return checkpoint.to_dict().get("epoch", -1) + 1 if checkpoint else 0

    assert start(None) == 0
    assert start(pawl.Checkpoint.from_dict({"x": 1})) == 0
    assert start(pawl.Checkpoint.from_dict(DATA)) == 5
    assert list(range(start(pawl.Checkpoint.from_dict({"epoch": 9})), 10)) == []


def test_a_checkpoint_in_memory_is_a_copy() -> None:
    weights = {"w": torch.zeros(3)}
    checkpoint = pawl.Checkpoint.from_dict(weights)
    weights["w"] += 1
    first, second = checkpoint.to_dict(), checkpoint.to_dict()
    assert first["w"].sum() == 0
    first["w"] += 5
    assert second["w"].sum() == 0
    with pytest.raises(ValueError, match="expected a dict"):
        pawl.Checkpoint.from_dict([1])  # type: ignore[arg-type]


def test_to_directory_and_back(tmp_path: pathlib.Path) -> None:
    memory = pawl.Checkpoint.from_dict(DATA, metadata={"a": 1})
    path = memory.to_directory(tmp_path / "one")
    assert path == tmp_path / "one"
    folder = pawl.Checkpoint.from_directory(path)
    assert folder.path == path
    assert same(folder.to_dict()["model_weights"], memory.to_dict()["model_weights"])
    assert folder.get_metadata() == {"a": 1}
    copy = folder.to_directory(tmp_path / "two")
    assert same(pawl.load(copy), pawl.load(path))
    somewhere = pawl.Checkpoint.from_dict({"x": 1}).to_directory()
    assert pawl.load(somewhere) == {"x": 1}


def test_as_directory_copies_only_what_is_in_memory(tmp_path: pathlib.Path) -> None:
    with pawl.Checkpoint.from_dict(DATA).as_directory() as path:
        assert pawl.load(path)["epoch"] == 4
        assert os.path.isdir(path)
    assert not os.path.exists(path)
    pawl.save(DATA, tmp_path / "one")
    with pawl.Checkpoint(tmp_path / "one").as_directory() as path:
        assert path == tmp_path / "one"
    assert os.path.isdir(path)


@pytest.mark.parametrize("content", [b"", b'{"user": [1,', b"[1]", b'{"a": "\xff"}'])
def test_metadata_that_was_cut_is_corrupt(tmp_path: pathlib.Path, content: bytes) -> None:
    pawl.save({"w": torch.ones(3)}, tmp_path / "one")
    checkpoint = pawl.Checkpoint(tmp_path / "one")
    checkpoint.set_metadata({"user": [1, 2]})
    (tmp_path / "one" / ".metadata.json").write_bytes(content)
    with pytest.raises(pawl.CorruptError, match=r"\.metadata\.json: expected"):
        checkpoint.get_metadata()


def test_metadata_lies_beside_the_checkpoint_and_can_be_replaced(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(0, {"w": torch.ones(3)}, metadata={"from": "save"}, wait=True)
        checkpoint = manager.checkpoint(0)
        before = {p.name: p.read_bytes() for p in pathlib.Path(checkpoint.path or "").iterdir()}
        assert checkpoint.get_metadata() == {"from": "save"}
        checkpoint.set_metadata({"user": [1, "two"]})
        assert checkpoint.get_metadata() == {"user": [1, "two"]}
        after = {p.name: p.read_bytes() for p in pathlib.Path(checkpoint.path or "").iterdir()}
        assert {name: after[name] for name in before} == before
        assert manager.metadata(0) == {"from": "save"}
        assert manager.verify() == []
        with pytest.raises(TypeError):
            checkpoint.set_metadata({"bad": {1}})
        assert checkpoint.get_metadata() == {"user": [1, "two"]}
        manager.save(1, {}, wait=True)
        manager.delete(0)
        assert not os.path.exists(checkpoint.path or "")
    memory = pawl.Checkpoint.from_dict({"a": 1}, metadata={"m": 1})
    assert memory.get_metadata() == {"m": 1}
    memory.set_metadata({"n": 2})
    assert memory.get_metadata() == {"n": 2}
    assert pawl.Checkpoint(memory.to_directory(tmp_path / "m")).get_metadata() == {"n": 2}
    assert pawl.Checkpoint.from_dict({}).get_metadata() == {}


def test_to_dict_needs_a_dict(tmp_path: pathlib.Path) -> None:
    pawl.save([1, 2], tmp_path / "one")
    with pytest.raises(pawl.UsageError, match="list"):
        pawl.Checkpoint(tmp_path / "one").to_dict()
    assert "in memory" in repr(pawl.Checkpoint.from_dict({}))
    assert str(tmp_path) in repr(pawl.Checkpoint(tmp_path))


# ---- to_directory ----


@pytest.mark.parametrize("memory", [True, False], ids=["in memory", "a folder"])
@pytest.mark.parametrize("taken", ["checkpoint", "other files", "file", "link"])
def test_P8_to_directory_never_writes_over_anything(tmp_path: pathlib.Path, memory: bool, taken: str) -> None:
    pawl.save({"x": 1}, tmp_path / "one")
    checkpoint = pawl.Checkpoint.from_dict({"x": 1}) if memory else pawl.Checkpoint(tmp_path / "one")
    target = tmp_path / "target"
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"mine": 1}, wait=True)
        if taken == "checkpoint":
            target = pathlib.Path(manager.checkpoint().path or "")
        elif taken == "other files":
            target.mkdir()
            (target / "thesis.txt").write_text("x")
        elif taken == "file":
            target.write_text("x")
        else:
            target.symlink_to(tmp_path / "nowhere")
        with pytest.raises(pawl.ExistsError, match=str(target)):
            checkpoint.to_directory(target)
        assert manager.verify() == []
        restored = manager.restore()
        assert restored is not None
        assert restored.state == {"mine": 1}
    assert taken != "other files" or os.listdir(target) == ["thesis.txt"]


@pytest.mark.parametrize("memory", [True, False], ids=["in memory", "a folder"])
def test_to_directory_goes_into_an_empty_folder(tmp_path: pathlib.Path, memory: bool) -> None:
    pawl.save({"x": 1}, tmp_path / "one")
    checkpoint = pawl.Checkpoint.from_dict({"x": 1}) if memory else pawl.Checkpoint(tmp_path / "one")
    (tmp_path / "empty").mkdir()
    assert pawl.load(checkpoint.to_directory(tmp_path / "empty")) == {"x": 1}


@pytest.mark.parametrize("what", ["tensor", "manifest", "lost file"])
def test_R137_a_damaged_checkpoint_is_not_copied(tmp_path: pathlib.Path, what: str) -> None:
    pawl.save({"w": torch.ones(1000)}, tmp_path / "one")
    (pack,) = (tmp_path / "one").glob("*.safetensors")
    if what == "lost file":
        pack.unlink()
    elif what == "manifest":
        (tmp_path / "one/manifest.json").write_text("{}")
    else:
        data = bytearray(pack.read_bytes())
        data[-5] ^= 1
        pack.write_bytes(data)
    with pytest.raises(pawl.CorruptError, match=str(tmp_path / "one")) as caught:
        pawl.Checkpoint(tmp_path / "one").to_directory(tmp_path / "two")
    assert what != "tensor" or "tensor w" in str(caught.value)
    assert os.listdir(tmp_path) == ["one"]


def test_P1_a_copy_and_its_notes_are_synced_before_they_are_named(tmp_path: pathlib.Path) -> None:
    pawl.save({"w": torch.ones(1000)}, tmp_path / "one")
    done: list[str] = []
    real = {name: getattr(os, name) for name in ("fsync", "rename", "replace")}

    def watched(name: str) -> Any:
        def call(*arguments: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{arguments[0]}") if name == "fsync" else arguments[1]
            done.append(f"{name} {re.sub('[.][0-9a-f]{32}[.]', '.TOKEN.', os.path.basename(path))}")
            return real[name](*arguments)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in real:
            patch.setattr(os, name, watched(name))
        checkpoint = pawl.Checkpoint(pawl.Checkpoint(tmp_path / "one").to_directory(tmp_path / "two"))
        copied, done[:] = list(done), []
        checkpoint.set_metadata({"a": 1})
    assert copied.index("rename two") == len(copied) - 2
    assert {*copied[:-2]} == {
        "fsync manifest.json",
        "fsync rank00000-00000.safetensors",
        "fsync .two.TOKEN.partial",
    }
    assert copied[-1] == f"fsync {tmp_path.name}"
    assert done == ["fsync .metadata.json.TOKEN.tmp", "replace .metadata.json", "fsync two"]


@pytest.mark.parametrize("name", ["x" * 255, "ß" * 127])
def test_a_copy_may_have_the_longest_name_of_a_file_system(tmp_path: pathlib.Path, name: str) -> None:
    pawl.save({"w": torch.ones(2)}, tmp_path / "one")
    pawl.Checkpoint(tmp_path / "one").to_directory(tmp_path / name)
    assert sorted(os.listdir(tmp_path)) == sorted(["one", name])


def test_metadata_comes_back_as_it_was_saved(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for step, notes in enumerate([[1, "two"], "text", 3, (1, 2), {"a": 1}, None]):
            manager.save(step, {}, metadata=notes, wait=True)
            assert same(manager.checkpoint(step).get_metadata(), {} if notes is None else notes)


def test_what_is_not_there_is_not_found(tmp_path: pathlib.Path) -> None:
    nothing = pawl.Checkpoint(tmp_path / "nope")
    calls: list[Any] = [
        nothing.get_metadata,
        nothing.to_dict,
        lambda: nothing.set_metadata({}),
        lambda: nothing.to_directory(tmp_path / "x"),
    ]
    for call in calls:
        with pytest.raises(pawl.NotFoundError, match="nope: no such file or folder"):
            call()
    assert os.listdir(tmp_path) == []


def test_a_run_is_no_checkpoint_and_the_message_names_one(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        manager.save(1, {"a": 1}, wait=True)
    with pytest.raises(pawl.NotFoundError, match=f"run is a run; name a checkpoint, such as {tmp_path}/run@latest"):
        pawl.load(tmp_path / "run")
    assert pawl.load(tmp_path / "run/latest") == {"a": 1}
