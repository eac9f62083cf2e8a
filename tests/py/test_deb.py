# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: lintian finds nothing, they install into a root that has only what they name, and they work."""

from __future__ import annotations

import json
import pathlib
import re
from collections.abc import Iterator

import pytest
from bare_root import BareRoot, bare_root, checked
from test_install import PROGRAM
from test_wheel import LOOP

pytestmark = [pytest.mark.root, pytest.mark.long]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NAMES = {"libpawl0", "libpawl-dev", "pawl", "python3-pawl"}
FOR_THE_TESTS = ["gcc", "libc6-dev", "pkg-config", "python3-numpy"]


@pytest.fixture(scope="module", name="packages")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """Of what is committed; lintian ends the script when it finds something."""
    folder = tmp_path_factory.mktemp("deb") / "pawl"
    checked("git", "clone", "--quiet", ROOT, folder)
    (folder / ".venv").symlink_to(ROOT / ".venv")
    checked(folder / "packaging" / "deb.sh")
    return sorted((folder / "dist").glob("*.deb"))


@pytest.fixture(scope="module", name="root")
def installed(packages: list[pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    needed = {
        re.split(r"[ (|:]", part.strip())[0]
        for package in packages
        for part in checked("dpkg-deb", "-f", package, "Depends").split(",")
    }
    with bare_root(tmp_path_factory.mktemp("bare"), ",".join([*sorted(needed - NAMES), *FOR_THE_TESTS])) as root:
        root.run("dpkg", "--install", *[root.give(package) for package in packages])
        (root.folder / "loop.py").write_text(LOOP)
        (root.folder / "program.c").write_text(PROGRAM)
        yield root


def test_there_are_four_packages(packages: list[pathlib.Path]) -> None:
    assert {package.name.partition("_")[0] for package in packages} == NAMES


def test_the_loop_and_the_command_run(root: BareRoot) -> None:
    assert "ends with 5" in root.run("python3", "/loop.py", "/runs/a", "5")
    assert "ends with 9" in root.run("python3", "/loop.py", "/runs/a", "9")
    assert json.loads(root.run("pawl", "ls", "--json", "/runs/a"))
    assert list(root.folder.glob("usr/share/bash-completion/completions/pawl.bash"))


def test_a_program_is_compiled_and_runs(root: BareRoot) -> None:
    root.run("sh", "-c", "gcc -Werror /program.c -o /program $(pkg-config --cflags --libs pawl)")
    root.run("/program", "/runs/c")
    root.run("pawl", "verify", "/runs/c")


def test_a_bucket_names_the_missing_package_and_removal_leaves_nothing(root: BareRoot) -> None:
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": "http://127.0.0.1:1"}
    assert "libcurl4" in root.run("pawl", "ls", "s3://bucket/run", status=1, **keys)
    root.run("dpkg", "--purge", *NAMES)
    assert not list(root.folder.glob("usr/**/*pawl*"))
