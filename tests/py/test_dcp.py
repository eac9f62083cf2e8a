# SPDX-License-Identifier: Apache-2.0
"""pawl below torch.distributed.checkpoint: real gloo processes (dcp_worker.py), and this process alone."""

from __future__ import annotations

import os
import pathlib
import pickle
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from common import TORCH_DTYPES, random_torch, same
from dcp_worker import TENSORS, VALUES, WIDE, whole
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner, _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict
from waiting import HANG_SECONDS

import pawl
import pawl.torch

WORKER = pathlib.Path(__file__).parent / "dcp_worker.py"

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def job(name: str, world: int, folder: pathlib.Path) -> None:
    path = {"PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    launcher = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    done = subprocess.run(
        [sys.executable, str(WORKER), name, str(world), str(folder)],
        env=launcher | path,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def state() -> dict[str, Any]:
    return {
        "model": {f"dtype {dtype}": random_torch(dtype, (3, 4)) for dtype in TORCH_DTYPES},
        "odd": {
            "scalar": torch.tensor(2.5),
            "nothing": torch.empty(0, 4),
            "view": torch.arange(24.0).view(4, 6).t()[1:3],
        },
        "list": [torch.arange(3.0), {"deep": torch.ones(2)}, 5],
        "values": {
            "int": 7,
            "big": 2**70,
            "float": float("inf"),
            "bool": True,
            "none": None,
            "str": "é",
            "long": "x" * 100_000,
            "bytes": b"\0\xff",
            "tuple": (1, (2.0, "3")),
            "list": [1, [2]],
            "inside": (1, {"a": torch.ones(3)}, np.arange(4)),
            "array": np.arange(6.0).reshape(2, 3),
            "a/b%c": 1,
        },
    }


def emptied(value: Any) -> Any:
    """The same tensors in the same places, without what is in them."""
    if isinstance(value, torch.Tensor):
        return torch.zeros(value.nbytes, dtype=torch.uint8).view(value.dtype).reshape(value.shape)
    if isinstance(value, dict):
        return {key: emptied(inner) for key, inner in value.items()}
    if isinstance(value, list) and any(isinstance(inner, torch.Tensor | dict) for inner in value):
        return [emptied(inner) for inner in value]
    return None


def reasons(error: CheckpointException) -> list[BaseException]:
    return [reason[0] for reason in error.failures.values()]


# ---- this process alone ----


def test_what_dcp_saves_comes_back_through_dcp_and_through_pawl(tmp_path: pathlib.Path) -> None:
    saved = state()
    with pawl.torch.StorageWriter(tmp_path / "run") as writer:
        dcp.save(saved, checkpoint_id=tmp_path / "any" / "step_400", storage_writer=writer)
        assert writer.manager.all_steps() == [400]
    loaded = emptied(saved)
    dcp.load(loaded, storage_reader=pawl.torch.StorageReader(tmp_path / "run"))
    assert same(loaded, saved)
    tree = pawl.load(tmp_path / "run" / "latest")
    assert same(tree["model"], saved["model"]) and same(tree["values"], saved["values"])
    assert same(tree["list"], {0: torch.arange(3.0), 1: {"deep": torch.ones(2)}, 2: 5})


@pytest.mark.parametrize("prefix", ["", "file://", "local://"])  # the last is one of fsspec
def test_a_single_checkpoint_is_read_by_its_path_and_by_its_url(tmp_path: pathlib.Path, prefix: str) -> None:
    pawl.save({"model": {"w": torch.arange(6.0)}}, tmp_path / "one")
    loaded = {"model": {"w": torch.zeros(6)}}
    dcp.load(loaded, storage_reader=pawl.torch.StorageReader(f"{prefix}{tmp_path / 'one'}"))
    assert torch.equal(loaded["model"]["w"], torch.arange(6.0))


def test_a_checkpoint_without_an_id_is_read_by_the_folder_that_dcp_records_for_it(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run_42"

    def read(name: Any, which: str | int = "latest", at: Any = root) -> int:
        found = {"n": torch.tensor(-1)}
        dcp.load(found, checkpoint_id=name, storage_reader=pawl.torch.StorageReader(at, which=which))
        return int(found["n"])

    with pawl.torch.StorageWriter(root) as writer:
        for number in range(2):
            metadata = dcp.save({"n": torch.tensor(number)}, storage_writer=writer)
        assert metadata.storage_meta is not None
        recorded = metadata.storage_meta.checkpoint_id
        assert recorded == str(root)
        assert [read(name) for name in (recorded, root, f"{root}/", None)] == [1] * 4
        assert (read(recorded, 0), read(recorded, "latest")) == (0, 1)
        dcp.save({"n": torch.tensor(2)}, checkpoint_id=root, storage_writer=writer)
        assert writer.manager.all_steps() == [0, 1, 2]  # the folder's number is not a step
        dcp.save({"n": torch.tensor(3)}, checkpoint_id="step_3", storage_writer=writer)
        assert (read(root), read("step_3"), read(None)) == (2, 3, 3)
        dcp.save({"n": torch.tensor(4)}, storage_writer=writer)
        assert (read(root), read(os.path.relpath(root))) == (4, 4)
    with pytest.raises(CheckpointException, match="no checkpoint that was saved with checkpoint_id"):
        read(tmp_path / "run_43")


def test_no_byte_of_a_pickle_is_written(tmp_path: pathlib.Path) -> None:
    marker = "a value that pickle would write"
    dcp.save(
        {"t": torch.ones(3), "v": marker, "w": (1, [2])}, storage_writer=pawl.torch.StorageWriter(tmp_path / "run")
    )
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert {path.suffix for path in files} <= {".json", ".jsonl", ".safetensors", ""}
    for path in files:
        data = path.read_bytes()
        assert pickle.dumps(marker)[:4] not in data and b"PK\x03\x04" not in data


def test_the_run_keeps_what_its_options_say_and_is_read_by_name_step_and_score(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    with pawl.torch.StorageWriter(root, num_to_keep=2, score_attribute="accuracy") as writer:
        for number, accuracy in enumerate([0.5, 0.9, 0.7, 0.6]):
            writer.next_save(metrics={"accuracy": accuracy}, metadata={"note": number})
            dcp.save({"n": torch.tensor(number)}, checkpoint_id=f"{tmp_path}/x/{number}-end", storage_writer=writer)
        assert writer.manager.all_steps() == [1, 2, 3]
        assert writer.manager.metadata(3)["note"] == 3
        writer.next_save(step=70, metrics={"accuracy": 0.1})
        dcp.save({"n": torch.tensor(70)}, storage_writer=writer)
        writer.next_save(metrics={"accuracy": 0.2})
        dcp.save({"n": torch.tensor(71)}, storage_writer=writer)
        assert writer.manager.latest_step() == 71

    def read(which: str | int = "latest", name: Any = None) -> int:
        found = {"n": torch.tensor(-1)}
        dcp.load(found, checkpoint_id=name, storage_reader=pawl.torch.StorageReader(root, which=which))
        return int(found["n"])

    assert (read(), read("best"), read(2)) == (71, 1, 2)
    assert (read(name=f"{tmp_path}/x//2-end"), read(name=2), read(name="checkpoint_000002")) == (2, 2, 1)
    assert read(name="2") == 2  # the step, not the id
    with pytest.raises(CheckpointException, match="no checkpoint that was saved with checkpoint_id 'other'"):
        read(name="other")


def test_metadata_tells_sizes_pieces_and_paths(tmp_path: pathlib.Path) -> None:
    with pawl.torch.StorageWriter(tmp_path / "run") as writer:
        dcp.save({"a": {"w": torch.ones(4, 3).bfloat16()}, "l": [torch.ones(1), 2]}, storage_writer=writer)
    metadata = pawl.torch.StorageReader(tmp_path / "run").read_metadata()
    weight = metadata.state_dict_metadata["a.w"]
    assert isinstance(weight, TensorStorageMetadata)
    assert (weight.size, weight.properties.dtype) == (torch.Size([4, 3]), torch.bfloat16)
    assert [(chunk.offsets, chunk.sizes) for chunk in weight.chunks] == [(torch.Size([0, 0]), torch.Size([4, 3]))]
    assert isinstance(metadata.state_dict_metadata["l.1"], BytesStorageMetadata)
    assert metadata.planner_data == {"a.w": ("a", "w"), "l.0": ("l", 0), "l.1": ("l", 1)}
    tree: dict[str, Any] = {}
    reader = pawl.torch.StorageReader(tmp_path / "run")
    _load_state_dict(tree, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    assert same(tree, {"a": {"w": torch.ones(4, 3).bfloat16()}, "l": [torch.ones(1), 2]})


def test_what_pawl_saved_by_itself_is_loaded_through_dcp(tmp_path: pathlib.Path) -> None:
    model = torch.nn.Linear(5, 3)
    optimizer = torch.optim.Adam(model.parameters())
    model(torch.ones(1, 5)).sum().backward()
    optimizer.step()
    pawl.save({"model": model, "optimizer": optimizer, "list": [{"a": 1}, 2]}, tmp_path / "one")
    wanted = optimizer.state_dict()
    loaded = {
        "model": {name: torch.zeros_like(t) for name, t in model.state_dict().items()},
        "optimizer": {"state": {k: emptied(v) for k, v in wanted["state"].items()}, "param_groups": [{"lr": 0.0}]},
        "list": [{"a": 0}, 0],
    }
    dcp.load(loaded, storage_reader=pawl.torch.StorageReader(tmp_path / "one"))
    assert all(torch.equal(t, model.state_dict()[name]) for name, t in loaded["model"].items())
    assert same(loaded["optimizer"]["state"], wanted["state"])
    assert loaded["optimizer"]["param_groups"][0]["lr"] == 0.001 and loaded["list"] == [{"a": 1}, 2]


def test_other_dtypes_and_devices_are_converted_as_dcp_does(tmp_path: pathlib.Path) -> None:
    with pawl.torch.StorageWriter(tmp_path / "run") as writer:
        dcp.save({"w": torch.arange(6.0)}, storage_writer=writer)
    loaded = {"w": torch.zeros(6, dtype=torch.float64)}
    dcp.load(loaded, storage_reader=pawl.torch.StorageReader(tmp_path / "run"))
    assert torch.equal(loaded["w"], torch.arange(6, dtype=torch.float64))


class Unflattened(DefaultSavePlanner):
    """A planner that does not divide dicts, and changes what it gives."""

    def __init__(self) -> None:
        super().__init__(flatten_state_dict=False)

    def transform_object(self, write_item: Any, object: Any) -> Any:
        return super().transform_object(write_item, object)


def test_a_planner_of_another_class_gives_pickled_values_and_they_are_kept_unpickled(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    saved = {"w": torch.ones(2), "d": {"a": 1, "b": {"c": [2.5]}}}
    with pawl.torch.StorageWriter(root) as writer:
        dcp.save(saved, storage_writer=writer, planner=Unflattened())
        for odd in (slice(3), {"x": object()}):
            with pytest.raises(CheckpointException) as caught:
                dcp.save({"odd": odd}, storage_writer=writer, planner=Unflattened())
            (reason,) = reasons(caught.value)
            assert isinstance(reason, pawl.UnsupportedError) and str(reason).startswith("'odd"), reason
    loaded: dict[str, Any] = {"w": torch.zeros(2), "d": None}
    planner = dcp.DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    dcp.load(loaded, storage_reader=pawl.torch.StorageReader(root), planner=planner)
    assert same(loaded, saved)


@pytest.mark.parametrize(
    ("odd", "message"),
    [
        (object(), "'a/odd': a builtins.object cannot be held in a state"),
        (torch.ones(2, 2).to_sparse(), "'a/odd': a torch.Tensor cannot be held in a state: its layout is not dense"),
    ],
)
def test_what_cannot_be_held_is_refused_by_path_and_type(tmp_path: pathlib.Path, odd: Any, message: str) -> None:
    with pawl.torch.StorageWriter(tmp_path / "run") as writer:
        with pytest.raises(CheckpointException) as caught:
            dcp.save({"a": {"w": torch.ones(2), "odd": odd}}, storage_writer=writer)
        (reason,) = reasons(caught.value)
        assert isinstance(reason, pawl.UnsupportedError) and str(reason).startswith(message), reason
        assert writer.manager.all_steps() == []


def test_a_damaged_pack_is_refused(tmp_path: pathlib.Path) -> None:
    with pawl.torch.StorageWriter(tmp_path / "run") as writer:
        dcp.save({"w": torch.arange(1000.0)}, storage_writer=writer)
    (pack,) = (tmp_path / "run" / "latest").resolve().glob("*.safetensors")
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    with pytest.raises(CheckpointException) as caught:
        dcp.load({"w": torch.zeros(1000)}, storage_reader=pawl.torch.StorageReader(tmp_path / "run"))
    (reason,) = reasons(caught.value)
    assert isinstance(reason, pawl.CorruptError) and pack.name in str(reason)


def test_a_load_is_one_read_into_the_memory_of_the_tensors(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = {"rows": torch.arange(24.0).reshape(4, 6), "every": torch.arange(10), "turned": torch.rand(5, 3)}
    with pawl.torch.StorageWriter(tmp_path / "run") as writer:
        dcp.save(saved, storage_writer=writer)
    rows, every, turned = torch.zeros(10, 6), torch.zeros(20, dtype=torch.int64), torch.zeros(3, 5)
    live = {"rows": rows[3:7], "every": every[::2], "turned": turned.t()}
    reads: list[int] = []
    read = pawl.torch._read

    def counted(run: Any, selector: str, boxes: Any, aside: Any, planner: Any) -> None:
        reads.append(len(boxes))
        assert not aside  # nothing goes through other memory
        read(run, selector, boxes, aside, planner)

    monkeypatch.setattr(pawl.torch, "_read", counted)
    dcp.load(live, storage_reader=pawl.torch.StorageReader(tmp_path / "run"))
    assert reads == [3]
    assert torch.equal(rows[3:7], saved["rows"]) and not rows[:3].any() and not rows[7:].any()
    assert torch.equal(every[::2], saved["every"]) and not every[1::2].any()
    assert torch.equal(turned.t(), saved["turned"])


def test_an_exported_folder_is_read_by_dcp_itself(tmp_path: pathlib.Path) -> None:
    saved = state()
    with pawl.torch.StorageWriter(tmp_path / "run") as writer:
        dcp.save(saved, storage_writer=writer)
        pawl.torch.export_dcp(writer.manager, tmp_path / "dcp")
    loaded = emptied(saved)
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp")
    assert same(loaded, saved)
    with pytest.raises(pawl.ExistsError, match="is not empty"):
        pawl.torch.export_dcp(tmp_path / "run", tmp_path / "dcp")


def test_a_writer_goes_to_another_process_only_before_its_first_save(tmp_path: pathlib.Path) -> None:
    writer = pickle.loads(pickle.dumps(pawl.torch.StorageWriter(tmp_path / "run")))
    dcp.save({"w": torch.ones(1)}, storage_writer=writer)
    with pytest.raises(pawl.UsageError, match="cannot be handed to another process"):
        pickle.dumps(writer)
    writer.close()
    with pytest.raises(pawl.UsageError, match="go together"):
        pawl.torch.StorageWriter(tmp_path / "run", ranks=pawl.Ranks(rank=1))


def test_a_save_that_is_refused_by_its_score_is_an_error(tmp_path: pathlib.Path) -> None:
    with pawl.torch.StorageWriter(
        tmp_path / "run", num_to_keep=1, score_attribute="a", retention=pawl.Retention(strict_score=True)
    ) as writer:
        writer.next_save(metrics={"a": 2.0})
        dcp.save({"w": torch.ones(1)}, storage_writer=writer)
        writer.next_save(metrics={"a": 1.0})
        with pytest.raises(CheckpointException) as raised:
            dcp.save({"w": torch.ones(1)}, storage_writer=writer)
        assert "was refused by its score" in str(reasons(raised.value)[0])


# ---- many processes ----


def test_R160_four_ranks_save_and_two_and_three_load(tmp_path: pathlib.Path) -> None:
    job("reshard", 4, tmp_path)
    for ranks in ("four", "2", "3"):
        tree = pawl.load(tmp_path / ranks / "latest")
        assert all(torch.equal(tree["model"][name], tensor) for name, tensor in TENSORS.items())
        assert torch.equal(tree["model"]["tied"], TENSORS["rows"]) and same(tree["values"], VALUES)
        assert torch.equal(tree["plain"]["whole"], whole("whole", (4, 4))) and tree["list"][1] == 5
    pawl.torch.export_dcp(tmp_path / "four", tmp_path / "dcp", which=400)
    loaded = {"model": {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}}
    dcp.load(loaded, checkpoint_id=tmp_path / "dcp")
    assert same(loaded["model"], TENSORS)


def test_what_one_rank_cannot_save_or_read_fails_on_all_of_them_and_other_kinds_of_shards_come_back(
    tmp_path: pathlib.Path,
) -> None:
    job("refuse+kinds", 4, tmp_path)


def test_R147_a_sharded_model_and_its_optimizer_saved_in_the_background_go_on_where_they_were(
    tmp_path: pathlib.Path,
) -> None:
    job("fsdp2", 2, tmp_path)
    tree = pawl.load(tmp_path / "fsdp2" / "latest")
    assert same(tree["model"], torch.load(tmp_path / "saved"))
    assert tree["step"] == 2


@pytest.mark.parametrize(
    ("shape", "pieces"),
    [
        ([4, 2], {"0,0": (2, 2)}),  # a hole
        ([4, 2], {"0,0": (2, 2), "1,0": (2, 2)}),  # over another
        ([4, 2], {"0,0": (2, 2), "4,0": (2, 2)}),  # outside
        ([4, 2], {"0,0": (2, 2), "2": (4,)}),
        ([4, 2], {"0,0": (2, 2), "-2,0": (2, 2)}),
        ([4, 2], {"0,0": (2, 2), "2,0": 7}),
        ("4,2", {"0,0": (2, 2), "2,0": (2, 2)}),
        ([4.0, 2], {"0,0": (2, 2), "2,0": (2, 2)}),
    ],
)
def test_P17_pieces_that_do_not_fill_their_tensor_are_refused(tmp_path: pathlib.Path, shape: Any, pieces: Any) -> None:
    tree = {key: torch.ones(value) if isinstance(value, tuple) else value for key, value in pieces.items()}
    note = {"torch.distributed.checkpoint": {"checkpoint_id": None}}
    with pawl.CheckpointManager(tmp_path / "run", signals=False) as manager:
        manager.save(1, {"w": {None: shape, **tree}, "v": torch.ones(1)}, metadata=note, wait=True)
    loaded = {"w": torch.zeros(4, 2)}
    with pytest.raises((CheckpointException, pawl.CorruptError)):
        dcp.load(loaded, storage_reader=pawl.torch.StorageReader(tmp_path / "run"))


def test_several_shards_of_one_tensor_on_one_rank(tmp_path: pathlib.Path) -> None:
    """They come back through DCP under any other plan, and as one tensor in DCP's own format."""
    job("pieces", 2, tmp_path)
    pawl.torch.export_dcp(tmp_path / "run", tmp_path / "dcp", which=2)
    with pytest.raises(pawl.UnsupportedError, match="w': .*export_dcp"):
        pawl.convert(tmp_path / "run", tmp_path / "w.pt", select="latest")
    plain = {"w": torch.zeros(10, 20), "deep": {"w": torch.zeros(10, 20)}}
    dcp.load(plain, checkpoint_id=tmp_path / "dcp")
    assert torch.equal(plain["w"], WIDE) and torch.equal(plain["deep"]["w"], WIDE)
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.verify() == []
        parts = pawl.load(manager.checkpoints()[2].path)["w"]
    assert parts.pop(None) == [10, 20]
    assert {key: len(value) for key, value in parts.items()} == {"0,0": 2, "2,0": 1, "3,0": 3, "6,0": 3, "9,0": 1}
    assert torch.equal(pawl.load(tmp_path / "run" / "checkpoints" / "checkpoint_000001")["w"], WIDE)


def test_async_save_copies_sharded_tensors_and_keeps_tied_ones(tmp_path: pathlib.Path) -> None:
    job("staged", 1, tmp_path)
