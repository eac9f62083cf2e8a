# SPDX-License-Identifier: Apache-2.0
"""Opening a run in a bucket: of many checkpoints, far away, with few requests, and many at a time; and taking one over."""

from __future__ import annotations

import contextlib
import json
import pathlib
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from s3_fake import Answer, Fake, Object, Upload, error, serving
from s3_gate import gate
from waiting import HANG_SECONDS

import cli
import pawl

N = 200


def fill(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The files of a run in a folder, as objects."""
    with pawl.CheckpointManager(tmp_path / "run", naming=pawl.Naming(name_template="checkpoint_{id:06d}")) as m:
        for step in range(N):
            m.save(step, {"w": np.arange(4)}, wait=True)
    for path in sorted((tmp_path / "run").rglob("*")):
        if path.is_file() and not path.is_symlink() and ".pawl" not in path.parts and path.name != ".lease":
            key = "run/" + str(path.relative_to(tmp_path / "run"))
            fake.objects[key] = Object(path.read_bytes(), f'"{len(fake.objects)}"', {})


@pytest.fixture(name="fake")
def fake_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with serving(monkeypatch) as fake:
        yield fake


def test_opening_many_checkpoints_lists_once_and_reads_many_at_a_time(fake: Fake, tmp_path: pathlib.Path) -> None:
    fill(fake, tmp_path)
    four = threading.Event()
    together = threading.Barrier(4, four.set)  # the first answer waits until four are asked for

    def wait(method: str, target: str) -> None:
        if target.endswith("manifest.json"):
            with contextlib.suppress(threading.BrokenBarrierError):
                together.wait(HANG_SECONDS)
            together.abort()

    fake.before, fake.delay = wait, 0.02
    with pawl.CheckpointManager("s3://bucket/run", read_only=True) as m:
        assert m.all_steps() == list(range(N))
        read = [line for line in fake.requests if "manifest.json" in line]
        lists = [line for line in fake.requests if "prefix=run%2Fcheckpoints" in line]
        assert len(read) == N and len(lists) == 1  # 400 keys, a page has 1,000
        assert len(fake.requests) <= N + 8
        assert four.is_set() and fake.most_flying <= 17
        before = len(fake.requests)
        m.reload()  # nothing has changed, so nothing is read again
        assert len(fake.requests) - before <= 4
        assert not [line for line in fake.requests[before:] if "manifest.json" in line]
        gone = "run/checkpoints/checkpoint_000007/manifest.json"
        del fake.objects[gone]
        m.reload()
        assert 6 not in m.all_steps() and len(m.all_steps()) == N - 1


@pytest.mark.parametrize("compression", [None, "zst", "planes"])
def test_a_save_asks_nothing_that_it_knows(fake: Fake, compression: str | None) -> None:
    """Not whether there is a pack whose name is of a random token, nor for the manifest that it has just put; small
    packs and one in parts."""
    state = {"small": np.arange(1000.0), "large": np.random.default_rng(1).integers(0, 256, 9 << 20, dtype=np.uint8)}
    with pawl.CheckpointManager(
        "s3://bucket/run", compression=compression, packs=pawl.Packs(pack_bytes=1 << 20)
    ) as manager:
        manager.save(1, state, wait=True)
        manager.wait_until_finished()
        at = len(fake.requests)
        manager.save(2, {**state, "small": state["small"] + 1, "large": state["large"] ^ 1}, wait=True)
        manager.wait_until_finished()
        rows = fake.requests[at:]
    of_packs = [row for row in rows if ".safetensors" in row]
    assert any("uploadId" in row for row in of_packs) and any("partNumber" not in row for row in of_packs)
    assert [row for row in of_packs if row.startswith(("HEAD", "GET"))] == []
    assert [row for row in rows if row.startswith("GET") and "manifest.json" in row] == []


def test_R140_what_has_not_changed_is_copied_by_the_server(fake: Fake) -> None:
    """Only what changed since the last save is sent, from the second save on, also by the next process."""
    frozen = {f"layer{i}": np.random.default_rng(i).integers(0, 256, 1 << 20, dtype=np.uint8) for i in range(6)}
    state = {**frozen, "adapter": np.zeros(1 << 15)}
    for first in (1, 4):
        with pawl.CheckpointManager("s3://bucket/run", packs=pawl.Packs(pack_bytes=16 << 20), num_to_keep=2) as manager:
            for step in range(first, first + 3):
                state["adapter"] += 1
                at = len(fake.requests)
                ticket = manager.save(step, state, wait=True)
                assert ticket is not None
                if step > 1:
                    assert ticket.stats["written_bytes"] <= state["adapter"].nbytes * 1.02
                    rows = [row for row in fake.requests[at:] if row.startswith("PUT") and ".safetensors" in row]
                    assert len(rows) == 7  # six of them are copies
                restored = manager.restore()
                assert restored is not None
                assert all(np.array_equal(restored.state[name], state[name]) for name in state)


@pytest.mark.parametrize("faster", [False, True])
def test_P10_a_lease_is_taken_over_only_if_it_is_still_the_one_that_was_found_silent(fake: Fake, faster: bool) -> None:
    m = pawl.CheckpointManager("s3://bucket/run")
    silent = json.loads(fake.objects["run/.lease"].body) | {"host": "elsewhere", "renewed_unix_ns": 0}
    m.close()
    fake.objects["run/.lease"] = Object(json.dumps(silent).encode(), '"silent"', {})
    other = Object(json.dumps(silent | {"token": "0" * 32}).encode(), '"other"', {})

    def hook(method: str, target: str) -> None:
        """Another process is faster, between the check of the lease and its put."""
        if faster and method == "PUT" and target.endswith("/run/.lease") and "if-match" in fake.headers[-1]:
            fake.objects["run/.lease"] = other

    fake.always = hook
    if faster:
        with pytest.raises(pawl.BusyError, match="just taken the run over"):
            pawl.CheckpointManager("s3://bucket/run", timeouts=pawl.Timeouts(lease=1))
        assert fake.objects["run/.lease"] is other
    else:
        pawl.CheckpointManager("s3://bucket/run", timeouts=pawl.Timeouts(lease=1)).close()
        assert "run/.lease" not in fake.objects
    assert not any(".lease.takeover" in line for line in fake.requests)


def test_P10_where_puts_know_no_condition_of_the_kind_a_lock_decides_who_takes_over(fake: Fake) -> None:
    m = pawl.CheckpointManager("s3://bucket/run")
    silent = json.loads(fake.objects["run/.lease"].body) | {
        "host": "elsewhere",
        "renewed_unix_ns": 2**62,
    }  # its clock is ahead
    m.close()
    fake.objects["run/.lease"] = Object(json.dumps(silent).encode(), '"silent"', {})
    fake.matches = False
    pawl.CheckpointManager("s3://bucket/run", timeouts=pawl.Timeouts(lease=1)).close()
    assert any(line.startswith("PUT") and ".lease.takeover" in line for line in fake.requests)


def test_P6_a_checkpoint_read_by_its_own_path_is_held_in_a_bucket(fake: Fake) -> None:
    """A training run that keeps one checkpoint saves another while it is read."""
    reached, go, loaded = threading.Event(), threading.Event(), list[object]()

    def busy(method: str, target: str) -> None:
        if method == "GET" and "000001/rank" in target:
            reached.set()
            assert go.wait(HANG_SECONDS)

    def load() -> None:
        try:
            loaded.append(pawl.load("s3://bucket/run/checkpoints/checkpoint_000001"))
        except pawl.PawlError as caught:
            loaded.append(caught)
        reached.set()

    with pawl.CheckpointManager("s3://bucket/run", num_to_keep=1) as m:
        m.save(1, {"w": np.full(1000, 1)}, wait=True)
        fake.before = busy
        reader = threading.Thread(target=load)
        reader.start()
        assert reached.wait(HANG_SECONDS)
        m.save(2, {"w": np.full(1000, 2)}, wait=True)
        go.set()
        reader.join()
        assert isinstance(loaded[0], dict), loaded
        assert (loaded[0]["w"] == 1).all()
        assert not [key for key in fake.objects if "/holds/" in key]
        m.save(3, {"w": np.full(1000, 3)}, wait=True)
        assert m.all_steps() == [3]


SAVES = """
import sys, numpy, pawl
with pawl.CheckpointManager("s3://bucket/killed", naming=pawl.Naming(name_template="c{id}_step_{step}"), num_to_keep=2) as manager:
    restored = manager.restore()
    for step in range(restored.step + 1 if restored else 0, 4):
        manager.save(step, {"w": numpy.full(1000, step)}, wait=True)
    print(manager.all_steps())
"""


def test_P2_E1_a_killed_save_in_a_bucket_does_not_block_names_with_the_id_in_their_middle(fake: Fake) -> None:
    """What a killed save leaves there has used up its name: the next save has another one, whatever the template."""
    process: subprocess.Popen[str] | None = None

    def kill(method: str, target: str) -> Answer | None:
        if method == "PUT" and "c3_step_2/manifest" in target and process:
            process.kill()
            return error(500, "InternalError")
        return None

    fake.always = kill
    process = subprocess.Popen([sys.executable, "-c", SAVES], stdout=subprocess.PIPE, text=True)
    process.communicate(timeout=HANG_SECONDS)
    assert process.returncode == -signal.SIGKILL
    fake.always = lambda method, target: None
    assert any("/c3_step_2/rank" in key for key in fake.state())
    again = subprocess.run(
        [sys.executable, "-c", SAVES], capture_output=True, check=False, text=True, timeout=HANG_SECONDS
    )
    assert again.stdout == "[2, 3]\n", again.stderr
    assert {key.split("/")[2] for key in fake.state() if "/rank" in key} >= {"c4_step_2", "c5_step_3"}


def test_P8_folders_of_other_programs_are_left_alone(fake: Fake) -> None:
    """A process that takes a bucket over aborts what may be a save; what has no packs is not its own, whatever its name.
    A save that was cut off is aborted (negative control)."""
    with pawl.CheckpointManager("s3://bucket/run") as m:
        m.save(1, {"w": np.arange(4)}, wait=True)
    at = "run/checkpoints"
    theirs = {
        f"{at}/theirs/notes.txt": b"mine",
        f"{at}/checkpoint_000005/model.bin": b"weights",
        f"{at}/deep/er/rank00000-00000-01234567.safetensors": b"not a pack of this folder",
        f"{at}/readme": b"hello",
    }
    for key, text in theirs.items():
        fake.objects[key] = Object(text, f'"{len(fake.objects)}"', {})
    cut_off = f"{at}/checkpoint_000003/rank00000-00000-01234567.safetensors"
    fake.objects[cut_off] = Object(b"cut", '"cut"', {})
    with pawl.CheckpointManager("s3://bucket/run") as m:
        decided = {key for key in fake.state() if key.endswith("/manifest.json")}
        assert decided == {f"{at}/checkpoint_000001/manifest.json", f"{at}/checkpoint_000003/manifest.json"}
        assert b"pawl_withdrawn" in fake.state()[f"{at}/checkpoint_000003/manifest.json"]
        m.save(2, {"w": np.arange(4)}, wait=True)
        m.prune()
        assert m.all_steps() == [1, 2] and m.verify() == []
        assert m.checkpoints()[-1].id > 5  # no number is given out again that a folder has
    cli.run("gc", "s3://bucket/run")
    assert {key: fake.state()[key] for key in theirs} == theirs


def test_gc_counts_abandoned_uploads_and_names_one_that_cannot_be_dropped(fake: Fake) -> None:
    with pawl.CheckpointManager("s3://bucket/run") as m:
        m.save(1, {"w": np.arange(4)}, wait=True)
    old, temp = time.time() - 3 * 86400, f"run/.note.{'a' * 32}.tmp"
    fake.uploads["u"] = Upload("run/checkpoints/x/pack", {}, when=old)
    fake.objects[temp] = Object(b"1", '"1"', {}, old)
    fake.always = lambda method, target: error(403, "AccessDenied") if "uploadId=u" in target else None
    assert "checkpoints/x/pack: cannot drop an upload" in cli.run("gc", "s3://bucket/run", status=1).stderr
    assert list(fake.uploads) == ["u"] and temp not in fake.objects
    fake.always = lambda method, target: None
    assert cli.run_json("gc", "s3://bucket/run")["removed"] == 1
    assert not fake.uploads
    assert "nothing was left behind" in cli.run("gc", "s3://bucket/run").stderr


@pytest.mark.parametrize("url", ["s3://", "gs:///", "az://", "ssh://", "s3:///prefix"])
def test_a_url_that_names_no_place_is_no_path(
    url: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However it is meant: nothing is made in a folder that is called "s3:"."""
    monkeypatch.chdir(tmp_path)
    for action in (
        lambda: pawl.CheckpointManager(url),
        lambda: pawl.save({"a": 1}, url),
        lambda: pawl.load(url),
        lambda: pawl.Syncer(tmp_path, remote=url).up(),
    ):
        with pytest.raises(pawl.UsageError, match=url[:5]):
            action()
    for word in ("ls", "verify"):
        assert url[:5] in cli.run(word, url, status=2).stderr
    assert not list(tmp_path.iterdir())


# ---- a reader during a save


def look(caplog: pytest.LogCaptureFixture) -> tuple[int, list[str], list[int], bool]:
    """The step of a restore, what it passed over, all ids with the bad ones, and whether there was a warning."""
    caplog.clear()
    with pawl.CheckpointManager("s3://bucket/run", read_only=True) as reader:
        restored = reader.restore()
        assert restored is not None
        ids = [info.id for info in reader.checkpoints(with_bad=True)]
        return restored.step, restored.fallbacks, ids, bool(caplog.records)


def test_P2_a_reader_takes_a_running_save_for_neither_damaged_nor_left_over(
    fake: Fake, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    note = "1 folder without a manifest, from running or interrupted saves"
    with gate(fake.endpoint) as way:
        monkeypatch.setenv("AWS_ENDPOINT_URL", way.endpoint)
        with pawl.CheckpointManager("s3://bucket/run") as m:
            m.save(1, {"w": np.arange(4)}, wait=True)
            way.hold(r"^PUT .*000002/manifest\.json")
            ticket = m.save(2, {"w": np.arange(5)})
            assert ticket is not None and way.held.wait(HANG_SECONDS)
            try:
                assert look(caplog) == (1, [], [1], False)
                assert cli.run("ls", "s3://bucket/run", "--names", "--bad").stdout == "checkpoint_000001\n"
                assert "damaged" not in cli.run("ls", "s3://bucket/run").stderr
                assert note in cli.run("verify", "s3://bucket/run").stderr
                assert note in cli.run("repair", "s3://bucket/run", "-n").stderr
                assert "nothing was left behind" in cli.run("gc", "s3://bucket/run", "-n").stderr
            finally:
                way.release.set()
            ticket.wait()
            assert look(caplog) == (2, [], [1, 2], False)


def test_P2_what_a_killed_save_left_is_listed_as_bad_and_no_restore_falls_back(
    fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    with pawl.CheckpointManager("s3://bucket/run") as m:
        for step in (1, 2):
            m.save(step, {"w": np.arange(4 * step)}, wait=True)
    del fake.objects["run/checkpoints/checkpoint_000002/manifest.json"]
    assert look(caplog) == (1, [], [1, 2], False)
    assert "1 more is damaged" in cli.run("ls", "s3://bucket/run").stderr
    assert "can be repaired" in cli.run("repair", "s3://bucket/run", "-n").stdout


def test_a_save_that_is_committed_between_a_readers_list_and_its_look_at_the_lease_is_listed(fake: Fake) -> None:
    with pawl.CheckpointManager("s3://bucket/run") as m:
        for step in (1, 2):
            m.save(step, {"w": np.arange(4 * step)}, wait=True)
    key = "run/checkpoints/checkpoint_000002/manifest.json"
    manifest = fake.objects.pop(key)

    def commit(method: str, target: str) -> None:
        if method == "GET" and target.endswith("/run/.lease"):
            fake.objects[key] = manifest

    fake.always = commit
    with pawl.CheckpointManager("s3://bucket/run", read_only=True) as reader:
        assert [(info.id, info.bad) for info in reader.checkpoints(with_bad=True)] == [(1, False), (2, False)]
