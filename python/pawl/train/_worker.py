# SPDX-License-Identifier: Apache-2.0
"""A worker: what an engine runs in each of its processes."""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from .. import _signals
from .._cores import count_cores

if TYPE_CHECKING:
    from .channel import Channel
    from .engine import Job

_LONGEST = 20_000  # most characters of a traceback


def _begin_group(job: Job, store: Any) -> None:
    import torch
    from torch import distributed

    if job.backend is None:
        return
    if job.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    wait = timedelta(seconds=job.report_timeout)
    if store is None:
        distributed.init_process_group(job.backend, timeout=wait)
        return
    rank = int(os.environ["RANK"])
    distributed.init_process_group(job.backend, timeout=wait, store=store, rank=rank, world_size=job.world_size)


def work(job: Job, call: Callable[[], Any], store: Any = None) -> BaseException | None:
    """Runs the train function as one of the workers. The environment has the rank.

    Returns the error that the function failed with, after it was published to the other workers.
    Returns Preempted if the job has to end. store: the rendezvous of torch's process group; None:
    by the environment.
    """
    from . import beat, session

    watch, channel, sessions, alive = beat.start(job)
    told = False
    try:
        here = session.Session(job, channel, watch)
        sessions.append(here)
        session.enter(here)
        _begin_group(job, store)
        here.alive()
        try:
            call()
        except SystemExit as error:
            if error.code or isinstance(error, session.Preempted):
                raise
        here.finish()
    except session.Preempted as error:
        told = True
        sessions[0].leave()
        return error
    except BaseException as error:
        _report_error(channel, error)
        for one in sessions:
            one.settle(5)
        return error
    finally:
        session.enter(None)
        if job.launched:
            alive.stop()
            _signals.release()
            if told:
                _ignore_signals()
    return None


def _ignore_signals() -> None:
    """Ignores SIGTERM and SIGUSR1 while this process ends.

    When the first process has ended, a launcher signals the others (srun --kill-on-bad-exit). They
    are already ending, each with its own exit status, which requests a new start.
    """
    with contextlib.suppress(ValueError):  # not in the main thread
        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, signal.SIG_IGN)


def _report_error(channel: Channel, error: BaseException) -> None:
    from . import session

    kind = "usage" if isinstance(error, session.USAGE_ERRORS) else "failure"
    text = "".join(traceback.format_exception(error))
    rank = os.environ["RANK"]
    if channel.count("failed") == 1:
        channel.put("cause", int(rank))
    channel.put(
        f"error/{rank}",
        {"kind": kind, "type": type(error).__name__, "message": str(error), "traceback": text[-_LONGEST:]},
    )


def run(job: Job) -> int:
    """Runs a worker that an engine has started. Returns the exit status."""
    for entry in job.path:
        if entry not in sys.path:
            sys.path.append(entry)
    cores = count_cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores, 1)))

    from . import _payload, session

    ended = work(job, lambda: _payload.unpack(job.payload)())
    return 0 if ended is None or isinstance(ended, session.Preempted) else 1


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        job = pickle.load(file)
    status = run(job)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # does not wait for process groups and their threads


if __name__ == "__main__":
    main()
