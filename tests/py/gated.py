# SPDX-License-Identifier: Apache-2.0
"""Saves that are under way for as long as a test wants: their packs go to a store of fsspec that takes them at a gate."""

from __future__ import annotations

import threading
from typing import Any

import fsspec  # type: ignore[import-untyped, unused-ignore]
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped, unused-ignore]
from waiting import HANG_SECONDS

import pawl


class Gated(MemoryFileSystem):  # type: ignore[misc, unused-ignore]
    protocol = ("gated", "file")  # as of files, calls need not wait for each other
    store: dict[str, Any] = {}
    pseudo_dirs = [""]
    gate = threading.Event()

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(MemoryFileSystem._strip_protocol(str(path).replace("gated://", "memory://")))

    def put_file(self, lpath: str, rpath: str, *args: Any, **kwargs: Any) -> None:
        assert "rank00000" not in rpath or self.gate.wait(HANG_SECONDS)
        super().put_file(lpath, rpath, *args, **kwargs)

    def pipe_file(self, path: str, *args: Any, **kwargs: Any) -> None:
        assert "rank00000" not in path or self.gate.wait(HANG_SECONDS)
        super().pipe_file(path, *args, **kwargs)


def gated(**options: Any) -> tuple[pawl.CheckpointManager, threading.Event]:
    """A new run, and the event that lets its packs be written."""
    fsspec.register_implementation("gated", Gated, clobber=True)
    Gated.store.clear()
    Gated.pseudo_dirs[:] = [""]
    Gated.gate.clear()
    return pawl.CheckpointManager("gated://there/run", **options), Gated.gate
