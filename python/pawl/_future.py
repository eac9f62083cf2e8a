# SPDX-License-Identifier: Apache-2.0
"""Methods of Ticket as a future that are shorter in Python than in C."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Generator

from ._pawl import Ticket


def wait(ticket: Ticket, _: None) -> Generator[object, None, int | None]:
    """The iterator behind ``await ticket``: a thread waits, and the event loop does not."""
    return asyncio.get_running_loop().run_in_executor(None, ticket.result).__await__()


def add_done_callback(ticket: Ticket, fn: Callable[[Ticket], object]) -> None:
    """Calls ``fn(ticket)`` once the save is done.

    As with a Future, an exception of fn is logged.
    """

    def call() -> None:
        while not ticket.done():  # wait() would mark an error as reported, and no other call would raise it
            time.sleep(0.01)
        try:
            fn(ticket)
        except Exception:
            logging.getLogger("pawl").exception("the callback of the save of step %d failed", ticket.step)

    if ticket.done():
        call()
    else:
        threading.Thread(target=call, name="pawl-callback", daemon=True).start()
