# SPDX-License-Identifier: Apache-2.0
"""How things are measured: wall time, processor time and page faults of a call; the page cache; a machine in words."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import pathlib
import platform
import resource
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any


class Call:
    """One measured call. mark() keeps the time so far under a name."""

    def __init__(self) -> None:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.cpu, self.faults, self.begin = usage.ru_utime + usage.ru_stime, usage.ru_minflt, time.perf_counter()
        self.figures: dict[str, float] = {}

    def mark(self, name: str) -> None:
        self.figures[name] = time.perf_counter() - self.begin

    def end(self, name: str) -> None:
        self.mark(name)
        usage = resource.getrusage(resource.RUSAGE_SELF)
        self.figures["cpu"] = usage.ru_utime + usage.ru_stime - self.cpu
        self.figures["minor_faults"] = usage.ru_minflt - self.faults


def files_of(path: pathlib.Path) -> list[pathlib.Path]:
    return [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file() and not p.is_symlink())


def sync_path(path: pathlib.Path) -> None:
    """Makes a file, or a folder with all in it, durable."""
    folders = [path.parent, *([path] if path.is_dir() else []), *(p for p in path.rglob("*") if p.is_dir())]
    for each in [*files_of(path), *folders]:
        descriptor = os.open(each, os.O_RDONLY)
        os.fsync(descriptor)
        os.close(descriptor)


def drop_cache(path: pathlib.Path) -> None:
    """Forgets the cached pages of the files below path."""
    sync_path(path)
    for each in files_of(path):
        descriptor = os.open(each, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def fill_cache(path: pathlib.Path) -> None:
    for each in files_of(path):
        with each.open("rb", buffering=0) as file:
            while file.read(16 << 20):
                pass


def cached_share(path: pathlib.Path) -> float:
    """How much of the files below path is in the page cache, 0 to 1."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_char_p]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    pages = cached = 0
    for each in files_of(path):
        size = each.stat().st_size
        if size == 0:
            continue
        descriptor = os.open(each, os.O_RDONLY)
        address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
        os.close(descriptor)
        count = -(-size // mmap.PAGESIZE)
        present = ctypes.create_string_buffer(count)
        libc.mincore(address, size, present)
        libc.munmap(address, size)
        pages += count
        cached += sum(byte & 1 for byte in present.raw[:count])
    return cached / pages if pages else 0.0


@contextlib.contextmanager
def scratch(folder: pathlib.Path, name: str) -> Iterator[pathlib.Path]:
    """A path below folder that nothing is at, and that is removed afterwards, with the disk at rest again."""
    path = folder / name
    remove(path)
    try:
        yield path
    finally:
        remove(path)
        os.sync()


def remove(path: pathlib.Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def peak_memory(call: Callable[[], Any]) -> int:
    """By how many bytes the process grew at most during a call (resident memory, mapped files included)."""
    pathlib.Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    call()
    return memory("VmHWM") - before


def memory(field: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(field + ":"))


def machine(folder: pathlib.Path) -> dict[str, str]:
    def first(path: str, key: str) -> str:
        with open(path) as file:
            return next((line.split(":", 1)[1].strip() for line in file if line.startswith(key)), "unknown")

    mounts = [line.split()[:3] for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    inside = [m for m in mounts if folder.resolve().is_relative_to(m[1].replace("\\040", " "))]
    kind = max(inside, key=lambda m: len(m[1]))[2] if inside else "unknown"
    return {
        "date": time.strftime("%Y-%m-%d"),
        "processor": first("/proc/cpuinfo", "model name"),
        "cores": str(len(os.sched_getaffinity(0))),
        "memory": first("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "filesystem": kind,
        "python": platform.python_version(),
    }
