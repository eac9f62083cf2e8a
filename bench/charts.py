# SPDX-License-Identifier: Apache-2.0
"""The charts of docs/explanation/benchmarks.md: bars of medians, drawn by make bench from what it has measured."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

LEFT, WIDTH, ROW = 250, 420, 30


@dataclasses.dataclass
class Chart:
    """Bars of one group of samples. The peers, each with the name that is shown; pawl's bars have a colour."""

    file: str
    title: str
    group: str
    key: str
    bars: list[tuple[str, str]]


CHARTS = [
    Chart(
        "blocked.svg",
        "training waits for one save of {size}, in ms (median)",
        "W1 save",
        "blocked",
        [
            ("torch.save", "torch.save"),
            ("torchsnapshot", "torchsnapshot async_take"),
            ("DCP async_save", "DCP async_save"),
            ("Orbax", "Orbax async"),
            ("DCP async_save, cached stager", "DCP async_save, cached stager"),
            ("pawl", "pawl"),
            ("pawl lazy", "pawl, lazy"),
        ],
    ),
    Chart(
        "durable.svg",
        "until one save of {size} is durable, in ms (median)",
        "W1 save",
        "durable",
        [
            ("Orbax", "Orbax"),
            ("torch.save", "torch.save, fsync"),
            ("DCP", "DCP save, fsync"),
            ("safetensors", "safetensors, fsync"),
            ("torchsnapshot", "torchsnapshot, fsync"),
            ("pawl", "pawl"),
        ],
    ),
    Chart(
        "restore.svg",
        "restoring {size} from a cold cache, in ms (median)",
        "W1 restore cold",
        "seconds",
        [
            ("Orbax", "Orbax"),
            ("torch.save", "torch.load"),
            ("torchsnapshot", "torchsnapshot"),
            ("DCP", "DCP load"),
            ("safetensors", "safetensors"),
            ("torch.load(mmap=True)", "torch.load(mmap=True)"),
            ("pawl restored", "pawl"),
        ],
    ),
]


def milliseconds(shown: str) -> float:
    """Of a time as the tables show it: "1.417 s [1.147 s–1.555 s]"."""
    value, unit = shown.split()[:2]
    return float(value) * {"ms": 1, "s": 1000}[unit]


def draw(chart: Chart, size: str, shown: Callable[[str, str, str], str]) -> str:
    """The picture. `shown` gives the cell of a group, a peer and a key; "" was not measured and has no bar."""
    cells = [(name, shown(chart.group, peer, chart.key)) for peer, name in chart.bars]
    values = [(name, milliseconds(cell)) for name, cell in cells if cell]
    height = ROW * len(values) + 40
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH + 90} {height}" '
        'font-family="sans-serif" font-size="14">',
        f'<rect width="{LEFT + WIDTH + 90}" height="{height}" fill="white"/>',
        f'<text x="{LEFT}" y="20" fill="gray">{chart.title.format(size=size)}</text>',
    ]
    longest = max(value for _, value in values)
    for i, (name, value) in enumerate(values):
        y = 32 + i * ROW
        width = max(1, round(value / longest * WIDTH))
        fill = "#2f6f9f" if name.startswith("pawl") else "#b8c4cc"
        out.append(f'<text x="{LEFT - 10}" y="{y + 15}" text-anchor="end" fill="black">{name}</text>')
        out.append(f'<rect x="{LEFT}" y="{y}" width="{width}" height="20" fill="{fill}"/>')
        out.append(f'<text x="{LEFT + width + 8}" y="{y + 15}" fill="black">{value:,.0f}</text>')
    return "\n".join([*out, "</svg>"]) + "\n"
