# SPDX-License-Identifier: Apache-2.0
"""pawl reshard: what some ranks saved, written again as others would have written it."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
from s3_fake import serving
from test_memory import peak_of_command
from waiting import HANG_SECONDS

import pawl
from cli import Terminal, checkpoint, flip, make, run, run_json

MIB = 1 << 20
WORLD = 4
ROWS = np.arange(103 * 16, dtype=np.float32).reshape(103, 16)
WHOLE = np.arange(2048 * 384, dtype=np.float32).reshape(2048, 384)

RANK_OF_FOUR = """
import sys
import numpy as np
import pawl
rank, world = int(sys.argv[2]), int(sys.argv[3])
rows = np.arange(103 * 16, dtype=np.float32).reshape(103, 16)
parts = np.array_split(rows, world)
at = sum(len(part) for part in parts[:rank])
with pawl.CheckpointManager(sys.argv[1], ranks=pawl.Ranks(rank=rank, world_size=world), timeouts=pawl.Timeouts(commit=1800), signals=False) as manager:
    for step in (1, 2):
        state = {
            "whole": np.arange(2048 * 384, dtype=np.float32).reshape(2048, 384),
            "rows": pawl.Shard(parts[rank], rows.shape, (at, 0)),
            "place": pawl.PerRank({"batch": 10 * step + rank, "seed": np.full(5, rank, np.int64)}),
            "note": "n" * 10000,
            "loss": rank / 4,
            "step": step,
        }
        manager.save(step, state, metrics={"accuracy": step / 4}, metadata={"git": "abc"})
"""


@pytest.fixture(scope="module", name="demo")
def run_of_four(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Not to be changed by a test."""
    root = tmp_path_factory.mktemp("four") / "run"
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    ranks = [
        subprocess.Popen([sys.executable, "-c", RANK_OF_FOUR, str(root), str(rank), str(WORLD)], env=environment)
        for rank in range(WORLD)
    ]
    assert [rank.wait(HANG_SECONDS) for rank in ranks] == [0] * WORLD
    return root


def manifest(folder: pathlib.Path) -> dict[str, object]:
    found: dict[str, object] = json.loads((folder / "manifest.json").read_text())
    return found


def test_R160_for_as_many_ranks_nothing_differs(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    done = run_json("reshard", demo, tmp_path / "four", "--world", WORLD)
    assert done["command"] == "reshard" and done["world_size"] == WORLD and done["checkpoint"]["step"] == 2
    assert run("diff", demo, tmp_path / "four").stdout == ""
    run("verify", tmp_path / "four")
    before, after = manifest(checkpoint(demo, 2)), manifest(tmp_path / "four")
    for key in ("step", "metrics", "metadata", "progress", "unix_ns", "world_size", "state", "n_tensors"):
        assert after[key] == before[key], key
    assert after["run"] == ""


@pytest.mark.parametrize("world", [1, 3, 6])
def test_R160_for_other_ranks_only_their_own_values_are_left_out(
    demo: pathlib.Path, tmp_path: pathlib.Path, world: int
) -> None:
    dest = tmp_path / "new"
    refused = run("reshard", demo, dest, "--world", world, status=1)
    assert "kept per rank by 4 ranks" in refused.stderr
    assert "place; --drop-rank-values leaves them out" in refused.stderr
    assert list(tmp_path.iterdir()) == []
    run("reshard", f"{demo}@id:2", dest, "--world", world, "--drop-rank-values")
    run("verify", dest)
    rows = run("diff", demo, dest, status=1).stdout
    changed = [line.split()[1] for line in rows.splitlines() if line[:1] in ("~", "-", "+")]
    assert changed and all(path.startswith(("place", "loss")) for path in changed), rows
    loaded = pawl.load(dest)
    assert np.array_equal(loaded["whole"], WHOLE)
    assert np.array_equal(loaded["rows"], ROWS)
    assert loaded["note"] == "n" * 10000 and loaded["step"] == 2
    assert loaded["loss"] == 0.0  # rank 0's
    assert "place" not in loaded
    assert manifest(dest)["world_size"] == world
    assert {path.name[:9] for path in dest.glob("rank*")} == {f"rank{rank:05d}" for rank in range(world)}


def test_R160_there_and_back_is_the_same(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("reshard", demo, tmp_path / "one", "-w", 1, "--drop-rank-values")
    run("reshard", tmp_path / "one", tmp_path / "seven", "-w", 7)
    run("reshard", tmp_path / "seven", tmp_path / "again", "-w", 1)
    assert run("diff", tmp_path / "one", tmp_path / "again").stdout == ""
    assert run("diff", tmp_path / "one", tmp_path / "seven").stdout == ""
    packs = [
        {path.name: path.read_bytes()[4096:] for path in (tmp_path / name).glob("rank*")} for name in ("one", "again")
    ]
    assert packs[0].keys() == packs[1].keys()


def test_reshard_reads_foreign_files_and_plain_checkpoints(tmp_path: pathlib.Path) -> None:
    demo = make("run", tmp_path / "demo", 2)
    run("reshard", demo, tmp_path / "two", "-w", 2)
    assert run("diff", demo, tmp_path / "two").stdout == ""
    run("export", demo, tmp_path / "model.safetensors")
    run("reshard", tmp_path / "model.safetensors", tmp_path / "three", "-w", 3)
    assert run("diff", tmp_path / "model.safetensors", tmp_path / "three").stdout == ""


def test_reshard_says_what_is_wrong(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "--world is missing" in run("reshard", demo, tmp_path / "x", status=2).stderr
    assert "whole number from 1" in run("reshard", demo, tmp_path / "x", "-w", 0, status=2).stderr
    assert "expected 1 to 100000" in run("reshard", demo, tmp_path / "x", "-w", 10**9, status=2).stderr
    assert "no such folder" in run("reshard", demo, tmp_path / "no" / "x", "-w", 1, status=3).stderr
    (tmp_path / "there").mkdir()
    assert "already exists" in run("reshard", demo, tmp_path / "there", "-w", 1, status=7).stderr
    assert "DEST is empty; name a new folder" in run("reshard", demo, "", "-w", 1, status=2).stderr
    inside = demo / "checkpoints" / "x"
    assert "where only pawl may write" in run("reshard", demo, inside, "-w", 1, status=2).stderr
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_P1_reshard_never_copies_damage(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("restore", demo, tmp_path / "bad")
    pack = max((tmp_path / "bad").glob("rank*"), key=lambda path: path.stat().st_size)
    flip(pack, pack.stat().st_size - 9)
    failed = run("reshard", tmp_path / "bad", tmp_path / "new", "-w", WORLD, status=4)
    assert pack.name in failed.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["bad"]


@pytest.fixture(scope="module", name="huge")
def checkpoint_of_a_gibibyte(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """One tensor, nearly all zeros, with a few others."""
    path = tmp_path_factory.mktemp("huge") / "huge"
    w = np.zeros((4096, 65536), np.float32)
    w[::1000, ::3000] = 1.5
    pawl.save({"w": w, "small": [np.arange(i) for i in range(50)]}, path)
    return path


def test_R150_R151_reshard_takes_little_memory_whatever_the_size(huge: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """A tensor of 1 GiB in at most 128 MiB, whether it is cut or not."""
    command = os.environ.get("PAWL_BIN", "pawl")
    for world in (1, 5):
        peak = peak_of_command(command, "reshard", huge, tmp_path / str(world), "--world", str(world))
        assert peak < 128 * MIB, f"{peak / MIB:.0f} MiB for {world}"
    assert run("diff", tmp_path / "5", huge).stdout == ""


def test_interrupting_reshard_leaves_nothing(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its midst: the server keeps it waiting for what it reads."""
    held, go = threading.Event(), threading.Event()

    def hold(method: str, target: str) -> None:
        if method == "GET" and "/rank" in target:
            held.set()
            assert go.wait(HANG_SECONDS)

    with serving(monkeypatch) as fake:
        pawl.save({"w": np.zeros(1 << 18)}, "s3://bucket/one")
        fake.before = hold
        terminal = Terminal("reshard", "s3://bucket/one", tmp_path / "dest", "--world", 3)
        terminal.read(until=lambda out: "resharding" in out)
        assert held.wait(HANG_SECONDS)
        terminal.interrupt()
        terminal.read(until=lambda out: "stopping" in out)
        go.set()
        assert terminal.status() == 130
    assert "interrupted" in terminal.output
    assert list(tmp_path.iterdir()) == []
