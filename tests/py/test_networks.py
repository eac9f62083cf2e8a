# SPDX-License-Identifier: Apache-2.0
"""Slow, cut and lying networks (fault rows 24 and 25, P1, P2, P4, P15, P16): real servers behind a wire that is as bad as
the test wants it. What is done comes out right, or there is a clear error in time; and nothing half is ever seen."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from azurite import Azurite, azurite
from object_env import take_environment
from s3_servers import Server, answers, moto, tool
from slow_net import Way, Wire, wire
from ssh_servers import namespace, run
from waiting import HANG_SECONDS, wait_until

import cli
import pawl

pytestmark = pytest.mark.server

AnyServer = Server | Azurite
STALL_SECONDS = "3"  # where nothing comes any more; a busy server on this machine lets one wait for a second, too


def state(step: int, nbytes: int = 200_000) -> dict[str, Any]:
    return {"w": np.random.default_rng(step).integers(0, 255, nbytes, dtype=np.uint8), "step": step}


def check(root: str | pathlib.Path, steps: list[int], **options: Any) -> None:
    with pawl.CheckpointManager(root, read_only=True, **options) as m:
        assert m.all_steps() == steps and m.verify() == []
        for step in steps:
            restored = m.restore(step=step)
            assert restored is not None and (restored.state["w"] == state(step, len(restored.state["w"]))["w"]).all()


@pytest.fixture(name="server", scope="module", params=["moto", "azurite"])
def started_server(request: pytest.FixtureRequest) -> Iterator[AnyServer]:
    with moto() if request.param == "moto" else azurite() as server:
        yield server


@pytest.fixture(name="net")
def started_wire(server: AnyServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Wire]:
    with wire(server.endpoint) as net:
        take_environment(monkeypatch, env_of(server, net))
        yield net


def env_of(server: AnyServer, net: Wire) -> dict[str, str]:
    if isinstance(server, Azurite):
        return server.environment(net.endpoint)
    return server.env | {"AWS_ENDPOINT_URL": net.endpoint}


@pytest.fixture(name="root")
def run_root(server: AnyServer, request: pytest.FixtureRequest) -> str:
    return f"{server.url}/{request.node.originalname}"


@pytest.mark.parametrize("server", ["moto"], indirect=True)  # the faster one
def test_a_slow_network_only_takes_its_time(net: Wire, root: str) -> None:
    net.latency = 0.01
    net.rate = 1e5
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1, 500_000), wait=True)
    slept = net.slept_seconds
    check(root, [1])
    net.heal()
    assert slept > 4  # the wire was as slow as that
    slept = net.slept_seconds
    with pawl.CheckpointManager(root) as m:
        m.save(2, state(2, 500_000), wait=True)
    assert net.slept_seconds == slept  # negative control
    check(root, [1, 2])


@pytest.mark.parametrize("way", ["up", "down"])
def test_P15_connections_that_are_cut_are_made_again(net: Wire, root: str, way: Way, server: AnyServer) -> None:
    root += way
    with pawl.CheckpointManager(root) as m:
        net.cut, net.cuts_left = {way: 20_000}, 5
        m.save(1, state(1), wait=True)
        if way == "down":
            m.restore(step=1)
    assert net.cuts > 0
    net.heal()
    check(root, [1])
    # Negative control: without repetitions the same cut shows.
    net.cut, net.cuts_left = {way: 30_000}, 1
    options = ("--no-retry",)
    lines = tool(f"{root}-tool", "write a 60000 1 60000", "check a 60000 1", env=env_of(server, net), options=options)
    assert not all(line.startswith("ok") for line in lines)


@pytest.mark.parametrize("server", ["moto"], indirect=True)  # the faster one
def test_P4_a_network_that_cuts_everything_fails_clearly_and_shows_nothing_half(net: Wire, root: str) -> None:
    m = pawl.CheckpointManager(root)
    m.save(1, state(1), wait=True)
    net.cut, net.cuts_left = {"up": 5_000}, 1_000_000
    with pytest.raises((pawl.TransientError, pawl.TimeoutError), match=r"127\.0\.0\.1"):
        m.save(2, state(2), wait=True)
    net.heal()
    check(root, [1])
    assert cli.run("verify", root).returncode == 0, "what was cut off is no damage"
    m.save(3, state(3), wait=True)
    m.close()
    check(root, [1, 3])


@pytest.mark.parametrize("server", ["moto"], indirect=True)  # the faster one
def test_P16_a_black_hole_ends_in_time(
    net: Wire, root: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Packets are dropped without an error: the save fails in time, a training run with a mirror does not even notice."""
    monkeypatch.setenv("PAWL_STALL_SECONDS", STALL_SECONDS)
    net.hole = True
    with pytest.raises((pawl.TransientError, pawl.TimeoutError)):
        pawl.CheckpointManager(root)
    net.hole = False
    m = pawl.CheckpointManager(tmp_path / "run", mirrors=[root])
    m.save(1, state(1), wait=True)
    m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
    net.hole = True
    m.save(2, state(2), wait=True)  # a training run waits for no mirror
    with pytest.raises((pawl.TransientError, pawl.TimeoutError)):
        m.wait_until_finished(level="remote", timeout=2)
    net.hole = False
    m.close()  # and the upload is made after all
    check(root, [1, 2])


def test_P14_bits_that_change_on_the_way_up_are_found(net: Wire, root: str, tmp_path: pathlib.Path) -> None:
    """The transport says nothing of it, and moto believes every body; what has reached the mirror is read back."""
    with pawl.CheckpointManager(tmp_path / "run", mirrors=[root]) as m:
        net.flip, net.flips_left = "up", 1
        m.save(1, state(1, 3_000_000), wait=True)
        try:
            m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        except pawl.PawlError as error:
            refused = "InvalidOperation"  # Azurite's name for a body that does not have its MD5
            assert "differ from those sent" in str(error) or refused in str(
                error
            )  # and the end of the block tries again
    assert net.flips == 1
    net.heal()
    check(root, [1])
    assert [info.level for info in pawl.CheckpointManager(tmp_path / "run", read_only=True).checkpoints()] == ["remote"]


def test_P1_bits_that_change_on_the_way_down_are_never_taken(net: Wire, root: str) -> None:
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1, 3_000_000), wait=True)
    net.flip, net.flips_left = "down", 1
    with pawl.CheckpointManager(root, read_only=True) as m:
        try:
            restored = m.restore()
            assert restored is not None and (restored.state["w"] == state(1, 3_000_000)["w"]).all()
        except pawl.CorruptError as error:
            assert "checkpoint_000001" in str(error)
    assert net.flips == 1
    check(root, [1])


@pytest.mark.root
def test_R89_P15_a_cable_that_is_pulled_in_mid_upload_costs_nothing_but_time(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server is another host, by a network namespace. While it is off the net the training saves on; when it is back
    everything is brought there, and is complete."""
    with namespace() as (name, address):
        if name is None:
            pytest.skip("network namespaces are for root")

        def cable(where: str) -> None:
            run("ip", "netns", "exec", name, "ip", "link", "set", "far0", where)

        with moto(address, name) as server:
            take_environment(monkeypatch, server.env | {"PAWL_STALL_SECONDS": STALL_SECONDS})
            root = f"{server.url}/cable"
            m = pawl.CheckpointManager(
                tmp_path / "run", mirrors=[root], uploads=pawl.Uploads(bytes_per_second=4_000_000)
            )
            step, under_way = 0, False
            while not under_way:
                step += 1
                m.save(step, state(step, 20_000_000), wait=True)
                wait_until(lambda: m.mirrors()[0]["done_bytes"] > 0 or m.mirrors()[0]["n_waiting"] == 0)
                under_way = m.mirrors()[0]["n_done"] < step  # else this machine had slept meanwhile
            cable("down")
            try:
                assert not answers(server.endpoint, 2)  # negative control
                m.save(step + 1, state(step + 1), wait=True)
                with pytest.raises((pawl.TransientError, pawl.TimeoutError)):
                    m.wait_until_finished(level="remote", timeout=3)
            finally:
                cable("up")

            def is_there() -> bool:
                try:
                    m.wait_until_finished(level="remote", timeout=5)
                except (pawl.TransientError, pawl.TimeoutError):
                    return False
                return True

            wait_until(is_there, "everything at the mirror")
            m.close()
            steps = list(range(1, step + 2))
            with pawl.CheckpointManager(root, read_only=True) as there:
                assert there.all_steps() == steps and there.verify() == []
