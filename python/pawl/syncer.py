# SPDX-License-Identifier: Apache-2.0
"""Copies a folder (a run, or many in one) to another place, and back: docs/how-to/sync.md.

    config = pawl.SyncConfig(upload_dir="s3://bucket/experiments", sync_period=60)
    with pawl.CheckpointManager("runs/demo") as manager, pawl.Syncer("runs/demo", config) as syncer:
        ...

libpawl does the work: by rsync over ssh, its own stores, or a command. A function of the caller
runs on its own thread, never on a thread of the library.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar

from . import _checks, _pawl
from ._fsspec import takes
from ._pawl import BusyError, NotFoundError, PawlError, StorageError, UsageError
from .options import Duration

_log = logging.getLogger("pawl")

SyncFunction = Callable[[str, str], object]
_T = TypeVar("_T")

_NEVER_RUN = "true {source} {target}"  # the caller's function copies, the library only verifies
_LOOK_SECONDS = 1.0


@dataclass(frozen=True)
class SyncConfig:
    """Where to sync a folder, how, and how often.

    Attributes:
        upload_dir: A path, ``user@host:path``, or a URL; what is synced is stored below it under
            its folder's name. Default: None, nowhere.
        syncer: "auto" depends on the place; None syncs nothing (the folder is shared); a command
            with ``{source}`` and ``{target}``; or a function ``f(source, target)``. Commands and
            functions get a frozen view of the folder. Default: "auto".
        sync_period: Time between two syncs, as a duration. Default: 300 seconds.
        sync_timeout: Longest time of one sync, as a duration. Default: 1,800 seconds.
        sync_on_checkpoint: Sync soon after a new checkpoint, too. Default: True.
        shell: Run the command by ``/bin/sh``, with the places quoted. Default: False.
        verify: Read back what was sent, and compare it. Default: True.
    """

    upload_dir: str | os.PathLike[str] | None = None
    syncer: str | SyncFunction | None = "auto"
    sync_period: Duration = 300.0
    sync_timeout: Duration = 1800.0
    sync_on_checkpoint: bool = True
    shell: bool = False
    verify: bool = True

    def __post_init__(self) -> None:
        if self.upload_dir is not None:
            place = _checks.place("upload_dir", self.upload_dir)
            if not place:
                raise UsageError("upload_dir must be a path or a URL, received ''; None syncs to no place")
            if place.endswith("://"):
                raise UsageError(f"upload_dir must name a place after '://', received {self.upload_dir!r}")
        if isinstance(self.syncer, str) and self.syncer != "auto":
            for field in ("{source}", "{target}"):
                if field not in self.syncer:
                    raise UsageError(f"syncer must have both {{source}} and {{target}} in it, {field} is missing")
        elif self.syncer is not None and not isinstance(self.syncer, str) and not callable(self.syncer):
            raise UsageError(f"syncer must be 'auto', None, a command or a function, received {self.syncer!r}")
        for name in ("sync_period", "sync_timeout"):
            if _checks.seconds(name, getattr(self, name)) <= 0:
                raise UsageError(f"{name} must be more than 0 seconds, received {getattr(self, name)!r}")


@dataclass(frozen=True)
class SyncReport:
    """What a sync has done.

    Attributes:
        verified: Whether all that was sent was read back and compared; else it does not count as
            synced.
        checkpoints: Number of checkpoints that were verified.
        seconds: Duration.
        note: Why it is not verified.
    """

    verified: bool
    checkpoints: int
    seconds: float
    note: str


class Syncer:
    """Syncs one folder. ``up`` and ``down`` do it now.

    As a context manager, or after ``start`` or ``request``, a thread syncs up every
    ``sync_period``, and soon after a new checkpoint (``sync_on_checkpoint``).

    Args:
        local: The folder: a run, or many in one.
        config: Where to and how. Default: None, a ``SyncConfig()``.
        remote: Where to. Default: None, below ``config.upload_dir`` under the folder's name.
            Without an ``upload_dir`` nothing is copied.

    Raises:
        UsageError: The folder has no name, or a place is not one that pawl can sync.
    """

    def __init__(
        self, local: str | os.PathLike[str], config: SyncConfig | None = None, remote: str | None = None
    ) -> None:
        if config is not None and not isinstance(config, SyncConfig):
            raise UsageError(f"config must be a SyncConfig, received {config!r}; a place is given as remote=")
        self.config = config or SyncConfig()
        self._period = _checks.seconds("sync_period", self.config.sync_period)
        self._longest = _checks.seconds("sync_timeout", self.config.sync_timeout)
        place = _checks.path("local", local)
        if not place:
            raise UsageError("local must be a folder, received ''; '.' is the working folder")
        self.local = os.path.abspath(place)
        self.remote = self._remote(remote)
        self.enabled = self.config.syncer is not None and self.remote is not None
        self.last: SyncReport | None = None
        self._seen: set[str] = set()
        self._lock = threading.Lock()
        self._wake = threading.Condition()
        self._stop = False
        self._begun = self._done = 0
        self._error: Exception | None = None
        self._failing = False
        self._thread: threading.Thread | None = None
        self._call: threading.Event | None = None  # set when the function has returned
        self._last_up = float("-inf")
        syncer = self.config.syncer
        self._function = syncer if callable(syncer) else None
        own = syncer == "auto" and self.enabled
        self._by_fsspec = own and self.remote is not None and takes(self.remote)
        command = _NEVER_RUN if callable(syncer) else None if own else syncer
        self._sync: _pawl.Syncer | None = None
        if self.enabled and self.remote is not None:
            self._sync = _pawl.Syncer(
                self.local,
                self.remote,
                command=command,
                shell=self.config.shell,
                timeout_ms=max(1, int(self._longest * 1000)),
                verify=self.config.verify,
                fsspec=self._by_fsspec,
            )

    def _remote(self, remote: str | None) -> str | None:
        if remote is not None:
            return _checks.place("remote", remote)
        if self.config.upload_dir is None:
            return None
        return _checks.below(_checks.place("upload_dir", self.config.upload_dir), os.path.basename(self.local))

    # ------------------------------------------------------------------ now

    def up(self) -> SyncReport | None:
        """Syncs to the remote place now.

        Returns:
            What was done; None if there is nothing to do (no other place, or ``syncer=None``).

        Raises:
            BusyError: The folder is being synced.
            StorageError: The sync has failed.
        """
        return self._run(down=False)

    def down(self) -> SyncReport | None:
        """Syncs from the remote place to this machine now.

        Returns:
            What was done; None if there is nothing to do.

        Raises:
            BusyError: The folder is being synced.
            StorageError: The sync has failed.
        """
        return self._run(down=True)

    def up_if_due(self) -> SyncReport | None:
        """Syncs up if ``sync_period`` has passed since the last time.

        Returns:
            As ``up``; None if it is not due.

        Raises:
            BusyError: The folder is being synced.
            StorageError: The sync has failed.
        """
        if time.monotonic() - self._last_up < self._period:
            return None
        return self.up()

    def _prune(self, folders: list[str]) -> None:
        """Removes folders at the remote place that no longer exist here."""
        if self._sync is not None:
            self._sync.prune(folders)

    def _run(self, down: bool) -> SyncReport | None:
        if self._sync is None:
            return None
        if threading.current_thread() is self._thread:  # _sync_once holds the lock
            return self._run_locked(self._sync, down)
        if not self._lock.acquire(blocking=False):
            raise BusyError(f"{self.local}: is already being synced")
        try:
            return self._run_locked(self._sync, down)
        finally:
            self._lock.release()
            with self._wake:
                self._wake.notify_all()

    def _run_locked(self, sync: _pawl.Syncer, down: bool) -> SyncReport:
        if not down:
            self._last_up = time.monotonic()
        self.last = self._move(sync, down)
        if not down:
            with self._wake:
                self._error, self._failing = None, False
        return self.last

    def _move(self, sync: _pawl.Syncer, down: bool) -> SyncReport:
        transfer = sync.down if down else sync.up
        if self._call is not None and not self._call.is_set():
            raise BusyError(f"{self.local}: the sync function has still not returned")
        if self._by_fsspec:
            return SyncReport(*self._in_time(transfer, sync.cancel))
        if self._function is None:
            return SyncReport(*self._waiting(sync, transfer))
        begin = time.monotonic()
        if down:
            os.makedirs(self.local, exist_ok=True)
        try:
            here = os.path.join(self.local if down else self._waiting(sync, sync.freeze), "")
            self._call_function(self._function, here, down)
            if not self.config.verify:
                return SyncReport(False, 0, time.monotonic() - begin, "")
            try:
                verified, checkpoints, _, note = self._waiting(sync, lambda: sync.verify(down))
            except NotFoundError as error:  # the library does not know the function
                name = getattr(self._function, "__qualname__", repr(self._function))
                raise NotFoundError(f"after the sync function {name}: {error}") from None
            return SyncReport(verified, checkpoints, time.monotonic() - begin, note)
        finally:
            if self._call is None or self._call.is_set():  # else the next sync does it
                sync.thaw()

    def _waiting(self, sync: _pawl.Syncer, call: Callable[[], _T]) -> _T:
        """Runs a call on another thread, so that Ctrl+C ends the sync and its processes."""
        if threading.current_thread() is not threading.main_thread():
            return call()
        result: list[_T] = []
        error: list[BaseException] = []

        def work() -> None:
            if not first.acquire(blocking=False):
                return
            try:
                result.append(call())
            except BaseException as why:
                error.append(why)
            finally:
                done.set()

        first = threading.Lock()  # taken by the thread, or by a Ctrl+C before it runs
        done = threading.Event()  # an interrupted join() marks the thread as ended (Python 3.11)
        thread = threading.Thread(target=work, name="pawl-sync")
        try:
            thread.start()
            while not done.wait(0.1):  # a Ctrl+C just before a wait is handled after it
                pass
        except BaseException:
            if not first.acquire(blocking=False):
                sync.cancel()
                while not done.wait(0.1):  # the call clears a cancel that comes before its begin
                    sync.cancel()
            raise
        thread.join()
        if error:
            raise error[0]
        return result[0]

    def _call_function(self, function: SyncFunction, here: str, down: bool) -> None:
        """Calls the function with both places."""
        there = str(self.remote)
        if self._in_time(lambda: function(there, here) if down else function(here, there), lambda: None) is False:
            raise StorageError(f"{self.local}: the sync function has returned False")

    def _in_time(self, call: Callable[[], _T], cancel: Callable[[], object]) -> _T:
        """Runs a call on another thread, and waits at most sync_timeout.

        Functions in Python cannot be stopped from outside: until they return, no other sync begins.
        """
        outcome: list[_T] = []
        error: list[BaseException] = []

        def work() -> None:
            try:
                outcome.append(call())
            except BaseException as why:
                error.append(why)
            finally:
                done.set()

        self._call = done = threading.Event()  # as in _waiting
        end = time.monotonic() + self._longest
        threading.Thread(target=work, name="pawl-sync-function", daemon=True).start()
        try:
            while not done.wait(0.1) and time.monotonic() < end:
                pass
        finally:
            if not done.is_set():
                cancel()
        if not done.is_set():
            raise _pawl.TimeoutError(f"{self.local}: the sync function has not returned within {self._longest:g} s")
        if error:
            if isinstance(error[0], PawlError):
                raise error[0]
            said = _pawl.hide_secrets(str(error[0]))
            raise StorageError(f"{self.local}: the sync function has failed: {said}") from error[0]
        return outcome[0]

    # ------------------------------------------------------- in the background

    def start(self) -> None:
        """Syncs up in the background from now on."""
        with self._wake:  # several threads may make the first request
            if self._sync is not None and self._thread is None:
                self._stop = False
                self._seen = self._checkpoints()
                self._thread = threading.Thread(target=self._work, name="pawl-syncer", daemon=True)
                self._thread.start()

    def request(self) -> None:
        """Asks the background thread for a sync as soon as it can. Starts the thread if it does not
        run yet.
        """
        with self._wake:
            self._begun += 1
            self.start()
            self._wake.notify_all()

    def wait(self, timeout: Duration | None = None) -> None:
        """Waits until all that has been requested is synced.

        Args:
            timeout: Longest wait, as a duration. Default: None, no limit.

        Raises:
            TimeoutError: The wait took too long.
            PawlError: The last sync has failed.
        """
        limit = _checks.limit(timeout)
        deadline = None if limit is None else time.monotonic() + limit
        with self._wake:
            while self._thread is not None and self._done < self._begun:
                left = None if deadline is None else deadline - time.monotonic()
                if left is not None and left <= 0:
                    raise _pawl.TimeoutError(f"{self.local}: has not been synced within {limit:g} s")
                self._wake.wait(left if left is None else min(left, 0.5))
        self.check_for_errors()

    def check_for_errors(self) -> None:
        """Raises the error of the last sync in the background, once. A sync that succeeds, ``up``
        too, has sent what earlier ones did not, so their errors are dropped.

        Raises:
            PawlError: The last sync has failed.
        """
        with self._wake:
            error, self._error = self._error, None
        if error is not None:
            raise error

    def _checkpoints(self) -> set[str]:
        """Names of the checkpoints of this run, or of the runs in this folder."""
        found = set()
        for folder in [self.local, *self._folders(self.local)]:
            place = os.path.join(folder, "checkpoints")
            found |= {path for path in self._folders(place) if os.path.exists(os.path.join(path, "manifest.json"))}
        return found

    @staticmethod
    def _folders(path: str) -> list[str]:
        try:
            with os.scandir(path) as entries:
                return [e.path for e in entries if not e.name.startswith(".") and e.is_dir(follow_symlinks=False)]
        except OSError:
            return []

    def _is_due(self) -> bool:
        if self._begun > self._done or time.monotonic() - self._last_up >= self._period:
            return True
        if not self.config.sync_on_checkpoint:
            return False
        now = self._checkpoints()
        new, self._seen = now - self._seen, now
        return bool(new)

    def _work(self) -> None:
        self._last_up = time.monotonic()
        while True:
            with self._wake:
                if self._stop:
                    return
            if self._is_due():
                self._sync_once()
            with self._wake:
                if not self._stop and self._begun <= self._done:
                    self._wake.wait(min(self._period, _LOOK_SECONDS))

    def _sync_once(self) -> None:
        with self._wake:
            while not self._stop and not self._lock.acquire(blocking=False):  # up or down runs
                self._wake.wait(_LOOK_SECONDS)
            if self._stop:
                return
            asked = self._begun
        error: Exception | None = None
        try:
            self.up()
        except Exception as why:
            error = why
            if not self._failing:
                _log.warning("%s: not synced to %s; the next sync tries again: %s", self.local, self.remote, error)
        finally:
            with self._wake:
                self._lock.release()  # before a call of wait returns, since the next one may be up
                self._error, self._failing = error, error is not None
                self._done = max(self._done, asked)
                self._wake.notify_all()

    def close(self, sync: bool = True) -> None:
        """Ends the background thread, after one more sync. Raises the error of the last sync if no
        call has raised it. Without a thread nothing is synced: ``down`` and ``close`` send nothing.

        Args:
            sync: Sync once more. Default: True.

        Raises:
            PawlError: The last sync has failed.
        """
        if self._thread is not None:
            if sync:
                self.request()
                with self._wake:
                    while self._done < self._begun:
                        self._wake.wait(0.5)
            with self._wake:
                self._stop = True
                self._wake.notify_all()
            if not sync and self._sync is not None:
                self._sync.cancel()
            self._thread.join()
            self._thread = None
        if self._sync is not None:
            if self._call is None or self._call.is_set():  # else it frees the library's part
                self._sync.close()
            self._sync = None
        self.check_for_errors()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it. An error of the block takes precedence over an error of a sync."""
        try:
            self.close(sync=kind is None)
        except PawlError:
            if kind is None:
                raise
