# SPDX-License-Identifier: Apache-2.0
"""Searches over hyperparameters that are killed at random points and resume: they end as one that was not killed, and no
trial loses what pawl called safe.

    python tests/proof/searches.py [--build DIR] [--kills N] [--seed N]

Prints a row for each kind of kill and scheduler. Each round is a search of its own that is begun, killed, and begun again by
the same call until it has ended. The outcome of the searches does not depend on which trial is quick: every trial runs
to its end (fifo), or rungs are in step (asha with synch). A machine that is lost takes its disk with it: the search
resumes from where it was synced to. Two controls: a journal that was changed and whose
sums are right again, and one that has lost its last lines, as it might without a sync; both must be found out.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[2]
SECONDS = 1800  # that only a hang reaches
KILLS_OF_A_SEARCH = 6  # then it may end
DISK_BYTES = 4 << 20

# A trial: its state is a number and a sum, and its score is made of both. It notes its start and each report that was
# taken in a place whose disk is never full. From the fourth step on it waits until all kills are over, so that no search
# ends before.
TRIAL = r"""#!/bin/sh
set -e
rate=$1 last=$2 n=0 sum=0 log=$LOGS/$PAWL_TUNE_TRIAL
if [ -n "$PAWL_TUNE_CHECKPOINT" ]; then read -r n sum <"$PAWL_TUNE_CHECKPOINT/state"; fi
echo "start $n $$" >>"$log"
while [ "$n" -lt "$last" ]; do
	n=$((n + 1)) sum=$((sum + rate))
	while [ "$n" -ge 4 ] && [ -e "$LOGS/../shut" ]; do sleep 0.01; done
	mkdir -p "$PAWL_TUNE_FOLDER/.out"
	echo "$n $sum" >"$PAWL_TUNE_FOLDER/.out/state"
	"$PAWL" report score=$sum --checkpoint "$PAWL_TUNE_FOLDER/.out" >/dev/null || status=$?
	case ${status:=0} in 0|8) echo "taken $n" >>"$log" ;; esac
	[ $status = 0 ] || exit $status
done
"""

DOCUMENTS: dict[str, dict[str, Any]] = {
    "fifo": {"space": {"rate": {"$randint": [1, 100]}}, "num_samples": 4},
    "asha, synch": {
        "space": {"rate": {"$randint": [1, 100]}},
        "num_samples": 6,
        "scheduler": {"type": "asha", "synch": True, "max_t": 4, "grace_period": 1, "reduction_factor": 2},
    },
}


class Search:
    """One search in a folder of its own."""

    def __init__(self, build: pathlib.Path, folder: pathlib.Path, what: str, seed: int, synced: bool = False) -> None:
        self.pawl = str(build / "cli" / "pawl")
        self.synced = synced
        self.place = folder
        self.folder = folder / "disk" / "s"
        (folder / "disk").mkdir(parents=True)
        (folder / "logs").mkdir()
        (folder / "trial.sh").write_text(TRIAL)
        (folder / "trial.sh").chmod(0o755)
        document = {
            "name": "s",
            "local_dir": str(folder / "disk"),
            "run": [str(folder / "trial.sh"), "{rate}", "5"],
            "metric": "score",
            "mode": "max",
            "seed": seed,
            "max_failures": -1,
            "grace_s": 60,
            **DOCUMENTS[what],
            **({"sync": {"upload_dir": str(folder / "away")}} if synced else {}),
        }
        (folder / "s.json").write_text(json.dumps(document))

    def start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [self.pawl, "tune", str(self.place / "s.json"), "--resume", "--cpus", "2"],
            stdout=subprocess.DEVNULL,
            stderr=(self.place / "stderr").open("w"),
            text=True,
            env=os.environ | {"PAWL": self.pawl, "LOGS": str(self.place / "logs"), "LC_ALL": "C.UTF-8"},
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )

    def end(self) -> str:
        """Lets it come to its end; "" or what was wrong with that."""
        process = self.start()
        try:
            process.wait(SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            return f"still running after {SECONDS} s"
        return self.complaint(process)

    def complaint(self, process: subprocess.Popen[str]) -> str:
        text = (self.place / "stderr").read_text()
        return f"exit status {process.returncode}: {text[-300:]}" if process.returncode else ""

    def outcome(self, folder: pathlib.Path | None = None) -> dict[str, Any]:
        """Best configuration, and of each trial what it came to."""
        shown = {}
        for verb in ("ls", "best"):
            command = [self.pawl, "tune", verb, str(folder or self.folder), "--json"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=True)
            shown[verb] = json.loads(done.stdout)
        keys = ("config", "state", "iteration", "metric")
        trials = {row["name"]: {key: row[key] for key in keys} for row in shown["ls"]["trials"]}
        return {"best": shown["best"]["trial"]["config"], "trials": trials}

    def losses(self) -> str:
        """A trial that started before something that was taken with its checkpoint (and brought away, where the machine was
        lost since), a hole in its results, forgotten files."""
        for log in sorted((self.place / "logs").iterdir()):
            taken = 0
            for line in log.read_text().splitlines():
                word, *numbers = line.split()
                if word == "start" and int(numbers[0]) < taken:
                    return f"{log.name} started from {numbers[0]}, {taken} had been taken"
                taken = int(numbers[0]) if word == "lost" else max(taken, int(numbers[0]))
        for result in sorted(self.folder.glob("*/result.json")):
            rows = [json.loads(line)["training_iteration"] for line in result.read_text().splitlines()]
            if sorted(set(rows)) != list(range(1, len(set(rows)) + 1)):
                return f"{result.parent.name} has the iterations {rows}"
        left = [str(path) for path in self.folder.glob("*/.*") if path.name != ".out"]
        return f"left behind: {left}" if left else ""

    def trial_pids(self, runner: int) -> list[int]:
        pids = []
        for log in (self.place / "logs").iterdir():
            for pid in re.findall(r"^start \d+ (\d+)$", log.read_text(), re.MULTILINE):
                with contextlib.suppress(OSError, ValueError, IndexError):
                    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
                    if int(stat[1]) == runner and stat[0] != "Z":
                        pids.append(int(pid))
        return pids


# ---- the kills: each returns how often it struck


def kill_runner(search: Search, process: subprocess.Popen[str], draw: random.Random) -> int:
    process.kill()
    return int(process.wait() == -signal.SIGKILL)


def kill_trial(search: Search, process: subprocess.Popen[str], draw: random.Random) -> int:
    pids = search.trial_pids(process.pid)
    if not pids:
        return 0
    with contextlib.suppress(ProcessLookupError):
        os.kill(draw.choice(pids), signal.SIGKILL)
        return 1
    return 0


def interrupt(search: Search, process: subprocess.Popen[str], draw: random.Random) -> int:
    if not (search.folder / ".runner").exists():
        return 0  # it would be a kill by SIGINT: there is no handler yet
    process.send_signal(signal.SIGINT)
    (search.place / "shut").unlink()  # it waits for what each trial is at
    process.wait(SECONDS)
    (search.place / "shut").touch()
    return 1


def fill_disk(search: Search, process: subprocess.Popen[str], draw: random.Random) -> int:
    """For a while there is no room, whatever comes of that."""
    ballast = search.place / "disk" / "ballast"
    with contextlib.suppress(OSError), ballast.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096):
            pass
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(draw.uniform(0.0, 0.3))
    ballast.unlink()
    return 1


def lose_machine(search: Search, process: subprocess.Popen[str], draw: random.Random) -> int:
    """All processes and the disk are gone. What was brought away is what each trial may count on from then on."""
    process.kill()
    struck = process.wait() == -signal.SIGKILL
    with contextlib.suppress(FileNotFoundError), (search.folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # it is free when the trials have gone
    shutil.rmtree(search.folder, ignore_errors=True)
    away = search.place / "away" / "s"
    command = [search.pawl, "tune", "ls", str(away), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    rows = json.loads(done.stdout)["trials"] if done.returncode == 0 else []
    kept = {row["name"]: row["checkpoint"] for row in rows}
    for log in (search.place / "logs").iterdir():
        state = away / log.name / str(kept.get(log.name)) / "state"
        with log.open("a") as file:
            file.write(f"lost {state.read_text().split()[0] if state.exists() else 0}\n")
    return int(struck)


Strike = Callable[[Search, "subprocess.Popen[str]", random.Random], int]
STRIKES: dict[str, Strike] = {
    "SIGKILL of the runner": kill_runner,
    "SIGKILL of a trial": kill_trial,
    "Ctrl+C": interrupt,
    "a full disk": fill_disk,
    "a lost machine": lose_machine,
}
PATIENCE_S = {lose_machine: 2.5}  # until a strike, at most; something is to have been brought away


@contextlib.contextmanager
def small_disk(place: pathlib.Path) -> Iterator[bool]:
    """A file system of few bytes there; False where the machine does not allow it."""
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    made = os.geteuid() == 0 and subprocess.run(command, capture_output=True, check=False).returncode == 0
    try:
        yield made
    finally:
        if made:
            subprocess.run(["umount", "-l", str(place)], check=False)


@dataclasses.dataclass
class Tally:
    kills: int = 0
    bad: int = 0
    seconds: float = 0.0


class Proof:
    def __init__(self, build: pathlib.Path, folder: pathlib.Path, seed: int) -> None:
        self.build = build
        self.folder = folder
        self.seed = seed
        self.draw = random.Random(seed)
        self.expected: dict[tuple[str, int], dict[str, Any]] = {}
        self.seconds = 0.0  # that the last search in peace took
        self.count = 0

    def make(self, what: str, seed: int, synced: bool = False) -> Search:
        self.count += 1
        return Search(self.build, self.folder / str(self.count), what, seed, synced)

    def drop(self, search: Search) -> None:
        shutil.rmtree(search.place, ignore_errors=True)

    def in_peace(self, what: str, seed: int) -> dict[str, Any]:
        if (what, seed) not in self.expected:
            search, began = self.make(what, seed), time.monotonic()
            if wrong := search.end() or search.losses():
                sys.exit(f"a search by {what} does not even work in peace: {wrong}")
            self.seconds = time.monotonic() - began
            self.expected[what, seed] = search.outcome()
            self.drop(search)
        return self.expected[what, seed]

    def wrong(self, search: Search, expected: dict[str, Any]) -> str:
        if why := search.end() or search.losses():
            return why
        for folder in [search.folder] + ([search.place / "away" / "s"] if search.synced else []):
            found = search.outcome(folder)
            if found != expected:
                return f"{folder.parent.name}: came to {found}, in peace it is {expected}"
        return ""

    def round(self, what: str, strike: Strike, most: int) -> tuple[int, str]:
        """A search from its beginning to its end: how often it was struck, what is wrong."""
        seed = self.draw.randrange(3)
        expected = self.in_peace(what, seed)
        search = self.make(what, seed, strike is lose_machine)
        struck = 0
        with contextlib.ExitStack() as stack:
            if strike is fill_disk and not stack.enter_context(small_disk(search.place / "disk")):
                return 0, "not run"
            (search.place / "shut").touch()
            process = search.start()
            while struck < min(most, KILLS_OF_A_SEARCH):
                try:
                    process.wait(self.draw.uniform(0.0, PATIENCE_S.get(strike, min(self.seconds, 5.0))))
                    if strike is not fill_disk and (why := search.complaint(process)):
                        return struck, why
                    if process.returncode == 0:
                        break
                except subprocess.TimeoutExpired:
                    struck += strike(search, process, self.draw)
                if process.poll() not in (None, 0):
                    process = search.start()
            (search.place / "shut").unlink()
            if process.poll() is None:
                try:
                    process.wait(SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    return struck, f"still running after {SECONDS} s"
            why = self.wrong(search, expected)
        if not why:
            self.drop(search)
        return struck, why

    def prove(self, what: str, name: str, kills: int) -> Tally | None:
        tally, began = Tally(), time.monotonic()
        while tally.kills < kills and not tally.bad:
            struck, why = self.round(what, STRIKES[name], kills - tally.kills)
            if why == "not run":
                return None
            tally.kills += struck
            if why:
                tally.bad += 1
                print(f"# {name}, {what}: {why}", flush=True)
        tally.seconds = time.monotonic() - began
        return tally

    def control(self, damage: Callable[[list[str]], list[str]], ended: bool) -> str:
        """What the check says of a search whose journal was damaged between two runs, or, if it has ended, after its end."""
        expected = self.in_peace("fifo", 0)
        search = self.make("fifo", 0)
        if ended:
            search.end()
        else:
            process = search.start()
            deadline = time.monotonic() + SECONDS
            while time.monotonic() < deadline and not any(
                log.read_text().count("taken") >= 2 for log in (search.place / "logs").iterdir()
            ):
                time.sleep(0.01)
            process.kill()
            process.wait()
            # its guard lets go of the search when the trials have gone
            while time.monotonic() < deadline and search.trial_pids(process.pid) + search.trial_pids(1):
                time.sleep(0.01)
        journal = search.folder / "journal"
        lines = damage(journal.read_text().splitlines())
        journal.write_text("".join(line + "\n" for line in lines))
        why = self.wrong(search, expected)
        self.drop(search)
        return why


def change_score(lines: list[str], sums: bool) -> list[str]:
    """The last result of the first trial is another; sums: and its line's sum is right."""
    at = max(i for i, line in enumerate(lines[:-1]) if '"result"' in line and '"t": 0' in line)
    text = re.sub(r'"score": \d', '"score": 9', lines[at][9:].replace('"score": 9', '"score": 8'))
    assert text != lines[at][9:]
    lines[at] = (f"{zlib.crc32(text.encode()):08x}" if sums else lines[at][:8]) + " " + text
    return lines


def lose_results(lines: list[str]) -> list[str]:
    """All from the first result on, though pawl called some safe: what a disk may do without a sync."""
    return lines[: min(i for i, line in enumerate(lines) if '"result"' in line)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--kills", type=int, default=240, help="of all kinds together")
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()
    rows = [(what, name) for name in STRIKES for what in DOCUMENTS]
    total, not_run = Tally(), []
    print(f"{'kills of searches':44} {'kills':>6} {'bad':>4} {'seconds':>8}")
    with tempfile.TemporaryDirectory(prefix="pawl-searches-", dir="/var/tmp") as folder:
        proof = Proof(args.build.resolve(), pathlib.Path(folder), args.seed)
        for i, (what, name) in enumerate(rows):
            kills = args.kills * (i + 1) // len(rows) - args.kills * i // len(rows)
            tally = proof.prove(what, name, kills)
            if tally is None:
                not_run.append(name)
                continue
            total = Tally(total.kills + tally.kills, total.bad + tally.bad, total.seconds + tally.seconds)
            print(f"{name + ', ' + what:44} {tally.kills:6} {tally.bad:4} {tally.seconds:8.1f}", flush=True)
        noticed = proof.control(lambda lines: change_score(lines, sums=False), ended=True) == ""
        unseen = proof.control(lambda lines: change_score(lines, sums=True), ended=True) != ""
        unsynced = proof.control(lose_results, ended=False) != ""
    print(f"  a changed line of a journal: {'mended' if noticed else 'NOT NOTICED'}")
    print(f"  control: a journal whose sums say nothing: {'found out' if unseen else 'NOT FOUND'}")
    print(f"  control: a journal that lost what was said to be safe: {'found out' if unsynced else 'NOT FOUND'}")
    if not_run:
        print(f"not run, this machine does not allow it: {', '.join(sorted(set(not_run)))}")
    print(f"{'together':44} {total.kills:6} {total.bad:4} {total.seconds:8.1f}")
    return 0 if total.bad == 0 and noticed and unseen and unsynced else 1


if __name__ == "__main__":
    sys.exit(main())
