# SPDX-License-Identifier: Apache-2.0
"""A wire between pawl and a server on this machine, as bad as a test wants it: slow, cut after so many bytes, swallowing
everything, or changing a bit on the way. It knows nothing of what goes over it."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Literal

Way = Literal["up", "down"]
PIECE = 65536
RESET = (1).to_bytes(4, "little") + bytes(4)  # linger: on, for no time


class Wire:
    def __init__(self, port: int) -> None:
        self.target = port
        self.latency = 0.0  # seconds that each piece takes longer, each way
        self.rate = 0.0  # bytes a second, each way and connection; 0 = as fast as it goes
        self.hole = False  # nothing comes through, without an error
        self.cut: dict[Way, int] = {}  # after so many bytes that way in all, the connection is reset, ..
        self.cuts_left = 0  # .. so often
        self.flip: Way | None = None  # in the first piece that has PIECE bytes, so many times
        self.flips_left = 0
        self.cuts = self.flips = 0
        self.slept_seconds = 0.0  # of all pieces together
        self.carried: dict[Way, int] = {"up": 0, "down": 0}
        self.lock = threading.Lock()
        self.pairs: list[tuple[socket.socket, socket.socket]] = []
        self.server = socket.create_server(("127.0.0.1", 0))
        self.endpoint = f"http://127.0.0.1:{self.server.getsockname()[1]}"
        threading.Thread(target=self.accept, daemon=True).start()

    def close(self) -> None:
        self.server.close()
        for pair in self.pairs:
            self.reset(*pair)

    def accept(self) -> None:
        while True:
            try:
                near, _ = self.server.accept()
                far = socket.create_connection(("127.0.0.1", self.target))
            except OSError:
                return
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self.pairs.append((near, far))
            threading.Thread(target=self.pump, args=("up", near, far), daemon=True).start()
            threading.Thread(target=self.pump, args=("down", far, near), daemon=True).start()

    def pump(self, way: Way, source: socket.socket, target: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while piece := source.recv(min(PIECE, int(self.rate * 0.1) or PIECE)):  # at a rate: something every 0.1 s
                if self.hole:
                    continue
                if late := self.latency + (len(piece) / self.rate if self.rate else 0):
                    with self.lock:
                        self.slept_seconds += late
                    time.sleep(late)
                piece, ends = self.spoil(way, piece)
                target.sendall(piece)
                if ends:
                    self.reset(source, target)
                    return
        with contextlib.suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def spoil(self, way: Way, piece: bytes) -> tuple[bytes, bool]:
        with self.lock:
            self.carried[way] += len(piece)
            if self.flip == way and self.flips_left and len(piece) == PIECE:
                self.flips_left -= 1
                self.flips += 1
                middle = PIECE // 2
                piece = piece[:middle] + bytes([piece[middle] ^ 4]) + piece[middle + 1 :]
            if way not in self.cut or not self.cuts_left:
                return piece, False
            self.cut[way] -= len(piece)
            if self.cut[way] > 0:
                return piece, False
            self.cuts_left -= 1
            self.cuts += 1
            kept = len(piece) + self.cut[way]
            self.cut[way] = max(1, kept)
            return piece[:kept], True

    @staticmethod
    def reset(*ends: socket.socket) -> None:
        for end in ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
                end.shutdown(socket.SHUT_RDWR)
                end.close()

    def heal(self) -> None:
        self.latency = self.rate = 0.0
        self.hole, self.flip, self.cuts_left, self.flips_left = False, None, 0, 0
        self.cut = {}


@contextlib.contextmanager
def wire(endpoint: str) -> Iterator[Wire]:
    with contextlib.closing(Wire(int(endpoint.rpartition(":")[2].partition("/")[0]))) as w:
        yield w
