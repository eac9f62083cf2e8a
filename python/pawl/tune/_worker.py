# SPDX-License-Identifier: Apache-2.0
"""The process of a trial of a function or a class.

Its environment has its name (docs/reference/tune.md).
"""

from __future__ import annotations

import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from . import elsewhere, session, space, trainable
from .trainable import PAYLOAD, Job


def _config(job: Job) -> dict[str, Any]:
    objects = space.Objects()
    objects.by_name = job.objects
    with open(os.environ["PAWL_TUNE_CONFIG"], encoding="utf-8") as file:
        found: dict[str, Any] = objects.restore(json.load(file))
    return found


def _function(wrapped: trainable.Wrapped, here: session.Session) -> None:
    outcome: Any = trainable.call_function(wrapped, here, session.report)
    if inspect.isgenerator(outcome):
        for row in outcome:
            session.report(row)  # type: ignore[arg-type]
    elif isinstance(outcome, Mapping | int | float) and not isinstance(outcome, bool):
        session.report(outcome)  # type: ignore[arg-type, unused-ignore]
    here.send_checkpoint()


def _class(job: Job, here: session.Session) -> None:
    one = trainable.make_class(job.trainable, here, job.allow_pickle)
    try:
        if here.checkpoint is not None:
            one.restore(here.checkpoint)
        done = False
        while not done:
            result = one.train()
            done = bool(result.get("done"))
            if (job.freq and one.iteration % job.freq == 0) or (done and job.at_end):
                _save(one, here)
            try:
                here.report(result)
            except session.TrialEnded:
                if here.save_wanted or (job.at_end and not here.replaced):
                    _save(one, here, after=True)
                raise
            if here.save_wanted:
                _save(one, here, after=True)
    finally:
        one.stop()


def _save(one: trainable.Trainable, here: session.Session, after: bool = False) -> None:
    """Makes a checkpoint of the next result. after: of the last reported result."""
    if after and here.is_saved():
        return
    with here.checkpoint_dir(one.iteration) as folder:
        one.save(folder)
    if after:
        here.send_checkpoint()


def run(job: Job, channel: session.Channel) -> None:
    os.environ.setdefault("OMP_NUM_THREADS", str(max(int(job.resources.get("cpu", 1)), 1)))
    env = os.environ
    context = session.TrialContext(
        job.experiment, env["PAWL_TUNE_TRIAL"], env["PAWL_TUNE_ID"], env["PAWL_TUNE_FOLDER"], job.resources
    )
    checkpoint = env.get("PAWL_TUNE_CHECKPOINT") or job.restore
    if checkpoint:
        elsewhere.bring(checkpoint)  # a trial on a cluster may have stored it at another place
    here = session.Session(channel, context, _config(job), checkpoint)
    session.enter(here)
    if trainable.is_class(job.trainable.trainable):
        _class(job, here)
    else:
        _function(job.trainable, here)
    channel.send({"done": 1})


def work(job: Callable[[], Job], channel: session.Channel) -> tuple[int, str]:
    """Runs a complete trial in its folder. Returns the exit status, and why it failed."""
    try:
        os.environ["TUNE_ORIG_WORKING_DIR"] = os.getcwd()
        os.chdir(os.environ["PAWL_TUNE_FOLDER"])
        run(job(), channel)
        return 0, ""
    except session.TrialEnded:
        return 0, ""
    except BaseException as error:
        traceback.print_exc()
        text = "".join(traceback.format_exception_only(error)).strip()
        text = text.encode(errors="replace").decode()  # it may have the name of a file that is not UTF-8
        channel.send({"error": text})
        return 1, text


def _load() -> Job:
    with open(os.environ[PAYLOAD], "rb") as file:
        return trainable.job_of(file.read())


def main() -> int:
    return work(_load, session.SocketChannel(int(os.environ["PAWL_TUNE_FD"])))[0]


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # does not wait for threads and pipes that the trial has left behind
