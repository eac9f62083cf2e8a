# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/rooms.svg shows the includes between the rooms of src as they are. `--write` draws it anew.

Each row is a room; a filled cell says that it includes a header of the room of that column. Rooms may use earlier rooms
only, so the picture is a staircase."""

from __future__ import annotations

import re
import sys

import common

PICTURE = common.ROOT / "docs/explanation/rooms.svg"
CELL, LEFT, TOP = 34, 92, 12
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]+"([^"]+)"', re.MULTILINE)


def used_by(room: str) -> set[str]:
    texts = (common.text_of(path) for path in common.files(f"src/{room}/**/*.[ch]"))
    found = {common.room_of(what) for text in texts for what in INCLUDE.findall(text)}
    return {other for other in found if other and other != room}


def draw(rooms: list[str]) -> str:
    width, height = LEFT + len(rooms) * CELL + 70, TOP * 2 + len(rooms) * CELL
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{width}" height="{height}" fill="white"/>',
    ]
    for row, room in enumerate(rooms):
        y = TOP + row * CELL
        used = used_by(room)
        out.append(f'<text x="{LEFT - 10}" y="{y + 21}" text-anchor="end" fill="black">{room}</text>')
        for column, other in enumerate(rooms[:row]):
            fill = "#2f6f9f" if other in used else "#eef2f5"
            x = LEFT + column * CELL
            title = f"<title>{room} uses {other}</title>" if other in used else ""
            out.append(
                f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" fill="{fill}">{title}</rect>'
            )
        x = LEFT + row * CELL
        out.append(f'<rect x="{x}" y="{y}" width="{CELL - 2}" height="{CELL - 2}" rx="3" fill="black"/>')
        out.append(f'<text x="{x + CELL + 4}" y="{y + 21}" fill="black">{room}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    rooms = [room for room in common.ROOMS if (common.ROOT / "src" / room).is_dir()]
    text = draw(rooms)
    if "--write" in sys.argv[1:]:
        PICTURE.write_text(text, encoding="utf-8")
    is_current = PICTURE.exists() and common.text_of(PICTURE) == text
    problems = [] if is_current else ["docs/explanation/rooms.svg is old; run tools/lint/drawing.py --write"]
    common.finish(problems, len(rooms), "rooms")


if __name__ == "__main__":
    main()
