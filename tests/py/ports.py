# SPDX-License-Identifier: Apache-2.0
"""Ports for servers of tests, of which several run at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import random
import socket

# Below those that the system gives to a program that asks for any, so that no connection has one by chance.
PORTS = range(20000, 32000)
_taken: list[int] = []  # files that are locked for as long as this process lives


def take(name: str) -> bool:
    """Whether this process has the name for as long as it lives, among all processes of these tests on this machine."""
    place = pathlib.Path(f"/tmp/pawl-ports-{os.getuid()}")
    place.mkdir(exist_ok=True)
    file = os.open(place / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(file)
        return False
    _taken.append(file)
    return True


def free_port() -> int:
    """One that nothing listens at, and that no other process of these tests on this machine is given."""
    for port in random.SystemRandom().sample(PORTS, len(PORTS)):
        if not take(str(port)):
            continue
        with contextlib.suppress(OSError), socket.socket() as s:
            s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            s.bind(("", port))
            return port
        os.close(_taken.pop())
    raise AssertionError("no port is free")
