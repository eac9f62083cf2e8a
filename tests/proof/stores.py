#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Saves, restores and uploads against a server that fails on request: rows 24 to 28 of the fault model.

Every session is first run in peace and its requests are counted. Then each request in turn meets each fault: the
connection is cut before, within or after the answer, the server says 408, 429, 500 or 503 with or without having done
what it was asked, answers are too short or too long, or the client is killed before or after the request was carried
out. After each the session must have ended as it does in peace, or (killed) do so when it is begun again; every
checkpoint that shows must verify, and no upload may be left over. Controls: a server that drops or damages what it says
it has stored must be found out.

    stores.py [--build DIR] [--every N] [--passes N] [--jobs N] [--state FILE]

Passes differ in the server (no conditional puts, short pages of lists) and in sums that are sent. With --state, what is
done already with the same programs is read from a file and not done again. Prints one row per session and pass, the same way as `proof`.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import hashlib
import http.server
import json
import os
import pathlib
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests" / "py"))

from s3_fake import FAULTS, Answer, Fake, Object, error  # noqa: E402

KILLS = ["kill", "kill_after"]
REQUIRED = 5000
URL = "s3://bucket/run"
SECONDS = 1800  # that only a hang reaches


class Server(Fake):
    """The fake server, which can also kill its client and report what it has not stored."""

    def __init__(self) -> None:
        super().__init__()
        self.server.handle_error = lambda request, client_address: None  # clients that were killed
        self.child: subprocess.Popen[str] | None = None
        self.spoil: Callable[[bytes], bytes | None] | None = None  # what becomes of the n-th pack
        self.spoil_nth = 0
        self.packs = 0
        self.kills = 0
        self.always = self.kill_first

    def kill(self) -> None:
        self.kills += 1
        if self.child:
            self.child.kill()

    def kill_first(self, method: str, target: str) -> Answer | None:
        if self.faults.get(len(self.requests) - 1) != "kill":
            return None
        self.kill()
        return error(500, "InternalError")

    def send(self, h: http.server.BaseHTTPRequestHandler, answer: Answer, fault: str) -> None:
        if fault == "kill_after":
            self.kill()
            return self.cut(h)
        return super().send(h, answer, fault)

    def store(self, key: str, body: bytes, headers: dict[str, str], meta: dict[str, str], etag: str) -> Answer:
        answer = super().store(key, body, headers, meta, etag)
        if answer.status == 200 and key.endswith(".safetensors"):
            self.packs += 1
            if self.spoil and self.packs == self.spoil_nth:
                changed = self.spoil(body)
                if changed is None:
                    del self.objects[key]
                else:
                    self.objects[key] = Object(changed, etag, meta)
        return answer


@dataclasses.dataclass
class Variant:
    """What a pass does differently."""

    conditions: bool = True
    page: int = 1000
    sums: bool = False  # then nothing large: the server adds them up in Python


VARIANTS = [Variant(), Variant(page=2), Variant(conditions=False), Variant(sums=True)]


class Bench:
    """One server, the programs, and a folder to work in."""

    def __init__(self, build: pathlib.Path, folder: pathlib.Path, variant: Variant) -> None:
        self.pawl = str(build / "cli" / "pawl")
        self.make_run = str(build / "tests" / "make_run")
        self.folder = folder
        self.variant = variant
        self.server = Server()
        self.server.conditions = variant.conditions
        self.server.page = variant.page
        kept = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
        self.env = kept | {
            "AWS_ACCESS_KEY_ID": "AKPROOF",
            "AWS_SECRET_ACCESS_KEY": "SKPROOF",
            "AWS_ENDPOINT_URL": self.server.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_CONFIG_FILE": "/nonexistent",
            "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
            "AWS_EC2_METADATA_DISABLED": "true",
            "AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported" if variant.sums else "when_required",
        }

    def run(self, *command: str) -> tuple[int, str, str]:
        """Exit status (negative: the signal), what was printed, and the messages."""
        self.server.child = subprocess.Popen(
            command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        try:
            out, messages = self.server.child.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.server.child.kill()
            out, messages = self.server.child.communicate()
            messages += f"\nstill running after {SECONDS} s"
        return self.server.child.returncode, out, messages


@dataclasses.dataclass
class Session:
    """What is done, from what the server and the disk hold at the beginning."""

    name: str
    command: Callable[[Bench], list[str]]
    checkpoints: int
    objects: dict[str, Object] = dataclasses.field(default_factory=dict)  # at the server before it
    local: bool = False  # its outcome is on the disk


def target(bench: Bench) -> pathlib.Path:
    return bench.folder / "target"


def reset(bench: Bench, session: Session) -> None:
    bench.server.clear()
    bench.server.packs = bench.server.kills = 0
    bench.server.spoil = None
    bench.server.objects.update(session.objects)
    shutil.rmtree(target(bench), ignore_errors=True)
    for left in bench.folder.glob(".target.*"):
        shutil.rmtree(left)


def check(bench: Bench, session: Session) -> str:
    """What is wrong with what there is now; "" if nothing."""
    bench.server.faults = {}
    where = str(target(bench)) if session.local else URL
    status, out, messages = bench.run(bench.pawl, "verify", where, "--json")
    if status != 0:
        return f"verify: exit status {status}: {out[-400:]}{messages[-400:]}"
    found = sum(row["ok"] for row in json.loads(out)["checkpoints"])
    if found != session.checkpoints:
        return f"{found} checkpoints, expected {session.checkpoints}"
    return f"uploads are left: {bench.server.uploads}" if bench.server.uploads else ""


def violation(bench: Bench, session: Session, index: int, fault: str) -> str:
    reset(bench, session)
    bench.server.faults = {index: fault}
    status, _, messages = bench.run(*session.command(bench))
    if fault in KILLS:
        if len(bench.server.requests) > index and not bench.server.kills:
            return "the client was not killed"
        if status not in (0, -signal.SIGKILL):
            return f"exit status {status}: {messages[-400:]}"
        bench.server.faults = {}
        # whatever shows is complete; then the session is begun again
        if status != 0 and not (session.name == "restore" and target(bench).exists()):
            bench.server.uploads.clear()  # gc drops those a day later
            status, _, messages = bench.run(*session.command(bench))
        else:
            status = 0
    if status != 0:
        return f"exit status {status}: {messages[-400:]}"
    if fault.startswith(("lost", "lies")) or fault in KILLS:
        bench.server.uploads.clear()  # one whose name the client never learnt
    expected = dataclasses.replace(session)
    if fault in KILLS and session.name.startswith("save"):
        # a training run that is begun again resumes: it has what it saved before and all that it saves now
        bench.server.faults = {}
        status, out, _ = bench.run(bench.pawl, "ls", URL, "--json")
        expected.checkpoints = len(json.loads(out)["checkpoints"]) if status == 0 else -1
        if not session.checkpoints <= expected.checkpoints <= 2 * session.checkpoints:
            return f"{expected.checkpoints} checkpoints after a kill and a second run"
    return check(bench, expected)


def flip(body: bytes) -> bytes:
    changed = bytearray(body)
    changed[-1] ^= 1
    return bytes(changed)


def control(bench: Bench, session: Session, spoil: Callable[[bytes], bytes | None]) -> bool:
    """A server that has not stored the first pack: found by the session itself (which fails, or sends it again), or by the
    check after it."""
    reset(bench, session)
    bench.run(*session.command(bench))
    in_peace = bench.server.packs
    reset(bench, session)
    bench.server.spoil, bench.server.spoil_nth = spoil, 1
    status, _, _ = bench.run(*session.command(bench))
    return status != 0 or check(bench, session) != "" or bench.server.packs > in_peace


def sessions(bench: Bench) -> list[Session]:
    local = bench.folder / "local"
    subprocess.run([bench.make_run, "run", str(local), "2"], check=True)
    saves = [Session("save", lambda b: [b.make_run, "run", URL, "2"], 2)]
    count = 2
    if not bench.variant.sums:
        subprocess.run([bench.make_run, "parts", str(local), "1"], check=True)
        saves.append(Session("save in parts", lambda b: [b.make_run, "parts", URL, "2"], 2))
        count = 3
    upload = Session("upload of a run", lambda b: [b.pawl, "cp", str(local), URL], count)
    reset(bench, upload)
    status, _, messages = bench.run(*upload.command(bench))
    if status != 0:
        sys.exit(f"the upload does not even work in peace: {messages}")
    there = dict(bench.server.objects)
    fetch = Session("fetch of a run", lambda b: [b.pawl, "cp", URL, str(target(b))], count, there, True)
    one = Session("restore", lambda b: [b.pawl, "restore", URL + "@latest", str(target(b))], 1, there, True)
    return [*saves, upload, fetch, one]


@dataclasses.dataclass
class Tally:
    cases: int = 0
    bad: int = 0
    seconds: float = 0.0


def run_session(benches: list[Bench], session: Session, every: int, offset: int) -> Tally:
    """Each bench takes the next case when it is done with one."""
    began = time.monotonic()
    bench = benches[0]
    reset(bench, session)
    status, _, messages = bench.run(*session.command(bench))
    count = len(bench.server.requests)
    if status != 0 or (why := check(bench, session)):
        sys.exit(f"{session.name} does not even work in peace: {messages} {why if status == 0 else ''}")
    free: queue.SimpleQueue[Bench] = queue.SimpleQueue()
    for bench in benches:
        free.put(bench)

    def is_bad(fault: str, index: int) -> bool:
        bench = free.get()
        why = violation(bench, session, index, fault)
        if why:
            what = bench.server.requests[index] if index < len(bench.server.requests) else "?"
            print(f"# {session.name}: {fault} at request {index} of {count} ({what}): {why}", flush=True)
        free.put(bench)
        return why != ""

    faults = [*FAULTS, *KILLS]
    cases = [(f, i) for n, f in enumerate(faults) for i in range((offset + n * 7) % every, count, every)]
    with concurrent.futures.ThreadPoolExecutor(len(benches)) as pool:
        bad = sum(pool.map(lambda case: is_bad(*case), cases))
    return Tally(len(cases), bad, time.monotonic() - began)


def stamp(build: pathlib.Path) -> str:
    """Which programs are tried."""
    digest = hashlib.sha256()
    for name in ("cli/pawl", "tests/make_run"):
        digest.update((build / name).read_bytes())
    return digest.hexdigest()[:12]


def load(path: pathlib.Path | None) -> dict[str, Tally]:
    if path is None or not path.exists():
        return {}
    rows = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    return {row["key"]: Tally(row["cases"], row["bad"], row["seconds"]) for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--build", type=pathlib.Path, default=ROOT / "build")
    parser.add_argument("--every", type=int, default=1, help="take every N-th request")
    parser.add_argument("--passes", type=int, default=len(VARIANTS))
    parser.add_argument("--jobs", type=int, default=2 * (os.cpu_count() or 1), help="cases at a time")
    parser.add_argument("--state", type=pathlib.Path, help="what is done already, one line each")
    args = parser.parse_args()
    done, total, controls, programs = load(args.state), Tally(), 0, stamp(args.build)
    print(f"{'store faults':34} {'cases':>7} {'bad':>5} {'seconds':>8}")
    for number, variant in enumerate(VARIANTS[: args.passes]):
        with tempfile.TemporaryDirectory(prefix="pawl-stores-", dir="/var/tmp") as scratch:
            folders = [pathlib.Path(scratch) / str(job) for job in range(args.jobs)]
            for folder in folders:
                folder.mkdir()
            benches = [Bench(args.build.resolve(), folder, variant) for folder in folders]
            bench = benches[0]
            for session in sessions(bench):
                key = f"{session.name}, pass {number + 1}, every {args.every}, {programs}"
                if key not in done:
                    done[key] = run_session(benches, session, args.every, number)
                    if args.state:
                        with args.state.open("a") as file:
                            file.write(json.dumps({"key": key} | dataclasses.asdict(done[key])) + "\n")
                tally = done[key]
                total = Tally(total.cases + tally.cases, total.bad + tally.bad, total.seconds + tally.seconds)
                row = f"{session.name}, pass {number + 1}"
                print(f"{row:34} {tally.cases:7} {tally.bad:5} {tally.seconds:8.1f}", flush=True)
                if number == 0 and not session.local:
                    lies: dict[str, Callable[[bytes], bytes | None]] = {"drops": lambda body: None, "damages": flip}
                    for name, spoil in lies.items():
                        found = control(bench, session, spoil)
                        controls += not found
                        word = "found out" if found else "NOT FOUND"
                        print(f"  control: a server that {name} a pack: {word}", flush=True)
            for bench in benches:
                bench.server.close()
    print(f"{'together':34} {total.cases:7} {total.bad:5} {total.seconds:8.1f}")
    full = args.every == 1 and args.passes == len(VARIANTS)
    if full and total.cases < REQUIRED:
        print(f"only {total.cases} cases, {REQUIRED} are required")
        return 1
    return 1 if total.bad or controls else 0


if __name__ == "__main__":
    sys.exit(main())
