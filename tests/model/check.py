#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks the models of a save of many ranks, in a folder (save.pml) and in an object store (bucket.pml), with spin, in
every state that they can be in.

Three kinds of cases: the protocol as it is, which must hold; questions, each of which must find a run in which
something interesting happens, so that what holds does not hold for nothing; and mistakes, each built into the protocol,
which must be found. `make model` runs all; the tests in tests/py/test_model.py leave out the largest.
"""

from __future__ import annotations

import dataclasses
import pathlib
import re
import subprocess
import sys
import tempfile

FOLDER = pathlib.Path(__file__).resolve().parent
SECONDS = 1800


@dataclasses.dataclass(frozen=True)
class Case:
    """One build of the model. wrong: what spin must say is wrong, "" if nothing may be."""

    name: str
    saves_a: int = 1
    saves_b: int = 1
    crashes: int = 0
    define: str = ""
    wrong: str = ""
    cycles: bool = False
    large: bool = False
    model: str = "save.pml"

    @property
    def flags(self) -> list[str]:
        flags = [f"-DSAVES_A={self.saves_a}", f"-DSAVES_B={self.saves_b}", f"-DCRASHES={self.crashes}"]
        return [*flags, f"-D{self.define}"] if self.define else flags


@dataclasses.dataclass
class Result:
    wrong: str
    states: int
    depth: int
    text: str


HOLDS = [
    Case("one save each, two crashes", crashes=2),
    Case("one save each, one crash, every run ends", crashes=1, cycles=True),
    Case("two saves, then one by whoever took over", saves_a=2),
    Case("one save, then two by whoever took over, one crash", saves_b=2, crashes=1),
    Case("one save, then two by whoever took over, two crashes", saves_b=2, crashes=2, large=True),
    Case("two saves, then one by whoever took over, two crashes", saves_a=2, crashes=2, large=True),
    Case("two saves each", saves_a=2, saves_b=2, large=True),
    # Second lines of defence. Ids come from a list made after gc, so they never collide; only rank 0 commits.
    Case("a rename that replaces", define="BAD_RENAME_REPLACES"),
    Case("rank 0 withdraws by removing files", define="BAD_RANK_0_REMOVES"),
]

REACHED = [
    Case("both of A's saves are committed", 2, 0, define="REACH=1", wrong="assert"),
    Case("a rank withdraws before rank 0 commits", define="REACH=2", wrong="assert"),
    Case("a rank withdraws too late", define="REACH=3", wrong="assert"),
    Case("B commits after A has", define="REACH=4", wrong="assert"),
    Case("B gives the id of a failed save out again", define="REACH=5", wrong="assert"),
    Case("a late rank makes a withdrawn folder anew", define="REACH=6", wrong="assert"),
    Case("an older checkpoint is removed", define="REACH=7", wrong="assert"),
    Case("a verdict is lost by a takeover", define="REACH=8", wrong="assert"),
    Case("gc takes what A was about to commit", define="REACH=9", wrong="assert"),
]

MISTAKES = [
    Case("rank 0 does not wait for all parts", define="BAD_COMMITS_WITHOUT_ALL_PARTS", wrong="assert"),
    Case("the verdict comes before the rename", define="BAD_VERDICT_BEFORE_RENAME", wrong="assert"),
    Case("a rank fails at its deadline without withdrawing", define="BAD_FAILS_WITHOUT_WITHDRAWING", wrong="assert"),
    Case("a rank withdraws by removing files", define="BAD_WITHDRAWS_BY_REMOVING", wrong="assert"),
    Case("a rank that could not withdraw does not look", define="BAD_DOES_NOT_LOOK", wrong="assert"),
    Case("a rank looks for the name and not the token", define="BAD_LOOKS_AT_THE_NAME_ONLY", wrong="assert"),
    Case("a rank waits without a deadline", define="BAD_WAITS_FOR_EVER", crashes=1, wrong="end state"),
    Case("absent after a takeover counts as failed", define="BAD_ABSENT_IS_FAILED", wrong="assert"),
    Case("names and parts tell nothing of the attempt", define="BAD_NAMES_WITHOUT_TOKEN", wrong="assert"),
    Case("rank 0 does not look whether the files are there", define="BAD_FILES_NOT_LOOKED_AT", wrong="assert"),
    Case("a failed rename is taken at its word", define="BAD_RENAME_TAKEN_AT_ITS_WORD", wrong="assert"),
    Case("the lease is not checked before the commit", define="BAD_LEASE_NOT_CHECKED", wrong="assert"),
    Case("renewing overwrites whoever took over", define="BAD_RENEWAL_OVERWRITES", wrong="assert"),
    Case("the list is made before gc", define="BAD_LISTS_BEFORE_GC", wrong="assert"),
    Case("gc removes files without hiding them", define="BAD_GC_IN_PLACE", wrong="assert"),
    Case("ids do not come from the list", define="BAD_IDS_NOT_FROM_THE_LIST", wrong="assert"),
    Case("retention removes files before hiding them", define="BAD_REMOVES_BEFORE_HIDING", wrong="assert"),
    Case("retention comes before the commit", define="BAD_REMOVES_BEFORE_COMMIT", wrong="assert"),
]

IN_BUCKETS_HOLDS = [
    Case("one save each, two crashes", crashes=2),
    Case("one save each, every run ends", cycles=True),
    Case("one save each, one crash, every run ends", crashes=1, cycles=True, large=True),
    Case("two saves, then one by whoever took over", saves_a=2, large=True),
    Case("two saves, then one by whoever took over, one crash", saves_a=2, crashes=1, large=True),
    Case("one save each, one crash, the packs are looked at before the lease", crashes=1, define="FILES_FIRST"),
    Case("two saves, then one by whoever took over, the packs before the lease", 2, define="FILES_FIRST", large=True),
    # Second line of defence: no pack goes while the lease that was looked at stands.
    Case("rank 0 does not look whether the files are there", define="BAD_FILES_NOT_LOOKED_AT"),
]

IN_BUCKETS_REACHED = [
    Case("both of A's saves are committed", 2, 0, define="REACH=1", wrong="assert"),
    Case("a rank calls a save off", define="REACH=2", wrong="assert"),
    Case("a rank comes too late to do so", define="REACH=3", wrong="assert"),
    Case("B commits after A has", define="REACH=4", wrong="assert"),
    Case("the put of an overtaken writer loses", define="REACH=5", wrong="assert"),
    Case("an older checkpoint is removed", define="REACH=6", wrong="assert"),
    Case("a verdict is lost by a takeover", define="REACH=7", wrong="assert"),
    Case("a save is called off that was committed and removed", define="REACH=8", wrong="assert"),
]

IN_BUCKETS_MISTAKES = [
    Case("whoever takes over calls nothing off", define="BAD_CALLS_NOTHING_OFF", wrong="assert"),
    Case("it lists before it does", define="BAD_LISTS_BEFORE_CALLING_OFF", wrong="assert"),
    Case("what calls a save off is removed with its packs", define="BAD_WHAT_CALLS_OFF_GOES", wrong="assert"),
    Case("ids come from checkpoints only", define="BAD_IDS_OF_CHECKPOINTS_ONLY", wrong="assert"),
    Case("the manifest's put replaces what is there", define="BAD_PUT_REPLACES", wrong="assert"),
    Case("a failed put is taken at its word", define="BAD_PUT_TAKEN_AT_ITS_WORD", wrong="assert"),
    Case("the lease is not checked before the commit", define="BAD_LEASE_NOT_CHECKED", wrong="assert"),
    Case("rank 0 does not wait for all parts", define="BAD_COMMITS_WITHOUT_ALL_PARTS", wrong="assert"),
    Case("a rank fails at its deadline without deciding", define="BAD_FAILS_WITHOUT_DECIDING", wrong="assert"),
    Case("a rank calls off whatever the lease says", define="BAD_CALLS_OFF_WHATEVER_THE_LEASE", wrong="assert"),
    Case("a rank calls off what it has no packs in", define="BAD_CALLS_OFF_WITHOUT_PACKS", wrong="assert"),
    Case("a rank does not look for the lease again", define="BAD_DOES_NOT_LOOK_AGAIN", wrong="assert"),
    Case("a rank looks for the name and not the token", define="BAD_LOOKS_AT_THE_NAME_ONLY", wrong="assert"),
    Case("a rank clears up what it is in doubt of", define="BAD_CLEARS_UP_IN_DOUBT", wrong="assert"),
    Case("a failed save removes the whole folder", define="BAD_REMOVES_THE_FOLDER", wrong="assert"),
    Case("retention removes packs before the manifest", define="BAD_PACKS_GO_FIRST", wrong="assert"),
]


def in_buckets(cases: list[Case]) -> list[Case]:
    return [dataclasses.replace(case, name="bucket: " + case.name, model="bucket.pml") for case in cases]


HOLDS += in_buckets(IN_BUCKETS_HOLDS)
REACHED += in_buckets(IN_BUCKETS_REACHED)
MISTAKES += in_buckets(IN_BUCKETS_MISTAKES)


def run(command: list[str], folder: pathlib.Path) -> str:
    done = subprocess.run(
        command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=SECONDS
    )
    text = done.stdout + done.stderr
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: exit status {done.returncode}\n{text[-2000:]}")
    return text


def check(case: Case, folder: pathlib.Path) -> Result:
    """Builds and searches one case. RuntimeError if the search did not come to an end of its own."""
    options = ["-DNOFAIR", "-DNP" if case.cycles else "-DSAFETY"]
    options += ["-DCOLLAPSE"] if case.large else []
    options += ["-O0" if case.wrong else "-O1"]  # a short search is best built fast
    run(["spin", "-a", *case.flags, str(FOLDER / case.model)], folder)
    run(["cc", *options, "-w", "-o", "pan", "pan.c"], folder)
    text = run(["./pan", "-m10000", f"-w{26 if case.large else 20}", *(["-l"] if case.cycles else [])], folder)
    states = re.search(r"([\d.e+]+) states, stored", text)
    depth = re.search(r"depth reached (\d+)", text)
    errors = re.search(r"errors: (\d+)", text)
    if not states or not depth or not errors or "max search depth too small" in text or "out of memory" in text:
        raise RuntimeError(f"{case.name}: the search did not end\n{text[-2000:]}")
    why = re.search(r"^pan:\d+: (assert|invalid end state|non-progress cycle)", text, re.MULTILINE)
    wrong = why[1].removeprefix("invalid ") if why else "" if errors[1] == "0" else "something else"
    return Result(wrong, int(float(states[1])), int(depth[1]), text)


def main() -> int:
    bad = 0
    for title, cases in (("holds", HOLDS), ("can happen", REACHED), ("mistake", MISTAKES)):
        for case in cases:
            with tempfile.TemporaryDirectory(prefix="model-") as folder:
                result = check(case, pathlib.Path(folder))
            ok = result.wrong == case.wrong
            bad += not ok
            verdict = ("holds" if not case.wrong else "found") if ok else f"WRONG: {result.wrong or 'not found'}"
            print(f"{title:10}  {case.name:56}  {result.states:>10} states  {verdict}", flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
