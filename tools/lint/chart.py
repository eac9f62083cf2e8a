# SPDX-License-Identifier: Apache-2.0
"""docs/explanation/blocked.svg shows medians of benchmarks.md in the same folder: how long one save holds the training.
`--write` draws it anew."""

from __future__ import annotations

import re
import sys

import common

PICTURE = common.ROOT / "docs/explanation/blocked.svg"
TABLE = common.ROOT / "docs/explanation/benchmarks.md"
LEFT, WIDTH, ROW = 250, 420, 30
# What is shown, the row of the table, and which of its medians: pawl's (0) or the other's (1).
BARS = [
    ("torch.save", "blocked, against torch.save", 1),
    ("DCP async_save", "blocked, against DCP async_save", 1),
    ("DCP async_save, cached stager", "blocked, against DCP async_save with a cached stager", 1),
    ("pawl", "blocked, against torch.save", 0),
    ("pawl, lazy", "blocked, lazy with a step of 0.5 s", 0),
]
TIME = re.compile(r"([\d.]+) (ms|s)\b(?= \[)")


def median(row: str, which: int) -> float:
    """In milliseconds."""
    for line in common.text_of(TABLE).splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) > 3 and cells[1] == row:
            value, unit = TIME.findall(cells[3])[which]
            return float(value) * (1000 if unit == "s" else 1)
    sys.exit(f"{TABLE.name}: no row '{row}'")


def draw() -> str:
    values = [median(row, which) for _, row, which in BARS]
    height = ROW * len(BARS) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{LEFT + WIDTH + 90}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" fill="gray">training waits for one save of 2.5 GB, in ms (median)</text>',
    ]
    for i, ((name, _, _), value) in enumerate(zip(BARS, values, strict=True)):
        y = 32 + i * ROW
        width = max(1, round(value / max(values) * WIDTH))
        fill = "#2f6f9f" if name.startswith("pawl") else "#b8c4cc"
        out.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end" fill="black">{name}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="20" fill="{fill}"/>')
        out.append(f'<text x="{LEFT + width + 8}" y="{y + 15}" fill="black">{value:,.0f}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"


def main() -> None:
    picture = draw()
    if sys.argv[1:2] == ["--write"]:
        PICTURE.write_text(picture)
    good = PICTURE.exists() and PICTURE.read_text() == picture
    problems = [] if good else ["blocked.svg is not what benchmarks.md says: tools/lint/chart.py --write"]
    common.finish(problems, len(BARS), "bars")


if __name__ == "__main__":
    main()
