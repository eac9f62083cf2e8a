# SPDX-License-Identifier: Apache-2.0
"""What the machine can do at most, measured in the same run: the disk by fio (or a loop of our own where fio is not
installed), memory by two threads of memcpy."""

from __future__ import annotations

import concurrent.futures
import ctypes
import json
import mmap
import os
import pathlib
import shutil
import subprocess
import time

BLOCK = 4 << 20
DEPTH = 16


def disk(path: pathlib.Path, size: int, what: str) -> dict[str, float]:
    """Seconds and bytes of one pass over path: what is "new" (fallocated first), "overwrite" or "read"."""
    if what == "new":
        path.unlink(missing_ok=True)
    size = max(BLOCK, size // BLOCK * BLOCK)
    seconds = fio(path, size, what) if shutil.which("fio") else loop(path, size, what)
    return {"seconds": seconds, "bytes": float(size)}


def fio(path: pathlib.Path, size: int, what: str) -> float:
    for engine in ("io_uring", "libaio", "psync"):
        command = ["fio", "--name=limit", f"--filename={path}", f"--size={size}", f"--bs={BLOCK}", "--direct=1"]
        command += [f"--ioengine={engine}", f"--iodepth={DEPTH}", "--output-format=json", "--thread=1"]
        command += ["--rw=read"] if what == "read" else ["--rw=write", "--end_fsync=1", "--overwrite=0"]
        command += ["--fallocate=native"] if what == "new" else ["--fallocate=none"]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            text = done.stdout
            job = json.loads(text[text.index("{") :])["jobs"][0]
            side = job["read" if what == "read" else "write"]
            sync = job["sync"]["lat_ns"]["mean"] * job["sync"]["total_ios"] / 1e9 if what != "read" else 0.0
            return side["runtime"] / 1e3 + sync
    raise RuntimeError(f"fio cannot work on {path}: {done.stderr.strip()}")


def loop(path: pathlib.Path, size: int, what: str) -> float:
    flags = os.O_DIRECT | (os.O_RDONLY if what == "read" else os.O_WRONLY | os.O_CREAT)
    begin = time.perf_counter()
    descriptor = os.open(path, flags, 0o644)
    if what == "new":
        os.posix_fallocate(descriptor, 0, size)

    def worker(first: int) -> None:
        buffer = mmap.mmap(-1, BLOCK)
        for offset in range(first * BLOCK, size, 4 * BLOCK):
            if what == "read":
                os.preadv(descriptor, [buffer], offset)
            else:
                os.pwrite(descriptor, buffer, offset)

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        list(pool.map(worker, range(4)))
    if what != "read":
        os.fsync(descriptor)
    os.close(descriptor)
    return time.perf_counter() - begin


class Memcpy:
    """Copies between two warm buffers, half of them by each of two threads."""

    def __init__(self, size: int) -> None:
        self.half = min(size, 1 << 30) // 2
        self.source, self.target = mmap.mmap(-1, 2 * self.half), mmap.mmap(-1, 2 * self.half)
        for buffer in (self.source, self.target):
            if hasattr(mmap, "MADV_HUGEPAGE"):
                buffer.madvise(mmap.MADV_HUGEPAGE)
        self.addresses = [ctypes.addressof(ctypes.c_char.from_buffer(b)) for b in (self.target, self.source)]
        self.memcpy = ctypes.CDLL(None).memcpy
        self.memcpy.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
        self.memcpy.restype = ctypes.c_void_p
        self.pool = concurrent.futures.ThreadPoolExecutor(2)
        ctypes.memset(self.addresses[1], 1, 2 * self.half)
        self.run()

    def run(self) -> dict[str, float]:
        target, source = self.addresses
        begin = time.perf_counter()
        jobs = [
            self.pool.submit(self.memcpy, target + i * self.half, source + i * self.half, self.half) for i in range(2)
        ]
        for job in jobs:
            job.result()
        return {"seconds": time.perf_counter() - begin, "bytes": 2.0 * self.half}
