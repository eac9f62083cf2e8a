# SPDX-License-Identifier: Apache-2.0
"""What make install installs can be found by pkg-config, compiled against and run."""

from __future__ import annotations

import importlib.metadata
import os
import pathlib
import subprocess
import sys

import pytest
from waiting import HANG_SECONDS

from cli import static_library

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build"))
PROGRAM = r"""
#include <pawl.h>
#include <stdio.h>
#include <string.h>
int main(void)
{
	puts(pawl_version());
	return strcmp(pawl_version(), PAWL_VERSION) != 0;
}
"""


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_an_installed_pawl_is_found_by_pkg_config_and_works(tmp_path: pathlib.Path) -> None:
    meson = pathlib.Path(sys.executable).parent / "meson"
    run([str(meson), "install", "--quiet", "--no-rebuild", "-C", str(BUILD), "--destdir", str(tmp_path)])
    found = next(tmp_path.rglob("pawl.pc"))
    paths = {"PKG_CONFIG_PATH": str(found.parent), "PKG_CONFIG_SYSROOT_DIR": str(tmp_path)}
    flags = run(["pkg-config", "--cflags", "--libs", "pawl"], **paths).split()
    assert run(["pkg-config", "--modversion", "pawl"], **paths).strip()
    (tmp_path / "program.c").write_text(PROGRAM)
    program = str(tmp_path / "program")
    run(["gcc", "-Werror", str(tmp_path / "program.c"), "-o", program, *flags])
    library = next(tmp_path.rglob("libpawl.so"))
    version = run([program], LD_LIBRARY_PATH=str(library.parent)).strip()
    command = next(path for path in tmp_path.rglob("bin/pawl"))
    assert version in run([str(command), "version"])


def test_the_static_library_works_without_the_shared_one(tmp_path: pathlib.Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    program = str(tmp_path / "program")
    command = ["gcc", str(tmp_path / "program.c"), "-o", program, f"-I{ROOT / 'include'}"]
    run([*command, *static_library()])
    assert run([program]).strip()


def test_an_xxhash_whose_checksums_are_others_is_refused(tmp_path: pathlib.Path) -> None:
    """XXH3 was fixed in 0.8.0; a library built with an earlier one would call every checkpoint damaged."""
    (tmp_path / "libxxhash.pc").write_text("Name: xxhash\nDescription: old\nVersion: 0.7.4\nCflags:\n")
    meson = pathlib.Path(sys.executable).parent / "meson"
    command = [str(meson), "setup", str(tmp_path / "build"), str(ROOT)]
    environment = os.environ | {"PKG_CONFIG_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=environment)
    assert done.returncode != 0
    assert "libxxhash" in done.stdout and ">=0.8.0" in done.stdout.replace(" ", "") and "0.7.4" in done.stdout


def test_the_python_package_brings_the_manual_and_the_completions() -> None:
    """They are where man and the shells look below the root of an environment."""
    installed = {file.name: file for file in importlib.metadata.files("pawl") or []}
    root = pathlib.Path(sys.prefix)
    for name, folder, holds in [
        ("pawl.1", "man/man1", ".Dt PAWL 1"),
        ("pawl.bash", "bash-completion/completions", "complete"),
        ("_pawl", "zsh/site-functions", "#compdef pawl"),
        ("pawl.fish", "fish/vendor_completions.d", "complete"),
    ]:
        place = pathlib.Path(str(installed[name].locate())).resolve()
        assert place == (root / "share" / folder / name).resolve()
        assert holds in place.read_text()
