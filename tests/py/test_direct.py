# SPDX-License-Identifier: Apache-2.0
"""Runs whose root is a bucket: saved straight from memory, with no local disk, against real servers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import s3_gate
from azurite import Azurite, azurite
from gcs_fake import GcsFake, gate
from s3_servers import Server, moto, rgw, tool
from waiting import HANG_SECONDS, wait_until

import cli
import pawl

AnyServer = Server | Azurite | GcsFake
# Variables that lead to stores and their credentials.
PREFIXES = ("AWS_", "AZURE_", "GS_", "GOOGLE_", "GCE_", "NO_GCE", "CLOUDSDK_", "STORAGE_EMULATOR")


@pytest.fixture(name="server", scope="module", params=["moto", "rgw", "azurite", "gcs"])
def started_server(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    servers: dict[str, Callable[[], AbstractContextManager[AnyServer]]]
    servers = {"moto": moto, "rgw": rgw, "azurite": azurite, "gcs": gate}
    with servers[request.param]() as server:
        yield server


@pytest.fixture(name="root")
def run_root(server: AnyServer, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    for name, value in server.env.items():
        if name.startswith(PREFIXES):
            monkeypatch.setenv(name, value)
    return f"{server.url}/{request.node.name.split('[')[0]}"


def state(step: int) -> dict[str, Any]:
    return {"w": np.full((700, 500), step, dtype=np.float32), "frozen": np.arange(400_000.0), "step": step}


def check(restored: pawl.Restored | None, step: int) -> None:
    assert restored is not None and restored.step == step
    assert restored.state["step"] == step and (restored.state["w"] == step).all()
    assert (restored.state["frozen"] == np.arange(400_000.0)).all()


@pytest.mark.server
def test_a_run_in_a_bucket_is_saved_kept_and_restored(root: str) -> None:
    with pawl.CheckpointManager(root, num_to_keep=2, packs=pawl.Packs(pack_bytes=2_000_000)) as m:
        for step in range(4):
            m.save(step, state(step), metrics={"loss": 1.0 / (step + 1)}, wait=True)
        assert m.all_steps() == [2, 3] and m.latest_step() == 3
        check(m.restore(), 3)
        m.pin(2)
    with pawl.CheckpointManager(root, read_only=True) as m:
        check(m.restore(step=2), 2)
        assert m.metrics(3) == {"loss": 0.25}
    with pawl.CheckpointManager(root, num_to_keep=1) as m:  # continues with the numbers
        live = state(-1)
        check(m.restore(live), 3)
        assert (live["w"] == 3).all()
        m.save(4, state(4), wait=True)
        assert m.all_steps() == [2, 4]


@pytest.mark.server
def test_P10_a_second_writer_of_a_bucket_is_refused(root: str) -> None:
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1), wait=True)
        with pytest.raises(pawl.BusyError, match="this process has the run open already"):
            pawl.CheckpointManager(root)
    pawl.CheckpointManager(root).close()


@pytest.mark.server
def test_P2_a_writer_killed_in_mid_upload_leaves_nothing_listed_and_the_run_goes_on(
    root: str, server: AnyServer
) -> None:
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1), wait=True)
    code = f"""
import numpy as np, pawl, time
m = pawl.CheckpointManager({root!r}, io=pawl.IO(write_bytes_per_second=10_000), packs=pawl.Packs(pack_bytes=100_000))
m.save(2, {{f"w{{i}}": np.random.default_rng(i).random(10_000) for i in range(200)}})  # half an hour
print("saving", flush=True)
time.sleep(100_000)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=worker_env())
    assert process.stdout is not None and process.stdout.readline() == "saving\n"
    folder = f"{root}/checkpoints/checkpoint_000002"
    wait_until(lambda: "rank00000" in " ".join(tool(folder, "list", env=server.env)), "a pack")
    process.send_signal(signal.SIGKILL)
    process.communicate()
    with pawl.CheckpointManager(root) as m:
        assert m.all_steps() == [1]
        check(m.restore(), 1)
        m.save(3, state(3), wait=True)
        assert m.all_steps() == [1, 3]
        check(m.restore(), 3)
        assert m.verify() == []


def worker_env() -> dict[str, str]:
    return dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))


@pytest.mark.server
def test_P10_one_of_two_late_writers_commits_and_the_other_is_told(root: str, server: AnyServer) -> None:
    """A writer that has lost its lease, and comes to commit the number that its successor has taken."""
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1), wait=True)
    code = f"""
import os, signal, time, numpy as np, pawl
m = pawl.CheckpointManager({root!r}, timeouts=pawl.Timeouts(lease=1.0), io=pawl.IO(write_bytes_per_second=1_000_000))
t = m.save(2, {{"w": np.random.default_rng(0).random((1000, 1000))}})
os.kill(os.getpid(), signal.SIGSTOP)
try:
    t.wait()
    print("committed", flush=True)
except pawl.ConflictError as error:
    print("conflict", flush=True)
"""
    way = s3_gate.Gate(server.endpoint) if isinstance(server, Server) else None
    # moto serves one connection at a time: it never gets half a request of one that stands still
    env = worker_env() | ({"AWS_ENDPOINT_URL": way.endpoint} if way else {})
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=env)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    try:
        with pytest.raises(pawl.BusyError):
            pawl.CheckpointManager(
                root, timeouts=pawl.Timeouts(lease=1.0)
            )  # it is alive, on this host: it may continue
    finally:
        process.send_signal(signal.SIGCONT)
    assert process.communicate(timeout=HANG_SECONDS)[0] == "committed\n"
    if way:
        way.close()
    with pawl.CheckpointManager(root) as m:
        assert m.all_steps() == [1, 2]


@pytest.mark.server
def test_P1_a_damaged_object_is_found_and_the_checkpoint_before_is_restored(root: str, server: AnyServer) -> None:
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1), wait=True)
        m.save(2, state(2), wait=True)
    spoil(root + "/checkpoints/checkpoint_000002", server)
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert m.verify()
        restored = m.restore()
        check(restored, 1)
        assert restored is not None and "checkpoint_000002" in restored.fallbacks[0]


def spoil(folder: str, server: AnyServer) -> None:
    """Puts another body in the place of a pack, by the tool of the tests."""
    name = next(word for line in tool(folder, "list", env=server.env) for word in line.split() if word[:4] == "rank")
    assert tool(folder, f"put {name} nonsense", env=server.env)[-1] == "ok"


@pytest.mark.server
def test_single_checkpoints_go_to_buckets(root: str) -> None:
    pawl.save({"w": np.arange(10)}, root, overwrite=True)
    assert (pawl.load(root)["w"] == np.arange(10)).all()
    with pytest.raises(pawl.UnsupportedError, match="overwritten in a bucket"):
        pawl.save({"w": np.arange(11)}, root, overwrite=True)
    assert (pawl.load(root)["w"] == np.arange(10)).all()


@pytest.mark.server
def test_the_command_takes_buckets(root: str) -> None:
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1), wait=True)
        m.save(2, state(2), wait=True)
    access = {name: value for name, value in os.environ.items() if name.startswith(PREFIXES)}
    assert [row["step"] for row in json.loads(cli.run("ls", root, "--json", **access).stdout)["checkpoints"]] == [1, 2]
    assert "frozen" in cli.run("show", f"{root}@id:1", **access).stdout
    cli.run("verify", f"{root}/checkpoints/checkpoint_000001", **access)
    cli.run("pin", f"{root}@id:1", **access)
    cli.run("rm", "--force", f"{root}@id:2", **access)
    assert [row["step"] for row in json.loads(cli.run("ls", root, "--json", **access).stdout)["checkpoints"]] == [1]


@pytest.mark.server
def test_P8_R137_a_bucket_that_has_gone_is_an_error_and_not_an_empty_run() -> None:
    """Nothing found must not look like a run that has not begun. A bucket of its own, which is taken away."""
    with moto() as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.env.items():
            if name.startswith("AWS_"):
                patch.setenv(name, value)
        root = f"{server.url}/run"
        with pawl.CheckpointManager(root) as m:
            m.save(1, state(1), wait=True)
            reset = urllib.request.Request(f"{server.endpoint}/moto-api/reset", method="POST")
            urllib.request.urlopen(reset, timeout=HANG_SECONDS).close()
            for action in (m.restore, lambda: m.save(2, state(2), wait=True), m.reload):
                with pytest.raises(pawl.PawlError, match="no such bucket"):
                    action()
            assert m.all_steps() == [1], "what was known is not forgotten"
            with pytest.raises(pawl.NotFoundError, match="bucket"):
                pawl.CheckpointManager(root, read_only=True)


@pytest.mark.parametrize(
    "url", ["s3://AKIA:{}@bucket/run", "gs://k:{}@b/run", "az://u:{}@c/run", "ssh://u:1/{}@host/run"]
)
def test_P18_credentials_in_a_url_are_refused_and_not_shown(url: str) -> None:
    with pytest.raises(pawl.PawlError) as caught:
        pawl.CheckpointManager(url.format("CANARY-5ecret"))
    assert "CANARY" not in str(caught.value) and "://..." in str(caught.value)
