# SPDX-License-Identifier: Apache-2.0
"""The channel between the driver and its workers: a TCPStore of torch that the driver holds.

Keys, under the number of the attempt:

    at/<rank>            number of the report that the rank has reached
    done/<rank>          number of reports that the rank made, set when its train function has ended
    meet/<n>             counters of the ranks that have reached report n, and of their checkpoints
    go/<n>               the final counters of meet/<n>, set when all ranks have reached report n
    all                  the last report that all ranks have reached
    settled/<step>       set when rank 0 has ended the save of a step, and its retention
    row/<n>              metrics of rank 0
    log/<n>              scalars for the logger, and their step
    folder/<n>           set if a rank reports a folder
    files/<n>/<rank>     length and checksum of each file in the rank's folder
    error/<rank>         the error of a rank that failed
    failed               counter of the ranks that failed
    cause                the first rank that failed, which may have made the others fail
    pid/<rank>           process id of the rank
    beat/<rank>          heartbeat: a counter that grows while the process lives
    on/<rank>            a counter that grows when the rank reports progress
    ask                  set when the driver asks where the train functions are
    where/<rank>         the rank's answer to "ask"
    end                  set when the group has to end: the reason, and the time left
    heard/<rank>         the rank has read "end" (engine "launcher")
    preempt              set when the job has to end
    left/<rank>          the rank has ended because of "preempt"
    know                 counter of the ranks that know of "preempt"
    knew/<rank>          the report that the rank had reached when it learned of "preempt"
    last                 the last report before the job ends
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistStoreError

_HEARD_SECONDS = 10.0  # for the other ranks to learn that the group has to end


class Channel:
    """One end of the channel. Threads do not share one, since a waiting call blocks all others."""

    def __init__(self, store: TCPStore, attempt: int | str) -> None:
        self._store = PrefixStore(f"pawl/{attempt}", store)

    @classmethod
    def join(cls, host: str, port: int, attempt: int | str, seconds: float = 60.0) -> Channel:
        """Connects to the driver's store. seconds: how long a call waits for an answer."""
        return cls(TCPStore(host, port, None, False, timedelta(seconds=seconds), False), attempt)

    def put(self, key: str, value: object) -> None:
        self._store.set(key, json.dumps(value))

    def get(self, key: str) -> Any:
        """The value of a key; None if it was never put."""
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def get_all(self, name: str, world_size: int) -> list[Any]:
        return [self.get(f"{name}/{rank}") for rank in range(world_size)]

    def has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def ended(self, rank: int) -> bool:
        """Whether a rank has reported its end or its error."""
        return any(self.has(f"{key}/{rank}") for key in ("done", "left", "error"))

    def count(self, key: str) -> int:
        """Increments a counter and returns its new value."""
        return int(self._store.add(key, 1))

    def wait_heard(self, world_size: int) -> None:
        """Waits until all other ranks know that the group has to end.

        The wait is limited, since a rank may have been killed.
        """
        until = time.monotonic() + _HEARD_SECONDS
        while time.monotonic() < until:
            if all(self.has(f"heard/{n}") for n in range(1, world_size)):
                return
            time.sleep(0.02)

    def drop(self, key: str) -> None:
        self._store.delete_key(key)

    def arrive(self, n: int, world_size: int, has: bool, first: bool, folder: bool) -> None:
        """Counts this rank at report n, with or without a checkpoint.

        The last rank wakes the others.
        """
        # four counters of 16 bits, of which the highest has 15: for up to 32,767 ranks
        bits = 1 | int(has) << 16 | int(folder) << 32 | int(has and first) << 48
        total = int(self._store.add(f"meet/{n}", bits))
        if total & 0xFFFF == world_size:
            self._store.set("all", str(n))
            self._store.set(f"go/{n}", str(total))
            if n > 2:  # no rank is so far behind
                self._store.delete_key(f"meet/{n - 2}")
                self._store.delete_key(f"go/{n - 2}")

    def meeting(self, n: int, timeout: float) -> Meeting | None:
        """Waits until all ranks have reached report n; None if they do not in time."""
        return None if (total := self._wait(f"go/{n}", timeout)) is None else Meeting(total)

    def know_end(self, rank: int, n: int, world_size: int) -> None:
        """Records that this rank knows that the job has to end, and has reached n reports."""
        self.put(f"knew/{rank}", n)
        if self.count("know") == world_size:
            self.put("last", 1 + max(self.get_all("knew", world_size)))

    def last_report(self, timeout: float) -> int | None:
        """Waits until all ranks know that the job has to end. Returns the last report."""
        return self._wait("last", timeout)

    def settle(self, step: int) -> None:
        """Records that rank 0 has ended the save of a step, and its retention."""
        self._store.set(f"settled/{step}", "1")
        self._store.delete_key(f"settled/{step - 2}")  # no rank is so far behind

    def wait_settled(self, step: int, timeout: float) -> bool:
        """Waits until rank 0 has ended the save of a step; False if it does not in time."""
        return self._wait(f"settled/{step}", timeout) is not None

    def _wait(self, key: str, timeout: float) -> int | None:
        try:
            self._store.wait([key], timedelta(seconds=timeout))
        except DistStoreError:
            return None
        return int(self._store.get(key))


class Meeting:
    """The checkpoints of all ranks at one report."""

    def __init__(self, total: int) -> None:
        self.n_with = total >> 16 & 0xFFFF  # ranks with a checkpoint
        self.n_folders = total >> 32 & 0xFFFF
        self.first_has = total >> 48 > 0


class Host:
    """The driver's store."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.store = TCPStore(host, 0, None, True, timedelta(seconds=60), False)
        self.host, self.port = host, int(self.store.port)

    def attempt(self, number: int) -> Channel:
        return Channel(self.store, number)
