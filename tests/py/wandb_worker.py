# SPDX-License-Identifier: Apache-2.0
"""A training run that logs to the real Weights & Biases, without a network. test_loggers.py starts it, and checks the
file that would be uploaded."""

from __future__ import annotations

import json
import pathlib
import struct
import sys
import time
from collections.abc import Iterator
from typing import Any

import torch
import wandb
from google.protobuf.message import DecodeError
from waiting import HANG_SECONDS
from wandb.proto import wandb_internal_pb2

import pawl

BLOCK = 32 * 1024
COSTS = {"checkpoint/blocked_seconds", "checkpoint/bytes", "checkpoint/durable_seconds"}


def records(data: bytes) -> Iterator[bytes]:
    """Of a file in LevelDB's log form with a head of 7 bytes: blocks of 32 KiB, in them parts with sum, length and type."""
    at, record = 7, b""
    while at + 7 <= len(data):
        if (left := BLOCK - at % BLOCK) < 7:
            at += left
            continue
        length, kind = struct.unpack_from("<HB", data, at + 4)
        record += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # complete, or the last part
            yield record
            record = b""


def logged(path: pathlib.Path) -> list[dict[str, Any]] | None:
    """The rows of a run's file; None while W&B's own process still writes it."""
    rows: list[dict[str, Any]] = []
    ended = False
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        try:
            record.ParseFromString(data)
        except DecodeError:
            return None
        ended = ended or record.HasField("exit")
        if record.HasField("history"):
            items = {"/".join(one.nested_key) or one.key: json.loads(one.value_json) for one in record.history.item}
            rows.append({key: value for key, value in items.items() if not key.startswith("_")})
    return rows if ended else None


def main() -> None:
    folder = pathlib.Path(sys.argv[1])
    logger = wandb.init(project="demo", dir=folder)
    with pawl.CheckpointManager(folder / "run", logger=logger) as manager:
        for step in range(3):
            logger.log({"lr": 0.1})  # the program's own, which moves W&B's step on
            manager.save(step, {"w": torch.zeros(1000)}, metrics={"loss": 1.0 / (step + 1)}, wait=True)
        sizes = [(info.step, float(info.nbytes)) for info in manager.checkpoints()]
    logger.finish()
    [path] = folder.glob("wandb/offline-run-*/run-*.wandb")
    until = time.monotonic() + HANG_SECONDS
    while (found := logged(path)) is None:
        assert time.monotonic() < until
        time.sleep(0.1)
    rows = [row for row in found if "lr" not in row]
    losses = [(row["checkpoint/step"], row["loss"]) for row in rows if "loss" in row]
    assert losses == [(0, 1.0), (1, 0.5), (2, 1 / 3)], found
    costs = [row for row in rows if "loss" not in row]
    assert all(set(row) == COSTS | {"checkpoint/step"} for row in costs), costs
    assert [(row["checkpoint/step"], row["checkpoint/bytes"]) for row in costs] == sizes


if __name__ == "__main__":
    main()
