# SPDX-License-Identifier: Apache-2.0
"""The recording of a terminal: what was printed is in it, long waits and control sequences are not."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import xml.etree.ElementTree

from programs import ROOT, load_program
from waiting import HANG_SECONDS

SVG = "{http://www.w3.org/2000/svg}"
SESSION = """
import sys
assert sys.stdout.isatty()
print("\\033[1m== A title\\033[0m", flush=True)
print("10 %", end="\\r")
print("a <tag> & more    \u2588\u2588\u2588 12 ms", flush=True)
for line in range(3):
    print("line", line, flush=True)
print("x" * 100 + "y")
sys.exit({status})
"""


def record(target: pathlib.Path, status: int = 0) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", SESSION.format(status=status)]
    command = [sys.executable, str(ROOT / "tools" / "docs" / "record_demo.py"), str(target), *program]
    return subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)


def texts(file: pathlib.Path) -> list[str]:
    return [element.text or "" for element in xml.etree.ElementTree.parse(file).iter(f"{SVG}text")]


def test_a_recording_has_what_was_printed(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "session.svg"
    done = record(file)
    assert done.returncode == 0 and "== A title" in done.stdout, done.stderr
    words = ["== A title", "a <tag> & more", "12 ms", "line 0", "line 1", "line 2", "x" * 96, "xxxxy"]
    assert texts(file) == words  # the percentage was replaced, and the long line has two
    tree = xml.etree.ElementTree.parse(file)
    [title] = [element for element in tree.iter(f"{SVG}text") if element.get("class") == "b"]
    [bar] = [element for element in tree.iter(f"{SVG}rect") if element.get("class") == "bar"]
    assert title.text == "== A title"
    assert float(bar.get("width", 0)) == 3 * 8
    assert "\x1b" not in file.read_text()


def test_long_waits_are_shortened_and_long_sessions_scroll() -> None:
    recorder = load_program("tools/docs/record_demo.py")
    written = [(0.0, "begins\n"), (0.2, "works\n"), *[(3.2 + row / 10, f"line {row}\n") for row in range(60)]]
    lines = recorder.lines_of(written)
    assert [round(line.seconds, 1) for line in lines[:4]] == [0.0, 0.2, 0.9, 1.0]
    text = recorder.draw(lines, "title")
    # the last line comes at 0.9 + 5.9 seconds, and stays for 8
    assert set(re.findall(r"animation-duration:([0-9.]+)s", text)) == {"14.8"}
    # 62 lines, of which 26 are seen
    assert re.search(rf'<g style="transform:translateY\(-{(62 - 26) * 18}px\)', text)
    opened = [float(share) for share in re.findall(r"@keyframes l\d+{0%{opacity:0}([0-9.]+)%", text)]
    assert len(opened) == 61 and opened == sorted(opened)


def test_nothing_is_written_when_the_program_fails(tmp_path: pathlib.Path) -> None:
    file = tmp_path / "session.svg"
    done = record(file, status=3)
    assert done.returncode != 0 and "exit status 3" in done.stderr
    assert not file.exists()


def test_the_recording_of_the_demo_is_small_and_needs_nothing_else() -> None:
    file = ROOT / "docs" / "tutorials" / "demo.svg"
    text = file.read_text()
    assert file.stat().st_size < 60_000
    assert set(re.findall(r"https?://[^\s\"']+", text)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"url\(|@import|@font-face|<script|<image|href=", text)
    assert "== Killed in the middle of a save, resumed, equal in every bit" in texts(file)
    assert "docs/tutorials/demo.svg" in (ROOT / "README.md").read_text()
