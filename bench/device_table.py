# SPDX-License-Identifier: Apache-2.0
"""From samples of a device to the table, and the page docs/explanation/benchmarks.md between its two marks."""

from __future__ import annotations

import pathlib
import re
import statistics
from typing import Any

import table

BEGIN, END = "<!-- made by make bench-device: begin -->", "<!-- made by make bench-device: end -->"
Group = dict[str, dict[str, list[float]]]


def middle(group: Group, name: str, key: str) -> float | None:
    values = group.get(name, {}).get(key)
    return statistics.median(values) if values else None


def ratio(a: float | None, b: float | None) -> float | None:
    return a / b if a is not None and b else None


def target_rows(group: Group, cached: Group, nbytes: int) -> list[tuple[str, float | None, str, float, bool]]:
    """(figure, reached, unit, target, larger is better)"""
    to_host = ratio(nbytes, middle(group, "plain copies", "to host"))
    within = ratio(nbytes, middle(group, "plain copies", "within"))
    to_device = ratio(nbytes, middle(cached, "plain copies", "to device"))
    lost = ratio(middle(group, "pawl lazy", "steps"), middle(group, "no save", "steps"))
    return [
        (
            "copy to the host, share of a plain pinned copy",
            ratio(to_host, middle(group, "pawl", "staged")),
            "",
            0.92,
            True,
        ),
        ("blocked, times a plain pinned copy", ratio(middle(group, "pawl", "blocked"), to_host), "", 1.05, False),
        (
            "blocked with device staging, times a device copy",
            ratio(middle(group, "pawl staged", "blocked"), within),
            "",
            1.2,
            False,
        ),
        ("lazy: host blocked", middle(group, "pawl lazy", "blocked"), "s", 0.001, False),
        ("lazy: time lost in 20 steps", None if lost is None else max(lost - 1, 0), "", 0.02, False),
        (
            "restore from cache, share of a plain pinned copy",
            ratio(to_device, middle(cached, "pawl", "seconds")),
            "",
            0.85,
            True,
        ),
    ]


def verdict(reached: float | None, target: float, is_larger: bool) -> str:
    if reached is None:
        return "not measured"
    return "met" if (reached >= target if is_larger else reached <= target) else "missed"


def shown(key: str, values: list[float]) -> str:
    if key in ("to host", "to device", "within"):
        return " ".join(f"{statistics.median(values) / 1e9:.1f} GB/s".split())
    return table.spread(values, "" if key == "registered" else "s")


def group_table(group: Group) -> list[str]:
    keys = list(dict.fromkeys(key for series in group.values() for key in series))
    lines = ["| | " + " | ".join(keys) + " |", "|---" * (len(keys) + 1) + "|"]
    for name, series in group.items():
        cells = [shown(key, series[key]) if key in series else "" for key in keys]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return lines


def markdown(found: dict[str, Any], rounds: int) -> str:
    lines = [
        "Measured on: " + ", ".join(f"{key} {value}" for key, value in found["machine"].items()) + f"; {rounds} rounds."
    ]
    for name, nbytes in found["facts"].items():
        group, cached = found["samples"][name], found["samples"][f"{name}, restored from cache"]
        lines += ["", f"**{name}**", "", "| figure | reached | target | |", "|---|--:|--:|---|"]
        for label, reached, unit, target, larger in target_rows(group, cached, nbytes):
            figure = "" if reached is None else table.number(reached, unit)
            sign = "≥" if larger else "≤"
            lines.append(
                f"| {label} | {figure} | {sign} {table.number(target, unit)} | {verdict(reached, target, larger)} |"
            )
        for kind in (name, f"{name}, restored from cache", f"{name}, restored from disk"):
            lines += ["", f"*{kind}*", "", *group_table(found["samples"][kind])]
    if found["missing"]:
        lines += ["", "Not measured: " + "; ".join(f"{name} ({why})" for name, why in found["missing"].items()) + "."]
    return "\n".join(lines)


def write_page(found: dict[str, Any], rounds: int, page: pathlib.Path) -> None:
    new = f"{BEGIN}\n{markdown(found, rounds)}\n{END}"
    text = page.read_text()
    page.write_text(re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: new, text, flags=re.DOTALL))
