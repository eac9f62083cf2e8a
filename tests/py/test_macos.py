# SPDX-License-Identifier: Apache-2.0
"""Every C file compiles for macOS. The compiler has the headers of macOS; nothing is linked or run."""

from __future__ import annotations

import json
import os
import pathlib
import shlex
import subprocess
import sys
import sysconfig

import pytest
from bare_root import checked
from frameworks import python_of
from waiting import HANG_SECONDS

pytestmark = [pytest.mark.framework, pytest.mark.long]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TOOLS = pathlib.Path(sys.executable).parent
# The libraries' headers serve every system: package of pkg-config -> what is taken from /usr/include.
HEADERS = {
    "libxxhash": ["xxhash.h", "xxh3.h"],
    "libisal": ["isa-l.h", "isa-l"],
    "zlib": ["zlib.h", "zconf.h"],
    "libzstd": ["zstd.h", "zstd_errors.h"],
    "liblz4": ["lz4.h", "lz4hc.h", "lz4frame.h"],
    "liblzma": ["lzma.h", "lzma"],
    "bzip2": ["bzlib.h"],
    "libcurl": ["curl"],
    "expat": ["expat.h", "expat_external.h"],
    "yaml-0.1": ["yaml.h"],
}
CROSS_FILE = """[binaries]
c = [{compiler}, '-target', '{machine}-macos']
ar = [{ar}]
pkg-config = 'pkg-config'
exe_wrapper = 'true'
[host_machine]
system = 'darwin'
cpu_family = '{machine}'
cpu = '{machine}'
endian = 'little'
"""
FILE = "src/base/fd.c"
LINUX_ONLY = ["fdatasync(fd)", "fallocate(fd, 0, 0, 1)", 'open(".", O_TMPFILE)', "pipe2(&fd, 0)"]


def give_headers(folder: pathlib.Path) -> None:
    """Packages of pkg-config that have headers only."""
    places = [pathlib.Path("/usr/include"), *pathlib.Path("/usr/include").glob("*-linux-gnu")]
    (folder / "include").mkdir(parents=True)
    for package, headers in HEADERS.items():
        for header in headers:
            [found, *_] = [place / header for place in places if (place / header).exists()]
            (folder / "include" / header).symlink_to(found)
        text = f"Name: {package}\nDescription: headers\nVersion: 99\nCflags: -I{folder / 'include'}\n"
        (folder / f"{package}.pc").write_text(text)


class Build:
    """A build for a machine with macOS. Warnings are errors."""

    def __init__(self, folder: pathlib.Path, machine: str) -> None:
        self.folder = folder / "build"
        self.environment = {"ZIG_GLOBAL_CACHE_DIR": str(folder / "cache"), "NINJA": str(TOOLS / "ninja")}
        give_headers(folder / "libraries")
        zig = f"'{python_of('macos')}', '-m', 'ziglang'"
        cross_file = folder / "cross.ini"
        cross_file.write_text(CROSS_FILE.format(compiler=f"{zig}, 'cc'", ar=f"{zig}, 'ar'", machine=machine))
        options = ["--cross-file", cross_file, "-Dbuildtype=plain", "-Dwerror=true"]
        found = self.environment | {"PKG_CONFIG_LIBDIR": str(folder / "libraries")}
        # the compiler leaves files where it is asked for its version
        checked("env", f"--chdir={folder}", TOOLS / "meson", "setup", self.folder, ROOT, *options, **found)
        rules = json.loads((self.folder / "compile_commands.json").read_text())
        self.rules = {str((self.folder / rule["file"]).resolve().relative_to(ROOT)): rule for rule in rules}

    def compile_all(self) -> None:
        outputs = sorted({rule["output"] for rule in self.rules.values()})
        checked(TOOLS / "ninja", "-C", self.folder, *outputs, **self.environment)

    def compile(self, name: str, text: str, *more: str) -> tuple[bool, str]:
        """Compiles a text in the place of this file. Returns whether it compiled, and the messages."""
        rule = self.rules[name]
        (self.folder / "instead.c").write_text(text)
        words = ["instead.c" if word == rule["file"] else word for word in shlex.split(rule["command"])]
        done = subprocess.run(
            [*words, *more],
            cwd=self.folder,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            timeout=HANG_SECONDS,
            check=False,
        )
        return done.returncode == 0, done.stderr


@pytest.fixture(scope="module", params=["aarch64", "x86_64"], name="build")
def configured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Build:
    return Build(tmp_path_factory.mktemp("macos"), request.param)


def test_every_file_of_the_library_and_the_command_compiles_for_macos(build: Build) -> None:
    ours = {str(path.relative_to(ROOT)) for room in ("src", "tune", "cli") for path in (ROOT / room).rglob("*.c")}
    assert set(build.rules) >= ours
    build.compile_all()


def test_every_file_of_the_python_extension_compiles_for_macos(build: Build) -> None:
    """The headers of this Python serve all systems. Only pyconfig.h differs, and not in what the stable interface uses
    on machines with 64-bit pointers."""
    folder = build.folder / "python"
    folder.mkdir()
    for header in pathlib.Path(sysconfig.get_path("include")).iterdir():
        (folder / header.name).symlink_to(header)
    (folder / "pyconfig.h").unlink()
    (folder / "pyconfig.h").symlink_to(sysconfig.get_config_h_filename())
    sources = sorted((ROOT / "python" / "pawl").glob("*.c"))
    assert sources
    for source in sources:
        options = ["-isystem", str(folder), f"-I{source.parent}", "-DPy_LIMITED_API=0x030b0000"]
        assert build.compile("cli/main.c", source.read_text(), *options) == (True, ""), source


@pytest.mark.parametrize("call", LINUX_ONLY)
def test_a_call_that_only_linux_has_does_not_compile_for_macos(build: Build, call: str) -> None:
    text = (ROOT / FILE).read_text() + "\nint added(int fd);\nint\nadded(int fd)\n{\n\treturn (int)%s;\n}\n"
    assert build.compile(FILE, text.replace("%s;\n}", "fsync(fd);\n}")) == (True, "")
    compiled, messages = build.compile(FILE, text.replace("%s;\n}", f"{call};\n}}"))
    assert not compiled
    assert call.partition("(")[0] in messages
