# SPDX-License-Identifier: Apache-2.0
"""Trials that are forks of one process that has loaded everything: what is shared, what is not, and what if it is gone."""

from __future__ import annotations

import json
import os
import pathlib
import random
import select
import signal
import socket
import subprocess
import sys
import threading
from typing import Any

import cloudpickle
import pytest
from waiting import HANG_SECONDS

from pawl import tune
from pawl.tune import ray_actor, trainable

cloudpickle.register_pickle_by_value(sys.modules[__name__])


def run(trainable: Any, folder: pathlib.Path, config: dict[str, Any], **more: Any) -> list[dict[str, Any]]:
    analysis = tune.run(trainable, name="f", local_dir=folder, config=config, verbose=0, engine="local", **more)
    assert [one.status for one in analysis.trials] == ["TERMINATED"] * len(analysis.trials)
    return [one.last_result for one in analysis.trials]


def who(config: dict[str, Any]) -> dict[str, Any]:
    import numpy

    return {
        "parent": os.getppid(),
        "me": os.getpid(),
        "group": os.getpgid(0),
        "name": tune.get_trial_name(),
        "draws": [random.random(), float(numpy.random.rand())],
        "fds": sorted(os.readlink(f"/proc/self/fd/{fd}").split(":")[0].rpartition("/")[2] for fd in (0, 1, 2, 3)),
    }


def test_trials_are_forks_with_all_that_is_theirs(tmp_path: pathlib.Path) -> None:
    config = {"x": tune.grid_search([1, 2, 3]), "array": lambda: None}
    rows = run(who, tmp_path / "a", config)
    assert len({row["parent"] for row in rows}) == 1 and rows[0]["parent"] != os.getpid()
    assert all(row["group"] == row["me"] and row["name"] == f"trial_0000{i}_x={i + 1}" for i, row in enumerate(rows))
    assert all(row["fds"] == ["null", "socket", "stderr", "stdout"] for row in rows)
    assert len({draw for row in rows for draw in row["draws"]}) == 6  # generators begin again in each
    alone = run(who, tmp_path / "b", config, fork=False)
    assert {row["parent"] for row in alone} == {os.getpid()}


class Threaded:
    """Starts a thread where it is loaded."""

    def __init__(self) -> None:
        self.made_by = os.getpid()
        threading.Thread(target=threading.Event().wait, daemon=True).start()

    def __reduce__(self) -> Any:
        return Threaded, ()


def loaded(config: dict[str, Any]) -> dict[str, Any]:
    return {"own": config["thing"].made_by == os.getpid(), "threads": threading.active_count()}


def test_what_starts_threads_is_loaded_by_each_trial_itself(tmp_path: pathlib.Path) -> None:
    config = {"x": tune.grid_search([1, 2]), "thing": Threaded()}
    assert [(row["own"], row["threads"]) for row in run(loaded, tmp_path, config)] == [(True, 2)] * 2


def orphan(config: dict[str, Any]) -> None:
    parent = os.getppid()
    if config["x"] == 1:
        os.kill(parent, signal.SIGKILL)
    tune.report(parent=parent)


def test_trials_go_on_without_the_process_that_forked_them(tmp_path: pathlib.Path) -> None:
    config = {"x": tune.grid_search([1, 2]), "thing": Thing()}
    first, second = run(orphan, tmp_path, config, max_concurrent_trials=1)
    assert first["parent"] != os.getpid()
    assert second["parent"] == os.getpid()  # a program of its own


def odd_variable(config: dict[str, Any]) -> dict[str, Any]:
    return {"found": list(os.environb[b"ODD"]), "parent": os.getppid()}


@pytest.mark.parametrize("text", ["caf\u00e9".encode(), b"caf\xe9"], ids=["UTF-8", "other"])
def test_a_trial_has_every_variable_of_the_environment_unchanged(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, text: bytes
) -> None:
    """A variable that is not UTF-8 cannot be sent to the process that forks trials, so they are not forked."""
    monkeypatch.setenv("ODD", os.fsdecode(text))
    (row,) = run(odd_variable, tmp_path, {"x": 1})
    assert row["found"] == list(text)
    assert (row["parent"] == os.getpid()) == (text == b"caf\xe9")


class Thing:
    """A value that JSON cannot hold."""


def mark(config: dict[str, Any]) -> None:
    pathlib.Path(config["at"]).touch()


def a_request(tmp_path: pathlib.Path) -> tuple[pathlib.Path, dict[str, str], bytes]:
    """The folder of a trial of mark(), the environment of a forker, and what the runner asks it for."""
    payload, folder = tmp_path / "job", tmp_path / "trial"
    folder.mkdir()
    (folder / "params.json").write_text(json.dumps({"at": str(folder / "began")}))
    payload.write_bytes(trainable.Job(trainable.Wrapped(mark), {}, "f", {}, None, 0, False).payload(None))
    names = {"TRIAL": "trial", "ID": "0", "FOLDER": str(folder), "CONFIG": str(folder / "params.json")}
    more = [f"PAWL_TUNE_{name}={text}" for name, text in names.items()] + [f"{trainable.PAYLOAD}={payload}"]
    return folder, os.environ | {trainable.PAYLOAD: str(payload)}, b"fork " + json.dumps({"env": more}).encode()


@pytest.mark.parametrize("leaves", [True, False])
def test_what_a_runner_that_has_gone_asked_for_is_not_begun(tmp_path: pathlib.Path, leaves: bool) -> None:
    """The request waits in the socket; a reader would then begin a trial that another process also begins."""
    folder, env, request = a_request(tmp_path)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, open(os.devnull, "w") as null, socket.socketpair()[0] as channel:
        fds = [channel.fileno(), null.fileno(), null.fileno()]
        socket.send_fds(ours, [request], fds)
        if leaves:
            ours.close()
        program = "import os, sys; os.dup2(int(sys.argv[1]), 3); from pawl.tune import _forker; _forker.main(False)"
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        forker = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        if not leaves:
            assert ours.recv(512).startswith(b"pid ") and ours.recv(512).startswith(b"over ")
            ours.close()
        assert forker.wait(HANG_SECONDS) == 0
    assert (folder / "began").exists() != leaves


@pytest.mark.parametrize("killed", ["before", "never"])
def test_a_trial_of_which_the_runner_was_not_told_does_not_begin(tmp_path: pathlib.Path, killed: str) -> None:
    """Not told, the runner begins it elsewhere; it would run twice. Here the forker is killed before it tells."""
    folder, env, request = a_request(tmp_path)
    program = f"""
import os, signal, sys
from pawl.tune import _forker
tell = _forker._Forker._tell_start
def tell_or_die(self, pid):
    if {killed == "before"}:
        os.kill(os.getpid(), signal.SIGKILL)
    assert tell(self, pid)
    return True
_forker._Forker._tell_start = tell_or_die
os.dup2(int(sys.argv[1]), 3)
_forker.main(False)
"""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    left, right = socket.socketpair()
    with ours, left, open(os.devnull, "w") as null:
        command = [sys.executable, "-c", program, str(theirs.fileno())]
        forker = subprocess.Popen(command, env=env, pass_fds=[theirs.fileno()])
        theirs.close()
        fds = [right.fileno(), null.fileno(), null.fileno()]
        socket.send_fds(ours, [request], fds)
        right.close()
        if killed == "never":
            assert ours.recv(512).startswith(b"pid ")
        while left.recv(4096):  # until no process holds the trial's channel
            pass
        if killed == "never":  # the runner goes before it reads that the trial is over
            assert select.select([ours], [], [], HANG_SECONDS)[0]
        ours.close()
        assert forker.wait(HANG_SECONDS) == (-signal.SIGKILL if killed == "before" else 0)
    assert (folder / "began").exists() == (killed == "never")


def test_on_a_node_only_checkpoints_are_given_up(tmp_path: pathlib.Path) -> None:
    for name in ("checkpoint_000001", "checkpoint_000002", "runs", "checkpoint_mine", "checkpoint_000001_of_00001_2"):
        (tmp_path / name).mkdir()
    actor = ray_actor.Actor()
    actor._folder, actor._how = str(tmp_path), "copied"
    actor.forget(["checkpoint_000002"])
    assert sorted(os.listdir(tmp_path)) == ["checkpoint_000002", "checkpoint_mine", "runs"]
