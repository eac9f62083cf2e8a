# SPDX-License-Identifier: Apache-2.0
"""A trial on a node of a cluster: the actor of pawl.tune.ray_engine.

The driver asks for the trial's messages, and answers them. The actor never needs to reach the
driver.

The trial's folder depends on what the node can see:

- "shared": the experiment's own folder, which the node sees
- "remote": a folder of the node, whose checkpoints are sent to ``upload_dir`` before they are
  reported
- "copied": a folder of the node, whose checkpoints the driver fetches
"""

from __future__ import annotations

import contextlib
import getpass
import os
import queue
import re
import shutil
import socket
import sys
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .. import _files
from .._pawl import UsageError
from ..syncer import SyncConfig
from . import elsewhere, session, trainable

MARK = ".engine"  # in the experiment's folder while it runs: a node that sees it shares that folder
# Names of checkpoints. "_of_" is in those of clones. Other folders are the trial's own.
_CHECKPOINT = re.compile(r"checkpoint_\d+(_of_\d+_\d+)*")
BLOCK = 16 << 20  # bytes that are sent at a time


@dataclass(frozen=True)
class Start:
    """All that a new trial must know."""

    mark: str  # the content of MARK
    local: str  # the experiment's folder, maybe below ~
    sync: SyncConfig
    name: str
    id: str
    config: str
    checkpoint: str | None  # a name in its folder
    place: str | None  # where the checkpoint is stored, if not in the experiment's folder
    given: str | None  # a folder that all trials begin with
    iteration: int
    env: Mapping[str, str]


@dataclass(frozen=True)
class About:
    """Where a trial runs."""

    pid: int
    host: str
    where: str  # user@address:folder
    how: str  # "shared", "remote" or "copied"


class Mailbox(session.Channel):
    """Keeps the trial's messages until the driver asks for them."""

    def __init__(self, actor: Actor) -> None:
        self._actor = actor
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        self.answers: queue.Queue[dict[str, Any]] = queue.Queue()

    def send(self, message: Mapping[str, Any]) -> None:
        self.said.put(self._actor.with_place(dict(message)))

    def receive(self) -> dict[str, Any]:
        answer = self.answers.get()
        self._actor.forget(answer.pop("keep", None))
        return answer


class Actor:
    """One trial.

    Its methods are called from several threads: ``run`` by one, ``talk`` by another.
    """

    def __init__(self) -> None:
        self._mailbox = Mailbox(self)
        self._start: Start | None = None
        self._payload = b""
        self._folder = self._how = ""
        self._from: str | None = None

    # ---- before it runs ----

    def prepare(self, start: Start, payload: bytes) -> About:
        from ray.util import get_node_ip_address

        self._start, self._payload = start, payload
        local = os.path.expanduser(start.local)
        self._folder = os.path.join(local, start.name)
        self._how = self._choose(local, start)
        os.makedirs(self._folder, exist_ok=True)
        self._from = None if start.checkpoint is None else os.path.join(self._folder, start.checkpoint)
        if self._from is not None and start.place is not None and self._how != "shared":
            self._fetch(start, start.place, self._from)
        if self._from is None and start.given is not None:
            self._from = start.given if self._how == "shared" else os.path.join(self._folder, ".given")
        address = get_node_ip_address()
        return About(os.getpid(), socket.gethostname(), f"{getpass.getuser()}@{address}:{self._folder}", self._how)

    @staticmethod
    def _choose(local: str, start: Start) -> str:
        with contextlib.suppress(OSError), open(os.path.join(local, MARK), encoding="utf-8") as file:
            if file.read() == start.mark:
                return "shared"
        if start.sync.syncer is None:
            raise UsageError(
                f"{local} on {socket.gethostname()} is not the experiment's folder, though SyncConfig(syncer=None) "
                "says that it is shared; give upload_dir, or leave syncer out"
            )
        return "copied" if start.sync.upload_dir is None else "remote"

    def _fetch(self, start: Start, place: str, target: str) -> None:
        partial = _files.hidden(target)
        elsewhere.fetch(start.sync, place, partial)
        _files.publish(partial, target)

    def files(self, name: str) -> list[tuple[str, int]]:
        """Files of a checkpoint of this trial, with their sizes; folders have -1."""
        return elsewhere.files_of(os.path.join(self._folder, name))

    def read(self, name: str, path: str, offset: int) -> bytes:
        with open(os.path.join(self._folder, name, path), "rb") as file:
            file.seek(offset)
            return file.read(BLOCK)

    def write(self, name: str, path: str, offset: int, data: bytes | None) -> None:
        """Writes a part of a file of the checkpoint that the trial begins with.

        None makes a folder.
        """
        target = os.path.join(self._folder, name, path)
        if data is None:
            os.makedirs(target, exist_ok=True)
            return
        with open(target, "r+b" if offset else "wb") as file:
            file.seek(offset)
            file.write(data)

    # ---- while it runs ----

    def run(self) -> None:
        status, text = 1, ""
        try:
            self._enter()
            from . import _worker

            status, text = _worker.work(lambda: trainable.job_of(self._payload), self._mailbox)
        except BaseException as error:
            text = text or f"{type(error).__name__}: {error}"
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            self._mailbox.said.put({"over": status, "text": text})

    def _enter(self) -> None:
        """Sets up what a process of the runner gets: environment and output
        (docs/reference/tune.md).
        """
        start = self._start
        assert start is not None
        config = os.path.join(self._folder, "params.json")
        if self._how != "shared":
            with open(config, "w", encoding="utf-8") as file:
                file.write(start.config)
        os.environ.update(start.env)
        os.environ["PAWL_TUNE_TRIAL"], os.environ["PAWL_TUNE_ID"] = start.name, start.id
        os.environ["PAWL_TUNE_FOLDER"], os.environ["PAWL_TUNE_CONFIG"] = self._folder, config
        os.environ["PAWL_TUNE_ITERATION"] = str(start.iteration)
        os.environ.pop("PAWL_TUNE_CHECKPOINT", None)
        if self._from is not None:
            os.environ["PAWL_TUNE_CHECKPOINT"] = self._from
        for fd, name in ((1, "stdout"), (2, "stderr")):
            file_fd = os.open(os.path.join(self._folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
            os.dup2(file_fd, fd)
            os.close(file_fd)

    def talk(self, answer: dict[str, Any] | None, seconds: float) -> list[dict[str, Any]]:
        """Takes the answer to the last message. Waits for new messages, and returns them."""
        if answer is not None:
            self._mailbox.answers.put(answer)
        said = []
        with contextlib.suppress(queue.Empty):
            said.append(self._mailbox.said.get(timeout=seconds))
            while True:
                said.append(self._mailbox.said.get_nowait())
        return said

    def with_place(self, message: dict[str, Any]) -> dict[str, Any]:
        """Sends the checkpoint of a message to upload_dir if needed, and adds its place to the
        message.
        """
        name, start = message.get("checkpoint"), self._start
        if name is not None and self._how == "remote" and start is not None:
            local = os.path.join(self._folder, name)
            place = elsewhere.place_of(start.sync, start.local, start.name, local)
            elsewhere.send(start.sync, place, local)
            message["place"] = place
        return message

    def forget(self, keep: list[str] | None) -> None:
        """Removes from a folder of this node the checkpoints that retention no longer keeps."""
        if keep is None or self._how == "shared":
            return
        for entry in os.scandir(self._folder):
            if _CHECKPOINT.fullmatch(entry.name) and entry.is_dir() and entry.name not in keep:
                shutil.rmtree(entry.path, ignore_errors=True)


def mark(folder: str) -> str:
    """Writes the mark of a running experiment into its folder.

    Returns the content of the mark.
    """
    text = uuid.uuid4().hex
    with open(os.path.join(folder, MARK), "w", encoding="utf-8") as file:
        file.write(text)
    return text
