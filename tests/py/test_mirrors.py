# SPDX-License-Identifier: Apache-2.0
"""Mirrors: checkpoints are copied in the background to other stores, and come back from there (docs/how-to/mirrors.md)."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from object_env import keys_for, take_environment
from s3_fake import Answer, Fake, error
from s3_servers import Server, moto, rgw
from waiting import HANG_SECONDS, wait_until

import cli
import pawl

PACK = "rank00000-00000.safetensors"


def state(step: int) -> dict[str, Any]:
    return {"w": np.full((60, 500), step, dtype=np.float32), "step": step}


def save(root: pathlib.Path, steps: range, **options: Any) -> None:
    with pawl.CheckpointManager(root, **options) as m:
        for step in steps:
            m.save(step, state(step), metrics={"loss": 1.0 / step}, wait=True)


def check(restored: pawl.Restored | None, step: int) -> pawl.Restored:
    assert restored is not None and restored.step == step
    assert restored.state["step"] == step and (restored.state["w"] == step).all()
    return restored


def events(root: pathlib.Path, what: str) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (root / "events.jsonl").read_text().splitlines()]
    return [row for row in rows if row["what"] == what]


def pack_of(root: pathlib.Path, id: int) -> pathlib.Path:
    return root / "checkpoints" / f"checkpoint_{id:06d}" / PACK


@pytest.fixture(name="root")
def run_root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "run"


@pytest.fixture(name="mirror")
def mirror_root(tmp_path: pathlib.Path) -> pathlib.Path:
    return tmp_path / "mirror"


# ------------------------------------------------------------------- copying


def test_R85_R89_E12_a_mirror_is_a_run_with_its_own_pointers(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(1, 4), mirrors=[mirror], score_attribute="loss", score_order="max")
    assert os.readlink(mirror / "latest") == "checkpoints/checkpoint_000003"
    assert os.readlink(mirror / "best") == "checkpoints/checkpoint_000001"
    assert not list((mirror / "checkpoints").glob(".*"))
    with pawl.CheckpointManager(mirror, read_only=True) as there, pawl.CheckpointManager(root, read_only=True) as here:
        assert there.run_id == here.run_id and there.all_steps() == [1, 2, 3]
        assert there.verify() == []
        check(there.restore(), 3)
        assert [info.level for info in here.checkpoints()] == ["remote"] * 3
        assert [info.n_mirrors for info in here.checkpoints()] == [1] * 3
        assert [info.level for info in there.checkpoints()] == ["local"] * 3  # it has no mirrors of its own


def test_uploads_are_newest_first_when_behind(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(1, 5))
    pawl.CheckpointManager(root, mirrors=[mirror], uploads=pawl.Uploads(n_streams=1)).close()
    assert [row["id"] for row in events(root, "upload")] == [4, 3, 2, 1]
    assert os.readlink(mirror / "latest") == "checkpoints/checkpoint_000004"


def test_R140_what_has_not_changed_is_not_uploaded_again(root: pathlib.Path, mirror: pathlib.Path) -> None:
    frozen = {"frozen": np.arange(100_000.0)}
    with pawl.CheckpointManager(root, mirrors=[mirror], packs=pawl.Packs(pack_bytes=4096)) as m:
        for step in (1, 2):
            m.save(step, {**state(step), **frozen}, wait=True)
            m.wait_until_finished(level="remote")
    first, second = events(root, "upload")
    assert first["linked_bytes"] == 0 and second["linked_bytes"] > 800_000
    assert second["sent_bytes"] + second["linked_bytes"] == second["bytes"]


def test_P3_levels_can_be_waited_for_and_asked(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with pawl.CheckpointManager(root) as m:
        m.save(1, state(1), wait=True)
        assert m.checkpoints()[0].level == "local"
        with pytest.raises(pawl.UsageError, match="no mirrors"):
            m.wait_until_finished(level="remote")
        with pytest.raises(pawl.UsageError, match="level"):
            m.wait_until_finished(level="moon")  # type: ignore[arg-type]
    with pawl.CheckpointManager(root, mirrors=[mirror]) as m:
        m.save(2, state(2))
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert [info.level for info in m.checkpoints()] == ["remote"] * 2
        (figures,) = m.mirrors()
        assert figures["url"] == str(mirror) and figures["n_done"] == 2 and figures["n_waiting"] == 0
        assert figures["n_failed"] == 0 and figures["error"] == ""
    with pawl.CheckpointManager("mem:") as m:
        m.save(1, state(1), wait=True)
        assert m.checkpoints()[0].level == "none"


def test_ls_shows_how_many_mirrors_have_a_checkpoint(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(1, 2), mirrors=[mirror])
    listed = cli.run("ls", str(root)).stdout
    assert "mirrors" in listed and "1/1" in listed
    assert json.loads(cli.run("ls", "--json", str(root)).stdout)["checkpoints"][0]["level"] == "remote"
    assert "mirrors" not in cli.run("ls", str(mirror)).stdout


# ------------------------------------------------------------------ retention


def wait_for_failure(m: pawl.CheckpointManager) -> None:
    wait_until(lambda: m.mirrors()[0]["n_failed"], "a failed upload")


def wait_for_uploads(m: pawl.CheckpointManager) -> None:
    """Until one try has brought everything there: one that began before its obstacle was gone may still fail."""

    def is_there() -> bool:
        try:
            m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        except pawl.PawlError:
            return False
        return True

    wait_until(is_there, "the uploads")


@contextlib.contextmanager
def blocked(mirror: pathlib.Path) -> Iterator[None]:
    """A mirror that nothing can be written to."""
    mirror.mkdir(exist_ok=True)
    (mirror / "checkpoints").write_text("in the way")
    yield
    (mirror / "checkpoints").unlink()


def test_R95_R96_P6_only_what_is_mirrored_is_deleted_here_and_copies_stay(
    root: pathlib.Path, mirror: pathlib.Path
) -> None:
    m = pawl.CheckpointManager(root, num_to_keep=1, mirrors=[mirror])
    with blocked(mirror):
        for step in (1, 2, 3):
            m.save(step, state(step), wait=True)  # training continues
        with pytest.raises(pawl.PawlError):
            m.wait_until_finished(level="remote", timeout=60)
        assert m.all_steps() == [1, 2, 3]
        assert {row.reason for row in m.prune(dry_run=True)[:2]} == {"not in every mirror yet"}
        wait_until(lambda: m.mirrors()[0]["n_failed"] >= 3)
        assert m.mirrors()[0]["error"]
        with pawl.CheckpointManager(root, read_only=True) as other:  # others know it, too
            assert [info.level for info in other.checkpoints()] == ["local"] * 3
        assert "keep" in cli.run("prune", "--dry-run", "--keep-last", "1", str(root)).stdout
    wait_for_uploads(m)
    assert [info.here for info in m.checkpoints()] == [False, False, True]
    m.close()
    assert sorted(p.name for p in (root / "checkpoints").iterdir()) == ["checkpoint_000003"]
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert there.all_steps() == [1, 2, 3] and there.verify() == []


def test_R95_E2_nothing_is_kept_here_once_it_is_mirrored(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with pawl.CheckpointManager(root, mirrors=[mirror], uploads=pawl.Uploads(delete_local=True)) as m:
        for step in (1, 2):
            m.save(step, state(step), wait=True)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        wait_until(lambda: not list((root / "checkpoints").iterdir()), "the deletion")
        assert m.all_steps() == [1, 2] and m.latest_step() == 2
        assert not os.path.lexists(root / "latest")
        check(m.restore(), 2)
        check(m.restore(step=1), 1)
        m.save(3, state(3), wait=True)
    with pawl.CheckpointManager(root, mirrors=[mirror], uploads=pawl.Uploads(delete_local=True)) as m:
        assert m.all_steps() == [1, 2, 3]
        check(m.restore(), 3)


def test_R96_copies_may_have_rules_of_their_own(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with pawl.CheckpointManager(root, mirrors=pawl.Mirror(mirror, keep=pawl.Retention(keep_last=1, keep_every=2))) as m:
        for step in (1, 2, 3, 4, 5):
            m.save(step, state(step), wait=True)
            m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
    kept = sorted(p.name for p in (mirror / "checkpoints").iterdir())
    assert kept == ["checkpoint_000001", "checkpoint_000002", "checkpoint_000004", "checkpoint_000005"]
    before = len(events(root, "upload"))
    pawl.CheckpointManager(root, mirrors=pawl.Mirror(mirror, keep=pawl.Retention(keep_last=1, keep_every=2))).close()
    assert len(events(root, "upload")) == before  # what was deleted there on purpose is not brought there again


def test_each_mirror_has_a_cadence_and_rules_of_its_own(root: pathlib.Path, mirror: pathlib.Path) -> None:
    """A mirror takes the checkpoints that are due for it, here by steps; the other one takes all and keeps two."""
    rare = root.parent / "rare"
    mirrors = [pawl.Mirror(rare, every="1000ba"), pawl.Mirror(mirror, keep=pawl.Retention(keep_last=2))]
    given: dict[str, Any] = {"mirrors": mirrors, "num_to_keep": 2}

    def names(place: pathlib.Path) -> list[int]:
        return sorted(int(p.name[-6:]) for p in (place / "checkpoints").iterdir())

    with pawl.CheckpointManager(root, **given) as m:
        for step in (500, 1000, 1500, 1900):
            m.save(step, state(step), wait=True)
            m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert names(root) == [3, 4]  # what is not due for a mirror is not kept for it
    with pawl.CheckpointManager(root, **given) as m:  # also after the one that was copied is gone here
        for step in (2100, 2200):
            m.save(step, state(step), wait=True)
            m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
    assert names(rare) == [2, 5]
    assert names(mirror) == [5, 6]


def test_a_mirror_gets_the_first_checkpoint_at_or_after_each_multiple(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(300, 3300, 300), mirrors=pawl.Mirror(mirror, every="1000ba"))
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert there.all_steps() == [1200, 2100, 3000]


def test_maintenance_counts_as_missing_only_what_is_due_for_a_mirror(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(300, 1900, 300), mirrors=pawl.Mirror(mirror, every="1000ba"))
    (journal,) = (root / ".pawl" / "mirrors").iterdir()
    rows = [line for line in journal.read_text().splitlines(keepends=True) if '"retired"' not in line or "]]" in line]
    journal.write_text("".join(rows))  # as after a kill
    assert cli.run_json("sync", root)["mirrors"][0]["waiting"] == 0
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert there.all_steps() == [1200]
    cli.run("prune", root, "--keep-last", "1", "-y")
    with pawl.CheckpointManager(root, read_only=True) as here:
        assert here.all_steps() == [1800]


def test_P6_what_is_pinned_or_held_in_the_mirror_stays_there(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with pawl.CheckpointManager(root, mirrors=pawl.Mirror(mirror, keep=pawl.Retention(keep_last=3))) as m:
        for step in (1, 2, 3):
            m.save(step, state(step), wait=True)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
    with pawl.CheckpointManager(mirror) as there:
        there.pin(1)
    with (
        pawl.hold(mirror, 2),
        pawl.CheckpointManager(root, mirrors=pawl.Mirror(mirror, keep=pawl.Retention(keep_last=1))) as m,
    ):
        m.save(4, state(4), wait=True)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
    kept = sorted(p.name for p in (mirror / "checkpoints").iterdir())
    assert kept == ["checkpoint_000001", "checkpoint_000002", "checkpoint_000004"]
    (journal,) = (root / ".pawl" / "mirrors").iterdir()  # what was deleted there is known at once
    rows = json.loads(journal.read_text())["done"]
    assert [row[0] for row in rows if row[2:] == ["retired"]] == [3]


def test_P14_nothing_is_deleted_here_because_a_manifest_lies_there(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(1, 3), mirrors=[mirror])
    shutil.rmtree(root / ".pawl" / "mirrors")
    damage(pack_of(mirror, 1), "flip")
    rules: dict[str, Any] = {"mirrors": [mirror], "uploads": pawl.Uploads(delete_local=True)}
    with pytest.raises(pawl.CorruptError, match="damaged in the mirror"), pawl.CheckpointManager(root, **rules) as m:
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
    wait_until(lambda: not pack_of(root, 2).exists(), "the deletion of 2, which has been read back")
    assert pack_of(root, 1).exists()


def test_E5_pins_and_late_scores_follow_to_the_mirror(root: pathlib.Path, mirror: pathlib.Path) -> None:
    with pawl.CheckpointManager(root, mirrors=[mirror], score_attribute="loss", score_order="max") as m:
        for step in (1, 2, 3):
            m.save(step, state(step), metrics={"loss": step}, wait=True)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert os.readlink(mirror / "best") == "checkpoints/checkpoint_000003"
        m.score(2, {"loss": 9.0})
        m.pin(1)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert os.readlink(mirror / "best") == "checkpoints/checkpoint_000002"
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert there.metrics(2) == {"loss": 9.0}
        assert [info.pinned for info in there.checkpoints()] == [True, False, False]


# -------------------------------------------------------------------- failures


def test_a_failing_mirror_is_told_once_and_tried_again(root: pathlib.Path, mirror: pathlib.Path) -> None:
    m = pawl.CheckpointManager(root, mirrors=[mirror])
    with blocked(mirror):
        m.save(1, state(1), wait=True)
        wait_for_failure(m)
        n_failed = m.mirrors()[0]["n_failed"]
        with pytest.raises(pawl.PawlError):
            m.check_for_errors()
        try:
            m.check_for_errors()
        except pawl.PawlError:  # of another try
            assert m.mirrors()[0]["n_failed"] > n_failed
        m.save(2, state(2), wait=True)
    m.close()  # tries again
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert there.all_steps() == [1, 2]


def test_with_hard_errors_the_next_save_fails(root: pathlib.Path, mirror: pathlib.Path) -> None:
    m = pawl.CheckpointManager(root, mirrors=[mirror], uploads=pawl.Uploads(fail_saves=True))
    with blocked(mirror):
        m.save(1, state(1), wait=True)
        wait_for_failure(m)
        with pytest.raises(pawl.PawlError):
            m.save(2, state(2))
        with pytest.raises(pawl.PawlError):
            m.close()
    assert not (mirror / "latest").exists()


def test_what_makes_no_sense_is_refused_early(root: pathlib.Path, mirror: pathlib.Path, tmp_path: pathlib.Path) -> None:
    for bad, match in (
        ({"mirrors": [root / "inside"]}, "outside"),
        ({"mirrors": [root]}, "outside"),
        ({"mirrors": [mirror, mirror]}, "twice"),
        ({"mirrors": ["gopher://x/y"]}, "unknown kind of store, expected a path, file://path, s3://"),
        ({"mirrors": [""]}, "mirrors"),
        ({"mirrors": 7}, "mirrors"),
        ({"mirrors": [mirror], "num_to_keep": 0}, "in memory .num_to_keep. uploads nothing"),
        ({"mirrors": pawl.Mirror(mirror, keep={"keep": 1})}, "pawl.Retention"),  # type: ignore[arg-type]
        ({"mirrors": pawl.Mirror(mirror, every="auto")}, "expected 1ep, 5it"),
        ({"mirrors": pawl.Mirror(mirror, every="often")}, "often"),
        ({"uploads": pawl.Uploads(delete_local=True)}, "mirror"),
        ({"mirrors": [mirror], "uploads": pawl.Uploads(n_streams=65)}, "64"),
    ):
        with pytest.raises(pawl.UsageError, match=match):
            pawl.CheckpointManager(root, **bad)
    for url in ("ssh://u:canary@host/p", "s3://u:canary@bucket/p", "ssh://u:can/canary@host/p"):
        with pytest.raises(pawl.UsageError) as refused:
            pawl.CheckpointManager(root, mirrors=[url])
        assert "canary" not in str(refused.value)  # P18
    save(tmp_path / "other", range(1, 2))
    save(root, range(1, 2))
    with pytest.raises(pawl.ExistsError, match="another run"):
        pawl.CheckpointManager(root, mirrors=[tmp_path / "other"])


# --------------------------------------------------------------------- restore


def test_R107_R128_R130_R152_a_lost_run_goes_on_from_its_mirror(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(1, 4), mirrors=[mirror])
    with pawl.CheckpointManager(root, read_only=True) as m:
        run_id = m.run_id
    shutil.rmtree(root)
    other = root.with_name("elsewhere")
    with pawl.CheckpointManager(other, mirrors=[mirror], score_attribute="loss") as m:
        assert m.run_id == run_id and m.all_steps() == [1, 2, 3] and m.best_step() == 1
        check(m.restore(), 3)
        check(m.restore(step=2), 2)
        check(m.restore(which="best"), 1)
        assert m.checkpoint().path == mirror / "checkpoints" / "checkpoint_000003"  # it is only there
        assert m.checkpoint().to_dict()["step"] == 3
        live = state(-1)
        m.restore(live)
        assert (live["w"] == 3).all()
        ticket = m.save(4, state(4), metrics={"loss": 0.1}, wait=True)
        assert ticket is not None and ticket.id == 4
    with pawl.CheckpointManager(mirror, read_only=True) as there:
        assert there.all_steps() == [1, 2, 3, 4]
    with pawl.CheckpointManager(root.with_name("fresh")) as m:  # negative control
        assert m.restore() is None


def damage(path: pathlib.Path, how: str) -> None:
    if how == "flip":
        data = bytearray(path.read_bytes())
        data[9000] ^= 1
        path.write_bytes(data)
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-100])
    else:
        path.unlink()


@pytest.mark.parametrize("how", ["flip", "cut", "lose"])
def test_P1_a_damaged_file_is_read_from_the_mirror_and_repaired(
    root: pathlib.Path, mirror: pathlib.Path, how: str
) -> None:
    save(root, range(1, 3), mirrors=[mirror])
    good = pack_of(root, 2).read_bytes()
    damage(pack_of(root, 2), how)
    with pawl.CheckpointManager(root) as m:  # negative control: without mirrors the one before is taken
        assert check(m.restore(), 1).fallbacks
    save(root, range(0), mirrors=[mirror])
    with pawl.CheckpointManager(root, mirrors=[mirror]) as m:
        assert m.verify(2)  # a mirror does not hide what is wrong here
        restored = check(m.restore(), 2)
        assert not restored.fallbacks
        assert restored.report == [f"repaired: checkpoint_000002/{PACK} from {mirror}"]
        assert m.verify() == []
    assert pack_of(root, 2).read_bytes() == good
    assert events(root, "repair")[0]["files"] == [PACK]


def test_a_damaged_manifest_is_read_from_the_mirror(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(1, 3), mirrors=[mirror])
    manifest = root / "checkpoints" / "checkpoint_000002" / "manifest.json"
    with pawl.CheckpointManager(root, mirrors=[mirror]) as m:
        manifest.write_bytes(manifest.read_bytes().replace(b"step", b"stop"))
        check(m.restore(), 2)
        assert m.verify()
    with pawl.CheckpointManager(root, mirrors=[mirror]) as m:
        assert not check(m.restore(), 2).fallbacks


def test_what_only_a_reader_sees_is_not_repaired_by_it(root: pathlib.Path, mirror: pathlib.Path) -> None:
    save(root, range(1, 2), mirrors=[mirror])
    damage(pack_of(root, 1), "flip")
    bad = pack_of(root, 1).read_bytes()
    with pawl.CheckpointManager(root, mirrors=[mirror], read_only=True) as m:
        assert check(m.restore(), 1).report == [f"read elsewhere: checkpoint_000001/{PACK} from {mirror}"]
    assert pack_of(root, 1).read_bytes() == bad


# --------------------------------------------------------------------- buckets


@pytest.fixture(name="server", scope="module", params=["moto", "rgw"])
def started_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with {"moto": moto, "rgw": rgw}[request.param]() as server:
        yield server


@pytest.mark.server
def test_R51_R94_R123_a_run_is_mirrored_to_a_bucket_and_comes_back(
    server: Server, root: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    take_environment(monkeypatch, server.env)
    url = f"{server.url}/mirror"
    save(root, range(1, 4), mirrors=[url], num_to_keep=1)
    assert sorted(p.name for p in (root / "checkpoints").iterdir()) == ["checkpoint_000003"]
    with pawl.CheckpointManager(url, read_only=True) as there:
        assert there.all_steps() == [1, 2, 3] and there.verify() == []
        assert [info.level for info in there.checkpoints()] == ["remote"] * 3
    damage(pack_of(root, 3), "flip")
    with pawl.CheckpointManager(root, mirrors=[url]) as m:
        assert check(m.restore(), 3).report
        check(m.restore(step=1), 1)
    shutil.rmtree(root)
    with pawl.CheckpointManager(root, mirrors=[url]) as m:
        check(m.restore(), 3)
        m.save(4, state(4))
    with pawl.CheckpointManager(url, read_only=True) as there:
        assert there.all_steps() == [1, 2, 3, 4]


# ------------------------------------------------------------------ interruption

UPLOADER = """
import pawl, sys
pawl.CheckpointManager(sys.argv[1], mirrors=[sys.argv[2]], uploads=pawl.Uploads(n_streams=2)).close()
"""


@pytest.fixture(name="fake")
def started_fake(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake()
    take_environment(monkeypatch, keys_for(fake.endpoint))
    yield fake
    fake.close()


class Killer:
    """Kills a process when the server gets its n-th request, which is carried out or not."""

    def __init__(self, nth: int, carried_out: bool) -> None:
        self.left, self.carried_out = nth, carried_out
        self.process: subprocess.Popen[bytes] | None = None
        self.begun = threading.Event()

    def __call__(self, method: str, target: str) -> Answer | None:
        self.begun.wait(HANG_SECONDS)
        self.left -= 1
        if self.left > 0 or self.process is None:
            return None
        self.process.send_signal(signal.SIGKILL)
        return None if self.carried_out else error(500, "InternalError")


def upload_and_kill(fake: Fake, root: pathlib.Path, url: str, nth: int) -> int:
    killer = Killer(nth, carried_out=nth % 2 == 0)
    fake.always = killer
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(sys.path))
    killer.process = subprocess.Popen([sys.executable, "-c", UPLOADER, str(root), url], env=env)
    killer.begun.set()
    status = killer.process.wait(HANG_SECONDS)
    fake.always = lambda method, target: None
    return status


def assert_whole(url: str) -> int:
    """Whatever can be seen there is good."""
    try:
        with pawl.CheckpointManager(url, read_only=True) as there:
            for step in there.all_steps():
                assert there.verify(step) == []
                check(there.restore(step=step), step)
            return len(there.all_steps())
    except pawl.NotFoundError:
        return 0


def test_R94_R144_P2_P15_uploads_killed_at_any_request_go_on_and_nothing_half_is_seen(
    fake: Fake, root: pathlib.Path
) -> None:
    save(root, range(1, 3), packs=pawl.Packs(pack_bytes=65536))
    url = "s3://bucket/whole"
    assert upload_and_kill(fake, root, url, 10_000) == 0  # negative control: nothing is killed
    assert assert_whole(url) == 2
    total = len(fake.requests)
    assert total > 20
    seen = set()
    for nth in [*range(3, total // 2, 4), *range(total // 2, total // 2 + 14, 2)]:
        shutil.rmtree(root / ".pawl" / "mirrors", ignore_errors=True)
        fake.clear()
        url = f"s3://bucket/m{nth}"
        status = upload_and_kill(fake, root, url, nth)
        seen.add(status)
        assert_whole(url)
        pawl.CheckpointManager(root, mirrors=[url]).close()
        assert assert_whole(url) == 2
        with pawl.CheckpointManager(root, read_only=True) as m:
            assert [info.level for info in m.checkpoints()] == ["remote"] * 2
    assert -signal.SIGKILL in seen


def test_R143_a_full_bucket_stops_no_training(fake: Fake, root: pathlib.Path) -> None:
    m = pawl.CheckpointManager(root, mirrors=["s3://bucket/full"], num_to_keep=1)
    full = error(403, "QuotaExceeded")
    fake.always = lambda method, target: full if method == "PUT" and PACK in target else None
    for step in (1, 2):
        m.save(step, state(step), wait=True)
    with pytest.raises(pawl.PawlError):
        m.wait_until_finished(level="remote", timeout=60)
    assert m.all_steps() == [1, 2]
    fake.always = lambda method, target: None
    wait_for_uploads(m)
    m.close()
    assert assert_whole("s3://bucket/full") == 2


def test_a_target_that_is_gone_is_not_taken_for_a_deleted_checkpoint(fake: Fake, root: pathlib.Path) -> None:
    save(root, range(1, 2))
    gone = error(404, "NoSuchBucket")
    for what in ("/", PACK, "manifest.json"):
        fake.always = lambda method, target, what=what: gone if method in ("PUT", "POST") and what in target else None
        with pytest.raises(pawl.StorageError, match="s3://bucket/kept") as caught:
            pawl.copy(root, "s3://bucket/kept/one")
        assert not isinstance(caught.value, pawl.NotFoundError)


def test_P14_an_object_that_was_stored_wrongly_is_found_by_reading_it_back(fake: Fake, root: pathlib.Path) -> None:
    """The server takes every sum and says that all is well, but keeps other bytes: an ETag would not tell."""
    honest = fake.store
    spoilt: list[str] = []
    honestly = threading.Event()

    def store(key: str, body: bytes, headers: dict[str, str], meta: dict[str, str], etag: str) -> Answer:
        if key.endswith(PACK) and not honestly.is_set():
            spoilt.append(key)
            body = body[:6000] + bytes([body[6000] ^ 1]) + body[6001:]
        return honest(key, body, headers, meta, etag)

    fake.store = store  # type: ignore[method-assign]
    m = pawl.CheckpointManager(root, mirrors=["s3://bucket/liar"])
    m.save(1, state(1), wait=True)
    wait_for_failure(m)
    with pytest.raises(pawl.PawlError, match="differ from those sent"):
        m.check_for_errors()
    assert "liar/checkpoints/checkpoint_000001/manifest.json" not in fake.state()
    honestly.set()
    m.close()  # tries again
    assert spoilt and assert_whole("s3://bucket/liar") == 1


def test_P16_close_need_not_wait_and_the_next_process_goes_on(fake: Fake, root: pathlib.Path) -> None:
    slow = pawl.Uploads(leave_uploads=True, bytes_per_second=1)  # the first piece goes at once, the rest takes days
    m = pawl.CheckpointManager(root, mirrors=["s3://bucket/later"], uploads=slow)
    for step in (1, 2, 3):
        m.save(step, state(step), wait=True)
    m.close()
    with pawl.CheckpointManager(root, read_only=True) as m:
        assert "local" in [info.level for info in m.checkpoints()], "it has waited"
    pawl.CheckpointManager(root, mirrors=["s3://bucket/later"]).close()
    assert assert_whole("s3://bucket/later") == 3


@pytest.mark.parametrize("mode", ["snapshot", "ring", "direct"])
def test_R95_P4_unchanged_packs_outlive_the_checkpoint_that_they_are_linked_from(
    mode: Any, tmp_path: pathlib.Path
) -> None:
    """The checkpoint before is deleted as soon as it is mirrored, which may be between the comparison with its packs and
    the links to them: whichever comes first, every save succeeds and is complete."""
    far, n = tmp_path / "far", 40
    frozen = {f"layer{i}": np.random.default_rng(i).integers(0, 255, 100_000, dtype=np.uint8) for i in range(6)}
    options: dict[str, Any] = {"staging": pawl.Staging(mode=mode), "packs": pawl.Packs(pack_bytes=100_000)}  # type: ignore[arg-type]
    uploads = pawl.Uploads(delete_local=True)
    with pawl.CheckpointManager(tmp_path / "run", mirrors=far, uploads=uploads, **options) as m:
        for step in range(1, n + 1):
            m.save(step, frozen | {"head": np.full(1000, step)}, wait=True)
        m.wait_until_finished(level="remote", timeout=HANG_SECONDS)
        assert len(m.mirrors()) == 1 and m.mirrors()[0]["n_done"] == n
    with pawl.CheckpointManager(far, read_only=True) as there:
        assert there.all_steps() == list(range(1, n + 1)) and there.verify() == []
        restored = there.restore(step=n)
        assert restored is not None and (restored.state["layer5"] == frozen["layer5"]).all()
    with pawl.CheckpointManager(tmp_path / "control", **options) as m:
        for step in (1, 2):
            m.save(step, frozen | {"head": np.full(1000, step)}, wait=True)
    assert any(path.stat().st_nlink == 2 for path in (tmp_path / "control").rglob("*.safetensors"))


@pytest.mark.parametrize("place", ["s3:/b/x", "s4://b/x", "/proc/none"])
def test_an_error_about_a_mirror_names_the_place_once(tmp_path: pathlib.Path, place: str) -> None:
    with pytest.raises(pawl.PawlError, match=f"^mirror {place}: ") as caught:
        pawl.CheckpointManager(tmp_path / "run", mirrors=place).save(1, {"a": 1}, wait=True)
    assert str(caught.value).count(f"{place}: ") == 1
