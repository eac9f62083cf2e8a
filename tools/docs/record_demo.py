#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Records what a program prints in a terminal, as an animated SVG without fonts or scripts. Long waits are shortened;
nothing else is changed. A viewer that does not animate shows the last lines.

python tools/docs/record_demo.py FILE.svg PROGRAM ARGUMENTS...
"""

from __future__ import annotations

import codecs
import os
import pathlib
import pty
import re
import struct
import sys
import termios
import time
from dataclasses import dataclass, field
from fcntl import ioctl
from html import escape

COLUMNS, ROWS = 96, 26
LONGEST_WAIT, LAST_WAIT = 0.7, 8.0  # seconds of the recording
WIDTH, HEIGHT, PAD = 8, 18, 14  # of a character, and around all
TOKEN = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|(\n)|(\r)|([^\x1b\n\r]+)|\x1b.?")
WORDS = re.compile(r"█+|[^\s█]+(?: [^\s█]+)*")
STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono",monospace;fill:#c9d1d9}
.b{font-weight:700;fill:#fff}
rect{fill:#0d1117}.bar{fill:#58a6ff}
g{animation-timing-function:step-end;animation-iteration-count:infinite}
@media (prefers-reduced-motion:reduce){g{animation:none!important}}
"""


@dataclass
class Line:
    seconds: float  # when it got its first character
    parts: list[tuple[str, bool]] = field(default_factory=list)  # text, bold


def record(command: list[str]) -> tuple[list[tuple[float, str]], int]:
    """What the program writes to a terminal of its own, with the seconds since its start; and its exit status."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvpe(command[0], command, os.environ | {"TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)})
    ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    begin, written = time.monotonic(), []
    while piece := read_piece(terminal):
        written.append((time.monotonic() - begin, decoder.decode(piece)))
        print(written[-1][1], end="", flush=True)
    os.close(terminal)
    return written, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def read_piece(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # Linux: no process has the terminal open any more
        return b""


def lines_of(written: list[tuple[float, str]]) -> list[Line]:
    """The lines as they are at the end, with times without long waits."""
    lines, bold, again, clock, before = [Line(0)], False, False, 0.0, 0.0
    for seconds, text in written:
        clock += min(seconds - before, LONGEST_WAIT)
        before = seconds
        for codes, letter, newline, back, plain in TOKEN.findall(text):
            if letter == "m":
                bold = codes.split(";")[-1] == "1"
            elif newline:
                lines.append(Line(clock))
                again = False
            elif back:
                again = True
            elif plain:
                if again:  # what follows a carriage return replaces the line
                    lines[-1].parts.clear()
                    again = False
                write(lines, clock, plain, bold)
    filled = [row for row, line in enumerate(lines) if line.parts]
    return lines[filled[0] : filled[-1] + 1] if filled else []


def write(lines: list[Line], clock: float, text: str, bold: bool) -> None:
    """Adds text to the last line, and lines where it is longer than the terminal is wide."""
    while text:
        used = sum(len(part) for part, _ in lines[-1].parts)
        if used == COLUMNS:
            lines.append(Line(clock))
            continue
        parts = lines[-1].parts
        if not parts:
            lines[-1].seconds = clock
        before = parts.pop()[0] if parts and parts[-1][1] == bold else ""
        parts.append((before + text[: COLUMNS - used], bold))
        text = text[COLUMNS - used :]


def draw_line(line: Line, row: int) -> str:
    """Words have fixed places and widths, so that columns stand one below the other in every font."""
    drawn, column = "", 0
    for text, bold in line.parts:
        for word in WORDS.finditer(text):
            x, width = PAD + (column + word.start()) * WIDTH, len(word[0]) * WIDTH
            if word[0][0] == "█":
                drawn += f'<rect class="bar" x="{x}" y="{row * HEIGHT + 3}" width="{width}" height="{HEIGHT - 6}"/>'
            else:
                style = ' class="b"' if bold else ""
                place = f'x="{x}" y="{row * HEIGHT + 13}" textLength="{width}"'
                drawn += f"<text{style} {place}>{escape(word[0], quote=False)}</text>"
        column += len(text)
    return drawn


def draw(lines: list[Line], title: str) -> str:
    total = lines[-1].seconds + LAST_WAIT
    bursts: dict[float, str] = {}  # lines that appear together
    scroll, rules, top = {0.0: 0}, [], 0
    for row, line in enumerate(lines):
        share = round(100 * line.seconds / total, 2)
        bursts[share] = bursts.get(share, "") + draw_line(line, row)
        top = max(0, row + 1 - ROWS) * HEIGHT
        scroll[share] = top
    body = ""
    for number, (share, drawn) in enumerate(bursts.items()):
        rules.append(f"@keyframes l{number}{{0%{{opacity:0}}{share}%,to{{opacity:1}}}}" if share else "")
        body += f'<g style="animation-name:l{number};animation-duration:{total:.1f}s">{drawn}</g>\n'
    steps = "".join(f"{share}%{{transform:translateY(-{up}px)}}" for share, up in scroll.items())
    rules.append(f"@keyframes up{{{steps}to{{transform:translateY(-{top}px)}}}}")
    width, height = COLUMNS * WIDTH + 2 * PAD, min(ROWS, len(lines)) * HEIGHT
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + 2 * PAD}" role="img">
<title>{escape(title)}</title>
<style>{STYLE}{"".join(rules)}</style>
<rect width="100%" height="100%" rx="8"/>
<svg y="{PAD}" width="{width}" height="{height}">
<g style="transform:translateY(-{top}px);animation-name:up;animation-duration:{total:.1f}s">
{body}</g>
</svg>
</svg>
"""


def main() -> int:
    if len(sys.argv) < 3:
        sys.exit(__doc__)
    written, status = record(sys.argv[2:])
    if status != 0:
        sys.exit(f"record_demo.py: {sys.argv[2]} ended with exit status {status}; nothing was written")
    if not (lines := lines_of(written)):
        sys.exit(f"record_demo.py: {sys.argv[2]} printed nothing")
    title = "A recording of a terminal, which ends: " + "".join(text for text, _ in lines[-1].parts)
    pathlib.Path(sys.argv[1]).write_text(draw(lines, title), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
