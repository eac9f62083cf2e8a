# SPDX-License-Identifier: Apache-2.0
"""The manager of a run's checkpoints: options and names for the library, which does the work."""

from __future__ import annotations

import html
import os
import weakref
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, Self, Unpack, cast, overload

from . import _checks, _events, _options, _pawl, _reports, _signals, loggers
from ._arguments import Hook, Mirrors, Options, Order, Reading
from ._contents import Contents
from ._names import elsewhere, explained
from ._pawl import NotFoundError, Ticket, UsageError
from .options import IO, Cast, Duration, Interval, Naming, Packs, Ranks, Retention, Staging, Timeouts, Uploads
from .records import Restored, T, place_of

_RANK_VALUES = {"strict": 0, "drop": 1, "wrap": 2}

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    # What save returns: a Ticket, or also None if a save may not be due.
    Saved = TypeVar("Saved", bound=Ticket | None, default=Ticket | None, covariant=True)
else:
    from typing import TypeVar

    Saved = TypeVar("Saved")


@explained
class CheckpointManager(Contents, Generic[Saved]):
    """Saves, keeps and restores the checkpoints of one run in one folder.

    With no rule everything is kept. ``num_to_keep=N`` keeps the newest N, or with
    ``score_attribute`` the best N and the latest as well, so that a resume never loses progress.
    ``pawl.Retention`` adds rules.

    With ``save_interval``, ``save`` may be called at every step; it returns None when no save is
    due.
    """

    @overload
    def __init__(
        self: CheckpointManager[Ticket],
        root: str | os.PathLike[str],
        *,
        save_interval: None = None,
        on_busy: Literal["wait", "replace"] = "wait",
        **options: Unpack[Options],
    ) -> None: ...
    @overload
    def __init__(
        self: CheckpointManager[Ticket | None],
        root: str | os.PathLike[str],
        *,
        save_interval: Interval = None,
        on_busy: Literal["wait", "skip", "replace"] = "wait",
        **options: Unpack[Options],
    ) -> None: ...
    def __init__(
        self,
        root: str | os.PathLike[str],
        *,
        num_to_keep: int | None = None,
        score_attribute: str | Sequence[str] | None = None,
        score_order: Order | Sequence[Order] = "max",
        save_interval: Interval = None,
        mirrors: Mirrors = (),
        compression: str | None = None,
        on_busy: Literal["wait", "skip", "replace"] = "wait",
        nonfinite: Literal["accept", "flag", "refuse"] = "accept",
        read_only: bool = False,
        overwrite: bool = False,
        signals: bool | None = None,
        save_on_exception: bool = False,
        logger: object = None,
        on_durable: Hook | None = None,
        on_uploaded: Hook | None = None,
        on_deleted: Hook | None = None,
        on_error: Hook | None = None,
        retention: Retention | None = None,
        uploads: Uploads | None = None,
        staging: Staging | None = None,
        packs: Packs | None = None,
        io: IO | None = None,
        ranks: Ranks | None = None,
        timeouts: Timeouts | None = None,
        naming: Naming | None = None,
    ) -> None:
        """Opens or creates the run in ``root``.

        Args:
            root: A path, ``file://path``, ``mem:``, or a URL (docs/how-to/stores.md).
            num_to_keep: Keep the newest N, or with ``score_attribute`` the best N and the latest. 0
                writes nothing and keeps the newest in memory. Default: None, everything is kept.
            score_attribute: Name of a metric, or several, compared in this order. Default: None.
            score_order: "max" or "min", for all score attributes or for each. Default: "max".
            save_interval: When a save is due: a time string ("1ep", "500ba", "5min", "0.25dur",
                "auto"), a number of steps, or a function of the step. Default: None, at every call.
            mirrors: Paths, URLs or ``pawl.Mirror`` to which checkpoints are copied in the
                background (docs/how-to/mirrors.md). Default: none.
            compression: "zst", "planes" or "auto" (docs/how-to/compression.md). Default: None, no
                compression.
            on_busy: What ``save`` does while another save is written: "wait"; "skip" returns None;
                "replace" copies the state and drops a copy that still waits. Default: "wait".
            nonfinite: What ``save`` does with NaN and Inf: "accept", "flag" the checkpoint, or
                "refuse". Default: "accept".
            read_only: Take no lease, and write only holds, pins and scores. Default: False.
            overwrite: Use a folder that holds another run. Default: False.
            signals: Watch SIGTERM and SIGUSR1 for ``preempted``. Default: None, from the first
                access to it.
            save_on_exception: When the ``with`` block ends by an exception, save the state as it is
                then, if the last ``save`` has saved nothing (docs/reference/python.md). Default:
                False.
            logger: Where metrics and the cost of each checkpoint go (pawl.loggers). Default: None.
            on_durable: Called with a ``pawl.Event`` once a checkpoint is durable. Like all hooks it
                is called on the caller's thread, by the next call of the manager or by ``poll``.
                Default: None.
            on_uploaded: Called with a ``pawl.Event`` once a mirror has a checkpoint. Default: None.
            on_deleted: Called with a ``pawl.Event`` once a checkpoint was deleted. The event has
                the reason. Default: None.
            on_error: Called with a ``pawl.Event`` when a save or an upload fails in the background.
                The error is raised by a later call as well. Default: None.
            retention: More rules of what to keep. Default: None, no other rule.
            uploads: How checkpoints reach the mirrors. Default: None, ``Uploads()``.
            staging: How tensors get from the caller to the threads that write. Default: None,
                ``Staging()``.
            packs: How checkpoints are stored in files. Default: None, ``Packs()``.
            io: How bytes reach the store. Default: None, ``IO()``.
            ranks: Many processes that save one run together. Default: None, as the launcher says.
            timeouts: Timeouts and other durations of the run. Default: None, ``Timeouts()``.
            naming: How the run and its checkpoints are named. Default: None, ``Naming()``.

        Raises:
            BusyError: Another process holds the run's lease.
            ExistsError: The folder holds another run.
            UsageError: An option is wrong; the message names it.
        """
        place, who, options = _options.read(locals())
        self._due = save_interval if callable(save_interval) else None
        self._has_interval = save_interval is not None
        self._on_busy = on_busy
        # A save that copies no complete state cannot replace another one: it waits, where Ctrl+C is heard.
        self._waits_turn = on_busy == "wait" or (on_busy == "replace" and staging and staging.mode != "snapshot")
        self._told_metrics: set[str] = set()
        self._scalars = None if logger is None else loggers.Scalars(logger)
        self._save_on_exception = save_on_exception
        self._offered: dict[str, Any] | None = None  # of the last save, for save_on_exception
        self._ticket: Ticket | None = None  # returned by that call
        grace = None if timeouts is None else timeouts.grace
        self._grace = _checks.seconds("timeouts.grace", grace or 0.0)
        self._watch: _pawl.Watch | None = None
        self._watches = signals is not False
        self._saved_after_signal = False
        hooks = {"saved": on_durable, "uploaded": on_uploaded, "deleted": on_deleted, "failed": on_error}
        self._waits_uploads = not (read_only or options.get("uploads.leave_uploads")) and bool(options["mirrors"])
        self._run = _options.open_run(place, options)
        self._events = _events.Queue(self._run, hooks)
        self.rank, self.world_size = who.rank, who.world_size
        self._left_open = weakref.finalize(self, _reports.finish, self._run)
        _reports.store(self.root, self._run.warning)
        if signals or (signals is None and grace is not None):
            self._start_watching()

    def poll(self) -> None:
        """Calls the hooks for what has happened since, on this thread. Never waits.

        Raises:
            Exception: A hook has raised it.
        """
        self._events.serve()

    # ---- saving ----

    def prepare(self, state: object) -> None:
        """Prepares the memory that saves of ``state`` will use, in the background.

        The first save is then as fast as later ones. ``restore`` does this by itself. The call
        returns at once, and a save may follow at any time.

        Args:
            state: As ``save`` takes it; it is only measured.
        """
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
    ) -> Saved:
        """Starts a save. The caller is blocked only while its tensors are copied.

        Args:
            step: The training's counter, a whole number.
            state: A tree of dicts, lists, tensors, numbers, texts and objects with
                ``state_dict()``.
            metrics: Numbers by their names; those of ``score_attribute`` decide what is best.
            metadata: A tree of plain values that is stored with the checkpoint.
            progress: Counters of the training, such as ``{"epoch": 3}``. Default: ``step`` counts
                batches.
            wait: Return when the checkpoint is durable and settled.
            lazy: Also copy in the background the tensors that an optimizer in the state updates.
                Call ``before_step()`` before the optimizer's step. If a tensor changes earlier, the
                save fails.
            force: Save even if no save is due. If ``on_busy`` is "skip", wait for the other save.

        Returns:
            The save's ticket; None when no save is due, or when another one is written and
            ``on_busy`` is "skip".

        Raises:
            UnsupportedError: The state has a value that cannot be saved; the message gives its
                path.
            PawlError: The first error of a background save that no call has raised.
        """
        step = _checks.step(step)
        self._report_early(saves=not force)
        if self._save_on_exception:
            given = {"metrics": metrics, "metadata": metadata, "progress": progress}
            self._offered, self._ticket = {"step": step, "state": state, **given}, None
        if not (force or self._is_due(step, progress)):
            self._report_late()
            return cast(Saved, None)
        signalled = self._is_signalled()
        must = force or wait or (signalled and not self._saved_after_signal)
        try:
            ticket = self._run.save(
                step,
                state,
                lazy=lazy,
                metrics=metrics,
                metadata=metadata,
                progress=progress,
                in_turn=self._waits_turn or (self._on_busy == "skip" and must),
            )
        except _pawl.BusyError:
            if self._on_busy != "skip":
                raise
            return cast(Saved, None)
        self._ticket = ticket
        self._saved_after_signal = signalled
        self._tell_no_numbers(metrics)
        self._report_late()
        if wait:
            try:
                ticket.wait()
            finally:
                self.poll()
        if self._scalars is not None:
            self._scalars.metrics(metrics, step)
            self._scalars.saved(ticket, step)
        return cast(Saved, ticket)

    def should_save(self, step: int, progress: Mapping[str, float] | None = None) -> bool:
        """Asks whether a save is due: by the interval, or once after a signal asked the process to
        end. With many ranks a signal makes none due.

        Args:
            step: The training's counter.
            progress: Counters of the training, as ``save`` takes them.

        Returns:
            True if ``save`` would save now.

        Raises:
            PawlError: The first error of a background save that no call has raised. With many ranks
                the next save raises it.
            UsageError: The interval needs a counter that ``progress`` lacks.
        """
        step = _checks.step(step)
        self._report_early(saves=True)
        due = self._is_due(step, progress)
        self._report_late()
        return due

    def _is_due(self, step: int, progress: Mapping[str, float] | None) -> bool:
        if self._is_signalled() and not self._saved_after_signal:
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

    def before_step(self, timeout: Duration | None = None) -> None:
        """Waits until the tensors given to lazy saves may change. Returns at once if there is
        nothing to wait for.

        Args:
            timeout: Longest wait, as a duration. Default: None, no limit.

        Raises:
            PawlError: The first error of a background save that no call has raised. With many ranks
                the next save raises it.
            TimeoutError: The wait took too long.
        """
        self._run.fence(timeout)
        if self.world_size == 1:
            self._run.check(True)

    def wait_until_finished(
        self, timeout: Duration | None = None, *, level: Literal["local", "remote"] = "local"
    ) -> None:
        """Waits until all saves are settled.

        Args:
            timeout: Longest wait, as a duration. Default: None, no limit.
            level: With "remote" also until every mirror has every checkpoint, or an upload has
                failed.

        Raises:
            PawlError: The first error that no call has raised.
            TimeoutError: The wait took too long.
        """
        remote = _checks.word("level", level, ("local", "remote")) == "remote"
        try:
            self._run.wait(timeout, remote)
        finally:
            self.poll()
        self._flush_scalars()

    def check_for_errors(self) -> None:
        """Raises the first error of the background that no call has raised. Never waits.

        Raises:
            PawlError: That error.
        """
        self.poll()
        self._run.check()

    def mirrors(self) -> list[_pawl.Mirror]:
        """The progress of each mirror.

        Returns:
            For each a dict: ``url``, ``n_done``, ``n_waiting`` and ``n_failed`` checkpoints,
            ``done_bytes`` and ``total_bytes`` of the upload in progress, ``error`` of the last try.
        """
        return self._run.mirrors()

    @property
    def is_saving(self) -> bool:
        """True while a save is running."""
        return self._run.is_saving()

    # ---- restoring ----

    @overload
    def restore(self, state: None = None, **options: Unpack[Reading]) -> Restored[Any] | None: ...
    @overload
    def restore(self, state: T, **options: Unpack[Reading]) -> Restored[T] | None: ...
    def restore(
        self,
        state: Any = None,
        *,
        step: int | None = None,
        id: int | None = None,
        which: Literal["latest", "best", "good"] = "latest",
        paths: Sequence[str] | None = None,
        strict: bool = True,
        rank_values: Literal["strict", "drop", "wrap"] = "strict",
        share_reads: bool = False,
        fallback: bool = True,
        rename: Sequence[tuple[str, str]] | None = None,
        cast: Cast = None,
    ) -> Restored[Any] | None:
        """Restores into ``state`` in place, or with no state into new objects. Waits for the saves
        that this manager has begun.

        If the latest checkpoint is damaged, the next older valid one is restored. ``fallbacks`` and
        a warning of the logger "pawl" give the reason.

        Args:
            state: Objects to restore into. Default: None, new objects.
            step: Step of the checkpoint. Default: None, see ``which``.
            id: Id of the checkpoint. Default: None, see ``which``.
            which: "latest", "best", or "good": the newest without NaN or Inf.
            paths: Globs for a partial restore. Default: None, everything.
            strict: Demand the same tensors and objects on both sides; without it ``report`` lists
                what did not fit.
            rank_values: How values per rank are restored on another number of ranks: "strict",
                "drop" or "wrap".
            share_reads: One rank reads the data that every rank needs, and ``broadcast(data,
                root)`` sends it to the others. Must be the same on all ranks.
            rename: Pairs of an old and a new path of the checkpoint, ``("old/*", "new/*")``.
            cast: Converts floats: a dtype ("float32"), or a dict of globs of paths and dtypes.
            fallback: Whether an older checkpoint may take the place of a damaged one.

        Returns:
            The checkpoint's facts and state; None on a fresh run.

        Raises:
            CorruptError: No valid checkpoint could be restored.
            MismatchError: ``state`` and the checkpoint do not fit.
            NotFoundError: There is no such checkpoint.
            UsageError: ``state`` is a step or a name of a checkpoint.
        """
        selector = self._selector(step, id, which)
        globs = _checks.globs(paths)
        renames, casts = _checks.renames(rename), _checks.casts(cast)
        per_rank = _RANK_VALUES[_checks.word("rank_values", rank_values, _RANK_VALUES)]
        if isinstance(state, str | int):
            raise UsageError(
                f'restore: the state comes first, received {_checks.shown(state)}; write step=400 or which="best"'
            )
        sharing = share_reads and self.world_size > 1
        any_will_do = step is None and id is None
        # Another thread may commit the run's first checkpoint after the search and before the list
        # is read: search again. Not if the ranks read together, since all of them would have to
        # search.
        for _ in range(3 if any_will_do and not sharing else 1):
            answer = self._run.restore(
                state,
                selector=selector,
                paths=globs,
                strict=strict,
                rank_values=per_rank,
                share_reads=sharing,
                fallback=fallback,
                rename=renames,
                cast=casts,
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
        _reports.resumed(self.root, info["step"], info["name"])
        _reports.added(self.root, report)
        return Restored(
            step=info["step"],
            id=info["id"],
            progress=info["progress"],
            metrics=info["metrics"],
            metadata=metadata,
            path=place_of(info["path"]),
            fallbacks=fallbacks,
            report=report,
            state=tree,
        )

    # ---- signals ----

    @property
    def preempted(self) -> bool:
        """True once SIGTERM or SIGUSR1 was received: save and end the training. Many ranks must agree
        on it (docs/how-to/ranks.md).
        """
        watch = self._start_watching()
        return watch is not None and watch.signal != 0

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the process is killed, None if that is not known."""
        watch = self._start_watching()
        return None if watch is None else watch.seconds_left

    # ---- life ----

    def close(self) -> None:
        """Waits for running saves and releases the run.

        Raises:
            PawlError: The first error that no call has raised, of a save before that of an upload.
                Others become its notes.
            Exception: A hook has raised it.
        """
        self._stop_watching()
        failed: Exception | None = None
        steps: tuple[tuple[str, Callable[[], object]], ...] = (
            ("a save or an upload has failed", lambda: self._events.wait_last(self._waits_uploads)),
            ("a hook has failed", self._events.serve),
            ("closing the run failed", self._run.close),
            ("logging has failed", self._flush_scalars),
        )
        for what, call in steps:
            try:
                call()
            except Exception as error:  # not an interrupt: after one the run is still open
                if failed is None:
                    failed = error
                else:
                    _reports.beside(self.root, failed, what, error)
        if self._run.closed:
            self._left_open.detach()
        if failed is not None:
            raise failed

    def __enter__(self) -> Self:
        self._run.is_saving()  # raises once it is closed
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
        return f"{type(self).__name__}({str(self.root)!r}{', closed' if self._run.closed else ''})"

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(elsewhere("CheckpointManager", name), name=name, obj=self)

    def _repr_html_(self) -> str:
        return f"<code>{html.escape(repr(self))}</code>{'' if self._run.closed else self.checkpoints()._repr_html_()}"

    # ---- inside ----

    def _is_signalled(self) -> bool:
        """A signal makes a save due. It may reach only one of many ranks, so there it does not."""
        return self.world_size == 1 and self._watch is not None and self._watch.signal != 0

    def _report_early(self, saves: bool) -> None:
        # One of many ranks must not raise before the others have its part. The library's save
        # raises the error of an earlier one after that, when all ranks know it.
        if self.world_size == 1:
            self.poll()
            if saves:
                self._run.check(True)

    def _report_late(self) -> None:
        if self.world_size > 1:
            self.poll()

    @staticmethod
    def _beside(root: str | os.PathLike[str], error: BaseException, what: str, call: Callable[[], object]) -> None:
        """Calls a function while an exception propagates.

        Its own error must not replace that one.
        """
        try:
            call()
        except Exception as other:
            _reports.beside(root, error, what, other)

    def _save_interrupted(self) -> None:
        """Saves the state as it is now: some point after the last offered step, unknown to the
        manager.
        """
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

    def _flush_scalars(self) -> None:
        if self._scalars is not None:
            self._scalars.flush()

    def _start_watching(self) -> _pawl.Watch | None:
        if self._watch is None and self._watches and not self._run.closed:
            self._watch = _signals.acquire(self._grace)
            self._release_watch = weakref.finalize(self, _signals.release)
            self._release_watch.atexit = False  # the handlers stay while the process ends
        return self._watch

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch = None
            self._release_watch()
