# SPDX-License-Identifier: Apache-2.0
"""The wheel: the same bytes each time, nothing but glibc needed, and it works in a root that has no development
packages."""

from __future__ import annotations

import json
import pathlib
import re
import shutil
import sys
import zipfile
from collections.abc import Iterator

import pytest
import safetensors
from bare_root import BareRoot, bare_root, checked
from s3_fake import Fake
from s3_servers import make_authority

pytestmark = [pytest.mark.root, pytest.mark.long]
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PYTHON = "/env/bin/python"
LOOP = """
import sys
import numpy as np
import pawl

state = {"w": np.zeros(100_000), "note": "text"}
with pawl.CheckpointManager(sys.argv[1], num_to_keep=2) as manager:
    restored = manager.restore(state)
    for step in range(restored.step + 1 if restored else 0, int(sys.argv[2])):
        state["w"] += 1
        manager.save(step, state)
print("ends with", int(state["w"][0]))
"""
# Where systems keep the certificates that they trust.
AUTHORITIES = [
    "etc/ssl/certs/ca-certificates.crt",  # Debian, Ubuntu, Arch, Alpine
    "etc/pki/tls/certs/ca-bundle.crt",  # Fedora, RHEL
    "etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  # Fedora, RHEL, without the older links
    "etc/ssl/ca-bundle.pem",  # SUSE
    "etc/ssl/cert.pem",  # Alpine, macOS
]


def readme(language: str) -> str:
    """Its only block of that language."""
    [block] = re.findall(rf"^```{language}\n(.*?)^```$", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


def build(folder: pathlib.Path, *host: str) -> pathlib.Path:
    """The wheel of what is committed, from a clone in a folder that does not exist yet."""
    libraries = ROOT / "-".join(["build-static", *host])
    checked(ROOT / "packaging" / "static-libs.sh", libraries, *host)
    checked("git", "clone", "--quiet", ROOT, folder)
    options = [f"--libraries={libraries}", *(f"--host={name}" for name in host)]
    checked(sys.executable, folder / "packaging" / "wheel.py", *options)
    return next((folder / "dist").glob("*.whl"))


@pytest.fixture(scope="module", name="wheels")
def two_wheels(tmp_path_factory: pytest.TempPathFactory) -> list[pathlib.Path]:
    """Of one commit, in two folders."""
    return [build(tmp_path_factory.mktemp("wheel") / name) for name in ("one", "another-folder")]


@pytest.fixture(scope="module", name="root")
def installed(wheels: list[pathlib.Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareRoot]:
    with bare_root(tmp_path_factory.mktemp("bare"), "python3,python3-venv,libcurl4,ca-certificates") as root:
        assert not list(root.folder.glob("usr/share/doc/*-dev"))
        root.run("python3", "-m", "venv", "/env")
        root.give(wheels[0])
        index = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": "/given", "PATH": "/env/bin:/usr/bin:/bin"}
        root.run("sh", "-ec", readme("sh"), **index)
        version = root.run(PYTHON, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
        numpy = ["--python-version", version, "--only-binary=:all:", "numpy~=2.0"]
        target = root.folder / f"env/lib/python{version}/site-packages"
        checked(sys.executable, "-m", "pip", "install", "--quiet", "--upgrade", "--target", target, *numpy)
        (root.folder / "loop.py").write_text(LOOP)
        yield root


def test_two_builds_of_one_commit_are_the_same_bytes(wheels: list[pathlib.Path]) -> None:
    assert wheels[0].name == wheels[1].name
    assert wheels[0].read_bytes() == wheels[1].read_bytes()


def test_auditwheel_agrees_and_nothing_else_is_needed(wheels: list[pathlib.Path], tmp_path: pathlib.Path) -> None:
    shown = checked(sys.executable, "-m", "auditwheel", "show", wheels[0])
    assert wheels[0].stem.rpartition("-")[2] in shown and "cp311-abi3-manylinux_" in wheels[0].name
    with zipfile.ZipFile(wheels[0]) as archive:
        archive.extractall(tmp_path)
    extension, [command] = tmp_path / "pawl" / "_pawl.abi3.so", tmp_path.glob("*.data/scripts/pawl")
    for file in (extension, command):
        lines = checked("readelf", "-d", file).splitlines()
        needed = {line.rpartition("[")[2].rstrip("]") for line in lines if "NEEDED" in line}
        assert needed <= {"libc.so.6", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}
        assert not any("PATH" in line for line in lines)
        assert str(ROOT).encode() not in file.read_bytes()
    symbols = checked("nm", "--dynamic", "--defined-only", extension).split()
    assert [name for name in symbols if name.startswith(("PyInit", "ZSTD", "XML", "pawl"))] == ["PyInit__pawl"]


def test_it_is_small_and_names_its_parts(wheels: list[pathlib.Path]) -> None:
    assert wheels[0].stat().st_size <= 4_000_000
    with zipfile.ZipFile(wheels[0]) as archive:
        names = archive.namelist()
        [parts] = [name for name in names if name.endswith(".dist-info/sboms/libpawl.cdx.json")]
        document = json.loads(archive.read(parts))
        metadata = archive.read(next(name for name in names if name.endswith("/METADATA"))).decode()
    inside = {part["name"] for part in document["components"]}
    assert inside == {"zlib", "bzip2", "lz4", "xz-utils", "libzstd", "expat", "libyaml", "xxhash", "libisal"}
    assert {f"{name}.txt" for name in inside} <= {name.rpartition("/")[2] for name in names if "/licenses/" in name}
    assert "\nName: libpawl\n" in metadata


def test_the_loop_and_the_command_run_in_a_bare_root(root: BareRoot) -> None:
    assert "ends with 5" in root.run(PYTHON, "/loop.py", "/runs/a", "5")
    assert "ends with 9" in root.run(PYTHON, "/loop.py", "/runs/a", "9")  # it resumed
    assert json.loads(root.run("/env/bin/pawl", "ls", "--json", "/runs/a"))
    root.run("/env/bin/pawl", "verify", "/runs/a")


def test_the_demo_runs_in_a_bare_root(root: BareRoot) -> None:
    """PyTorch and safetensors are those of these tests; pawl is the wheel's."""
    demo, path = root.give(ROOT / "examples/demo", "demo"), "/env/bin:/usr/bin:/bin"
    [packages] = root.folder.glob("env/lib/python*/site-packages")
    (packages / "lent.pth").write_text("/mnt\n")  # comes after the folder that has it
    small = ["--folder", "/runs/demo", "--steps", 20, "--megabytes", 20]
    lent = pathlib.Path(safetensors.__file__).parent.parent
    shown = root.run(PYTHON, f"{demo}/demo.py", *small, lent=lent, PATH=path)
    assert "bit for bit?" in shown and "\nyes: model, optimizer" in shown and "resumed after step" in shown
    where = root.run(PYTHON, "-c", "import pawl, torch; print(pawl.__file__, torch.__file__)", lent=lent)
    assert where.startswith("/env/lib/") and " /mnt/torch/" in where
    (packages / "lent.pth").unlink()


def test_the_program_of_the_readme_runs_as_printed_after_its_install_line(root: BareRoot) -> None:
    (root.folder / "readme.py").write_text(readme("python"))
    root.run("sh", "-ec", "cd /runs && /env/bin/python /readme.py && /env/bin/python /readme.py")
    assert "99" in root.run("/env/bin/pawl", "ls", "/runs/runs/demo")


def test_it_saves_to_an_s3_server_and_names_the_package_without_libcurl(root: BareRoot) -> None:
    server = Fake()
    try:
        keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "us-east-1"}
        place = keys | {"AWS_ENDPOINT_URL": server.endpoint}
        assert "ends with 3" in root.run(PYTHON, "/loop.py", "s3://bucket/run", "3", **place)
        assert "ends with 4" in root.run(PYTHON, "/loop.py", "s3://bucket/run", "4", **place)
        assert any(key.startswith("run/") for key in server.state())
        root.run("/env/bin/pawl", "verify", "s3://bucket/run", **place)
        libraries = list(root.folder.glob("usr/lib/*/libcurl*.so*"))
        for file in libraries:
            shutil.move(file, root.folder / "given" / file.name)
        try:
            found = root.run("/env/bin/pawl", "ls", "s3://bucket/run", status=1, **place)
        finally:
            for file in libraries:
                shutil.move(root.folder / "given" / file.name, file)
        assert "libcurl" in found and "apt-get install libcurl4" in found
        root.run("/env/bin/pawl", "ls", "/runs/a")
    finally:
        server.close()


def test_certificates_are_found_wherever_a_system_keeps_them(root: BareRoot, tmp_path: pathlib.Path) -> None:
    ours, other = make_authority(tmp_path / "ours"), make_authority(tmp_path / "other")
    trusts_other = {"SSL_CERT_FILE": root.give(other, "other.crt")}
    server = Fake(str(ours.with_name("server.pem")))
    place = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "AWS_ENDPOINT_URL": server.endpoint}
    etc = shutil.move(root.folder / "etc/ssl", tmp_path / "ssl")
    try:
        advice = "install ca-certificates, or set SSL_CERT_FILE to a file"
        assert advice in root.run("/env/bin/pawl", "ls", "s3://bucket", status=1, **place)  # no file at all
        assert "ends with 3" in root.run(
            PYTHON, "/loop.py", "s3://bucket/run", "3", **place, SSL_CERT_FILE=root.give(ours)
        )
        for name in AUTHORITIES:
            file = root.folder / name
            file.parent.mkdir(parents=True)
            shutil.copy(ours, file)
            root.run("/env/bin/pawl", "verify", "s3://bucket/run", **place)
            assert advice in root.run("/env/bin/pawl", "ls", "s3://bucket/run", status=1, **place, **trusts_other)
            shutil.copy(other, file)
            assert advice in root.run("/env/bin/pawl", "ls", "s3://bucket/run", status=1, **place)
            shutil.rmtree(root.folder / "etc" / name.split("/")[1])
    finally:
        server.close()
        shutil.rmtree(root.folder / "etc/ssl", ignore_errors=True)
        shutil.move(etc, root.folder / "etc/ssl")
