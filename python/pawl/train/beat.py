# SPDX-License-Identifier: Apache-2.0
"""The heartbeat thread of a worker. It also reads messages of the driver and the other workers."""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
import traceback
from typing import Any

from .. import _pawl, _signals
from .._signals import REQUEUE_EXIT_CODE
from .channel import Channel
from .engine import Job
from .session import Session

_log = logging.getLogger("pawl")


class Beat(threading.Thread):
    """Sends heartbeats. Ends the process if the driver is gone, or if the agent ends the group."""

    def __init__(self, job: Job, watch: _pawl.Watch, session: list[Session]) -> None:
        super().__init__(name="pawl-beat", daemon=True)
        self._job, self._watch, self._who = job, watch, session
        self._rank, self._parent = os.environ["RANK"], os.getppid()
        self._answered = False
        self._first: tuple[Any, float] = (None, 0.0)  # rank 0's last heartbeat, and its time
        self._beats = 0  # heartbeats that the store has confirmed
        self._over = threading.Event()

    def stop(self) -> None:
        """Ends the thread: the training is over, but the process continues."""
        self._over.set()
        self.join()

    def run(self) -> None:
        try:
            channel = Channel.join(self._job.host, self._job.port, self._job.channel or self._job.attempt)
            if self._job.launched:
                threading.Thread(target=self._guard, name="pawl-guard", daemon=True).start()
            while not self._over.is_set():
                self._beats = channel.count(f"beat/{self._rank}")
                if not self._answered and channel.has("ask"):
                    self._answered = True
                    channel.put(f"where/{self._rank}", place_of(threading.main_thread()))
                for session in self._who:
                    session.listen(channel)
                self._end_if_told(channel)
                for _ in range(5):
                    if self._over.wait(0.1):
                        return
                    if not self._job.launched and self._watch.signal and self._watch.sender == self._parent:
                        for session in self._who:
                            session.settle(3)
                        os._exit(143)
        except RuntimeError:  # the store has ended, and the driver with it
            if not self._over.is_set():
                if self._job.launched:
                    self._say_lost()
                os._exit(1)

    def _guard(self) -> None:
        """Ends the process if the store no longer answers.

        If the network is cut, a call of the store may block for 15 minutes. Rounds are counted
        instead of time, so that a process that was suspended for a while is not taken for dead.
        """
        beats, rounds = self._beats, 0
        while not self._over.wait(0.5):
            beats, rounds = self._beats, rounds + 1 if beats == self._beats else 0
            if rounds > 2 * self._job.heartbeat_timeout:
                self._say_lost()
                os._exit(1)

    def _say_lost(self) -> None:
        _log.error("rank %s ends: it lost the connection to %s, where all ranks meet", self._rank, self._job.host)

    def _end_if_told(self, channel: Channel) -> None:
        """Ends this process if the group has to end.

        Without an agent (engine "launcher") each process has to do this itself. With an agent it
        does so if it is given time for its saves.
        """
        if (why := channel.get("end")) is not None and why["rank"] != int(self._rank):
            if self._job.launched:
                _log.error("rank %s ends: %s", self._rank, why["words"])
                channel.put(f"heard/{self._rank}", 1)
                if self._rank == "0":  # the store ends with this process
                    channel.wait_heard(self._job.world_size)
            for session in self._who:
                session.settle(why["seconds"])
            os._exit(1)
        if not self._job.launched:
            return
        beat, now = channel.get("beat/0"), time.monotonic()
        if beat != self._first[0]:
            self._first = (beat, now)
        gone = beat is not None and now - self._first[1] > self._job.heartbeat_timeout
        if gone and not channel.ended(0):
            _log.error("rank %s ends: rank 0 gave no sign of life for %g s", self._rank, self._job.heartbeat_timeout)
            os._exit(1)
        left = self._watch.seconds_left
        if self._watch.signal and left is not None and left < 0.5:
            os._exit(REQUEUE_EXIT_CODE)


def place_of(thread: threading.Thread) -> str:
    """Where a thread is: the innermost line of the program, or of a library if there is none."""
    frame = sys._current_frames().get(thread.ident or 0)
    frames = traceback.extract_stack(frame) if frame is not None else []
    own = [
        one
        for one in frames
        if not one.filename.startswith((sys.prefix, sys.base_prefix, os.path.dirname(__file__), "<"))
    ]
    if not frames:
        return ""
    at = (own or frames)[-1]
    return f"{at.name} ({os.path.basename(at.filename)}:{at.lineno})"


def start(job: Job) -> tuple[_pawl.Watch, Channel, list[Session], Beat]:
    watch = _signals.acquire(job.grace_seconds or 0.0)
    channel = Channel.join(job.host, job.port, job.channel or job.attempt)
    channel.put(f"pid/{os.environ['RANK']}", os.getpid())
    found: list[Session] = []
    beat = Beat(job, watch, found)
    beat.start()
    return watch, channel, found, beat
