# SPDX-License-Identifier: Apache-2.0
"""From samples to the table: targets, medians, and the page docs/explanation/benchmarks.md between its two marks."""

from __future__ import annotations

import dataclasses
import math
import pathlib
import re
import statistics
import textwrap
from typing import Any

import charts

BEGIN, END = "<!-- made by make bench: begin -->", "<!-- made by make bench: end -->"


@dataclasses.dataclass
class Row:
    """One comparison. "times": the peer's median over pawl's, to be large. "share": what pawl reaches of a limit, by
    rates. "value": a figure of pawl alone, to be at most the target."""

    label: str
    group: str
    ours: tuple[str, str]
    theirs: tuple[str, str] | None
    kind: str
    target: float
    floor: float
    unit: str = ""


ROWS = [
    Row("blocked, against torch.save", "W1 save", ("pawl", "blocked"), ("torch.save", "blocked"), "times", 16, 15),
    Row(
        "blocked, against DCP async_save",
        "W1 save",
        ("pawl", "blocked"),
        ("DCP async_save", "blocked"),
        "times",
        6,
        4,
    ),
    Row(
        "blocked, against DCP async_save with a cached stager",
        "W1 save",
        ("pawl", "blocked"),
        ("DCP async_save, cached stager", "blocked"),
        "times",
        1.4,
        1.2,
    ),
    Row("blocked, lazy with a step of 0.5 s", "W1 save", ("pawl lazy", "blocked"), None, "value", 0.010, 0.010, "s"),
    Row(
        "snapshot rate with sums, of memcpy by 2 threads",
        "W1 save",
        ("pawl", "blocked"),
        ("memcpy", ""),
        "share",
        1.1,
        0.65,
    ),
    Row(
        "durable, against torch.save and fsync",
        "W1 save",
        ("pawl", "durable"),
        ("torch.save", "durable"),
        "times",
        4.3,
        4,
    ),
    Row(
        "durable, against safetensors and fsync",
        "W1 save",
        ("pawl", "durable"),
        ("safetensors", "durable"),
        "times",
        2.4,
        2,
    ),
    Row("durable, against DCP save", "W1 save", ("pawl", "durable"), ("DCP", "durable"), "times", 4, 3),
    Row("durable rate, of the disk's (new files)", "W1 save", ("pawl", "durable"), ("disk new", ""), "share", 1.2, 0.9),
    Row(
        "durable rate with recycling, of the disk's (overwriting)",
        "W1 save",
        ("pawl recycle", "durable"),
        ("disk overwrite", ""),
        "share",
        1.05,
        0.85,
    ),
    Row(
        "processor time per byte, against buffered write and fsync",
        "W1 save",
        ("pawl", "cpu"),
        ("buffered write+fsync", "cpu"),
        "times",
        5,
        5,
    ),
    Row("page faults while copying", "W1 save", ("pawl", "copy_faults"), None, "value", 0, 0),
    Row(
        "restore cold, against torch.load",
        "W1 restore cold",
        ("pawl restored", "seconds"),
        ("torch.save", "seconds"),
        "times",
        3,
        2.5,
    ),
    Row(
        "restore cold, against safetensors",
        "W1 restore cold",
        ("pawl restored", "seconds"),
        ("safetensors", "seconds"),
        "times",
        1.5,
        1.2,
    ),
    Row(
        "restore cold, rate of the disk's",
        "W1 restore cold",
        ("pawl restored", "seconds"),
        ("disk read", ""),
        "share",
        1.3,
        0.9,
    ),
    Row(
        "restore warm, against torch.load",
        "W1 restore warm",
        ("pawl restored", "seconds"),
        ("torch.save", "seconds"),
        "times",
        6.2,
        5,
    ),
    Row(
        "restore warm, against safetensors",
        "W1 restore warm",
        ("pawl restored", "seconds"),
        ("safetensors", "seconds"),
        "times",
        2.2,
        1.1,
    ),
    Row(
        "W3 durable, against torch.save, fsync, rename",
        "W3 save",
        ("pawl", "durable"),
        ("torch.save+fsync+rename", "durable"),
        "times",
        4.4,
        3,
    ),
    Row(
        "W3 durable with recycling",
        "W3 save",
        ("pawl recycle", "durable"),
        ("torch.save+fsync+rename", "durable"),
        "times",
        6,
        6,
    ),
    Row(
        "W5 blocked, against DCP async_save",
        "W5 save",
        ("pawl", "blocked"),
        ("DCP async_save", "blocked"),
        "times",
        10,
        10,
    ),
    Row("W5 restore, against DCP", "W5 restore warm", ("pawl", "seconds"), ("DCP", "seconds"), "times", 10, 10),
    Row("memory above the state, snapshot (share)", "W1 memory", ("pawl snapshot", "share"), None, "value", 1.02, 1.02),
    Row("memory above the state, ring", "W1 memory", ("pawl ring", "bytes"), None, "value", 80 << 20, 80 << 20, "B"),
    Row(
        "memory above the state, restore",
        "W1 memory",
        ("pawl restore", "bytes"),
        None,
        "value",
        128 << 20,
        128 << 20,
        "B",
    ),
]

for _world in (2, 4):
    _save, _restore = f"{_world} ranks save", f"{_world} ranks restore"
    ROWS += [
        Row(
            f"{_world} ranks: blocked, against DCP async_save",
            _save,
            ("pawl", "blocked"),
            ("DCP async_save", "blocked"),
            "times",
            6,
            6,
        ),
        Row(
            f"{_world} ranks: blocked, lazy with a step of 0.5 s, against DCP async_save",
            _save,
            ("pawl lazy", "blocked"),
            ("DCP async_save", "blocked"),
            "times",
            6,
            6,
        ),
        Row(
            f"{_world} ranks: durable, against DCP save", _save, ("pawl", "durable"), ("DCP", "durable"), "times", 3, 3
        ),
        Row(
            f"{_world} ranks: restore, against DCP load",
            _restore,
            ("pawl", "seconds"),
            ("DCP", "seconds"),
            "times",
            2,
            2,
        ),
        Row(
            f"{_world} ranks: restore rows to columns, against DCP load",
            f"{_restore}, rows to columns",
            ("pawl", "seconds"),
            ("DCP", "seconds"),
            "times",
            1.5,
            1.5,
        ),
    ]

# Into a bucket and out of it. "raw" moves the same bytes as fast as the server takes or gives them.
for _state, _how in (("W1", " over https"), ("W1", ", bodies unsigned"), ("W1", ""), ("W3", "")):
    for _way in ("put to", "get from"):
        _group = f"{_state} {_way} a bucket{_how}"
        for _peer in ("boto3", "rclone", "s5cmd"):
            _times = 1.5 if _peer == "boto3" and _state == "W1" else 1.0
            ROWS.append(
                Row(f"{_group}, against {_peer}", _group, ("pawl", "seconds"), (_peer, "seconds"), "times", _times, 1.0)
            )
        if _state == "W1":
            ROWS.append(
                Row(f"{_group}, rate of raw", _group, ("pawl", "seconds"), ("raw", "seconds"), "times", 0.9, 0.7)
            )
            ROWS.append(
                Row(f"{_group}, processor time against boto3", _group, ("pawl", "cpu"), ("boto3", "cpu"), "times", 3, 2)
            )

_link = "W1 to a bucket as fast as the disk"
ROWS += [
    Row(f"{_link}, against {_peer}", _link, ("pawl", "seconds"), (_peer, "seconds"), "times", 1.6, 1.6)
    for _peer in ("torch.save, boto3", "pawl, pawl cp")
]
ROWS.append(
    Row(
        "memory of pawl cp, W1 into a bucket",
        _link,
        ("pawl, pawl cp", "bytes"),
        None,
        "value",
        256 << 20,
        256 << 20,
        "B",
    )
)

ROWS += [
    Row(
        "train: lost per report of 500 MB, against Ray Train",
        "train report",
        ("pawl.train", "blocked"),
        ("Ray Train", "blocked"),
        "times",
        10,
        10,
    ),
    Row(
        "train: lost per report in Ray's own trainer, against Ray Train",
        "train report",
        ("pawl.ray", "blocked"),
        ("Ray Train", "blocked"),
        "times",
        10,
        10,
    ),
    Row(
        "train: from SIGKILL of a worker to training again, against Ray Train",
        "train restart",
        ("pawl.train", "seconds"),
        ("Ray Train", "seconds"),
        "times",
        1,
        1,
    ),
    Row(
        "tune: start of a trial beyond the interpreter's, against Ray Tune",
        "tune start",
        ("pawl.tune", "beyond"),
        ("Ray Tune", "beyond"),
        "times",
        5,
        5,
    ),
    Row(
        "tune: a report, against Ray Tune",
        "tune report",
        ("pawl.tune", "seconds"),
        ("Ray Tune", "seconds"),
        "times",
        10,
        10,
    ),
    Row(
        "tune: a trial continues from another's checkpoint of 1 GB, against a copy",
        "tune exploit",
        ("pawl.tune", "seconds"),
        ("copy", "seconds"),
        "times",
        50,
        50,
    ),
    Row("tune: MB of a runner with 10,000 trials", "tune memory", ("pawl.tune", "megabytes"), None, "value", 200, 200),
]

# From the second save on where large tensors are frozen, from the third on where what is frozen shares packs at first.
ROWS += [
    Row(f"written per byte that changed: {name}{where}", f"frozen{where}", (name, "times"), None, "value", 1.02, 1.02)
    for name, where in (
        ("24 x 15 MiB frozen, 2 x 128 KiB change", ""),
        ("adapters in a state of 10 MB", ""),
        ("other adapters from the seventh save on", ""),
        ("averages at every tenth save", ""),
        ("adapters in a state of 10 MB", ", in a bucket"),
    )
]

ROWS += [
    Row(f"first save against later ones, 2 s after {name}", "first save", (name, "times"), None, "value", 2, 2)
    for name in ("prepare", "restore")
]

# Files of other programs. The conversion's script uses torch.load and safetensors.torch.save_file.
ROWS += [
    Row(".pt blocked, against torch.save", "pt save", ("pawl", "blocked"), ("torch.save", "blocked"), "times", 15, 15),
    Row(
        ".pt durable, against torch.save and fsync",
        "pt save",
        ("pawl", "durable"),
        ("torch.save", "durable"),
        "times",
        4,
        4,
    ),
    Row(".pt durable rate, of the disk's", "pt save", ("pawl", "durable"), ("disk new", ""), "share", 0.9, 0.75),
    Row(".pt copied with CRC-32, rate of memcpy", "pt save", ("pawl", "blocked"), ("memcpy", ""), "share", 0.85, 0.65),
    Row(
        ".pt restored cold and checked, against torch.load",
        "pt restore cold",
        ("pawl", "seconds"),
        ("torch.load", "seconds"),
        "times",
        2.5,
        2.5,
    ),
    Row(
        ".pt restored cold, rate of the disk's",
        "pt restore cold",
        ("pawl", "seconds"),
        ("disk read", ""),
        "share",
        0.9,
        0.75,
    ),
    Row(
        ".pt to .safetensors, against a script",
        "pt convert",
        ("pawl", "seconds"),
        ("torch and safetensors", "seconds"),
        "times",
        3,
        3,
    ),
    Row(
        "Composer's saver: blocked by a .pt, against its own",
        "composer pt",
        ("pawl", "blocked"),
        ("composer", "blocked"),
        "times",
        10,
        10,
    ),
    Row(
        "Composer's saver: blocked by a .pt.zst, against its own",
        "composer pt.zst",
        ("pawl", "blocked"),
        ("composer", "blocked"),
        "times",
        10,
        10,
    ),
    Row(".pt to .safetensors, memory", "pt convert", ("pawl", "bytes"), None, "value", 160 << 20, 160 << 20, "B"),
    Row(
        ".pt.zst on 2 threads, against the zstd command on one",
        "zst save",
        ("pawl, 2 threads", "durable"),
        ("zstd command", "durable"),
        "times",
        1.6,
        1.6,
    ),
    Row("planes: of bf16 is left", "planes", ("pawl", "share"), None, "value", 0.68, 0.68),
    Row("planes: processor time of one thread per GB", "planes", ("pawl", "per_gb"), None, "value", 1, 1, "s"),
]


def samples(results: dict[str, Any], group: str, name: str, key: str) -> list[float]:
    return results["samples"].get(group, {}).get(name, {}).get(key, [])


def number(value: float, unit: str = "") -> str:
    if unit == "B":
        return f"{value / (1 << 20):.0f} MiB"
    if unit == "s":
        return f"{value:.3f} s" if value >= 1 else f"{value * 1e3:.1f} ms"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.2f}"


def evaluate(row: Row, results: dict[str, Any]) -> tuple[float, str] | None:
    """(figure, how it came about), or None where it was not measured."""
    ours = samples(results, row.group, *row.ours)
    if not ours:
        return None
    mine = statistics.median(ours)
    if row.theirs is None:
        return mine, spread(ours, row.unit)
    if row.kind == "share":
        seconds = samples(results, row.group, row.theirs[0], "seconds")
        amounts = samples(results, row.group, row.theirs[0], "bytes")
        phase = (
            "formats"
            if row.group.startswith(("pt ", "composer "))
            else "restores"
            if "restore" in row.group
            else "saves"
        )
        if not seconds or not mine:
            return None
        limit = statistics.median(amount / s for amount, s in zip(amounts, seconds, strict=True))
        rate = results["facts"][f"{phase} bytes"] / mine
        return rate / limit, f"{rate / 1e9:.2f} of {limit / 1e9:.2f} GB/s"
    theirs = samples(results, row.group, *row.theirs)
    if not theirs or not mine:
        return None
    return statistics.median(theirs) / mine, f"{spread(ours, 's')} against {spread(theirs, 's')}"


def spread(values: list[float], unit: str) -> str:
    middle = number(statistics.median(values), unit)
    return f"{middle} [{number(min(values), unit)}–{number(max(values), unit)}]" if len(values) > 1 else middle


def verdict(row: Row, figure: float) -> str:
    if row.kind == "value":
        return "met" if figure <= row.target else "missed"
    return "met" if figure >= row.target else "above the floor" if figure >= row.floor else "missed"


def wanted(row: Row) -> str:
    if row.kind == "value":
        return f"≤ {number(row.target, row.unit)}"
    x = "x" if row.kind == "times" else ""
    return f"≥ {row.target:g}{x}" + (f" ({row.floor:g}{x})" if row.floor != row.target else "")


def ls_rows(results: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    counts = sorted(int(group.split()[1]) for group in results["samples"] if group.startswith("ls "))
    rows = []
    for key, label in (("ls", "pawl ls"), ("open", "opening the newest")):
        for count in counts:
            values = samples(results, f"ls {count}", "pawl", key)
            middle = statistics.median(values)
            target = ("≤ 500 ms", "met" if middle < 0.5 else "missed") if count >= 10_000 else ("", "")
            rows.append((f"{label}, {count:,} checkpoints", spread(values, "s"), "", *target))
        if len(counts) == 2:
            few, many = (statistics.median(samples(results, f"ls {count}", "pawl", key)) for count in counts)
            more = counts[1] / counts[0]
            fits = "met" if many / few <= 1.2 * more else "missed"
            rows.append(
                (f"{label}, growth for {more:g} times as many", f"{many / few:.1f}x", "", f"≤ {1.2 * more:g}x", fits)
            )
    return rows


def all_rows(results: dict[str, Any]) -> list[tuple[str, str, str, str, str]]:
    """(label, figure, how it came about, target, verdict) of everything that was measured."""
    rows = []
    for row in ROWS:
        found = evaluate(row, results)
        if found is None:
            why = missing(results).get(row.theirs[0], "not measured") if row.theirs else "not measured"
            rows.append((row.label, "", why, wanted(row), "not measured"))
            continue
        figure, how = found
        shown = number(figure, row.unit) + ("x" if row.kind == "times" else "")
        rows.append((row.label, shown, how, wanted(row), verdict(row, figure)))
    return rows + ls_rows(results)


def missing(results: dict[str, Any]) -> dict[str, str]:
    """Each peer that was not measured, and why."""
    return {name: why for part in results["missing"].values() for name, why in part.items()}


def text_table(results: dict[str, Any]) -> str:
    rows = [("figure", "reached", "from", "target (floor)", ""), *all_rows(results)]
    widths = [max(len(row[i]) for row in rows) for i in range(5)]
    return "\n".join("  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows)


def markdown(results: dict[str, Any]) -> str:
    versions = ", ".join(f"{key} {value}" for key, value in results["versions"].items())
    size = results["facts"].get("saves bytes", math.nan) / 1e9
    lines = [
        wrapped(
            f"Measured on: {results['run']}. Versions: {versions}. W1 is {size:.2f} GB here "
            f"(scale {results['scale']:g}); {results['rounds']} rounds."
        ),
        "",
        "| figure | reached | from: median [least–most] | target (floor) | |",
        "|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(row) + " |" for row in all_rows(results)]
    for group in results["samples"]:
        if group.startswith("ls "):
            continue
        lines += ["", f"**{group}**", ""]
        if results["runs"].get(group, results["run"]) != results["run"]:
            lines += [wrapped(f"Measured on: {results['runs'][group]}."), ""]
        keys = list(dict.fromkeys(key for series in results["samples"][group].values() for key in series))
        shown = [key for key in keys if key not in ("bytes",) or group == "W1 memory"]
        lines += ["| | " + " | ".join(key.replace("_", " ") for key in shown) + " |", "|---" * (len(shown) + 1) + "|"]
        for name in results["samples"][group]:
            cells = [cell(results, group, name, key) for key in shown]
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
    if gaps := missing(results):
        lines += ["", wrapped("Not measured: " + "; ".join(f"{name} ({why})" for name, why in gaps.items()) + ".")]
    return "\n".join(lines)


def wrapped(text: str) -> str:
    return textwrap.fill(text, 100, break_long_words=False, break_on_hyphens=False)


def cell(results: dict[str, Any], group: str, name: str, key: str) -> str:
    values = samples(results, group, name, key)
    return spread(values, unit_of(key)) if values else ""


def unit_of(key: str) -> str:
    if key in ("blocked", "durable", "seconds", "saved", "beyond", "cpu", "first", "later"):
        return "s"
    return "B" if key == "bytes" else ""


def write_page(results: dict[str, Any], page: pathlib.Path) -> None:
    """Puts the tables between the two marks of the page; the words around them are written by hand. Draws the charts
    next to the page."""
    text = page.read_text() if page.exists() else f"# Benchmarks\n\n{BEGIN}\n{END}\n"
    new = f"{BEGIN}\n{markdown(results)}\n{END}"
    page.write_text(re.sub(re.escape(BEGIN) + ".*?" + re.escape(END), lambda _: new, text, flags=re.DOTALL))
    for chart in charts.CHARTS:
        if chart.group in results["samples"]:
            part = "restores" if "restore" in chart.group else "saves"
            size = f"{results['facts'][f'{part} bytes'] / 1e9:.1f} GB"
            picture = charts.draw(chart, size, lambda *place: cell(results, *place))
            (page.parent / chart.file).write_text(picture)
