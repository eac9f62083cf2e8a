# SPDX-License-Identifier: Apache-2.0
"""What the tests of the command share: calling it, making runs for it, watching it on a terminal."""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import pathlib
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Iterator
from typing import Any

from waiting import HANG_SECONDS

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build"))
PAWL = os.environ.get("PAWL_BIN", str(BUILD / "cli" / "pawl"))
MAKE_RUN = os.environ.get("PAWL_MAKE_RUN", str(BUILD / "tests" / "make_run"))
PACK = "rank00000-00000.safetensors"

ESCAPES = re.compile(r"\x1b\[[0-9;]*[a-zA-Z]")

COMMANDS = [
    "ls",
    "du",
    "show",
    "diff",
    "verify",
    "restore",
    "cp",
    "sync",
    "convert",
    "export",
    "reshard",
    "prune",
    "pin",
    "unpin",
    "score",
    "rm",
    "gc",
    "repair",
    "doctor",
    "bench",
    "tune",
    "report",
    "help",
    "completion",
    "version",
]


def static_library() -> list[str]:
    """What a program is linked with that uses the library without installing it: as pawl.pc says."""
    text = (BUILD / "meson-private" / "pawl.pc").read_text()
    [private] = re.findall(r"^Libs\.private: (.*)$", text, re.MULTILINE)
    return [str(BUILD / "src" / "libpawl.a"), *private.split()]


def environment(**more: str) -> dict[str, str]:
    """Ours, less what changes how the command looks."""
    kept = {
        key: value
        for key, value in os.environ.items()
        if key not in ("NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "COLUMNS", "TERM", "PAWL_RUN")
    }
    return kept | {"LC_ALL": "C.UTF-8", "PAGER": ""} | more


def run(*args: object, status: int = 0, **env: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [PAWL, *map(str, args)], capture_output=True, text=True, timeout=HANG_SECONDS, env=environment(**env)
    )
    assert done.returncode == status, f"exit status {done.returncode}, expected {status}\n{done.stdout}\n{done.stderr}"
    return done


def run_json(*args: object, status: int = 0) -> Any:
    done = run(*args, "--json", status=status)
    return json.loads(done.stdout)


def obey_permissions() -> None:
    """Before a command begins: root reads what it may, as any user."""
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in (1, 2):  # CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH
        if os.geteuid() == 0 and libc.prctl(24, capability, 0, 0, 0) != 0:  # PR_CAPBSET_DROP
            raise OSError(ctypes.get_errno(), "prctl")


def make(what: str, folder: pathlib.Path, *args: object) -> pathlib.Path:
    subprocess.run([MAKE_RUN, what, str(folder), *map(str, args)], check=True, timeout=HANG_SECONDS)
    return folder


@contextlib.contextmanager
def making(what: str, folder: pathlib.Path, *args: object) -> Iterator[None]:
    """make_run busy or hold, for as long as the block lasts."""
    process = subprocess.Popen(
        [MAKE_RUN, what, str(folder), *map(str, args)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin and process.stdout
    try:
        assert process.stdout.readline() == "ready\n"
        yield
    finally:
        process.stdin.close()
        assert process.wait(HANG_SECONDS) == 0
        process.stdout.close()


def checkpoint(run_folder: pathlib.Path, number: int) -> pathlib.Path:
    return run_folder / "checkpoints" / f"checkpoint_{number:06d}"


def flip(path: pathlib.Path, offset: int) -> None:
    """Changes one bit."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)
        file.seek(offset)
        file.write(bytes([byte[0] ^ 1]))


def tree_of(folder: pathlib.Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink()
    }


class FullPipe:
    """A pipe with room for a few lines: what writes more to it stands still until the pipe is read."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        self.filled = fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 1) - 300
        os.write(self.writer, b"." * self.filled)

    def has_more(self) -> bool:
        (waiting,) = struct.unpack("i", fcntl.ioctl(self.reader, termios.FIONREAD, bytes(4)))
        return bool(waiting > self.filled)

    def read(self) -> str:
        """Until all who write to it have closed it."""
        os.close(self.writer)
        with open(self.reader) as file:
            return file.read()[self.filled :]


class Terminal:
    """The command on a terminal of its own."""

    def __init__(self, *args: object, columns: int = 100, stdout: int | None = None, **env: str) -> None:
        """stdout: where its results go instead; messages and progress stay on the terminal."""
        self.output = ""
        pid, fd = pty.fork()
        if pid == 0:
            if stdout is not None:
                os.dup2(stdout, 1)
            with contextlib.suppress(OSError):
                fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
                os.execvpe(PAWL, [PAWL, *map(str, args)], environment(TERM="xterm-256color") | env)
            os._exit(127)
        self.pid, self.fd = pid, fd

    def read(self, until: Callable[[str], bool] | None = None) -> str:
        """Reads to the end, or until the output satisfies a condition."""
        deadline = time.monotonic() + HANG_SECONDS
        while time.monotonic() < deadline:
            if until is not None and until(self.output):
                return self.output
            if not select.select([self.fd], [], [], 1)[0]:
                continue
            try:
                data = os.read(self.fd, 65536)
            except OSError:  # the other end is closed
                break
            if not data:
                break
            self.output += data.decode("utf-8", "replace")
        assert until is None or until(self.output), self.output
        return self.output

    def interrupt(self) -> None:
        os.write(self.fd, b"\x03")

    def status(self) -> int:
        self.read()
        os.close(self.fd)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


def on_terminal(*args: object, columns: int = 100, status: int = 0, **env: str) -> str:
    terminal = Terminal(*args, columns=columns, **env)
    assert terminal.status() == status, terminal.output
    return terminal.output
