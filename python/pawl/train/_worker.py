# SPDX-License-Identifier: Apache-2.0
"""A worker: what an engine runs in each of its processes."""

from __future__ import annotations

import os
import pickle
import sys
import traceback
from datetime import timedelta
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .engine import Job

_LONGEST = 20_000  # characters of a traceback


def _begin_group(job: Job) -> None:
    import torch
    from torch import distributed

    if job.backend is None:
        return
    if job.backend == "nccl":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group(job.backend, timeout=timedelta(seconds=job.report_timeout))


def run(job: Job) -> int:
    """Runs the train function as one of the workers; the environment says which. Returns the exit status."""
    for entry in job.path:
        if entry not in sys.path:
            sys.path.append(entry)
    cores = len(os.sched_getaffinity(0)) // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    os.environ.setdefault("OMP_NUM_THREADS", str(max(cores, 1)))

    from . import _payload, session

    watch, channel, sessions = session.start(job)
    rank = os.environ["RANK"]
    try:
        here = session.Session(job, channel, watch)
        sessions.append(here)
        session.enter(here)
        _begin_group(job)
        _payload.unpack(job.payload)()
        here.finish()
        return 0
    except session.Preempted:
        sessions[0].leave()
        return 0
    except BaseException as error:
        kind = "usage" if isinstance(error, session.USAGE_ERRORS) else "failure"
        text = traceback.format_exc()
        channel.put(
            f"error/{rank}",
            {"kind": kind, "type": type(error).__name__, "message": str(error), "traceback": text[-_LONGEST:]},
        )
        for one in sessions:
            one.settle(5)
        return 1
    finally:
        session.enter(None)


def main() -> None:
    with open(sys.argv[1], "rb") as file:
        job = pickle.load(file)
    status = run(job)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # process groups and their threads need no end of their own


if __name__ == "__main__":
    main()
