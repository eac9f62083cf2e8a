# SPDX-License-Identifier: Apache-2.0
"""Each part that can be left out of a build: without it alone, everything else builds, and the C tests of the rooms that
know of it pass. make check-switches runs all C tests of these builds."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from waiting import HANG_SECONDS

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build-without"
WITHOUT_FORMAT = "this pawl was built without the format's library"
# Each part: suites of C tests; a command, and what it says.
PARTS = {
    "lz4": (["format", "foreign"], ["ls", "a.lz4"], WITHOUT_FORMAT),
    "xz": (["format", "foreign"], ["ls", "a.xz"], WITHOUT_FORMAT),
    "bz2": (["format", "foreign"], ["ls", "a.bz2"], WITHOUT_FORMAT),
    "s3": (["store"], ["ls", "s3://bucket/run"], "it was built without libcurl or expat"),
    "stores": (["store"], ["ls", "ssh://host/run"], "it was built without stores on other machines"),
    "jobs": (["foreign", "keep"], [], ""),
    "tune": (["base"], [], ""),
}


def run(*command: str | pathlib.Path, status: int = 0, cwd: pathlib.Path | None = None) -> str:
    path = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = os.environ | {"PATH": path}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=env, cwd=cwd, check=False)
    assert done.returncode == status, done.stdout[-6000:] + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module", autouse=True)
def configured() -> None:
    """One folder for all: another part compiles again only what knows of it."""
    if not (BUILD / "build.ninja").exists():
        run("meson", "setup", BUILD, ROOT, "-Dtests=true")


def test_the_makefile_has_the_same_list() -> None:
    [line] = re.findall(r"^SWITCHES = (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert line.split() == list(PARTS)


def test_a_build_without_all_parts_passes_its_tests() -> None:
    run("meson", "configure", BUILD, *(f"-D{name}=disabled" for name in PARTS))
    run("ninja", "-C", BUILD)
    run("meson", "test", "-C", BUILD, "--no-rebuild", "--suite=format", "--suite=foreign", "--suite=store")


@pytest.mark.parametrize("part", PARTS)
def test_a_build_without_a_part_passes_its_tests(part: str, tmp_path: pathlib.Path) -> None:
    suites, command, answer = PARTS[part]
    run("meson", "configure", BUILD, *(f"-D{name}={'disabled' if name == part else 'enabled'}" for name in PARTS))
    run("ninja", "-C", BUILD)
    run("meson", "test", "-C", BUILD, "--no-rebuild", *(f"--suite={suite}" for suite in suites))
    if command:
        (tmp_path / f"a.{part}").write_bytes(b"x")
        run(BUILD / "cli/pawl", "version")
        assert answer in run(BUILD / "cli/pawl", *command, status=1, cwd=tmp_path)
