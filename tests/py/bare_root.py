# SPDX-License-Identifier: Apache-2.0
"""A root of its own with nothing but what a package names: for tests of packages that are installed."""

from __future__ import annotations

import contextlib
import os
import pathlib
import shutil
import subprocess
from collections.abc import Iterator

from needs import need
from waiting import HANG_SECONDS


def checked(*command: object, status: int = 0, **environment: str) -> str:
    words = [str(word) for word in command]
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=HANG_SECONDS, env=os.environ | environment, check=False
    )
    assert done.returncode == status, f"{' '.join(words)}: exit status {done.returncode}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


class BareRoot:
    """A Debian system of few packages in a folder. Programs in it share the network of this machine."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder

    def run(self, *command: object, status: int = 0, lent: pathlib.Path | None = None, **environment: str) -> str:
        """What the program prints. While it runs, /mnt is the folder that is lent to it, read-only."""
        mount = f'mount --bind -o ro "{lent}" "{self.folder}/mnt" && ' if lent else ""
        inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", f'{mount}exec "$@"', "sh"]
        inside += ["unshare", f"--root={self.folder}", "--wd=/", "--mount-proc"]
        path = {"PATH": "/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C.UTF-8", "HOME": "/root"}
        clean = ["/usr/bin/env", "-i", *(f"{key}={value}" for key, value in (path | environment).items())]
        return checked(*inside, *clean, *command, status=status)

    def give(self, source: pathlib.Path, name: str = "") -> str:
        """Copies a file or folder below /given; its name there."""
        target = self.folder / "given" / (name or source.name)
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target)
        else:
            shutil.copy(source, target)
        return f"/given/{target.name}"


def sources(code: str) -> list[str]:
    """The package sources of this machine that have the release."""
    folder = pathlib.Path("/etc/apt/sources.list.d")
    files = [pathlib.Path("/etc/apt/sources.list"), *sorted(folder.glob("*.list")), *sorted(folder.glob("*.sources"))]
    return [str(file) for file in files if file.exists() and code in file.read_text()]


def bootstrap(root: pathlib.Path, packages: str, *options: str) -> None:
    """The packages and what they need, of this machine's release."""
    need("root")
    release = dict(
        line.split("=", 1) for line in pathlib.Path("/etc/os-release").read_text().split("\n") if "=" in line
    )
    code = release["VERSION_CODENAME"].strip('"')
    checked("mmdebstrap", "--quiet", *options, f"--include={packages}", code, root, *sources(code))


@contextlib.contextmanager
def bare_root(folder: pathlib.Path, packages: str) -> Iterator[BareRoot]:
    root = folder / "root"
    bootstrap(root, packages, "--variant=minbase")
    try:
        yield BareRoot(root)
    finally:
        shutil.rmtree(root)
