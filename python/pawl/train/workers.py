# SPDX-License-Identifier: Apache-2.0
"""The decisions of the driver of a group of workers, as pure functions of its observations:

- Has a worker been lost?
- Do the workers disagree?
- Is the group stuck?
- Does it start again?
- Do two workers report different files of the same name?

The caller has the clock, the processes and the messages. Promises: P11 (all ranks or none, the
missing ones named), P16 (every wait has a deadline).
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import NamedTuple

_NAMED = 8  # ranks that one line names


class Worker(NamedTuple):
    """The observed state of one rank."""

    n_reports: int  # reports that it has reached
    has_ended: bool = False  # its function has returned, after n_reports
    silent_ms: int = 0  # since its last heartbeat; 0 before the first
    still_ms: int = 0  # since its last progress


class Trouble(enum.Enum):
    """What is wrong with a group."""

    WELL = 0
    SILENT = 1  # a worker is gone and has to be killed
    UNEQUAL = 2  # one has ended with fewer reports than another has reached: the program is wrong
    STUCK = 3  # no worker makes progress: all have to end


class End(enum.Enum):
    """How a group has ended."""

    FAILED = 1  # a worker raised, was killed, or hung
    WRONG = 2  # the program is wrong: it would fail again
    TOLD = 3  # a scheduler has ended it, and will start it again


def late(workers: Sequence[Worker], report: int) -> str:
    """Describes where the workers are that have not reached a report."""
    found = [
        f"rank {rank} {'has ended after' if worker.has_ended else 'is at'} {worker.n_reports}"
        for rank, worker in enumerate(workers)
        if worker.n_reports < report
    ]
    more = [f"and {len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return "; ".join(found[:_NAMED] + more)


def _unequal(workers: Sequence[Worker]) -> str | None:
    """Describes a worker that ended with too few reports: another one would wait for it in vain."""
    ended = [rank for rank, worker in enumerate(workers) if worker.has_ended]
    if not ended:
        return None
    least = min(ended, key=lambda rank: workers[rank].n_reports)
    n = workers[least].n_reports
    for rank, worker in enumerate(workers):
        if worker.n_reports > n:
            return (
                f"report {n + 1}: rank {rank} has reached it, but the train function of rank {least} has ended after "
                f"{n}; all workers must report equally often"
            )
    return None


def look(workers: Sequence[Worker], silent_ms: int, still_ms: int) -> tuple[Trouble, int | None, str]:
    """The first problem: its kind, the rank if it concerns a single one, and a description.

    A worker without a heartbeat for ``silent_ms`` is gone. A group without progress for
    ``still_ms`` is stuck. 0 disables a check.
    """
    for rank, worker in enumerate(workers):
        if 0 < silent_ms < worker.silent_ms and not worker.has_ended:
            return Trouble.SILENT, rank, f"rank {rank} gave no sign of life for {silent_ms / 1e3:g} s"
    words = _unequal(workers)
    if words is not None:
        return Trouble.UNEQUAL, None, words
    running = [worker for worker in workers if not worker.has_ended]
    # One that makes progress is enough: the others may wait for it.
    if running and 0 < still_ms < min(worker.still_ms for worker in running):
        places = late(workers, max(worker.n_reports for worker in workers) + 1)
        return Trouble.STUCK, None, f"no worker came to a report for {still_ms / 1e3:g} s: {places}"
    return Trouble.WELL, None, ""


def may_start_again(end: End, n_failures: int, max_failures: int) -> bool:
    """Whether to start again after n_failures, the last one included. max_failures -1: always."""
    return end is End.FAILED and (max_failures < 0 or n_failures <= max_failures)


def clash(files: Sequence[tuple[str, int, int, int]]) -> str | None:
    """Describes the first file that two ranks report with different contents, or None.

    The rows have the name, rank, length and checksum of a file.
    """
    first: tuple[str, int, int, int] | None = None
    for file in sorted(files, key=lambda file: file[:2]):
        if first is None or file[0] != first[0]:
            first = file
        elif file[2:] != first[2:]:
            return f"ranks {first[1]} and {file[1]} both give the file '{file[0]}' with different contents"
    return None
