# SPDX-License-Identifier: Apache-2.0
"""The charts next to benchmarks.md show the medians of its tables. `--write` draws them anew."""

from __future__ import annotations

import re
import sys

import common

sys.path.insert(0, str(common.ROOT / "bench"))
import charts

PAGE = common.ROOT / "docs/explanation/benchmarks.md"


def cell(text: str, group: str, peer: str, key: str) -> str:
    """Of the table below the name of a group."""
    table = text.partition(f"\n**{group}**\n")[2].partition("\n**")[0]
    rows = [[part.strip() for part in line.split("|")[1:-1]] for line in table.splitlines() if line.startswith("|")]
    row = next((row for row in rows if row[0] == peer), None)
    return row[rows[0].index(key)] if row else ""


def main() -> None:
    text = common.text_of(PAGE)
    problems = []
    size = re.search(r"W1 is ([\d.]+) GB", text)
    if not size:
        sys.exit(f"{PAGE.name} has no size of W1")
    for chart in charts.CHARTS:
        file = PAGE.parent / chart.file
        picture = charts.draw(chart, f"{float(size[1]):.1f} GB", lambda *place: cell(text, *place))
        if common.arguments().write:
            file.write_text(picture)
        if not file.exists() or common.text_of(file) != picture:
            problems.append(f"{chart.file} is not what benchmarks.md says: tools/lint/chart.py --write")
    common.finish(problems, len(charts.CHARTS), "charts")


if __name__ == "__main__":
    main()
