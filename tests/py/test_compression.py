# SPDX-License-Identifier: Apache-2.0
"""Compressed packs (docs/how-to/compression.md): option compression, and every command on what it made."""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from object_env import take_environment
from s3_servers import Server, moto
from waiting import HANG_SECONDS, wait_until

import cli
import pawl

PACK = "rank00000-00001.safetensors.zst"
PLAIN = "rank00000-00000.safetensors"
RANK = """
import sys
import numpy as np
import pawl

root, rank, codec, nodes = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
options = {"node_folder": nodes + "/node{node_rank}", "n_nodes": 2, "node_rank": rank, "n_partners": 1} if nodes else {}
with pawl.CheckpointManager(root, ranks=pawl.Ranks(rank=rank, world_size=2, **options), compression=codec,
                            packs=pawl.Packs(pack_bytes=1 << 18)) as m:
    for step in (1, 2):
        m.save(step, {"w": np.full((300, 500), step, dtype=np.float32), "frozen": np.arange(90_000.0)}, wait=True)
"""


def state(step: int) -> dict[str, Any]:
    values = np.random.default_rng(step).standard_normal(200_000).astype(np.float32)
    return {"w": values, "frozen": np.arange(100_000.0), "note": "x" * 6000, "step": step}


def make(root: pathlib.Path | str, *steps: int, codec: str | None = "zst", **options: Any) -> None:
    with pawl.CheckpointManager(root, compression=codec, packs=pawl.Packs(pack_bytes=600_000), **options) as m:
        for step in steps:
            m.save(step, state(step), wait=True)


def check(root: pathlib.Path | str, step: int, **options: Any) -> None:
    with pawl.CheckpointManager(root, read_only=True, **options) as m:
        restored = m.restore(step=step)
        assert restored is not None
        want = state(step)
        assert (restored.state["w"] == want["w"]).all() and (restored.state["frozen"] == want["frozen"]).all()
        assert restored.state["note"] == want["note"] and restored.state["step"] == step


def test_E11_ls_show_and_events_tell_the_ratio(tmp_path: pathlib.Path) -> None:
    make(tmp_path / "run", 1)
    make(tmp_path / "run", 2, codec=None)
    rows = cli.run_json("ls", tmp_path / "run")["checkpoints"]
    assert rows[0]["bytes"] < 0.95 * rows[0]["plain_bytes"] and rows[1]["bytes"] == rows[1]["plain_bytes"]
    table = cli.run("ls", tmp_path / "run").stdout.splitlines()
    assert "ratio" in table[0] and table[1].count("%") == 1 and "%" not in table[2]
    assert "% of " in cli.run("show", cli.checkpoint(tmp_path / "run", 1)).stdout
    lines = [json.loads(line) for line in (tmp_path / "run" / "events.jsonl").read_text().splitlines()]
    assert [(row["bytes"], row["plain_bytes"]) for row in lines if row["what"] == "save"] == [
        (row["bytes"], row["plain_bytes"]) for row in rows
    ]
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as m:
        assert m.checkpoints()[0].plain_bytes == rows[0]["plain_bytes"]


SLOW = """
import sys
import numpy as np
import pawl

manager = pawl.CheckpointManager(sys.argv[1], compression="zst", io=pawl.IO(write_bytes_per_second=250_000))
manager.save(7, {"w": np.random.default_rng(1).standard_normal(10_000_000)}, wait=True)
"""


def check_progress(root: pathlib.Path | str, watch: Callable[[], bool]) -> dict[str, Any]:
    """What ls says of a save that stands still in the midst of it; of one whose writer was killed it says nothing."""
    make(root, 1)
    assert "saving" not in cli.run_json("ls", root)
    with subprocess.Popen([sys.executable, "-c", SLOW, str(root)]) as writer:
        try:
            wait_until(watch, "the save to tell of itself", writer)
            writer.send_signal(signal.SIGSTOP)
            row: dict[str, Any] = cli.run_json("ls", root)["saving"]
            assert row["id"] == 2 and row["step"] == 7 and row["plain_bytes"] >= 80_000_000
            assert 0 < row["done_bytes"] <= row["plain_bytes"] and row["written_bytes"] < row["plain_bytes"]
            said = cli.run("ls", root).stderr
            assert f"{row['name']} is being saved: " in said and "% of 76.3 MiB compressed" in said, said
        finally:
            writer.kill()
    assert "saving" not in cli.run_json("ls", root)
    assert "is being saved" not in cli.run("ls", root).stderr
    make(root, 2)
    assert "saving" not in cli.run_json("ls", root)
    return row


def test_E11_ls_and_events_tell_how_far_a_save_is(tmp_path: pathlib.Path) -> None:
    events = tmp_path / "run" / "events.jsonl"
    row = check_progress(tmp_path / "run", lambda: '"saving"' in events.read_text())
    told = [json.loads(line) for line in events.read_text().splitlines()]
    assert any(event["what"] == "saving" and event["unix_seconds"] == row["unix_seconds"] for event in told)


def test_E11_every_command_works_on_compressed_packs(tmp_path: pathlib.Path) -> None:
    run = tmp_path / "run"
    make(run, 1, 2)
    cli.run("verify", run)
    cli.run("diff", cli.checkpoint(run, 1), cli.checkpoint(run, 2), status=1)
    cli.run("cp", run, tmp_path / "copy")
    assert cli.tree_of(run / "checkpoints") == cli.tree_of(tmp_path / "copy" / "checkpoints")
    check(tmp_path / "copy", 2)
    cli.run("cp", f"{run}/checkpoints/checkpoint_000001", tmp_path / "one")
    assert (pawl.load(tmp_path / "one")["w"] == state(1)["w"]).all()
    cli.run("reshard", run, tmp_path / "plain", "--world", "1")
    assert (pawl.load(tmp_path / "plain")["w"] == state(2)["w"]).all() and (tmp_path / "plain" / PLAIN).exists()
    cli.run("reshard", run, tmp_path / "again", "--world", "1", "--compression", "zst", "--level", "1")
    assert (pawl.load(tmp_path / "again")["w"] == state(2)["w"]).all()
    plain = subprocess.run(["zstd", "-dc", tmp_path / "again" / f"{PLAIN}.zst"], check=True, capture_output=True).stdout
    assert plain[8:9] == b"{"
    cli.run("diff", tmp_path / "again", cli.checkpoint(run, 2))
    cli.run("verify", tmp_path / "again")
    cli.run("export", run, tmp_path / "model.safetensors")
    assert (pawl.load(tmp_path / "model.safetensors")["w"] == state(2)["w"]).all()
    cli.run("prune", run, "--keep-last", "1")
    cli.run("gc", run)
    check(run, 2)
    assert cli.run("show", tmp_path / "copy" / "checkpoints" / "checkpoint_000001" / PACK).stdout


def test_R138_repair_makes_the_manifest_anew(tmp_path: pathlib.Path) -> None:
    make(tmp_path / "run", 1)
    (cli.checkpoint(tmp_path / "run", 1) / "manifest.json").unlink()
    cli.run("repair", tmp_path / "run")
    cli.run("verify", tmp_path / "run")
    check(tmp_path / "run", 1)


def test_P1_damage_is_found_and_comes_back_from_a_mirror(tmp_path: pathlib.Path) -> None:
    run, far = tmp_path / "run", tmp_path / "far"
    make(run, 1, 2, mirrors=far)
    assert cli.tree_of(run / "checkpoints") == cli.tree_of(far / "checkpoints")
    cli.flip(cli.checkpoint(run, 2) / PACK, 20_000)
    assert "compressed: not what was written" in json.dumps(cli.run_json("verify", run, status=4))
    with pawl.CheckpointManager(run, read_only=True) as m:
        assert m.restore().step == 1  # type: ignore[union-attr]
    with pawl.CheckpointManager(run, mirrors=far) as m:
        restored = m.restore()
        assert restored is not None and restored.step == 2 and (restored.state["w"] == state(2)["w"]).all()
    shutil.rmtree(cli.checkpoint(run, 2))
    check(run, 2, mirrors=far)


@pytest.mark.parametrize("codec", ["zst", "planes"])
def test_two_ranks_and_one_reader(tmp_path: pathlib.Path, codec: str) -> None:
    ranks(tmp_path / "run", codec)
    with pawl.CheckpointManager(tmp_path / "run") as m:
        restored = m.restore()
        assert restored is not None and (restored.state["w"] == 2).all()
        assert (restored.state["frozen"] == np.arange(90_000.0)).all()
    assert (cli.checkpoint(tmp_path / "run", 2) / f"rank00001-00000.safetensors.{codec}").exists()
    cli.run("verify", tmp_path / "run")


def ranks(root: pathlib.Path, codec: str, nodes: str = "") -> None:
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    arguments = [sys.executable, "-c", RANK, str(root)]
    jobs = [subprocess.Popen([*arguments, str(rank), codec, nodes], env=env) for rank in range(2)]
    assert [job.wait(HANG_SECONDS) for job in jobs] == [0, 0]


def test_R159_one_damaged_copy_on_a_node_is_read_from_the_other(tmp_path: pathlib.Path) -> None:
    (tmp_path / "node0").mkdir()
    (tmp_path / "node1").mkdir()
    ranks(tmp_path / "run", "zst", str(tmp_path))
    for copy in (tmp_path / "node0").rglob("rank0000?-0000?.safetensors.zst"):
        cli.flip(copy, 100)
    with pawl.CheckpointManager(
        tmp_path / "run",
        read_only=True,
        ranks=pawl.Ranks(node_folder=f"{tmp_path}/node{{node_rank}}", n_nodes=2),
    ) as m:
        restored = m.restore()
        assert restored is not None and restored.step == 2 and (restored.state["w"] == 2).all()


@pytest.fixture(name="server", scope="module")
def started_server() -> Iterator[Server]:
    with moto() as server:
        yield server


def test_E11_a_single_checkpoint_and_none_by_default(tmp_path: pathlib.Path) -> None:
    pawl.save(state(3), tmp_path / "one", compression="planes")
    assert [path.name for path in (tmp_path / "one").glob("rank*")] == ["rank00000-00000.safetensors.planes"]
    assert (pawl.load(tmp_path / "one")["w"] == state(3)["w"]).all()
    make(tmp_path / "run", 1, codec=None)
    assert not list((tmp_path / "run").rglob("*.zst"))


@pytest.mark.server
def test_E11_a_run_in_a_bucket(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    take_environment(monkeypatch, server.env)
    root = f"{server.url}/compressed"
    make(root, 1, 2)
    check(root, 2)
    cli.run("verify", root)
    cli.run("sync", root, tmp_path / "here")
    check(tmp_path / "here", 1)
    slow = f"{server.url}/slow"
    check_progress(slow, lambda: "saving" in cli.run_json("ls", slow))


@pytest.mark.server
def test_E11_auto_compresses_what_goes_into_a_slow_bucket(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    take_environment(monkeypatch, server.env)
    for root, slow in ((f"{server.url}/auto", True), (tmp_path / "here", False)):
        make(root, 1, 2, codec="auto", io=pawl.IO(write_bytes_per_second=10 << 20))
        check(root, 2)
        rows = cli.run_json("ls", root)["checkpoints"]
        assert rows[0]["bytes"] == rows[0]["plain_bytes"]  # nothing is known yet
        assert (rows[1]["bytes"] < rows[1]["plain_bytes"]) == slow
    run = tmp_path / "mirrored"  # a mirror is a link, too
    with pawl.CheckpointManager(
        run,
        compression="auto",
        mirrors=f"{server.url}/mirror",
        uploads=pawl.Uploads(bytes_per_second=10 << 20),
    ) as m:
        for step in (1, 2):
            m.save(step, state(step), wait=True)
            m.wait_until_finished(level="remote")
    rows = cli.run_json("ls", run)["checkpoints"]
    assert rows[0]["bytes"] == rows[0]["plain_bytes"] and rows[1]["bytes"] < rows[1]["plain_bytes"]


def test_what_is_no_compression_is_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(pawl.UsageError, match="expected zst, planes, none"):
        pawl.CheckpointManager(tmp_path, compression="gz")
    with pytest.raises(pawl.UsageError, match="suffix selects the compression"):
        pawl.save({}, tmp_path / "x.pt", compression="zst")
    with pytest.raises(pawl.UsageError, match="level"):
        pawl.CheckpointManager(tmp_path, compression="zst", packs=pawl.Packs(compression_level=23))


def test_E11_planes_of_weights_and_the_command(tmp_path: pathlib.Path) -> None:
    weights = (np.random.default_rng(1).standard_normal(1 << 20) * 0.02).astype(np.float32).view(np.uint32)
    half = ((weights + 0x8000) >> 16).astype(np.uint16)  # bf16 by its bits
    with pawl.CheckpointManager(tmp_path / "run", compression="planes") as m:
        m.save(1, {"w": half}, wait=True)
    row = cli.run_json("ls", tmp_path / "run")["checkpoints"][0]
    assert row["bytes"] < 0.68 * row["plain_bytes"]
    cli.run("verify", tmp_path / "run")
    pack = cli.checkpoint(tmp_path / "run", 1) / "rank00000-00000.safetensors.planes"
    assert "1048576" in cli.run("show", pack).stdout.replace(",", "")
    cli.run("convert", pack, tmp_path / "plain.safetensors")
    assert (pawl.load(tmp_path / "plain.safetensors")["w"] == half).all()
    cli.flip(pack, pack.stat().st_size // 2)
    assert "sum" in cli.run("convert", pack, tmp_path / "again.safetensors", status=4).stderr
