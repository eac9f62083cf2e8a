# SPDX-License-Identifier: Apache-2.0
"""What the rooms of src call, by the symbols of the built library: no function of a later room is called, and a circle
of files that call each other is inside one room and has at most CIRCLE_FILES files."""

from __future__ import annotations

import collections
import pathlib
import re
import subprocess

import common

CIRCLE_FILES = 7
SYMBOL = re.compile(r"^.*?:(\S+\.o):\s*[0-9a-f]*\s+(\w) (\S+)$", re.MULTILINE)
Graph = dict[str, dict[str, str]]  # file -> file that it calls -> one symbol, as an example


def read_calls(library: pathlib.Path) -> Graph:
    out = subprocess.run(["nm", "-A", str(library)], check=True, capture_output=True, text=True).stdout
    # meson names the object of src/save/api.c save_api.c.o
    files = [common.name(path).removeprefix("src/") for path in common.files("src/**/*.c")]
    of_object = {name.replace("/", "_") + ".o": name for name in files}
    symbols = [(of_object[obj], kind, symbol) for obj, kind, symbol in SYMBOL.findall(out) if obj in of_object]
    defined = {symbol: name for name, kind, symbol in symbols if kind in "TDBRG"}
    calls: Graph = collections.defaultdict(dict)
    for name, kind, symbol in symbols:
        if kind == "U" and defined.get(symbol, name) != name:
            calls[name][defined[symbol]] = symbol
    return calls


def circles(calls: Graph) -> list[list[str]]:
    """The sets of more than one file of which each reaches each other."""

    def reach(start: str) -> set[str]:
        seen, todo = set(), [start]
        while todo:
            for name in calls.get(todo.pop(), ()):
                if name not in seen:
                    seen.add(name)
                    todo.append(name)
        return seen

    reached = {name: reach(name) for name in calls}
    sets = {frozenset(b for b in reached[a] if a in reached.get(b, ())) for a in calls if a in reached[a]}
    return sorted(sorted(circle) for circle in sets)


def check(calls: Graph) -> list[str]:
    problems = []
    for name, called in sorted(calls.items()):
        room = common.room_of(name)
        for other, symbol in sorted(called.items()):
            above = common.room_of(other)
            # jobs are programs on top of the public functions, so they may open a run
            if room and (room != "jobs" if above is None else common.ROOMS.index(above) > common.ROOMS.index(room)):
                problems.append(f"src/{name}: may not call {symbol} of src/{other}")
    for circle in circles(calls):
        if len(circle) > CIRCLE_FILES:
            problems.append(f"{len(circle)} files call each other (at most {CIRCLE_FILES}): {' '.join(circle)}")
        if len({common.room_of(name) for name in circle}) > 1:
            problems.append(f"files of several rooms call each other: {' '.join(circle)}")
    return problems


def main() -> None:
    calls = read_calls(common.arguments().build / "src" / "libpawl.a")
    control = {"base/err.c": {"save/save.c": "save_new"}, "save/save.c": {"base/err.c": "err_set"}}
    problems = check(calls)
    if len(check(control)) != 2:
        problems.append("a call upwards and a circle were not found")
    common.finish(problems, sum(map(len, calls.values())), "calls between files")


if __name__ == "__main__":
    main()
