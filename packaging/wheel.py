# SPDX-License-Identifier: Apache-2.0
"""Builds the manylinux wheel into dist/: everything but glibc inside, with licences and a list of parts (CycloneDX,
where PEP 770 wants it). Two builds of one commit are the same bytes. packaging/static-libs.sh makes the libraries."""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_BYTES = 4_000_000
# Debian's source package: licence and home of what is inside the wheel.
PARTS = {
    "zlib": ("Zlib", "https://zlib.net"),
    "bzip2": ("bzip2-1.0.6", "https://sourceware.org/bzip2"),
    "lz4": ("BSD-2-Clause", "https://github.com/lz4/lz4"),
    "xz-utils": ("LicenseRef-public-domain", "https://tukaani.org/xz"),
    "libzstd": ("BSD-3-Clause", "https://github.com/facebook/zstd"),
    "expat": ("MIT", "https://github.com/libexpat/libexpat"),
    "libyaml": ("MIT", "https://github.com/yaml/libyaml"),
    "xxhash": ("BSD-2-Clause", "https://github.com/Cyan4973/xxHash"),
    "libisal": ("BSD-3-Clause", "https://github.com/intel/isa-l"),
}


def run(command: list[object], **environment: str) -> str:
    words = [str(word) for word in command]
    environment["PATH"] = f"{pathlib.Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(words, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(f"wheel.py: {' '.join(words)} failed:\n{done.stdout[-6000:]}{done.stderr[-6000:]}")
    return done.stdout


def commit_time() -> int:
    """The time of the commit, so that the wheel does not depend on when it is built."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or run(["git", "log", "-1", "--format=%ct"]))


def build(libraries: pathlib.Path, host: str, folder: pathlib.Path, moment: int) -> pathlib.Path:
    paths = f"-ffile-prefix-map={ROOT}=. -ffunction-sections -fdata-sections"
    environment = {"SOURCE_DATE_EPOCH": str(moment), "PKG_CONFIG_PATH": str(libraries / "lib" / "pkgconfig")}
    cross = []
    if host:
        machine = host.partition("-")[0]
        # Its headers of Python come before those of the Python that runs this.
        paths += f" -I{libraries}/include/python -I{libraries}/include"
        cross = [f"setup-args=--cross-file={ROOT}/packaging/{machine}.ini"]
        environment["PKG_CONFIG_LIBDIR"] = environment["PKG_CONFIG_PATH"]
        environment["_PYTHON_HOST_PLATFORM"] = f"linux-{machine}"
    settings = [
        f"build-dir={folder / 'build'}",
        "setup-args=-Dprefer_static=true",
        f"setup-args=-Dc_args={paths}",
        "setup-args=-Dc_link_args=-Wl,--gc-sections",
        "install-args=--strip",
        *cross,
    ]
    run(
        [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-cache-dir"]
        + [f"--config-settings={setting}" for setting in settings]
        + ["--wheel-dir", folder / "plain", ROOT],
        **environment,
    )
    return next((folder / "plain").glob("*.whl"))


def parts_list(libraries: pathlib.Path, version: str, moment: int) -> str:
    lines = (libraries / "versions.txt").read_text().splitlines()
    components = [
        {
            "type": "library",
            "name": name,
            "version": found,
            "purl": f"pkg:deb/debian/{name}@{found.replace('+', '%2B')}?arch=source",
            "licenses": [{"license": {"name" if "LicenseRef" in PARTS[name][0] else "id": PARTS[name][0]}}],
            "externalReferences": [{"type": "website", "url": PARTS[name][1]}],
        }
        for name, found in sorted(line.split() for line in lines)
    ]
    product = {"type": "library", "name": "libpawl", "version": version, "purl": f"pkg:pypi/libpawl@{version}"}
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": when, "component": product},
        "components": components,
    }
    return json.dumps(document, indent=1) + "\n"


def record_line(name: str, body: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(body).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(body)}"


def pack(files: dict[str, tuple[bytes, int]], target: pathlib.Path, moment: int) -> None:
    """Writes the wheel: names in order, one time for all, the record last."""
    info = next(name for name in files if name.endswith(".dist-info/WHEEL")).rpartition("/")[0]
    files.pop(f"{info}/RECORD", None)
    lines = [record_line(name, files[name][0]) for name in sorted(files)]
    text = "\n".join([*lines, f"{info}/RECORD,,"]) + "\n"
    everything = [(name, *files[name]) for name in sorted(files)] + [(f"{info}/RECORD", text.encode(), 0o644)]
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, body, mode in everything:
            entry = zipfile.ZipInfo(name, time.gmtime(moment)[:6])
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(entry, body)


def read(wheel: pathlib.Path) -> dict[str, tuple[bytes, int]]:
    with zipfile.ZipFile(wheel) as archive:
        return {
            entry.filename: (archive.read(entry), 0o755 if entry.external_attr >> 16 & 0o111 else 0o644)
            for entry in archive.infolist()
            if not entry.is_dir()
        }


def drop_search_paths(files: dict[str, tuple[bytes, int]], folder: pathlib.Path) -> None:
    """Some Pythons have their own folder written into every extension."""
    for name, (body, mode) in files.items():
        if body[:4] != b"\x7fELF":
            continue
        path = folder / "elf"
        path.write_bytes(body)
        found = run(["patchelf", "--print-rpath", path]).strip().encode()
        if found:
            run(["patchelf", "--remove-rpath", path])
            files[name] = (path.read_bytes().replace(found + b"\0", bytes(len(found) + 1)), mode)


def finish(plain: pathlib.Path, libraries: pathlib.Path, folder: pathlib.Path, moment: int) -> pathlib.Path:
    files = read(plain)
    version = plain.name.split("-")[1]
    info = f"libpawl-{version}.dist-info"
    for text in sorted((libraries / "licences").iterdir()):
        files[f"{info}/licenses/{text.name}"] = (text.read_bytes(), 0o644)
    files[f"{info}/sboms/libpawl.cdx.json"] = (parts_list(libraries, version, moment).encode(), 0o644)
    drop_search_paths(files, folder)
    untagged = folder / plain.name
    pack(files, untagged, moment)
    shown = run([sys.executable, "-m", "auditwheel", "show", untagged])
    found = re.search(r'constrained by.*?platform tag:\s*"([^"]+)"|following platform tag:\s*"([^"]+)"', shown, re.S)
    if not found or "manylinux" not in (tag := found[1] or found[2]):
        sys.exit(f"wheel.py: auditwheel finds no manylinux tag:\n{shown}")
    body, mode = files[f"{info}/WHEEL"]
    files[f"{info}/WHEEL"] = (re.sub(rb"(?m)^(Tag: \w+-\w+-)\w+$", rb"\1" + tag.encode(), body), mode)
    target = ROOT / "dist" / re.sub(r"-[^-]+\.whl$", f"-{tag}.whl", plain.name)
    target.parent.mkdir(exist_ok=True)
    pack(files, target, moment)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--libraries", type=pathlib.Path, help="what static-libs.sh built (default: build-static)")
    parser.add_argument("--host", default="", help="for a cross compiler, such as aarch64-linux-gnu")
    arguments = parser.parse_args()
    default = "-".join(filter(None, ["build-static", arguments.host]))
    libraries = (arguments.libraries or ROOT / default).resolve()
    moment = commit_time()
    folder = ROOT / "build-wheel-dist"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    wheel = finish(build(libraries, arguments.host, folder, moment), libraries, folder, moment)
    shutil.rmtree(folder)
    size = wheel.stat().st_size
    if size > MAX_BYTES:
        sys.exit(f"wheel.py: {wheel.name} has {size} bytes, at most {MAX_BYTES} are allowed")
    print(f"{wheel.relative_to(ROOT)}  {size} bytes")


if __name__ == "__main__":
    main()
