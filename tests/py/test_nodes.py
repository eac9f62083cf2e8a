# SPDX-License-Identifier: Apache-2.0
"""Packs in the folders of nodes, kept on a partner node, too (R159): real processes, folders in place of machines."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
from typing import Any, Literal

import numpy as np
import pytest
from test_ranks import WORKER, collect, environment
from waiting import HANG_SECONDS

import cli
import pawl

pytestmark = pytest.mark.long


def job(tmp_path: pathlib.Path, world: int, per_node: int, *arguments: str) -> list[dict[str, Any]]:
    """Ranks of several nodes, told apart by what a launcher tells."""
    answers = tmp_path / "answers"
    env = environment(answers)
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *arguments],
            env=dict(
                env,
                RANK=str(rank),
                WORLD_SIZE=str(world),
                LOCAL_RANK=str(rank % per_node),
                LOCAL_WORLD_SIZE=str(per_node),
                NODE_RANK=str(rank // per_node),
            ),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=HANG_SECONDS)[0] for process in processes]
    assert all(process.returncode == 0 for process in processes), "\n".join(outputs)[-4000:]
    return collect(answers, world)


def packs(folder: pathlib.Path) -> list[pathlib.Path]:
    return sorted(folder.rglob("rank*.safetensors"))


def state(value: int) -> dict[str, Any]:
    rng = np.random.default_rng(value)
    return {"w": rng.random((700, 700)), "n": value}


def two_disks(tmp_path: pathlib.Path, **options: Any) -> pawl.CheckpointManager:
    """One process that keeps every pack in two places."""
    (tmp_path / "disk1").mkdir(exist_ok=True)
    ranks = {"node_folder": tmp_path / "disk{node_rank}", "n_nodes": 2, "n_partners": 1}
    ranks |= {name: options.pop(name) for name in list(options) if hasattr(pawl.Ranks, name)}
    return pawl.CheckpointManager(tmp_path / "run", ranks=pawl.Ranks(**ranks), **options)


def test_R159_the_packs_of_a_lost_node_come_from_its_partner(tmp_path: pathlib.Path) -> None:
    root, folder = str(tmp_path / "run"), str(tmp_path / "node{node_rank}" / "run")
    for node in range(3):
        (tmp_path / f"node{node}").mkdir()
    for step in ("1", "2", "3"):
        job(tmp_path, 6, 2, "nodes_save", root, folder, step)
    assert not packs(tmp_path / "run")
    per_node = [packs(tmp_path / f"node{node}") for node in range(3)]
    assert [len({p.name for p in found}) for found in per_node] == [4, 4, 4]  # two ranks' own, two of the node before
    assert [len(found) for found in per_node] == [8, 8, 8]  # of two checkpoints: retention reaches the nodes
    for lost in range(3):
        shutil.move(tmp_path / f"node{lost}", tmp_path / "away")
        (tmp_path / f"node{lost}").mkdir()
        assert job(tmp_path, 6, 2, "nodes_restore", root, folder) == [{"step": 3, "good": True}] * 6
        shutil.rmtree(tmp_path / f"node{lost}")
        shutil.move(tmp_path / "away", tmp_path / f"node{lost}")
    shutil.rmtree(tmp_path / "node1")
    assert job(tmp_path, 4, 2, "nodes_restore", root, folder) == [{"step": 3, "good": True}] * 4
    alone = pawl.CheckpointManager(root, read_only=True, ranks=pawl.Ranks(node_folder=folder))
    restored = alone.restore()
    assert restored is not None and restored.step == 3


def test_R159_without_a_partner_a_lost_node_is_an_error_that_names_it(tmp_path: pathlib.Path) -> None:
    with two_disks(tmp_path, n_partners=0) as m:
        m.save(1, state(1), wait=True)
    shutil.rmtree(tmp_path / "disk0")
    with two_disks(tmp_path, read_only=True) as m, pytest.raises(pawl.CorruptError, match="missing: node 0"):
        m.restore()


def test_R159_a_damaged_copy_is_passed_over_and_told(tmp_path: pathlib.Path) -> None:
    with two_disks(tmp_path) as m:
        m.save(1, state(1), wait=True)
    [pack] = packs(tmp_path / "disk0")
    with open(pack, "r+b") as file:
        file.seek(2_000_000)
        file.write(b"spoilt")
    with two_disks(tmp_path) as m:
        restored = m.restore()
        assert restored is not None and (restored.state["w"] == state(1)["w"]).all() and not restored.fallbacks
    events = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [e["other_copy_bytes"] for e in events if e["what"] == "restore"] == [1 << 20]
    found = cli.run_json("--node-folder", tmp_path / "disk{node_rank}", "verify", tmp_path / "run", status=4)
    assert "copy 1" in json.dumps(found)
    [other] = packs(tmp_path / "disk1")
    with open(other, "r+b") as file:
        file.seek(2_000_000)
        file.write(b"spoilt")
    with two_disks(tmp_path) as m, pytest.raises(pawl.CorruptError, match="sum"):
        m.restore()


def test_R159_both_copies_bad_falls_back_to_the_checkpoint_before(tmp_path: pathlib.Path) -> None:
    with two_disks(tmp_path) as m:
        m.save(1, state(1), wait=True)
        first = {*packs(tmp_path / "disk0"), *packs(tmp_path / "disk1")}
        m.save(2, state(2), wait=True)
    for disk in ("disk0", "disk1"):
        [newest] = set(packs(tmp_path / disk)) - first
        os.truncate(newest, 5000)
    with two_disks(tmp_path) as m:
        restored = m.restore()
        assert restored is not None and restored.step == 1 and restored.fallbacks


def test_R159_what_a_killed_save_left_on_the_nodes_is_cleared(tmp_path: pathlib.Path) -> None:
    with two_disks(tmp_path) as m:
        m.save(1, state(1), wait=True)
    code = f"""
import os, signal, numpy as np, pawl, pathlib, threading, time
m = pawl.CheckpointManager({str(tmp_path / "run")!r}, ranks=pawl.Ranks(node_folder={str(tmp_path / "disk{node_rank}")!r}, n_nodes=2, n_partners=1), io=pawl.IO(write_bytes_per_second=500_000))
m.save(2, {{"w": np.ones((4000, 2000))}})
while len(list(pathlib.Path({str(tmp_path / "disk1")!r}).rglob("rank*.safetensors"))) < 2:
    time.sleep(0.01)
os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], timeout=HANG_SECONDS).returncode == -9
    assert len(list((tmp_path / "disk1" / "packs").glob("*/*"))) == 2
    with two_disks(tmp_path) as m:
        assert m.all_steps() == [1]
        for disk in ("disk0", "disk1"):
            assert len(list((tmp_path / disk / "packs").glob("*/*"))) == 1
        restored = m.restore()
        assert restored is not None and restored.step == 1


def test_R159_unchanged_packs_are_linked_on_both_nodes(tmp_path: pathlib.Path) -> None:
    with two_disks(tmp_path, packs=pawl.Packs(pack_bytes=2_000_000)) as m:
        frozen = {"a": np.ones((300, 1000)), "b": np.ones((300, 1000))}
        m.save(1, frozen, wait=True)
        m.save(2, frozen, wait=True)
        for disk in ("disk0", "disk1"):  # the first pack names its checkpoint, and is never the same
            assert [p.stat().st_nlink for p in packs(tmp_path / disk) if "-00001." in p.name] == [2, 2]
        m.delete(1)
        restored = m.restore()
        assert restored is not None and (restored.state["b"] == 1).all()


@pytest.mark.parametrize("mode", ["snapshot", "ring", "direct"])
def test_R159_packs_that_the_partner_lost_are_written_again(
    tmp_path: pathlib.Path, mode: Literal["snapshot", "ring", "direct"]
) -> None:
    """The partner's disk was replaced: its folder exists, the packs that a save would link do not."""
    frozen = {"a": np.ones((300, 1000)), "b": np.ones((300, 1000))}
    with two_disks(tmp_path, packs=pawl.Packs(pack_bytes=2_000_000), staging=pawl.Staging(mode=mode)) as m:
        m.save(1, frozen, wait=True)
        shutil.rmtree(tmp_path / "disk1" / "packs")
        m.save(2, frozen, wait=True)
        assert m.all_steps() == [1, 2]
    shutil.rmtree(tmp_path / "disk0")
    with two_disks(tmp_path, read_only=True) as m:
        restored = m.restore()
        assert restored is not None and restored.step == 2 and (restored.state["b"] == 1).all()


def test_without_the_folder_of_the_nodes_the_message_says_what_is_missing(tmp_path: pathlib.Path) -> None:
    with two_disks(tmp_path) as m:
        m.save(1, state(1), wait=True)
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as m:
        with pytest.raises(pawl.CorruptError, match="node_folder"):
            m.restore()


def test_P4_a_partner_that_is_gone_fails_the_save_and_says_which(tmp_path: pathlib.Path) -> None:
    with two_disks(tmp_path) as m:
        m.save(1, state(1), wait=True)
    shutil.rmtree(tmp_path / "disk1")
    with pawl.CheckpointManager(
        tmp_path / "run",
        ranks=pawl.Ranks(node_folder=tmp_path / "disk{node_rank}", n_nodes=2, n_partners=1),
        signals=False,
    ) as m:
        with pytest.raises(pawl.PawlError, match="node 1"):
            m.save(2, state(2), wait=True)
        assert m.all_steps() == [1]
        restored = m.restore()
        assert restored is not None and restored.step == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"node_folder": None, "n_partners": 1, "n_nodes": 0}, "ranks.n_partners: expected ranks.node_folder"),
        ({"node_folder": "/tmp/x"}, "{node_rank}"),
        ({"n_partners": 2}, "expected 2 other nodes"),
        ({"n_partners": 9}, "n_partners: expected 0 to 7"),
        ({"packs": pawl.Packs(recycle=1)}, "recycle"),
        ({"num_to_keep": 0}, "node_folder"),
        ({"rank": 0, "world_size": 4, "n_nodes": 0}, "node rank 0 is|which node"),
    ],
)
def test_options_that_do_not_go_together_are_refused(
    tmp_path: pathlib.Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(pawl.UsageError, match=message):
        two_disks(tmp_path, **options)
