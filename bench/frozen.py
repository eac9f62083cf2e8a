# SPDX-License-Identifier: Apache-2.0
"""What a save writes of a state of which only some changes: bytes written for each byte that changed."""

from __future__ import annotations

import dataclasses
import pathlib
from collections.abc import Callable

import measure
import peers
import torch

MIB = 1 << 20
IN_BUCKET = "adapters in a state of 10 MB"  # the case that is also saved into a bucket


@dataclasses.dataclass
class Case:
    name: str
    state: dict[str, torch.Tensor]
    changes: Callable[[str, int], bool]  # does the tensor of that name change before this save?
    first: int  # the save from which on it counts
    saves: int
    other: int = 0  # the save at which another set begins to change; it does not count


def filled(sizes: dict[str, int]) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return {name: torch.randn(nbytes // 4, generator=generator) for name, nbytes in sizes.items()}


def cases() -> list[Case]:
    backbone = {f"layer{i:02}": 15 * MIB for i in range(24)} | {f"adapter{i}": MIB // 8 for i in range(2)}
    mixed = {}
    for i in range(60):
        mixed |= {f"{i:02}.weight": 100_000, f"{i:02}.norm": 2_000, f"{i:02}.a": 8_000, f"{i:02}.b": 60_000}
    average = {f"{part}.{i:02}": 2 * MIB for i in range(32) for part in ("model", "ema")}

    def one_half(name: str, k: int) -> bool:
        return name.endswith((".a", ".b")) and (int(name[:2]) % 2 == 0) == (k < 7)

    return [
        Case("24 x 15 MiB frozen, 2 x 128 KiB change", filled(backbone), lambda name, _: "adapter" in name, 2, 12),
        Case(IN_BUCKET, filled(mixed), lambda name, _: name.endswith((".a", ".b")), 3, 12),
        Case("other adapters from the seventh save on", filled(mixed), one_half, 3, 12, 7),
        Case("averages at every tenth save", filled(average), lambda name, k: "model" in name or k % 10 == 0, 3, 31),
    ]


def measure_case(case: Case, root: pathlib.Path | str, add: Callable[[str, dict[str, float]], None]) -> None:
    """root: of the run, a folder or a URL. Bytes written into a bucket are those uploaded, without its own copies."""
    with peers.pawl.CheckpointManager(root, num_to_keep=1) as manager:
        for k in range(1, case.saves + 1):
            changed = 0
            for name, tensor in case.state.items():
                if k == 1 or case.changes(name, k):
                    tensor.add_(1)
                    changed += tensor.nbytes
            ticket = manager.save(k, case.state, wait=True)
            if k >= case.first and k != case.other:
                written = ticket.stats["written_bytes"]
                add(case.name, {"times": written / changed, "blocked": ticket.blocked_seconds})


def run(folder: pathlib.Path, add: Callable[[str, dict[str, float]], None]) -> None:
    for case in cases():
        with measure.scratch(folder, "frozen") as path:
            measure_case(case, path, add)


def run_in_bucket(url: str, add: Callable[[str, dict[str, float]], None]) -> None:
    [case] = [case for case in cases() if case.name == IN_BUCKET]
    measure_case(case, url, add)
