# SPDX-License-Identifier: Apache-2.0
"""The library compiles for aarch64, and its checksums, formats, stores and saves pass their tests in an emulator. So does
the wheel: it runs in a Debian system of that machine."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import pytest
from bare_root import bootstrap, checked
from s3_fake import Fake
from test_wheel import LOOP
from test_wheel import build as build_wheel
from waiting import HANG_SECONDS

pytestmark = [pytest.mark.root, pytest.mark.long]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PROGRAMS = ["test_crc", "test_sum", "test_planes", "test_safetensors", "test_save", "test_store_file", "test_store"]
LEFT_OUT = ["-Dcli=false", "-Ds3=disabled"]
HOST = "aarch64-linux-gnu"
# The emulator has no prctl(PR_SET_THP_DISABLE).
NOT_EMULATED = {"test_R145_the_first_lazy_save_does_not_fault_memory_in_on_the_callers_thread"}


@pytest.fixture(scope="module", name="build")
def cross_built(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    libraries, folder = ROOT / f"build-static-{HOST}", tmp_path_factory.mktemp("arm") / "build"
    checked(ROOT / "packaging" / "static-libs.sh", libraries, HOST)
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
        ["qemu-aarch64-static", "-L", f"/usr/{HOST}", program, *(["disk"] if name == "test_store" else [])],
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


class Arm:
    """A Debian system of aarch64, and the wheel with NumPy in a folder next to it."""

    def __init__(self, folder: pathlib.Path, wheel: pathlib.Path) -> None:
        self.root, self.site = folder / "root", folder / "site"
        bootstrap(
            self.root, "python3,libstdc++6,libcurl4,ca-certificates", "--architectures=arm64", "--variant=extract"
        )
        [self.python] = (self.root / "usr" / "bin").glob("python3.??")
        version = self.python.name.removeprefix("python")
        options = ["--no-deps", "--only-binary=:all:", "--python-version", version, "--implementation", "cp"]
        # pip checks the tag: the system has glibc 2.36, NumPy's wheel wants an older one
        options += [f"--platform=manylinux_2_{minor}_aarch64" for minor in (36, 34, 28, 27, 17)]
        checked(sys.executable, "-m", "pip", "install", "--quiet", "--target", self.site, *options, wheel, "numpy~=2.0")

    def run(self, *command: object, **environment: str) -> str:
        paths = {"PYTHONPATH": str(self.site), "PYTHONHOME": str(self.root / "usr")}
        return checked("qemu-aarch64-static", "-L", self.root, *command, **paths, **environment)


@pytest.fixture(scope="module", name="arm")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Arm:
    return Arm(tmp_path_factory.mktemp("debian"), build_wheel(tmp_path_factory.mktemp("wheel") / "pawl", HOST))


@pytest.mark.parametrize("far", [False, True], ids=["folder", "bucket"])
def test_the_wheel_for_aarch64_saves_and_restores(arm: Arm, tmp_path: pathlib.Path, far: bool) -> None:
    (tmp_path / "loop.py").write_text(LOOP)
    server = Fake()
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
    place = keys | {"AWS_ENDPOINT_URL": server.endpoint}
    run = "s3://bucket/run" if far else str(tmp_path / "run")
    try:
        assert "ends with 3" in arm.run(arm.python, tmp_path / "loop.py", run, "3", **place)
        assert "ends with 5" in arm.run(arm.python, tmp_path / "loop.py", run, "5", **place)  # it resumed
        assert "AArch64" in checked("readelf", "-h", arm.site / "bin" / "pawl")
        assert "every byte is as it was written" in arm.run(arm.site / "bin" / "pawl", "verify", run, **place)
        assert bool(server.state()) == far
    finally:
        server.close()
