# SPDX-License-Identifier: Apache-2.0
"""What the driver and its workers tell each other, through a TCPStore of torch that the driver holds.

Keys, under the number of the attempt:

    at/<rank>            the report that a rank has reached
    done/<rank>          how many it has made in all, when its train function has ended
    meet/<n>, go/<n>     which ranks have reached report n, and with what; all have
    all                  the last report that all have reached
    row/<n>              the first rank's metrics; log/<n> scalars for the logger, and their step
    folder/<n>           a rank reports a folder; files/<n>/<rank> what is in it
    error/<rank>         what a rank has failed with; cause: which was the first, the others may have failed of that
    pid/<rank>           its process; beat/<rank> a count that goes up while it lives
    on/<rank>            a count that goes up when it says that it gets on
    ask, where/<rank>    the driver wants to know where the train functions are, and what they answered
    end, heard/<rank>    the group is to end, why, and how soon; which ranks know of it (engine "launcher")
    preempt              the job has to end; left/<rank> a rank has ended because of that
    know, knew/<rank>    how many ranks know of it, and the report that they had reached; last: the one to end with
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from typing import Any

from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed import DistStoreError

LONGEST = 32767  # workers: what a meeting can count
_HEARD_SECONDS = 10.0  # for the others to hear that the group is to end


class Channel:
    """One end of the channel; not shared between threads, as a call that waits keeps the others waiting."""

    def __init__(self, store: TCPStore, attempt: int | str) -> None:
        self._store = PrefixStore(f"pawl/{attempt}", store)

    @classmethod
    def join(cls, host: str, port: int, attempt: int | str, seconds: float = 60.0) -> Channel:
        """seconds: so long a call waits for an answer."""
        return cls(TCPStore(host, port, None, False, timedelta(seconds=seconds), False), attempt)

    def put(self, key: str, value: object) -> None:
        self._store.set(key, json.dumps(value))

    def get(self, key: str) -> Any:
        """What was put, None if nothing was."""
        return json.loads(self._store.get(key)) if self._store.check([key]) else None

    def get_all(self, name: str, world_size: int) -> list[Any]:
        return [self.get(f"{name}/{rank}") for rank in range(world_size)]

    def has(self, key: str) -> bool:
        return bool(self._store.check([key]))

    def ended(self, rank: int) -> bool:
        """Has it said good-bye, or what it has failed with?"""
        return any(self.has(f"{key}/{rank}") for key in ("done", "left", "error"))

    def count(self, key: str) -> int:
        """One more; returns how many there are."""
        return int(self._store.add(key, 1))

    def wait_heard(self, world_size: int) -> None:
        """Until all the others know that the group is to end, or have left; not for ever, as they may be gone."""
        until = time.monotonic() + _HEARD_SECONDS
        while time.monotonic() < until:
            if all(self.has(f"heard/{n}") or self.has(f"error/{n}") for n in range(1, world_size)):
                return
            time.sleep(0.02)

    def drop(self, key: str) -> None:
        self._store.delete_key(key)

    def arrive(self, n: int, world_size: int, has: bool, first: bool, folder: bool) -> None:
        """This rank has reached report n, with a checkpoint or without. The last one tells the others."""
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
        """This rank knows that the job has to end, and has reached n reports."""
        self.put(f"knew/{rank}", n)
        if self.count("know") == world_size:
            self.put("last", 1 + max(self.get_all("knew", world_size)))

    def last_report(self, timeout: float) -> int | None:
        """Waits until all ranks know that the job is to end; which report is the last."""
        return self._wait("last", timeout)

    def _wait(self, key: str, timeout: float) -> int | None:
        try:
            self._store.wait([key], timedelta(seconds=timeout))
        except DistStoreError:
            return None
        return int(self._store.get(key))


class Meeting:
    """What the ranks have said of a report, all together."""

    def __init__(self, total: int) -> None:
        self.n_with = total >> 16 & 0xFFFF  # a checkpoint
        self.n_folders = total >> 32 & 0xFFFF
        self.first_has = total >> 48 > 0


class Host:
    """The driver's store."""

    def __init__(self, host: str = "127.0.0.1") -> None:
        self.store = TCPStore(host, 0, None, True, timedelta(seconds=60), False)
        self.host, self.port = host, int(self.store.port)

    def attempt(self, number: int) -> Channel:
        return Channel(self.store, number)
