# SPDX-License-Identifier: Apache-2.0
"""The manager of a run's checkpoints: options and names for the library, which does the work."""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from . import _checks, _options, _pawl, _reports, _signals, loggers
from ._pawl import NotFoundError, Ticket, UsageError
from .checkpoint import Checkpoint, of_run
from .records import CheckpointInfo, Decision, Restored, T

_RANK_VALUES = {"strict": 0, "drop": 1, "wrap": 2}

Order = Literal["max", "min"]
Interval = str | int | Callable[[int], bool] | None


class CheckpointManager:
    """Saves, keeps and restores the checkpoints of one run in one folder.

    What is kept: with no rule everything. ``num_to_keep=N`` keeps the newest N, or with ``score_attribute`` the best N
    and the latest as well, so that a resume never loses progress (``keep_latest=False`` gives exactly N);
    ``num_to_keep=0`` writes nothing and keeps the newest in memory. ``keep_last``, ``keep_best``, ``keep_every``
    (steps), ``keep_seconds`` and ``max_bytes`` add to that.

    ``save_interval`` is a time string ("1ep", "500ba", "30sec", "0.25dur", "auto"), a number of epochs, or a function
    of the step; then ``save`` may be called every step and returns None when no save is due.
    """

    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        num_to_keep: int | None = None,
        score_attribute: str | Sequence[str] | None = None,
        score_order: Order | Sequence[Order] = "max",
        keep_latest: bool = True,
        keep_last: int = 0,
        keep_best: int = 0,
        keep_every: int = 0,
        keep_seconds: float = 0.0,
        max_bytes: int = 0,
        strict_score: bool = False,
        save_interval: Interval = None,
        mtbf_seconds: float = 0.0,
        read_only: bool = False,
        overwrite: bool = False,
        run_id: str | None = None,
        name_template: str | None = None,
        mode: Literal["snapshot", "ring", "direct"] = "snapshot",
        on_busy: Literal["wait", "skip", "replace"] = "wait",
        arena_bytes: int = 0,
        ring_bytes: int = 0,
        pack_bytes: int = 0,
        block_bytes: int = 0,
        bandwidth: int | None = None,
        read_bandwidth: int | None = None,
        copy_threads: int = 0,
        io_threads: int = 0,
        recycle: int = 0,
        reuse: bool = True,
        direct_io: bool = True,
        strict_latest: bool = False,
        nonfinite: Literal["accept", "flag", "refuse"] = "accept",
        lease_timeout: float | None = None,
        lease_wait: float | None = None,
        rank: int | None = None,
        world_size: int | None = None,
        commit_timeout: float | None = None,
        broadcast: Callable[..., Any] | None = None,
        node_folder: str | os.PathLike[str] | None = None,
        partner: int = 0,
        n_nodes: int = 0,
        node_rank: int | None = None,
        mirrors: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
        mirror_keep: Mapping[str, float] | None = None,
        num_concurrent_uploads: int = 0,
        upload_timeout: float | None = None,
        upload_memory: int = 0,
        upload_bandwidth: int | None = None,
        upload_error_budget: int = 0,
        delete_after_upload: bool = False,
        upload_errors: Literal["soft", "hard"] = "soft",
        wait_uploads: bool = True,
        compression: str | None = None,
        compression_level: int = 0,
        signals: bool | None = None,
        grace_seconds: float | None = None,
        save_on_exception: bool = False,
        fault: tuple[str, int, int, bool] | None = None,
        after_id: int = 0,
        logger: object = None,
    ) -> None:
        """Opens or creates the run in ``root``: a path, ``file://path``, ``mem:``, or a URL (docs/stores.md).

        ``mirrors``: paths or URLs to which every checkpoint is copied in the background (docs/mirrors.md).
        ``mirror_keep``: what they keep, by the words of the rules above; None = everything. ``delete_after_upload``:
        what all of them have is deleted here. ``upload_errors``: "soft" tells them by ``check_for_errors`` and
        ``close``, with "hard" ``save`` fails, too. ``wait_uploads``: whether ``close`` waits for uploads; else who
        opens the run next goes on with them.

        ``lease_wait``: how many seconds to wait while another process holds the run's lease; the wait is logged. None =
        until that process is known to live or to be dead, ``lease_timeout`` at most; 0 = raise ``BusyError`` at once.

        ``signals``: watch SIGTERM and SIGUSR1 for ``preempted``; None = from the first look at it. ``grace_seconds``:
        time between the signal and the kill, if known. ``save_on_exception``: when the ``with`` block ends by an
        exception, save the state as it is then, if the last ``save`` call has saved nothing; see docs/python.md for
        what that means. ``fault``: fail the n-th call of an
        operation of the store, for tests: (operation, n, code, for ever). ``after_id``: ids of new checkpoints are
        above this one. ``compression``: "zst" or "planes": new checkpoints are
        compressed, by pawl's own threads after the copy (docs/compression.md); "auto": by planes, as long as the store
        or a mirror is slower than that. ``logger``: where metrics and the cost
        of each checkpoint go (pawl.loggers).
        """
        place, who, options = _options.read(locals())
        self._due = save_interval if callable(save_interval) else None
        self._has_interval = save_interval is not None
        self._on_busy = on_busy
        self._told_metrics: set[str] = set()
        self._scalars = None if logger is None else loggers.Scalars(logger)
        self._save_on_exception = save_on_exception
        self._offered: dict[str, Any] | None = None  # of the last call of save, for save_on_exception
        self._ticket: Ticket | None = None  # what that call gave
        self._grace = _checks.seconds("grace_seconds", grace_seconds or 0.0)
        self._watch: _pawl.Watch | None = None
        self._watches = signals is not False
        self._saved_after_signal = False
        self._run = _pawl.Run(place, **options)
        self.rank, self.world_size = who.rank, who.world_size
        self._left_open = weakref.finalize(self, _reports.finish, self._run)
        _reports.store(self._run.warning)
        if signals or (signals is None and grace_seconds is not None):
            self._look()

    # ---- saving ----

    def prepare(self, state: object) -> None:
        """Readies the memory that saves of ``state`` will use, in the background, so that the first save is as fast as
        later ones. ``restore`` does this by itself. Returns at once; a save may come at any time."""
        self._run.prepare(state)

    def save(
        self,
        step: int,
        state: object,
        *,
        metrics: Mapping[str, object] | None = None,
        metadata: object = None,
        progress: Mapping[str, float] | None = None,
        wait: bool = False,
        lazy: bool = False,
        force: bool = False,
    ) -> Ticket | None:
        """Starts a save; the caller is held only while its tensors are copied.

        Returns None when no save is due (``save_interval``; ``force`` saves anyway), or when another one is still being
        written and ``on_busy`` is "skip" (with ``force`` or ``wait`` it waits for its turn). With ``lazy`` even the
        copy of what an optimizer in the state updates happens in the background: call ``before_step()`` before the
        optimizer's step. If a tensor changes earlier the save fails. ``wait`` returns when the checkpoint is durable
        and settled.
        """
        step = _checks.step(step)
        if self._save_on_exception:
            given = {"metrics": metrics, "metadata": metadata, "progress": progress}
            self._offered, self._ticket = {"step": step, "state": state, **given}, None
        due = force or self.should_save(step, progress)
        if not due:
            return None
        signalled = self._watch is not None and self._watch.signal != 0
        must = force or wait or (signalled and not self._saved_after_signal)
        try:
            ticket = self._run.save(
                step,
                state,
                lazy=lazy,
                metrics=metrics,
                metadata=metadata,
                progress=progress,
                in_turn=self._on_busy == "wait" or (self._on_busy == "skip" and must),
            )
        except _pawl.BusyError:
            if self._on_busy != "skip":
                raise
            return None
        self._ticket = ticket
        self._saved_after_signal = signalled
        self._tell_no_numbers(metrics)
        if wait:
            ticket.wait()
        if self._scalars is not None:
            self._scalars.metrics(metrics, step)
            self._scalars.saved(ticket, step)
        return ticket

    def should_save(self, step: int, progress: Mapping[str, float] | None = None) -> bool:
        """True if a save is due: by the interval, or once after a signal asked the process to end.

        Raises the first error of a background save that no call has raised.
        """
        step = _checks.step(step)
        self._run.check(True)
        if self._watch is not None and self._watch.signal and not self._saved_after_signal:
            return True
        if self._due is not None:
            return bool(self._due(step))
        if not self._has_interval:
            return True
        try:
            return self._run.should_save(step, progress)
        except UsageError as error:
            text = str(error)
            if progress is not None or "the progress given has no" not in text:
                raise
            raise UsageError(text.replace("the progress given has no", "no progress was given; it needs")) from None

    def before_step(self, timeout: float | None = None) -> None:
        """Waits until the tensors given to lazy saves may change. Returns at once if there is nothing to wait for.

        Raises the first error of a background save that no call has raised.
        """
        self._run.fence(timeout)
        self._run.check(True)

    def wait_until_finished(self, timeout: float | None = None, *, level: Literal["local", "remote"] = "local") -> None:
        """Waits until all saves are settled; raises the first error that no call has raised.

        With ``level="remote"`` until every mirror has every checkpoint, too, or an upload has failed.
        """
        self._run.wait(timeout, _checks.word("level", level, ("local", "remote")) == "remote")
        if self._scalars is not None:
            self._scalars.flush()

    def check_for_errors(self) -> None:
        """Raises the first error of a background save that no call has raised. Never waits."""
        self._run.check()

    def mirrors(self) -> list[_pawl.Mirror]:
        """How far each mirror is: what it has, what waits, what failed, bytes of the upload in progress."""
        return self._run.mirrors()

    @property
    def is_saving(self) -> bool:
        """True while a save is running."""
        return self._run.is_saving()

    # ---- restoring ----

    def restore(
        self,
        state: T = None,  # type: ignore[assignment]
        *,
        step: int | None = None,
        id: int | None = None,
        which: Literal["latest", "best", "good"] = "latest",
        paths: Sequence[str] | None = None,
        strict: bool = True,
        rank_values: Literal["strict", "drop", "wrap"] = "strict",
        share_reads: bool = False,
    ) -> Restored[T] | None:
        """Restores into ``state`` in place, or with no state into new objects. None on a fresh run.

        The latest checkpoint falls back to the next older valid one if it is damaged; ``fallbacks`` says why, and so
        does a warning of the logger "pawl". ``paths`` are globs for a partial restore. ``strict`` demands the same
        tensors and objects on both sides; without it, ``report`` lists what did not fit. ``share_reads``, on all ranks
        or none: what every rank wants is read by one of them and handed to the others by ``broadcast(data, root)``.
        """
        selector = self._selector(step, id, which)
        globs = _checks.globs(paths)
        per_rank = _RANK_VALUES[_checks.word("rank_values", rank_values, _RANK_VALUES)]
        sharing = share_reads and self.world_size > 1
        any_will_do = step is None and id is None
        # Another thread may commit the run's first checkpoint between the search and the look at the list: search
        # again. Not where the ranks read together: all of them would have to.
        for _ in range(3 if any_will_do and not sharing else 1):
            answer = self._run.restore(
                state,
                selector=selector,
                paths=globs,
                strict=strict,
                rank_values=per_rank,
                share_reads=sharing,
            )
            if answer is not None:
                break
            if any_will_do and not self._run.list():
                return None
        if answer is None:
            self._run.find(selector)  # its error lists what there is
            raise NotFoundError(f"{self.root}: {selector} was deleted while it was being restored")
        tree, info, fallbacks, report, metadata = answer
        _reports.fallbacks(self.root, info["name"], fallbacks)
        return Restored(
            step=info["step"],
            id=info["id"],
            progress=info["progress"],
            metrics=info["metrics"],
            metadata=metadata,
            path=info["path"],
            fallbacks=fallbacks,
            report=report,
            state=tree,
        )

    # ---- what there is ----

    def latest_step(self) -> int | None:
        """Step of the newest checkpoint, or None."""
        found = self._run.list()
        return found[-1]["step"] if found else None

    def best_step(self) -> int | None:
        """Step of the best checkpoint by the score attributes, or None."""
        with contextlib.suppress(NotFoundError):
            return self._run.info(self._run.find("best"))["step"]
        return None

    def all_steps(self) -> list[int]:
        """Steps of all checkpoints, oldest first."""
        return list(dict.fromkeys(info["step"] for info in self._run.list()))

    def checkpoints(self, *, with_bad: bool = False) -> list[CheckpointInfo]:
        """Facts of all checkpoints, oldest first; with_bad: also of damaged ones."""
        return [CheckpointInfo(**info) for info in self._run.list(with_bad)]

    def metrics(self, step: int | None = None, *, id: int | None = None) -> dict[str, float]:
        """Metrics of a checkpoint, with those scored later."""
        return self._run.info(self._id(step, id))["metrics"]

    def metadata(self, step: int | None = None, *, id: int | None = None) -> Any:
        """The metadata that was saved with a checkpoint; {} if none was."""
        return self._run.metadata(self._id(step, id))

    def checkpoint(self, step: int | None = None, *, id: int | None = None) -> Checkpoint:
        """A checkpoint as an object of its own, the latest if neither step nor id is given."""
        return of_run(self._run, self._run.find(self._selector(step, id, "latest")))

    def __getitem__(self, step: int | str) -> Checkpoint:
        """``manager[400]``: the checkpoint of a step; also "latest", "best", "good" and "id:7"."""
        selector = step if isinstance(step, str) else f"step:{_checks.step(step)}"
        return of_run(self._run, self._run.find(selector))

    def __iter__(self) -> Iterator[Checkpoint]:
        """All checkpoints, oldest first."""
        return iter([of_run(self._run, info["id"]) for info in self._run.list()])

    def __len__(self) -> int:
        """How many checkpoints there are."""
        return len(self._run.list())

    def __bool__(self) -> bool:
        """True, also without a checkpoint."""
        return True

    # ---- what to keep ----

    def delete(self, step: int | None = None, *, id: int | None = None, force: bool = False) -> None:
        """Deletes a checkpoint; a pinned one, the latest and the best only with ``force``."""
        self._run.remove(self._id(step, id), force)

    def pin(self, step: int | None = None, *, id: int | None = None) -> None:
        """Keeps a checkpoint whatever retention says."""
        self._run.pin(self._id(step, id))

    def unpin(self, step: int | None = None, *, id: int | None = None) -> None:
        """Takes the pin off."""
        self._run.unpin(self._id(step, id))

    def score(self, step: int | None, metrics: Mapping[str, object], *, id: int | None = None) -> None:
        """Adds metrics that came later to a checkpoint; the best one is chosen again."""
        self._run.score(self._id(step, id), metrics)

    def prune(self, *, dry_run: bool = False) -> list[Decision]:
        """Applies retention now, or says what it would do. One decision per checkpoint, oldest first."""
        return [Decision(*row) for row in self._run.prune(dry_run)]

    def verify(self, step: int | None = None, *, id: int | None = None) -> list[_pawl.Finding]:
        """Reads and checks every byte of a checkpoint, or of all; returns what is wrong."""
        return self._run.verify(0 if step is None and id is None else self._id(step, id))

    # ---- signals ----

    @property
    def preempted(self) -> bool:
        """True once SIGTERM or SIGUSR1 came: save and leave."""
        watch = self._look()
        return watch is not None and watch.signal != 0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the process is killed, None if that is not known."""
        watch = self._look()
        return None if watch is None else watch.seconds_left

    # ---- life ----

    @property
    def root(self) -> str:
        """The run's folder."""
        return self._run.root or ""

    @property
    def run_id(self) -> str:
        """The run's id, 32 hex digits."""
        return self._run.run_id or ""

    def reload(self) -> None:
        """Sees what other processes have saved or deleted since."""
        self._run.reload()

    def close(self) -> None:
        """Waits for running saves and releases the run. Raises the first error that no call has raised."""
        self._stop_looking()
        try:
            self._run.close()
        finally:
            if self._scalars is not None:
                self._scalars.flush()
        self._left_open.detach()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        if exc is None:
            self.close()
            return
        root = self.root
        try:
            if self._offered is not None and not self._run.closed and self.world_size == 1:
                self._beside(root, exc, "a save in the background had failed", self._run.wait)
                if self._ticket is None or self._ticket.stage == "failed":
                    self._beside(root, exc, "the save on the way out failed", self._save_interrupted)
        finally:
            self._beside(root, exc, "closing the run failed", self.close)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r})" if not self._run.closed else f"{type(self).__name__}(closed)"

    # ---- inside ----

    @staticmethod
    def _beside(root: str, error: BaseException, what: str, call: Callable[[], object]) -> None:
        """A call while an exception is on its way out, which it must not replace."""
        try:
            call()
        except Exception as other:
            _reports.beside(root, error, what, other)

    def _save_interrupted(self) -> None:
        """The state as it is now, somewhere after the last step that was offered: where, only the caller could say."""
        given = dict(self._offered or {})
        notes = given.pop("metadata")
        notes = notes if isinstance(notes, dict) else {} if notes is None else {"metadata": notes}
        self._run.save(**given, metadata={**notes, "interrupted": True}, in_turn=True).wait()

    def _tell_no_numbers(self, metrics: Mapping[str, object] | None) -> None:
        odd = {name: value for name, value in (metrics or {}).items() if type(value) not in (int, float)}
        new = [name for name in _pawl.no_numbers(odd) if name not in self._told_metrics] if odd else []
        if new:
            self._told_metrics.update(new)
            _reports.no_numbers(self.root, new)

    def _look(self) -> _pawl.Watch | None:
        if self._watch is None and self._watches and not self._run.closed:
            self._watch = _signals.acquire(self._grace)
        return self._watch

    def _stop_looking(self) -> None:
        if self._watch is not None:
            self._watch = None
            _signals.release()

    @staticmethod
    def _selector(step: int | None, id: int | None, which: str) -> str:
        if which not in ("latest", "best", "good"):
            raise UsageError(f'which must be "latest", "best" or "good", received {which!r}')
        if step is not None and id is not None:
            raise UsageError("give a step or an id, not both")
        if step is None and id is None:
            return which
        if which != "latest":
            raise UsageError(f'{"id" if step is None else "step"} and which="{which}" contradict each other: give one')
        return f"step:{_checks.step(step)}" if id is None else f"id:{_checks.whole('id', id)}"

    def _id(self, step: int | None, id: int | None) -> int:
        if step is None and id is None:
            raise UsageError("give a step or an id")
        return self._run.find(self._selector(step, id, "latest"))
