# SPDX-License-Identifier: Apache-2.0
"""What make install installs can be found by pkg-config, compiled against and run."""

from __future__ import annotations

import importlib.metadata
import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
from waiting import HANG_SECONDS

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build"))
PROGRAM = r"""
#include <pawl.h>
#include <stdio.h>
#include <string.h>

static int save_weights(const char *root, float *weights, uint64_t n, struct pawl_error *err)
{
	struct pawl_open_opts opts = PAWL_OPEN_OPTS_INIT;
	struct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;
	struct pawl_tensor tensor = PAWL_TENSOR_INIT;
	struct pawl_state *state = NULL;
	struct pawl *run = NULL;
	opts.root = root;
	tensor.dtype = PAWL_F32;
	tensor.ndim = 1;
	tensor.shape = &n;
	tensor.data = weights;
	save.step = 1;
	int rc = pawl_open(&opts, &run, err);
	rc = rc == 0 ? pawl_state_new(&state, err) : rc;
	rc = rc == 0 ? pawl_state_set_tensor(state, "weights", &tensor, err) : rc;
	rc = rc == 0 ? pawl_save(run, &save, state, NULL, err) : rc;
	pawl_state_free(state);
	return pawl_close(run, rc < 0 ? NULL : err) < 0 ? -1 : rc;
}

int main(int argc, char **argv)
{
	float weights[1000] = {1};
	struct pawl_error err = {0};
	if (argc != 2 || save_weights(argv[1], weights, 1000, &err) < 0)
		return fprintf(stderr, "%s\n", err.message), 1;
	return puts(pawl_version()) < 0 || strcmp(pawl_version(), PAWL_VERSION) != 0;
}
"""
CMAKE = """
cmake_minimum_required(VERSION 3.16)
project(program C)
find_package(pawl 0.1 REQUIRED)
add_executable(shared program.c)
target_link_libraries(shared pawl::pawl)
add_executable(static program.c)
target_link_libraries(static pawl::pawl_static)
"""


def run(command: list[str], **environment: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=os.environ | environment)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module", name="prefix")
def installed(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """What make install installs, below a folder that it was not built for."""
    root = tmp_path_factory.mktemp("root")
    meson = pathlib.Path(sys.executable).parent / "meson"
    run([str(meson), "install", "--quiet", "--no-rebuild", "-C", str(BUILD), "--destdir", str(root)])
    return next(root.rglob("bin/pawl")).parent.parent


def check_program(program: pathlib.Path, prefix: pathlib.Path, shared: bool) -> None:
    """It saves; the installed command reads that."""
    folder = next(prefix.rglob("libpawl.so")).parent
    runs = program.parent / f"{program.name}-runs"
    version = run([str(program), str(runs)], LD_LIBRARY_PATH=str(folder) if shared else "").strip()
    assert version in run([str(prefix / "bin" / "pawl"), "version"])
    run([str(prefix / "bin" / "pawl"), "verify", str(runs)])
    assert ("libpawl" in run(["readelf", "-d", str(program)])) == shared


@pytest.mark.parametrize("shared", [True, False])
def test_an_installed_pawl_is_found_by_pkg_config_and_works(
    tmp_path: pathlib.Path, prefix: pathlib.Path, shared: bool
) -> None:
    found = next(prefix.rglob("pawl.pc"))
    root = str(prefix).removesuffix(re.search(r"^prefix=(.*)$", found.read_text(), re.M)[1])  # type: ignore[index]
    paths = {"PKG_CONFIG_PATH": str(found.parent), "PKG_CONFIG_SYSROOT_DIR": root}
    assert run(["pkg-config", "--modversion", "pawl"], **paths).strip()
    flags = run(["pkg-config", "--cflags", "--libs", *([] if shared else ["--static"]), "pawl"], **paths).split()
    if not shared:  # as build systems do that prefer static archives
        flags = [str(next(prefix.rglob("libpawl.a"))) if flag == "-lpawl" else flag for flag in flags]
    (tmp_path / "program.c").write_text(PROGRAM)
    run(["gcc", "-Werror", str(tmp_path / "program.c"), "-o", str(tmp_path / "program"), *flags])
    check_program(tmp_path / "program", prefix, shared)


def test_an_installed_pawl_is_found_by_cmake_and_works(tmp_path: pathlib.Path, prefix: pathlib.Path) -> None:
    (tmp_path / "program.c").write_text(PROGRAM)
    (tmp_path / "CMakeLists.txt").write_text(CMAKE)
    run(["cmake", "-S", str(tmp_path), "-B", str(tmp_path / "build"), f"-DCMAKE_PREFIX_PATH={prefix}"])
    run(["cmake", "--build", str(tmp_path / "build")])
    check_program(tmp_path / "build" / "shared", prefix, True)
    check_program(tmp_path / "build" / "static", prefix, False)


def test_an_xxhash_whose_checksums_are_others_is_refused(tmp_path: pathlib.Path) -> None:
    """XXH3 was fixed in 0.8.0; a library built with an earlier one would call every checkpoint damaged."""
    (tmp_path / "libxxhash.pc").write_text("Name: xxhash\nDescription: old\nVersion: 0.7.4\nCflags:\n")
    meson = pathlib.Path(sys.executable).parent / "meson"
    command = [str(meson), "setup", str(tmp_path / "build"), str(ROOT)]
    environment = os.environ | {"PKG_CONFIG_PATH": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=environment)
    assert done.returncode != 0
    assert "libxxhash" in done.stdout and ">=0.8.0" in done.stdout.replace(" ", "") and "0.7.4" in done.stdout


@pytest.fixture(scope="module", name="clone")
def fresh_clone(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Of what is committed, without a virtual environment."""
    folder = tmp_path_factory.mktemp("clone") / "pawl"
    run(["git", "clone", "--quiet", str(ROOT), str(folder)])
    return folder


def test_make_install_needs_no_virtual_environment_and_make_alone_installs_nothing(clone: pathlib.Path) -> None:
    """Of Python it uses only meson."""
    tools = clone.parent / "tools"
    tools.mkdir()
    (tools / "meson").symlink_to(pathlib.Path(sys.executable).parent / "meson")
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    place = {"DESTDIR": str(clone.parent / "root"), "PREFIX": "/usr", "PATH": path}
    run(["make", "-C", str(clone)], **place)
    assert not (clone.parent / "root").exists() and not (clone / ".venv").exists()
    run(["make", "-C", str(clone), "install"], **place)
    usr = clone.parent / "root" / "usr"
    assert (usr / "include" / "pawl.h").exists() and list(usr.rglob("libpawl.so")) and not (clone / ".venv").exists()
    assert "pawl" in run([str(usr / "bin" / "pawl"), "version"])


def test_the_source_archive_names_all_that_is_missing_once(clone: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """pip install without the libraries ends with the message of the build."""
    (clone / ".venv").symlink_to(ROOT / ".venv")
    run(["make", "-C", str(clone), "sdist"])
    (clone / ".venv").unlink()
    [archive] = (clone / "dist").glob("libpawl-*.tar.gz")
    command = [sys.executable, "-m", "pip", "install", "--no-build-isolation", "--no-deps", "--no-index"]
    environment = os.environ | {
        "PKG_CONFIG_LIBDIR": str(tmp_path),
        "CMAKE_PREFIX_PATH": "/nonexistent",
        "PATH": f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }
    done = subprocess.run(
        [*command, "--target", str(tmp_path / "site"), str(archive)],
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        env=environment,
    )
    said = done.stdout + done.stderr
    assert done.returncode != 0
    assert said.count("apt-get install -y") == said.count("dnf install") == said.count("brew install") == 1, said
    assert not (tmp_path / "site").exists()


def test_everything_that_is_missing_is_named_at_once(tmp_path: pathlib.Path) -> None:
    meson = pathlib.Path(sys.executable).parent / "meson"
    command = [str(meson), "setup", str(tmp_path / "build"), str(ROOT), "-Dpython=true"]
    environment = os.environ | {"PKG_CONFIG_LIBDIR": str(tmp_path), "CMAKE_PREFIX_PATH": "/nonexistent"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, env=environment)
    assert done.returncode != 0
    [apt] = [line for line in done.stdout.splitlines() if "apt-get install" in line]
    for package in ("libxxhash-dev", "libisal-dev", "libzstd-dev", "liblz4-dev", "libcurl4-openssl-dev", "libyaml-dev"):
        assert package in apt.split()
    assert "libbz2-dev" not in apt  # it is there
    assert "dnf install xxhash-devel" in done.stdout and "brew install xxhash" in done.stdout
    assert "-Dlz4=disabled" in done.stdout
    assert done.stdout.count("-Ds3=disabled") == 1  # it needs two of them


def test_a_build_for_another_system_than_linux_or_macos_ends_with_one_message(tmp_path: pathlib.Path) -> None:
    machine = "system = 'freebsd'\ncpu_family = 'aarch64'\ncpu = 'aarch64'\nendian = 'little'\n"
    (tmp_path / "bsd.ini").write_text(f"[binaries]\nc = 'cc'\n\n[host_machine]\n{machine}")
    meson = pathlib.Path(sys.executable).parent / "meson"
    command = [str(meson), "setup", str(tmp_path / "build"), str(ROOT), "--cross-file", str(tmp_path / "bsd.ini")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode != 0
    assert "pawl runs on Linux; this build is for freebsd" in done.stdout, done.stdout + done.stderr


def test_the_python_package_brings_the_manual_and_the_completions() -> None:
    """They are where man and the shells look below the root of an environment."""
    installed = {file.name: file for file in importlib.metadata.files("libpawl") or []}
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
    commands = subprocess.run([f"{sys.prefix}/bin/pawl", "help", "--json"], capture_output=True, check=True).stdout
    pages = {f"pawl-{row['name']}.1" for row in json.loads(commands)["commands"]}
    assert {name for name in installed if name.startswith("pawl-") and name.endswith(".1")} == pages
