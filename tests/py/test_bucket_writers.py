# SPDX-License-Identifier: Apache-2.0
"""Many writers and one bucket: ranks of a job, writers that are overtaken, killed and stopped. Real processes and servers."""

from __future__ import annotations

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from s3_fake import take_environment
from s3_gate import Gate, gate
from s3_servers import Server, moto, rgw, tool
from test_ranks import environment, job, torchrun
from waiting import HANG_SECONDS

import pawl

pytestmark = pytest.mark.server


@pytest.fixture(name="server", scope="module", params=["moto", "rgw"])
def started_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with {"moto": moto, "rgw": rgw}[request.param]() as server:
        yield server


only_moto = pytest.mark.parametrize("server", ["moto"], indirect=True)  # the faster one


@pytest.fixture(name="root")
def run_root(server: Server, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    take_environment(monkeypatch, server.env)
    return f"{server.url}/{re.sub('[^A-Za-z0-9]+', '-', request.node.name)}"


@pytest.fixture(name="way")
def gate_to_the_server(server: Server) -> Iterator[Gate]:
    with gate(server.endpoint) as g:
        yield g


class Process:
    def __init__(self, code: str, way: Gate | None = None, **env: str) -> None:
        more = {"PYTHONPATH": os.pathsep.join(sys.path)} | env
        if way:
            more["AWS_ENDPOINT_URL"] = way.endpoint
        self.process = subprocess.Popen(
            [sys.executable, "-c", code],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | more,
        )

    def line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, seconds: float = HANG_SECONDS) -> str:
        try:
            return self.process.communicate(timeout=seconds)[0]
        finally:
            self.process.kill()
            self.process.wait()


def keys(server: Server, folder: str) -> list[str]:
    return sorted(word for line in tool(folder, "list", env=server.env) for word in line.split() if "." in word)


def text_of(folder: str, key: str, server: Server) -> str:
    return "\n".join(tool(folder, f"get {key}", env=server.env)[1:]).removeprefix("ok ")


# ---- a writer that is overtaken

WRITER = """
import sys, numpy as np, pawl
m = pawl.CheckpointManager({root!r})
m.save(1, {{"w": np.full(100, 1)}}, wait=True)
ticket = m.save(2, {{"w": np.full(100, 2)}})
try:
    ticket.wait()
    print("committed")
except pawl.PawlError as error:
    print(type(error).__name__, error)
sys.stdout.flush()
import os
os._exit(0)
"""


def make_foreign(root: str, server: Server) -> None:
    """The lease as a writer on another host would have it that has not been heard of for long."""
    env = server.env
    lease = json.loads(text_of(root, ".lease", server))
    lease |= {"host": "elsewhere", "renewed_unix_ns": 0, "token": "0" * 32}
    assert tool(root, "put .lease " + json.dumps(lease, separators=(",", ":")), env=env)[-1] == "ok"


def only_left(findings: list[Any]) -> bool:
    """The overtaken save was complete but for its manifest: its packs stay, since repair can use them."""
    return all("manifest.json is missing" in str(finding) for finding in findings)


def test_P2_P10_a_writer_that_is_overtaken_before_its_manifests_put_loses(root: str, server: Server, way: Gate) -> None:
    way.hold(r"^PUT .*000002/manifest\.json")
    writer = Process(WRITER.format(root=root), way)
    assert way.held.wait(HANG_SECONDS)
    make_foreign(root, server)
    with pawl.CheckpointManager(root, timeouts=pawl.Timeouts(lease=1)) as m:
        assert m.all_steps() == [1]
        m.save(2, {"w": np.full(100, 22)}, wait=True)
        m.save(3, {"w": np.full(100, 3)}, wait=True)
        way.release.set()
        said = writer.end()
        assert said.startswith("ConflictError"), said
        m.reload()
        assert m.all_steps() == [1, 2, 3] and only_left(m.verify())
        assert (m.restore(step=2).state["w"] == 22).all()  # type: ignore[union-attr]
    with pawl.CheckpointManager(root) as m:  # what aborted it stays, and blocks no writer
        m.save(4, {"w": np.full(100, 4)}, wait=True)
        assert m.all_steps() == [1, 2, 3, 4] and only_left(m.verify())


@only_moto
def test_a_writer_that_is_slow_but_not_overtaken_commits(root: str, way: Gate) -> None:
    """The control: the same, and no process takes the run over."""
    way.hold(r"^PUT .*000002/manifest\.json")
    writer = Process(WRITER.format(root=root), way)
    assert way.held.wait(HANG_SECONDS)
    with pytest.raises(pawl.BusyError):
        pawl.CheckpointManager(root)
    way.release.set()
    assert writer.end() == "committed\n"
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert m.all_steps() == [1, 2]


# ---- ranks


def test_P11_R53_R147_ranks_save_into_a_bucket_and_any_number_restores(root: str, tmp_path: pathlib.Path) -> None:
    saved = job(tmp_path, 3, "arrays_save", root)
    assert [(a["steps"], a["rank"], a["world"]) for a in saved] == [([3], r, 3) for r in range(3)]
    for rank, answer in enumerate(job(tmp_path, 3, "arrays_restore", root, "strict")):
        assert answer["step"] == 3 and answer["whole"] and answer["rows"] and answer["report"] == []
        assert answer["place"] == 100 * rank + 7
    for answer in job(tmp_path, 2, "arrays_restore", root, "drop"):
        assert answer["whole"] and answer["rows"] and answer["place"] == -1


@pytest.mark.launcher
@only_moto
def test_R147_torchrun_saves_into_a_bucket(root: str, tmp_path: pathlib.Path) -> None:
    assert [answer["steps"] for answer in torchrun(tmp_path, 2, "arrays_save", root)] == [[3], [3]]
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert m.verify() == []
        restored = m.restore()
        assert restored is not None and restored.state["place"] == [7, 107]


RANK = """
import contextlib, os, signal, sys, numpy as np, pawl
rank = int(os.environ["RANK"])
m = pawl.CheckpointManager({root!r}, timeouts=pawl.Timeouts(commit=900), signals=False)
m.save(1, {{"w": np.full(1000, 1), "r": pawl.PerRank(rank)}}, wait=True)
print("ready", flush=True)
sys.stdin.readline()
if {timeout} != 900:
    m.close()
    print("closed", flush=True)
    sys.stdin.readline()
    m = None
    while m is None:
        with contextlib.suppress(pawl.TimeoutError):  # rank 0 takes longer than that to open the run
            m = pawl.CheckpointManager({root!r}, timeouts=pawl.Timeouts(commit={timeout}), signals=False)
    print("open", flush=True)
    sys.stdin.readline() if {stop} != rank else os.kill(os.getpid(), signal.SIGSTOP)
try:
    m.save(2, {{"w": np.full(1000, 2), "r": pawl.PerRank(rank)}}, wait=True)
    print("committed", flush=True)
except pawl.PawlError as error:
    print(type(error).__name__, error, flush=True)
os._exit(0)
"""


def start_ranks(
    root: str, tmp_path: pathlib.Path, way: dict[int, Gate], timeout: int = 900, stop: int = -1
) -> list[Any]:
    env = environment(tmp_path / "answers")
    ranks = []
    for rank in range(3):
        more = {"RANK": str(rank), "WORLD_SIZE": "3"}
        if rank in way:
            more["AWS_ENDPOINT_URL"] = way[rank].endpoint
        command = [sys.executable, "-c", RANK.format(root=root, timeout=timeout, stop=stop)]
        pipe = subprocess.PIPE
        ranks.append(
            subprocess.Popen(command, env=env | more, stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)
        )
    hear(ranks, "ready")
    return ranks


def hear(ranks: list[Any], word: str) -> None:
    """Waits until all of them say it."""
    for process in ranks:
        assert process.stdout.readline() == word + "\n"


def go(ranks: list[Any]) -> None:
    for process in ranks:
        process.stdin.write("\n")
        process.stdin.flush()


def kill(ranks: list[Any]) -> None:
    for process in ranks:
        process.kill()
        process.communicate()


@only_moto
@pytest.mark.parametrize(
    ("rank", "point", "committed"),
    [
        (1, r"^PUT .*/part-00001", False),
        (0, r"^PUT .*/rank00000", False),
        (0, r"^PUT .*000002/manifest", False),
        (0, r"^PUT .*/verdict", True),
    ],
)
def test_P11_a_rank_that_is_killed_costs_a_save_and_never_the_run(
    root: str, tmp_path: pathlib.Path, way: Gate, rank: int, point: str, committed: bool
) -> None:
    """Killed while the server is about to get a request, which it gets later anyway."""
    ranks = start_ranks(root, tmp_path, {rank: way})
    try:
        way.hold(point)
        go(ranks)
        assert way.held.wait(HANG_SECONDS)
        ranks[rank].send_signal(signal.SIGKILL)
        for other in {0, 1, 2} - {rank}:
            said = ranks[other].communicate(timeout=HANG_SECONDS)[0]
            if committed:
                assert said == "committed\n"
            else:
                assert said.startswith(("CancelledError", "ConflictError")) and "not known" not in said, said
                assert "rank 0" in said or "rank 1 has died" in said
        way.release.set()
        assert way.passed.wait(HANG_SECONDS)  # the request of the dead comes through
    finally:
        kill(ranks)
    with pawl.CheckpointManager(root) as m:
        assert m.all_steps() == ([1, 2] if committed else [1]) and m.verify() == []
        m.save(3, {"w": np.full(10, 3)}, wait=True)
        assert m.latest_step() == 3


@only_moto
def test_P11_P16_a_rank_that_hangs_is_named_in_time(root: str, tmp_path: pathlib.Path) -> None:
    ranks = start_ranks(root, tmp_path, {}, timeout=10, stop=2)
    try:
        go(ranks)
        hear(ranks, "closed")
        for some in (ranks[:1], ranks[1:]):  # the others wait ten seconds for rank 0
            go(some)
            hear(some, "open")
        go(ranks[:2])
        for process in ranks[:2]:
            said = process.communicate(timeout=HANG_SECONDS)[0]
            assert said.startswith("TimeoutError save of step 2: "), said
            assert re.search(r"ranks? ([01], )*2\b", said), said  # and others that are slow
    finally:
        kill(ranks)
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert m.all_steps() == [1] and m.verify() == []


@only_moto
def test_P10_a_second_job_in_the_same_place_is_refused(root: str, tmp_path: pathlib.Path) -> None:
    ranks = start_ranks(root, tmp_path, {})
    try:
        with pytest.raises(pawl.BusyError, match="being written by process"):
            pawl.CheckpointManager(root, ranks=pawl.Ranks(rank=0, world_size=3))
        with pytest.raises(pawl.BusyError, match="rank 1 of this run is already process"):
            pawl.CheckpointManager(root, ranks=pawl.Ranks(rank=1, world_size=3), timeouts=pawl.Timeouts(commit=900))
        go(ranks)
        assert [process.communicate(timeout=HANG_SECONDS)[0] for process in ranks] == ["committed\n"] * 3
    finally:
        kill(ranks)


@only_moto
def test_the_number_of_requests_of_a_save_has_a_bound(root: str, tmp_path: pathlib.Path, way: Gate) -> None:
    """Of all ranks together. On a slow machine there are more polls, in as much more time."""
    ranks = start_ranks(root, tmp_path, dict.fromkeys(range(3), way))
    try:
        before, began = len(way.requests), time.monotonic()
        go(ranks)
        assert [process.communicate(timeout=HANG_SECONDS)[0] for process in ranks] == ["committed\n"] * 3
    finally:
        kill(ranks)
    used, seconds = way.requests[before:], time.monotonic() - began
    polls = [one for one in used if re.search(r"^GET .*(/verdict\.json$|list-type=2)|/\.lease", one)]
    print(len(used), len(polls), *used, sep="\n")
    assert len(used) - len(polls) <= 40
    assert len(polls) <= 40 + 5 * seconds  # each of three ranks: at first seven in a second, then one; and the lease


# ---- what is reported


def test_events_in_a_bucket_are_objects_of_their_own(root: str, server: Server) -> None:
    for step in (1, 2):
        with pawl.CheckpointManager(root, num_to_keep=1) as m:
            m.save(step, {"w": np.full(10, step)}, wait=True)
            m.wait_until_finished()
    lines = []
    names = keys(server, root + "/events")
    assert len(names) == 2
    for name in names:
        lines += [json.loads(line) for line in text_of(root + "/events", name, server).splitlines() if line]
    assert [(line["what"], line["attempt"]) for line in lines if line["what"] in ("save", "remove")] == [
        ("save", 1),
        ("remove", 2),
        ("save", 2),
    ]


# ---- a reader whose threads end together


@only_moto
def test_a_run_is_not_closed_under_a_hold_that_is_being_given_up(
    root: str, way: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One thread gives it up, which takes its time in a bucket, another closes the run: after it, not meanwhile."""
    with pawl.CheckpointManager(root) as m:
        m.save(1, {"w": np.full(100, 1)}, wait=True)
    monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
    reader = pawl.CheckpointManager(root, read_only=True)
    held = reader._run.hold(1)
    way.hold(r"^DELETE .*holds/")
    giver = threading.Thread(target=held.close, daemon=True)
    giver.start()
    assert way.held.wait(HANG_SECONDS)
    closer = threading.Thread(target=reader.close, daemon=True)
    closer.start()
    closer.join(0.5)
    waits = closer.is_alive()
    way.release.set()
    giver.join(HANG_SECONDS)
    closer.join(HANG_SECONDS)
    assert waits
    assert not closer.is_alive()
