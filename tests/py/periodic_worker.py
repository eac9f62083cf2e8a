# SPDX-License-Identifier: Apache-2.0
"""pawl.composer.checkpoint_periodically against Composer's own rule, in Composer's environment (test_periodic.py): the same
events of a training run, with Composer's Timestamp, Time and Event, give the same answers."""

from __future__ import annotations

import sys
from datetime import timedelta
from typing import Any

import torch

# torchvision's own operators need CUDA's libraries in the wheel that PyPI has; only their names are needed here.
_operators = torch.library.Library("torchvision", "DEF")
for _name in ("nms", "qnms"):
    _operators.define(f"{_name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")

from composer.core import Event, Time, Timestamp, TimeUnit  # noqa: E402
from composer.utils import create_interval_scheduler  # noqa: E402

from pawl.composer import checkpoint_periodically  # noqa: E402


class State:
    """What a rule of Composer looks at."""

    def __init__(self, epochs: int, batches: int) -> None:
        self.max_duration = Time(epochs, TimeUnit.EPOCH)
        self.dataloader_len = Time(batches, TimeUnit.BATCH)
        self.timestamp, self.previous_timestamp = Timestamp(), Timestamp()

    def get_elapsed_duration(self) -> Any:
        return self.timestamp.get(self.max_duration.unit) / self.max_duration


def answers(rule: Any, epochs: int, batches: int) -> list[tuple[int, str]]:
    """The batch and the event of each save."""
    state = State(epochs, batches)
    found = []

    def ask(event: Any) -> None:
        if rule(state, event):
            found.append((int(state.timestamp.batch), event.value))

    for _ in range(epochs):
        for _ in range(batches):
            state.previous_timestamp = state.timestamp
            state.timestamp = state.timestamp.to_next_batch(8, 100, timedelta(seconds=1))
            ask(Event.BATCH_CHECKPOINT)
        state.previous_timestamp = state.timestamp
        state.timestamp = state.timestamp.to_next_epoch()
        ask(Event.EPOCH_CHECKPOINT)
    return found


def main() -> None:
    n = 0
    intervals = [
        "1ep",
        "2ep",
        3,
        "1ba",
        "3ba",
        "7ba",
        "20sp",
        "250tok",
        Time(2, TimeUnit.EPOCH),
        Time(5, TimeUnit.BATCH),
    ]
    for interval in intervals:
        for at_end in (True, False):
            for epochs, batches in ((1, 1), (2, 3), (5, 4), (3, 7)):
                ours = answers(checkpoint_periodically(interval, at_end), epochs, batches)
                theirs = answers(create_interval_scheduler(interval, at_end), epochs, batches)
                assert ours == theirs, (interval, at_end, epochs, batches, ours, theirs)
                n += bool(ours)
    print(n, "rules")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
