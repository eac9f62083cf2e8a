# SPDX-License-Identifier: Apache-2.0
"""What a save writes of a state of which only some changes. It is counted where it arrives: in new files of a folder,
and in the bodies of requests to a bucket."""

from __future__ import annotations

import pathlib
import shutil
from collections.abc import Callable, Iterator
from typing import Literal

import pytest
import torch
from s3_fake import Fake, serving

import pawl

MIB = 1 << 20
HEADERS = 16384  # of pack 0, with the tree of the state, and of another one

State = dict[str, torch.Tensor]
Changes = Callable[[str, int], bool]  # does the tensor of that name change before this save?


class Folder:
    """The files of packs that were not there at the last look."""

    def __init__(self, root: pathlib.Path) -> None:
        self.root = str(root)
        self.seen: set[int] = set()

    def arrived(self) -> int:
        files = [path.stat() for path in pathlib.Path(self.root, "checkpoints").glob("checkpoint_*/*.safetensors")]
        new = {file.st_ino: file.st_size for file in files if file.st_ino not in self.seen}
        self.seen = {file.st_ino for file in files}
        return sum(new.values())


class Bucket:
    """The bodies of packs that were sent since the last look."""

    def __init__(self, fake: Fake) -> None:
        self.root = "s3://bucket/run"
        self.fake = fake
        self.n = 0

    def arrived(self) -> int:
        sent = zip(self.fake.requests[self.n :], self.fake.headers[self.n :], strict=True)
        self.n = len(self.fake.requests)
        return sum(int(headers["content-length"]) for line, headers in sent if is_pack(line, headers))


def is_pack(line: str, headers: dict[str, str]) -> bool:
    return line.startswith("PUT") and ".safetensors" in line and "x-amz-copy-source" not in headers


@pytest.fixture(name="place", params=["folder", "bucket"])
def place_of_a_run(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Folder | Bucket]:
    if request.param == "folder":
        yield Folder(tmp_path)
        return
    with serving(monkeypatch) as fake:
        yield Bucket(fake)


def tensors(sizes: dict[str, int]) -> State:
    generator = torch.Generator().manual_seed(3)
    return {name: torch.randn(nbytes // 4, generator=generator) for name, nbytes in sizes.items()}


def backbone() -> tuple[State, Changes]:
    sizes = {f"layer{i:02}": 15 * MIB for i in range(24)} | {f"adapter{i}": MIB // 8 for i in range(2)}
    return tensors(sizes), lambda name, k: name.startswith("adapter")


def small() -> tuple[State, Changes]:
    """Another set from the sixth save on."""
    changing = [{f"t{i:03}" for i in (10, 33, 55, 99)}, {f"t{i:03}" for i in (11, 33, 56, 98)}]
    return tensors({f"t{i:03}": 30720 for i in range(100)}), lambda name, k: name in changing[k >= 6]


def adapters() -> tuple[State, Changes]:
    sizes = {}
    for i in range(24):
        sizes |= {f"{i:02}.weight": MIB, f"{i:02}.norm": 4096, f"{i:02}.a": 65536, f"{i:02}.b": 65536}
    return tensors(sizes), lambda name, k: name.endswith((".a", ".b"))


def averages() -> tuple[State, Changes]:
    """They change at every fourth save; a part of the optimizer never does. At first these share files."""
    sizes = {f"{part}.{i:02}": 100_000 for i in range(16) for part in ("model", "ema", "opt")}
    return tensors(sizes), lambda name, k: k % 4 == 0 if name.startswith("ema") else not name.startswith("opt.0")


@pytest.mark.parametrize(("make", "more"), [(backbone, []), (small, [6]), (adapters, []), (averages, [4])])
def test_R140_from_the_third_save_on_only_what_has_changed_arrives(
    place: Folder | Bucket, make: Callable[[], tuple[State, Changes]], more: list[int]
) -> None:
    """more: saves at which tensors that shared a file begin to differ."""
    state, changes = make()
    with pawl.CheckpointManager(place.root, num_to_keep=2) as manager:
        for k in range(1, 10):
            moved = [name for name in state if changes(name, k)]
            for name in moved:
                state[name].add_(1)
            ticket = manager.save(k, state, wait=True)
            arrived, changed = place.arrived(), sum(state[name].nbytes for name in moved)
            assert ticket is not None
            assert arrived == ticket.stats["written_bytes"]
            if k >= 3 and k not in more:
                assert arrived <= 1.02 * changed + HEADERS, f"save {k}"
        restored = manager.restore()
    assert restored is not None
    assert all(torch.equal(restored.state[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("lazy", [True, False])
@pytest.mark.parametrize("given", ["all", "trained"])
def test_R140_what_an_optimizer_does_not_update_is_written_once(place: Folder | Bucket, given: str, lazy: bool) -> None:
    """A save knows that before anything has changed; also if the optimizer was given the frozen parameters."""
    model = torch.nn.ModuleList(
        torch.nn.ModuleList([torch.nn.Linear(150, 150), torch.nn.Linear(150, 64)]) for _ in range(12)
    )
    average = torch.optim.swa_utils.AveragedModel(model)
    norm = torch.nn.BatchNorm1d(64, affine=False)  # its buffers change at every step
    for layer in model:
        layer[0].requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.Adam(model.parameters() if given == "all" else trained)
    state = {"model": torch.nn.ModuleList([model, norm]), "average": average, "optimizer": optimizer}
    with pawl.CheckpointManager(place.root, num_to_keep=2) as manager:
        for k in range(1, 5):
            for p in trained:
                p.grad = torch.randn_like(p)
            optimizer.step()
            norm(torch.randn(8, 64))
            manager.save(k, state, lazy=lazy, wait=True)
            arrived = place.arrived()
            if k >= 2:  # parameters, and two averages of Adam
                assert arrived <= 1.02 * 3 * sum(p.nbytes for p in trained) + HEADERS, f"save {k}"


def frozen_and(w: float) -> State:
    return {"frozen": torch.arange(MIB, dtype=torch.float32), "w": torch.full((1000,), w)}


def two_checkpoints(root: pathlib.Path) -> pathlib.Path:
    """Of a run without links, as a copy of it is. Returns the newest pack of the frozen tensor."""
    with pawl.CheckpointManager(str(root / "first")) as manager:
        for step in range(2):
            manager.save(step, frozen_and(step))
    shutil.copytree(root / "first", root / "run")
    return max((root / "run/checkpoints/checkpoint_000002").glob("*.safetensors"), key=lambda path: path.stat().st_size)


def test_R140_P1_a_pack_that_a_restore_found_damaged_is_not_linked(tmp_path: pathlib.Path) -> None:
    pack = two_checkpoints(tmp_path)
    with pack.open("r+b") as file:
        file.seek(3 * MIB)
        byte = file.read(1)[0]
        file.seek(3 * MIB)
        file.write(bytes([byte ^ 1]))
    with pawl.CheckpointManager(str(tmp_path / "run"), num_to_keep=2) as manager:
        restored = manager.restore(frozen_and(0))
        assert restored is not None and restored.step == 0
        for step in range(2, 4):
            manager.save(step, frozen_and(step))
        manager.wait_until_finished()
        assert manager.verify() == []
        assert manager.all_steps() == [2, 3]


@pytest.mark.parametrize("mode", ["snapshot", "ring", "direct"])
def test_R140_a_pack_that_cannot_be_linked_is_written(
    tmp_path: pathlib.Path, mode: Literal["snapshot", "ring", "direct"]
) -> None:
    two_checkpoints(tmp_path).unlink()
    with pawl.CheckpointManager(str(tmp_path / "run"), staging=pawl.Staging(mode=mode)) as manager:
        for step in range(2, 4):
            manager.save(step, frozen_and(step))
        manager.wait_until_finished()
        assert manager.all_steps() == [0, 1, 2, 3]
        state = frozen_and(0)
        assert manager.restore(state) is not None
        assert torch.equal(state["frozen"], frozen_and(3)["frozen"]) and torch.equal(state["w"], frozen_and(3)["w"])
