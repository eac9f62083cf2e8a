# SPDX-License-Identifier: Apache-2.0
"""The forker: a process that the runner starts. It loads once what all trials need, and forks each
trial.

The protocol between runner and forker is in tune/forker.h.

A fork has only the thread that forked, so this process must have no other threads. If loading
starts threads, the process starts again without loading. Every trial then loads by itself.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import signal
import socket
import sys
from typing import NoReturn

from . import _worker, session, trainable

_FD = 3
_PLAIN = "--plain"
_MOST_BYTES = 8 << 20


def _threads() -> int:
    return len(os.listdir("/proc/self/task"))


class _Loaded:
    """The job of all trials. A trial loads it again if its file was replaced."""

    def __init__(self) -> None:
        self._path = os.environ[trainable.PAYLOAD]
        self._sign = self._signature()
        self._job: trainable.Job | None = None

    def _signature(self) -> tuple[int, int]:
        found = os.stat(self._path)
        return found.st_ino, found.st_mtime_ns

    def load(self) -> None:
        with contextlib.suppress(BaseException):  # a trial gets the same error, and reports it
            self._job = self._read()

    def _read(self) -> trainable.Job:
        with open(self._path, "rb") as file:
            return trainable.job_of(file.read())

    def job(self) -> trainable.Job:
        return self._job if self._job is not None and self._sign == self._signature() else self._read()


class _Forker:
    def __init__(self, control: socket.socket, loaded: _Loaded) -> None:
        self._control, self._loaded = control, loaded
        self._children: set[int] = set()
        self._wake, waker = socket.socketpair()
        for one in (self._wake, waker):
            one.setblocking(False)
        self._waker = waker
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)

    def serve(self) -> None:
        while True:
            ready = select.select([self._control, self._wake], [], [])[0]
            if self._wake in ready:
                with contextlib.suppress(BlockingIOError):
                    self._wake.recv(4096)
            self._tell_ends()
            if self._control in ready and not self._hear():
                return

    def _say(self, text: str) -> bool:
        with contextlib.suppress(OSError):
            self._control.send(text.encode())
            return True
        return False

    def _tell_start(self, pid: int) -> bool:
        """Reports a trial, with a descriptor of its process, since process ids may be reused."""
        try:
            fd = os.pidfd_open(pid)
        except (OSError, AttributeError):  # not supported, or too many descriptors
            return self._say(f"pid {pid}")
        try:
            socket.send_fds(self._control, [f"pid {pid}".encode()], [fd])
        except OSError:
            return False
        finally:
            os.close(fd)
        return True

    def _tell_ends(self) -> None:
        for pid in list(self._children):
            found = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            if found is not None:
                self._children.discard(pid)
                status = found.si_status << 8 if found.si_code == os.CLD_EXITED else found.si_status
                self._say(f"over {pid} {status}")

    def _is_alone(self) -> bool:
        """Whether the runner has closed its end. Then no process waits for its requests."""
        look = select.poll()
        look.register(self._control, 0)
        return any(events & select.POLLHUP for _, events in look.poll(0))

    def _hear(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._control, _MOST_BYTES, 3)
        except ConnectionResetError:  # the runner is gone and has not read everything
            return False
        if not data or self._is_alone():
            return False
        what, _, rest = data.decode().partition(" ")
        if what == "reap":
            with contextlib.suppress(ChildProcessError):
                os.waitpid(int(rest), 0)
            self._children.discard(int(rest))
            return True
        try:
            self._fork(json.loads(rest)["env"], fds)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _fork(self, env: list[str], fds: list[int]) -> None:
        """Forks a trial.

        It begins once the runner knows of it: else the runner might start it twice.
        """
        ours, theirs = socket.socketpair()
        with ours, theirs:
            try:
                pid = os.fork()
            except OSError as error:
                self._say(f"no {error}")
                return
            if pid == 0:
                ours.close()
                if not theirs.recv(1):
                    os._exit(1)
                theirs.close()
                self._run_trial(env, fds)
            with contextlib.suppress(OSError):
                os.setpgid(pid, pid)
            self._children.add(pid)
            if self._tell_start(pid):
                with contextlib.suppress(OSError):
                    ours.send(b".")

    def _run_trial(self, env: list[str], fds: list[int]) -> NoReturn:
        """Runs the trial in the forked process, and ends the process."""
        status = 1
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for one in (self._control, self._wake, self._waker):
                one.close()
            spare = [os.dup(fd) for fd in fds]  # so that none has the number that another needs
            for fd in fds:
                os.close(fd)
            for fd, place in zip(spare, (_FD, 1, 2), strict=True):
                if fd != place:
                    os.dup2(fd, place)
                    os.close(fd)
            os.environ.clear()
            os.environ.update(dict(one.split("=", 1) for one in env))
            _draw_anew()
            status = _worker.work(self._loaded.job, session.SocketChannel(_FD))[0]
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(status)


def _draw_anew() -> None:
    """Seeds NumPy's generator from the system, as in a new process.

    ``random`` does so by itself.
    """
    numpy = sys.modules.get("numpy")
    if numpy is not None and "numpy.random" in sys.modules:
        numpy.random.seed()


def main(plain: bool) -> int:
    control = socket.socket(fileno=_FD)
    loaded = _Loaded()
    if not plain:
        loaded.load()
        if _threads() > 1:
            os.set_inheritable(_FD, True)
            os.execv(sys.executable, [sys.executable, "-m", "pawl.tune._forker", _PLAIN])
    gc.collect()
    gc.freeze()  # pages shared with the trials stay shared
    _Forker(control, loaded).serve()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:] == [_PLAIN]))
