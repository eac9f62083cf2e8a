# SPDX-License-Identifier: Apache-2.0
"""The library compiles for aarch64, and its sums, formats, stores and saves pass their tests there, in an emulator."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from bare_root import checked
from waiting import HANG_SECONDS

pytestmark = [pytest.mark.root, pytest.mark.long]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = ["test_crc", "test_sum", "test_planes", "test_safetensors", "test_save", "test_store_file", "test_store"]
LEFT_OUT = ["-Dcli=false", "-Ds3=disabled", "-Dbz2=disabled"]
# The emulator has no prctl(PR_SET_THP_DISABLE).
NOT_EMULATED = {"test_R145_the_first_lazy_save_does_not_fault_memory_in_on_the_callers_thread"}


@pytest.fixture(scope="module", name="build")
def cross_built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    libraries, folder = ROOT / "build-static-aarch64-linux-gnu", tmp_path_factory.mktemp("arm") / "build"
    checked(ROOT / "packaging" / "static-libs.sh", libraries, "aarch64-linux-gnu")
    tools = pathlib.Path(sys.executable).parent
    options = ["--cross-file", ROOT / "packaging" / "aarch64.ini", "-Dtests=true", "-Dprefer_static=true", *LEFT_OUT]
    found = {"PKG_CONFIG_LIBDIR": str(libraries / "lib" / "pkgconfig"), "NINJA": str(tools / "ninja")}
    checked(tools / "meson", "setup", folder, ROOT, *options, **found)
    checked(tools / "ninja", "-C", folder, *(f"tests/{name}" for name in PROGRAMS))
    return folder


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_unit_tests_pass_on_aarch64(build: pathlib.Path, name: str) -> None:
    program = build / "tests" / name
    assert "AArch64" in checked("readelf", "-h", program)
    done = subprocess.run(
        ["qemu-aarch64-static", "-L", "/usr/aarch64-linux-gnu", program, *(["disk"] if name == "test_store" else [])],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=ROOT,
        env=os.environ | {"CMOCKA_MESSAGE_OUTPUT": "TAP"},
        check=False,
    )
    failed = set(re.findall(r"^not ok \d+ - (\w+)", done.stdout, re.MULTILINE))
    assert failed <= NOT_EMULATED, done.stdout + done.stderr
    assert len(re.findall(r"^ok ", done.stdout, re.MULTILINE)) >= 4
    assert done.returncode == len(failed), done.stdout + done.stderr
