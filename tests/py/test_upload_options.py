# SPDX-License-Identifier: Apache-2.0
"""Options of uploads to mirrors, and what a store is cleared of: bandwidth, error budget, abandoned uploads."""

from __future__ import annotations

import contextlib
import json
import pathlib
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest
from object_env import keys_for, take_environment
from s3_fake import Answer, Fake, Upload, error
from waiting import HANG_SECONDS, wait_until

import cli
import pawl

PACK = "rank00000-00000.safetensors"


@pytest.fixture(name="fake")
def started_fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with contextlib.closing(Fake()) as fake:
        take_environment(monkeypatch, keys_for(fake.endpoint))
        yield fake


def state(step: int, nbytes: int = 1000) -> dict[str, object]:
    return {"w": np.random.default_rng(step).integers(0, 255, nbytes, dtype=np.uint8)}


def upload_seconds(root: pathlib.Path) -> list[float]:
    rows = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    return [row["seconds"] for row in rows if row["what"] == "upload"]


def test_R144_uploads_keep_to_their_bandwidth_and_saves_do_not_wait(fake: Fake, tmp_path: pathlib.Path) -> None:
    begun, go = threading.Event(), threading.Event()

    def hold(method: str, target: str) -> None:
        if method == "PUT" and PACK in target:
            begun.set()
            assert go.wait(HANG_SECONDS)

    fake.always = hold
    with pawl.CheckpointManager(
        tmp_path / "run", mirrors=["s3://bucket/m"], uploads=pawl.Uploads(bytes_per_second=300_000)
    ) as m:
        for step in (1, 2):
            m.save(step, state(step, 1_200_000), wait=True)
        assert begun.wait(HANG_SECONDS) and upload_seconds(tmp_path / "run") == []  # no save has waited for that
        go.set()
    slow = max(upload_seconds(tmp_path / "run"))
    assert slow > 1.0  # the first piece never waits, the second until that one is paid for
    with pawl.CheckpointManager(tmp_path / "free", mirrors=["s3://bucket/free"]) as m:  # negative control
        for step in range(1, 100):  # on a busy machine some take long by themselves
            m.save(step, state(step, 1_200_000), wait=True)
            m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
            if min(upload_seconds(tmp_path / "free")) < slow:
                return
    raise AssertionError("without a limit it takes as long")


@pytest.mark.parametrize("errors", ["soft", "hard"])
def test_so_many_failures_in_a_row_pass_without_a_word(fake: Fake, tmp_path: pathlib.Path, errors: str) -> None:
    refused, turns, mended = error(403, "AccessDenied"), threading.Semaphore(0), threading.Event()

    def refuse(method: str, target: str) -> Answer | None:
        """One try for each turn: it is made again by itself after some seconds, too."""
        if method != "PUT" or PACK not in target:
            return None
        assert turns.acquire(timeout=HANG_SECONDS)
        return None if mended.is_set() else refused

    def wait_for_failure(n: int) -> None:
        turns.release()
        wait_until(lambda: m.mirrors()[0]["n_failed"] >= n)

    fake.always = refuse
    uploads = pawl.Uploads(fail_saves=errors == "hard", error_budget=2)
    m = pawl.CheckpointManager(tmp_path / "run", mirrors=["s3://bucket/m"], uploads=uploads)
    for step in (1, 2):
        m.save(step, state(step), wait=True)
        wait_for_failure(step)
        m.check_for_errors()
    m.save(3, state(3), wait=True)
    wait_for_failure(3)
    with pytest.raises(pawl.AccessError):
        if errors == "hard":
            m.save(4, state(4))
        else:
            m.check_for_errors()
    mended.set()
    fake.always = lambda method, target: None
    turns.release()  # the try that waits for its turn, if there is one
    m.wait_until_finished(level="remote", timeout=HANG_SECONDS)  # a success gives the budget back
    mended.clear()
    n_before, turns = m.mirrors()[0]["n_failed"], threading.Semaphore(0)
    fake.always = refuse
    m.save(5, state(5), wait=True)
    wait_for_failure(n_before + 1)
    m.check_for_errors()
    mended.set()
    fake.always = lambda method, target: None
    turns.release()
    m.close()


def test_row_27_gc_drops_uploads_that_were_abandoned_a_day_ago(fake: Fake) -> None:
    root = "s3://bucket/run"
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1), wait=True)
    key = "run/checkpoints/checkpoint_000002/rank00000-00000.safetensors"
    fake.uploads = {
        "old": Upload(key, {}, when=time.time() - 90_000),
        "new": Upload(key, {}),
        "theirs": Upload("elsewhere/x", {}, when=time.time() - 90_000),
    }
    cli.run("gc", root)
    assert sorted(fake.uploads) == ["new", "theirs"]


def test_R90_an_empty_folder_whose_mirror_is_of_another_run_is_refused(fake: Fake, tmp_path: pathlib.Path) -> None:
    """Without a run_id an empty folder resumes the mirror's run (R107); with the run's id no wrong one is taken."""
    with pawl.CheckpointManager(tmp_path / "one", mirrors=["s3://bucket/one"]) as m:
        m.save(1, state(1), wait=True)
        one = m.run_id
    with pytest.raises(pawl.ExistsError, match="another run"):
        pawl.CheckpointManager(tmp_path / "two", mirrors=["s3://bucket/one"], naming=pawl.Naming(run_id="0" * 32))
    assert not (tmp_path / "two" / "checkpoints").exists() or not list((tmp_path / "two" / "checkpoints").iterdir())
    with pawl.CheckpointManager(tmp_path / "three", mirrors=["s3://bucket/one"], naming=pawl.Naming(run_id=one)) as m:
        assert m.all_steps() == [1]


def test_P2_P12_a_mirror_whose_journal_cannot_be_read_is_asked_what_it_has(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The journal only saves asking: with a damaged one the mirror is listed, read back, and nothing is sent again."""
    root = tmp_path / "run"
    with pawl.CheckpointManager(root, mirrors=["s3://bucket/m"]) as m:
        m.save(1, state(1), wait=True)
    (journal,) = (root / ".pawl" / "mirrors").iterdir()
    journal.write_text("{broken")
    before = len([r for r in fake.requests if r.startswith("PUT") and PACK in r])
    with pawl.CheckpointManager(root, mirrors=["s3://bucket/m"]) as m:
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert [info.level for info in m.checkpoints()] == ["remote"]
    assert len([r for r in fake.requests if r.startswith("PUT") and PACK in r]) == before
