# SPDX-License-Identifier: Apache-2.0
"""P20: servers that do not honour conditional puts. OpenStack Swift refuses them, the fake ignores them; both are found out,
and the user learns of it: docs/how-to/stores/s3.md has the rule."""

from __future__ import annotations

import json
import logging
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import pytest
from object_env import keys_for, take_environment
from s3_fake import Fake
from s3_servers import Server, tool
from swift import swift
from waiting import HANG_SECONDS

import cli
import pawl

WARNING = "does not honour conditional puts"


@pytest.fixture(name="server", scope="module")
def started_swift() -> Iterator[Server]:
    with swift() as server:
        yield server


@pytest.fixture(name="fake")
def started_fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake()
    take_environment(monkeypatch, keys_for(fake.endpoint))
    yield fake
    fake.close()


def state(step: int) -> dict[str, object]:
    return {"w": np.full(5000, step, dtype=np.float32), "frozen": np.arange(3000.0)}


def events_of(texts: dict[str, bytes]) -> list[dict[str, object]]:
    return [json.loads(line) for key, text in texts.items() if "/events/" in key for line in text.splitlines()]


def test_P20_a_server_that_ignores_conditions_is_told_of(fake: Fake, caplog: pytest.LogCaptureFixture) -> None:
    """By the log, an event and the doctor; with conditions there is nothing to tell (negative control)."""
    with caplog.at_level(logging.WARNING, "pawl"), pawl.CheckpointManager("s3://bucket/good") as m:
        m.save(1, state(1), wait=True)
    assert not caplog.records
    assert not [row for row in events_of(fake.state()) if row["what"] == "warning"]
    assert "warning" not in json.loads(cli.run("doctor", "s3://bucket/good", "--json").stdout)["found"]
    fake.clear()
    fake.conditions = False
    with caplog.at_level(logging.WARNING, "pawl"), pawl.CheckpointManager("s3://bucket/poor") as m:
        m.save(1, state(1), wait=True)
    assert [WARNING in record.getMessage() for record in caplog.records] == [True]
    (row,) = [row for row in events_of(fake.state()) if row["what"] == "warning"]
    assert row["code"] == "unsupported" and WARNING in str(row["error"])
    assert "no lease" in json.loads(cli.run("doctor", "s3://bucket/poor", "--json").stdout)["found"]["warning"]
    assert "poor/.lease" not in fake.state()


def test_P20_a_manifest_that_is_there_is_not_replaced(fake: Fake) -> None:
    """Where a put cannot be made conditional pawl looks first."""
    fake.conditions = False
    with pawl.CheckpointManager("s3://bucket/poor") as m:
        m.save(1, state(1), wait=True)
        key = "poor/checkpoints/checkpoint_000002/manifest.json"
        theirs = fake.objects["poor/checkpoints/checkpoint_000001/manifest.json"]
        fake.objects[key] = theirs
        with pytest.raises(pawl.ConflictError, match="committed by another writer"):
            m.save(2, state(2), wait=True)
        assert fake.state()[key] == theirs.body
        m.save(3, state(3), wait=True)
    assert "poor/checkpoints/checkpoint_000003/manifest.json" in fake.state()


@pytest.mark.server
def test_P20_swift_keeps_a_run_and_says_what_it_cannot(
    server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    take_environment(monkeypatch, server.env)
    root = f"{server.url}/run"
    with caplog.at_level(logging.WARNING, "pawl"), pawl.CheckpointManager(root, num_to_keep=2) as m:
        for step in (1, 2, 3):
            m.save(step, state(step), wait=True)
    assert WARNING in caplog.text
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert m.all_steps() == [2, 3] and m.verify() == []
        restored = m.restore()
        assert restored is not None and (restored.state["w"] == 3).all()
    with pytest.raises(pawl.UnsupportedError, match="two writers apart"):
        pawl.CheckpointManager(root, ranks=pawl.Ranks(rank=0, world_size=2))
    found = json.loads(cli.run("doctor", root, "--json").stdout)["found"]
    assert found["exclusive put"].startswith("no: ") and "one process at a time" in found["warning"]
    assert found["writable"] == found["reads what was written"] == "yes"


@pytest.mark.server
def test_R51_swift_is_a_mirror(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> None:
    take_environment(monkeypatch, server.env)
    url = f"{server.url}/mirror"
    with pawl.CheckpointManager(tmp_path / "run", mirrors=[url]) as m:
        m.save(1, state(1), wait=True)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert [info.level for info in m.checkpoints()] == ["remote"]
    with pawl.CheckpointManager(tmp_path / "other", mirrors=[url]) as m:
        restored = m.restore()
        assert restored is not None and restored.step == 1


@pytest.mark.server
def test_large_objects_of_swift_come_back(server: Server) -> None:
    """Its uploads in parts are manifests of their own (SLO), which it does not copy under a condition: the pack is written
    again, and nothing is lost."""
    size = (8 << 20) + 1000
    lines = tool(f"{server.url}/parts", f"write p {size} 1 {8 << 20}", f"check p {size} 1", "link p q", env=server.env)
    assert lines[:3] == ["ok", "ok", "ok"]
    assert re.match(r"ok|conflict: p: ", lines[3])
