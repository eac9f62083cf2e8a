# SPDX-License-Identifier: Apache-2.0
"""Where an experiment of pawl.tune is: synced to a bucket or a folder, lost, found again, begun from; the guide's
programs as they are."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import threading
import types
import urllib.parse
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import s3_fake
from object_env import keys_for, take_environment
from s3_fake import Answer, Fake, Object
from test_tune import descend, ends_of, run, start, steps
from waiting import HANG_SECONDS, wait_until

import pawl
from pawl import _pawl, tune
from pawl.tune import elsewhere, places, ray_clones
from pawl.tune.schedulers import PopulationBasedTraining

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples" / "tune"


@pytest.fixture(name="fake")
def fake_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with contextlib.closing(Fake()) as fake:
        take_environment(monkeypatch, keys_for(fake.endpoint))
        fake.bucket = "my-checkpoints-bucket"
        yield fake


def checkpoints(folder: pathlib.Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*/checkpoint_*"))


def test_R109_R132_nothing_is_copied_where_nothing_was_asked_for(tmp_path: pathlib.Path) -> None:
    for name, config in [("shared", tune.SyncConfig(syncer=None)), ("empty", tune.SyncConfig()), ("none", None)]:
        analysis = run(descend, tmp_path, name=name, config={"x": 1, "steps": 2}, sync_config=config)
        assert checkpoints(tmp_path / name) == ["checkpoint_000001", "checkpoint_000002"]
        assert analysis.best_checkpoint is not None
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "none", "shared"]


@pytest.mark.parametrize("resume", ["AUTO", "REMOTE"])
def test_R111_R128_a_lost_experiment_is_found_where_it_was_synced_to(tmp_path: pathlib.Path, resume: str) -> None:
    there = tmp_path / "there"
    sync = tune.SyncConfig(upload_dir=there)
    space = {"x": tune.grid_search([1, 2]), "steps": 3}
    run(descend, tmp_path / "here", config=space, sync_config=sync, resume="AUTO")
    assert checkpoints(there / "exp") == checkpoints(tmp_path / "here" / "exp") and checkpoints(there / "exp")
    shutil.rmtree(tmp_path / "here")
    found = run(descend, tmp_path / "new", config=space, sync_config=sync, resume=resume)
    assert [(one.status, one.attempts) for one in found.trials] == [("TERMINATED", 1)] * 2  # not run again
    anew = run(descend, tmp_path / "new", name="other", config=space, sync_config=sync, resume="AUTO")
    assert len(anew.trials) == 2  # there was none of that name
    with pytest.raises(pawl.PawlError):
        run(descend, tmp_path / "new", name="third", config=space, sync_config=sync, resume="REMOTE")


@pytest.mark.parametrize("way", ["auto", "command"])
def test_R111_P15_a_fetch_that_was_cut_off_is_no_experiment(tmp_path: pathlib.Path, fake: Fake, way: str) -> None:
    """The next start fetches what is missing; without it nothing is begun over what was there."""
    there = tmp_path / "there"
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches" if way == "auto" else there)
    space = {"x": tune.grid_search([1, 2]), "steps": 3}
    before = run(descend, tmp_path / "here", config=space, sync_config=sync)
    fetch, cut = sync, tmp_path / "cut"
    if way == "auto":
        fake.always = lambda method, target: (
            s3_fake.error(403, "AccessDenied") if method == "GET" and target.endswith("/result.json") else None
        )
    else:
        cut.touch()
        program = "import os, shutil, sys; a, b, cut = sys.argv[1:]; os.makedirs(b, exist_ok=True)"
        program += "; shutil.copy(a + '/experiment.json', b) if os.path.exists(cut) else None"
        program += "; os.path.exists(cut) and sys.exit(1); shutil.copytree(a, b, dirs_exist_ok=True)"
        words = f'{sys.executable} -c "{program}" {{source}} {{target}} {cut}'
        fetch = tune.SyncConfig(upload_dir=there, syncer=words)
    new = tmp_path / "new" / "exp"
    with pytest.raises(pawl.PawlError):
        run(descend, tmp_path / "new", config=space, sync_config=fetch, resume="AUTO")
    assert not new.exists() and not places.is_experiment(str(new))
    fake.always = lambda method, target: None
    cut.unlink(missing_ok=True)
    found = run(descend, tmp_path / "new", config=space, sync_config=fetch, resume="AUTO")
    assert [one.attempts for one in found.trials] == [1, 1]  # not run again
    assert checkpoints(new) == checkpoints(tmp_path / "here" / "exp")
    assert [one.trial_id for one in found.trials] == [one.trial_id for one in before.trials]
    assert not list((tmp_path / "new").glob(".*"))


def test_R107_the_journal_at_the_place_names_only_checkpoints_that_are_there(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    """While the first checkpoint is sent the search writes its second one."""
    exp = tmp_path / "exp"
    (exp / "t" / "checkpoint_000001").mkdir(parents=True)
    (exp / "t" / "checkpoint_000001" / "state").write_text("1")
    (exp / "experiment.json").write_text("{}")
    (exp / "journal").write_text("checkpoint_000001\n")

    def write_another(method: str, target: str) -> None:
        if method == "PUT" and "/checkpoint_000001/" in target and not (exp / "t" / "checkpoint_000002").exists():
            (exp / "t" / "checkpoint_000002").mkdir()
            (exp / "t" / "checkpoint_000002" / "state").write_text("2")
            (exp / "journal").write_text("checkpoint_000001\ncheckpoint_000002\n")

    fake.always = write_another
    with contextlib.closing(pawl.Syncer(exp, tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket"))) as syncer:
        for expected in (["checkpoint_000001"], ["checkpoint_000001", "checkpoint_000002"]):
            syncer.up()
            state = fake.state()
            assert state["exp/journal"].decode().split() == expected
            assert all(f"exp/t/{name}/state" in state for name in expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["exp"]  # no view is left


def test_R107_a_bucket_gets_the_journal_of_a_search_late_and_its_document_last(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    exp = tmp_path / "exp"
    for name in ("experiment.json", "journal", "t/checkpoint_000001/state", "zeta.txt"):
        (exp / name).parent.mkdir(parents=True, exist_ok=True)
        (exp / name).write_text("{}")
    sent: list[str] = []

    def note(method: str, target: str) -> None:
        name = target.partition("/exp/")[2]
        if method == "PUT" and not name.startswith("."):
            sent.append(name)

    fake.always = note
    with contextlib.closing(pawl.Syncer(exp, tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket"))) as syncer:
        syncer.up()
    assert sorted(sent) == ["experiment.json", "journal", "t/checkpoint_000001/state", "zeta.txt"]
    assert sent[-2:] == ["journal", "experiment.json"]


def test_P10_two_searches_of_one_name_are_not_mixed(tmp_path: pathlib.Path) -> None:
    sync = tune.SyncConfig(upload_dir=tmp_path / "there")
    for place in ("one", "two"):
        run(descend, tmp_path / place, config={"x": 1, "steps": 2})
    for where in ("up", "down"):
        with contextlib.closing(pawl.Syncer(tmp_path / "one" / "exp", sync)) as syncer:
            syncer.up()
        with contextlib.closing(pawl.Syncer(tmp_path / "two" / "exp", sync)) as syncer:
            before = (tmp_path / "there" / "exp" / "journal").read_bytes(), _journal(tmp_path / "two" / "exp")
            with pytest.raises(pawl.ExistsError, match=r"experiment\.json is of another search"):
                getattr(syncer, where)()
            assert before == ((tmp_path / "there" / "exp" / "journal").read_bytes(), _journal(tmp_path / "two" / "exp"))


def _journal(folder: pathlib.Path) -> bytes:
    return (folder / "journal").read_bytes()


def test_R107_R134_a_checkpoint_is_brought_away_while_its_trial_still_runs(tmp_path: pathlib.Path) -> None:
    def waits(config: dict[str, Any]) -> None:
        with tune.checkpoint_dir(step=1) as folder:
            pathlib.Path(folder, "state").write_text("x")
        tune.report(loss=1)
        there = pathlib.Path(config["there"], "exp", tune.get_trial_name(), "checkpoint_000001", "state")
        wait_until(there.exists)
        tune.report(loss=0 if there.exists() else 2)

    there = tmp_path / "there"
    sync = tune.SyncConfig(upload_dir=there, sync_period=10_000)
    analysis = run(waits, tmp_path / "here", config={"there": str(there)}, sync_config=sync)
    assert [row["loss"] for row in analysis.results_of(analysis.trials[0])] == [1, 0]


def test_R119_a_function_brings_it_away(tmp_path: pathlib.Path) -> None:
    calls: list[tuple[str, str]] = []

    def copy(source: str, target: str) -> None:
        calls.append((source, target))
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns(".*"))

    sync = tune.SyncConfig(upload_dir=tmp_path / "there", syncer=copy)
    run(descend, tmp_path, config={"x": 1, "steps": 2}, sync_config=sync)
    assert calls and checkpoints(tmp_path / "there" / "exp") == ["checkpoint_000001", "checkpoint_000002"]


@pytest.mark.parametrize("last", ["succeeds", "fails"])
def test_R119_only_a_last_sync_that_fails_is_an_error_of_the_search(
    tmp_path: pathlib.Path, last: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The trial waits until a sync has failed; what counts is how the last one ends."""
    failed = tmp_path / "failed"

    def copy(source: str, target: str) -> None:
        begun = next(iter(pathlib.Path(source).glob("*/checkpoint_000001")), None)
        ended = next(iter(pathlib.Path(source).glob("*/checkpoint_000002")), None)
        if begun is not None and not failed.exists() or ended is not None and last == "fails":
            failed.touch()
            raise RuntimeError("the line is down")
        shutil.copytree(source, target, dirs_exist_ok=True, symlinks=True)

    def waits(config: dict[str, Any]) -> None:
        for step in (1, 2):
            with tune.checkpoint_dir(step=step) as folder:
                pathlib.Path(folder, "state").write_text("x")
            tune.report(loss=1)
            wait_until(pathlib.Path(config["failed"]).exists)

    options: dict[str, Any] = {
        "config": {"failed": str(failed)},
        "sync_config": tune.SyncConfig(upload_dir=tmp_path / "there", syncer=copy, sync_period=10_000),
    }
    if last == "fails":
        with pytest.raises(pawl.StorageError, match="the line is down") as caught:
            run(waits, tmp_path, **options)
        assert any("ExperimentAnalysis" in note for note in caught.value.__notes__)
    else:
        analysis = run(waits, tmp_path, **options)
        assert [one.status for one in analysis.trials] == ["TERMINATED"]
        assert checkpoints(tmp_path / "there" / "exp") == ["checkpoint_000001", "checkpoint_000002"]
    assert [one for one in caplog.records if one.levelname == "WARNING" and "the next sync tries again" in one.message]


# ---- what is kept there


def kept_there(fake: Fake) -> list[str]:
    """Of an experiment with one trial."""
    return sorted({found.group() for key in fake.state() if (found := re.search(r"checkpoint_\d+", key))})


def watch(fake: Fake, also: Callable[[str, str], Answer | None] = lambda method, target: None) -> list[str]:
    """What is wrong at any request: of a trial whose checkpoints are two files each, the newest that was complete there
    goes before a newer one is complete."""
    newest, wrong = [""], list[str]()

    def look(method: str, target: str) -> Answer | None:
        with_a, with_b = (
            {key.rpartition("/")[0] for key in fake.objects if re.search(rf"checkpoint_\d+/{name}$", key)}
            for name in "ab"
        )
        now = max(with_a & with_b, default="")
        if now < newest[0]:
            wrong.append(f"{newest[0]} has gone, {now or 'none'} is there, before {method} {target}")
        newest[0] = max(now, newest[0])
        return also(method, target)

    fake.always = look
    return wrong


def two_files(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
    """Each step ends when there is a gate for it."""
    first = int(pathlib.Path(checkpoint_dir, "a").read_text()) + 1 if checkpoint_dir else 1
    for step in range(first, len(config["losses"]) + 1):
        with tune.checkpoint_dir(step=step) as folder:
            for name in "ab":
                pathlib.Path(folder, name).write_text(str(step))
        tune.report(step=step, loss=config["losses"][step - 1])
        wait_until(pathlib.Path(config["gates"], str(step)).exists)


def opened(gate: pathlib.Path, condition: Callable[[], bool]) -> threading.Thread:
    """Makes a gate when the condition holds."""

    def work() -> None:
        wait_until(condition)
        gate.touch()

    helper = threading.Thread(target=work)
    helper.start()
    return helper


def test_R127_what_is_kept_here_is_kept_in_upload_dir(tmp_path: pathlib.Path, fake: Fake) -> None:
    """After each sync; and no checkpoint is removed there before a newer one is complete there."""
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches", sync_period=10_000)
    wrong = watch(fake)
    best = {1: [1], 2: [1, 2], 3: [2, 3], 4: [2, 4], 5: [2, 4, 5], 6: [2, 4, 6]}  # two, and the newest
    seen: list[list[str]] = []

    def let_on() -> None:
        for step in range(1, 7):
            wait_until(lambda: kept_there(fake) == [f"checkpoint_{n:06d}" for n in best[step]])  # noqa: B023
            seen.append(kept_there(fake))
            (tmp_path / str(step)).touch()

    helper = threading.Thread(target=let_on)
    helper.start()
    config = {"gates": str(tmp_path), "losses": [9, 1, 5, 2, 8, 7]}
    options: dict[str, Any] = {"checkpoint_score_attr": "min-loss", "keep_checkpoints_num": 2}
    run(two_files, tmp_path, config=config, sync_config=sync, **options)
    helper.join()
    assert seen == [[f"checkpoint_{n:06d}" for n in numbers] for numbers in best.values()]
    assert kept_there(fake) == checkpoints(tmp_path / "exp") and not wrong


def test_R127_one_that_goes_here_while_it_is_sent_replaces_none_in_upload_dir(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    """Its first file is being sent when retention removes it here: what was there before stays there until the
    next one is."""
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches", sync_period=10_000)
    stopped: list[bool] = []

    def stop(method: str, target: str) -> None:
        if method == "PUT" and re.search(r"checkpoint_000002/[ab]", target) and not stopped:
            (tmp_path / "2").touch()  # the third one is made, and the second one removed here
            wait_until(lambda: checkpoints(tmp_path / "exp") == ["checkpoint_000003"])
            stopped.append("checkpoint_000001" in "".join(fake.objects))

    wrong = watch(fake, stop)
    helper = opened(tmp_path / "1", lambda: len(kept_there(fake)) == 1)
    (tmp_path / "3").touch()
    run(
        two_files,
        tmp_path,
        config={"gates": str(tmp_path), "losses": [3, 2, 1]},
        sync_config=sync,
        keep_checkpoints_num=1,
    )
    helper.join()
    assert stopped == [True] and not wrong
    assert kept_there(fake) == checkpoints(tmp_path / "exp") == ["checkpoint_000003"]


def test_R127_nothing_is_removed_in_upload_dir_while_newer_ones_do_not_come_there(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches", sync_period=10_000)

    def refuse(method: str, target: str) -> Answer | None:
        return (
            s3_fake.error(403, "AccessDenied")
            if method == "PUT" and re.search(r"checkpoint_00000[3-9]/", target)
            else None
        )

    wrong = watch(fake, refuse)
    for step in (1, 3, 4):
        (tmp_path / str(step)).touch()
    second = ["checkpoint_000002"]

    def is_second_alone() -> bool:
        """After a sync of it: a sync may also send it before the first one, which the next sync removes."""
        journal = fake.state().get("searches/exp/journal", b"")  # sent after the checkpoints that it names
        return kept_there(fake) == second and b"checkpoint_000002" in journal

    helper = opened(tmp_path / "2", is_second_alone)
    options: dict[str, Any] = {"config": {"gates": str(tmp_path), "losses": [4, 3, 2, 1]}, "sync_config": sync}
    with pytest.raises(pawl.AccessError):
        run(two_files, tmp_path, keep_checkpoints_num=1, **options)
    helper.join()
    assert kept_there(fake) == second and checkpoints(tmp_path / "exp") == ["checkpoint_000004"] and not wrong
    fake.always = lambda method, target: None
    run(two_files, tmp_path, keep_checkpoints_num=1, resume="AUTO", **options)
    assert kept_there(fake) == ["checkpoint_000004"]


@pytest.mark.parametrize("lie", ["drops", "cuts"])
def test_no_checkpoint_is_removed_in_upload_dir_that_a_server_has_not_replaced(
    tmp_path: pathlib.Path, fake: Fake, caplog: pytest.LogCaptureFixture, lie: str
) -> None:
    """The server answers that it has stored a file of the newer one, and has not."""
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches", sync_period=10_000)

    def store_badly(method: str, target: str) -> Answer | None:
        if method != "PUT" or not target.endswith("/checkpoint_000002/b"):
            return None
        if lie == "cuts":
            fake.objects[target.removeprefix("/my-checkpoints-bucket/")] = Object(b"", '"x"', {})
        return Answer(200, b"", {"ETag": '"x"'})

    wrong = watch(fake, store_badly)
    (tmp_path / "2").touch()
    helper = opened(tmp_path / "1", lambda: kept_there(fake) == ["checkpoint_000001"])
    options: dict[str, Any] = {"config": {"gates": str(tmp_path), "losses": [2, 1]}, "sync_config": sync}
    run(two_files, tmp_path, keep_checkpoints_num=1, **options)
    helper.join()
    assert kept_there(fake) == ["checkpoint_000001", "checkpoint_000002"] and not wrong
    assert len([one for one in caplog.records if "old checkpoints stay at" in one.message]) == 1
    fake.always = lambda method, target: None
    run(two_files, tmp_path, keep_checkpoints_num=1, resume="AUTO", **options)
    assert kept_there(fake) == ["checkpoint_000002"]
    assert sum(key.endswith(("/a", "/b")) and body == b"2" for key, body in fake.state().items()) == 2


def test_R127_what_is_kept_here_is_kept_at_a_place_of_fsspec(tmp_path: pathlib.Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    place = f"memory://kept-{os.getpid()}"
    sync = tune.SyncConfig(upload_dir=place)
    run(descend, tmp_path, config={"x": 1, "steps": 3}, sync_config=sync, keep_checkpoints_num=1)
    found = fsspec.filesystem("memory").find(f"/kept-{os.getpid()}")
    assert [name.split("/")[-2] for name in found if "/checkpoint_" in name] == ["checkpoint_000003"]


def test_R127_a_place_that_refuses_removals_costs_the_search_nothing(
    tmp_path: pathlib.Path, fake: Fake, caplog: pytest.LogCaptureFixture
) -> None:
    """A bucket whose keys may write and not remove."""
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches")
    for step in (2, 3):
        (tmp_path / str(step)).touch()
    first = ["checkpoint_000001"]
    helper = opened(tmp_path / "1", lambda: kept_there(fake) == first)

    def refuse(method: str, target: str) -> Answer | None:
        return s3_fake.error(403, "AccessDenied") if method == "DELETE" and "/checkpoint_" in target else None

    fake.always = refuse
    config = {"gates": str(tmp_path), "losses": [3, 2, 1]}
    analysis = run(two_files, tmp_path, config=config, sync_config=sync, keep_checkpoints_num=1)
    helper.join()
    assert [one.status for one in analysis.trials] == ["TERMINATED"]
    assert {"checkpoint_000001", "checkpoint_000003"} <= set(kept_there(fake))
    assert len([one for one in caplog.records if "old checkpoints stay at" in one.message]) == 1


def test_R127_what_a_clone_still_reads_is_not_removed_there(tmp_path: pathlib.Path) -> None:
    """On a cluster a clone is a note of where its donor's files are, until it has its own."""
    run(descend, tmp_path, config={"x": 1, "steps": 3}, keep_checkpoints_num=1)
    (trial,) = (one for one in (tmp_path / "exp").iterdir() if one.is_dir())
    sync = tune.SyncConfig(upload_dir=tmp_path / "there")
    for name in ("checkpoint_000001", "checkpoint_000002"):
        (tmp_path / "there" / "exp" / trial.name / name).mkdir(parents=True)
    (tmp_path / "exp" / "clone").mkdir()
    clone = str(tmp_path / "exp" / "clone" / "checkpoint_000001")
    elsewhere.stand_in(clone, elsewhere.place_of(sync, str(tmp_path / "exp"), trial.name, "checkpoint_000001"), sync)
    with contextlib.closing(places._ExperimentSyncer(tmp_path / "exp", sync)) as syncer:
        syncer.up()
        kept = sorted(one.name for one in (tmp_path / "there" / "exp" / trial.name).glob("checkpoint_*"))
        assert kept == ["checkpoint_000001", "checkpoint_000003"]
        shutil.rmtree(clone)
        syncer.up()
    assert checkpoints(tmp_path / "there" / "exp") == [
        "checkpoint_000001",
        "checkpoint_000003",
    ]  # its own, and the kept one


def test_R127_only_what_retention_has_given_up_is_removed_there(tmp_path: pathlib.Path) -> None:
    """Not what is missing here for another reason, nor while something that is kept is missing here."""
    run(descend, tmp_path, config={"x": 1, "steps": 4}, keep_checkpoints_num=2)
    (trial,) = (one for one in (tmp_path / "exp").iterdir() if one.is_dir())

    def gone() -> list[str]:
        found = _pawl.tune_leftovers(str(tmp_path / "exp"))
        assert found is not None
        return [os.path.basename(name) for name in _pawl.tune_leftovers_after(found)]

    assert gone() == ["checkpoint_000001", "checkpoint_000002"]
    (trial / "checkpoint_000001").mkdir()  # it would be sent again
    assert gone() == ["checkpoint_000002"]
    (trial / "checkpoint_000003").rename(tmp_path / "aside")  # by its user, to make room here
    assert gone() == []
    assert _pawl.tune_leftovers(str(tmp_path / "aside")) is None


def test_R131_going_on_by_hand_under_another_name(tmp_path: pathlib.Path) -> None:
    gate = tmp_path / "gate"
    first = start(tmp_path, gate)
    wait_until(lambda: ends_of(tmp_path / "exp") == {1: [1, 2, 3, 4, 5, 6], 2: [1, 2, 3], 3: [1, 2, 3]}, process=first)
    first.kill()
    first.communicate(timeout=HANG_SECONDS)
    with contextlib.closing(pawl.Syncer(tmp_path / "exp", tune.SyncConfig(upload_dir=tmp_path / "there"))) as syncer:
        syncer.up()
    shutil.rmtree(tmp_path / "exp")
    gate.touch()
    space = {"x": tune.grid_search([1, 2, 3]), "gate": str(gate)}
    sync = tune.SyncConfig(upload_dir=tmp_path / "there")
    analysis = run(descend, tmp_path, name="restart", config=space, restore=sync)
    assert [one.config["x"] for one in analysis.trials] == [1, 2, 3]
    assert [one.status for one in analysis.trials] == ["TERMINATED"] * 3
    assert os.path.dirname(analysis.trials[1].logdir) == str(tmp_path / "restart")
    assert [steps(one, analysis)[-1] for one in analysis.trials] == [6, 6, 6]
    assert not list(tmp_path.glob(".*"))  # what was fetched is gone
    with pytest.raises(pawl.NotFoundError, match="found none"):
        empty = tmp_path / "empty"
        empty.mkdir()
        run(descend, tmp_path, name="again", config=space, restore=tune.SyncConfig(upload_dir=empty))


def test_restore_from_a_url_begins_with_its_experiment(tmp_path: pathlib.Path, fake: Fake) -> None:
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches")
    before = run(descend, tmp_path, config={"x": 1, "steps": 3}, sync_config=sync)
    shutil.rmtree(tmp_path / "exp")
    url = "s3://my-checkpoints-bucket/searches/exp"
    after = run(descend, tmp_path, name="restart", config={"x": 1, "steps": 3}, restore=url)
    assert [one.trial_id for one in after.trials] == [one.trial_id for one in before.trials]
    assert steps(after.trials[0], after) == [1, 2, 3]
    assert not list(tmp_path.glob(".*"))  # what was fetched is gone
    with pytest.raises(pawl.NotFoundError, match=f"{url}/none: there is nothing below it"):
        run(descend, tmp_path, name="again", config={"x": 1}, restore=f"{url}/none")


def test_restore_from_a_checkpoint_begins_with_it(tmp_path: pathlib.Path) -> None:
    before = run(descend, tmp_path, name="before", config={"x": 1, "steps": 3}).best_checkpoint
    assert before is not None
    after = run(descend, tmp_path, name="after", config={"x": 1}, restore=before)
    assert steps(after.trials[0], after) == [4, 5, 6]


@pytest.mark.parametrize("way", ["same call", "without restore", "Tuner", "another name"])
def test_R128_trials_of_a_resumed_search_begin_with_its_checkpoint(tmp_path: pathlib.Path, way: str) -> None:
    """The search was interrupted during its first trial. The others had not begun."""
    before = run(descend, tmp_path, name="before", config={"x": 1, "steps": 3}).best_checkpoint
    assert before is not None
    options: dict[str, Any] = {"config": {"x": tune.grid_search([1, 2, 3])}, "max_concurrent_trials": 1}

    def interrupt(trial_id: str, result: dict[str, Any]) -> bool:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(descend, tmp_path, restore=before, stop=interrupt, **options)
    if way == "Tuner":
        tuner = tune.Tuner.restore(tmp_path / "exp", descend, stop=lambda trial_id, result: False)
        tuner._run.verbose = 0
        analysis = tuner.fit()._analysis
    elif way == "another name":
        analysis = run(descend, tmp_path, name="other", restore=tmp_path / "exp", **options)
    else:
        more = {"restore": before} if way == "same call" else {}
        analysis = run(descend, tmp_path, resume="AUTO", **more, **options)
    assert [steps(one, analysis) for one in analysis.trials] == [[4, 5, 6]] * 3


def test_a_place_that_cannot_be_written_to_is_told_before_a_trial_begins(tmp_path: pathlib.Path, fake: Fake) -> None:
    with pytest.raises(pawl.NotFoundError, match="there is no bucket"):
        run(descend, tmp_path, config={"x": 1}, sync_config=tune.SyncConfig(upload_dir="s3://another/path"))
    assert not list(tmp_path.glob("exp/*/params.json"))


@pytest.mark.parametrize("word", [None, False, "PROMPT"])
def test_R128_a_new_experiment_does_not_write_over_one_that_was_synced(
    tmp_path: pathlib.Path, fake: Fake, word: str | bool | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches")
    run(descend, tmp_path / "first", config={"x": 1, "steps": 2}, sync_config=sync)
    before = fake.state()
    monkeypatch.setattr("pawl.tune.places._ask", lambda folder: False)
    with pytest.raises(FileExistsError, match=r'/searches/exp already holds something .* resume="AUTO" continues'):
        run(descend, tmp_path / "second", config={"x": 2, "steps": 2}, sync_config=sync, resume=word)
    assert fake.state() == before and not (tmp_path / "second").exists()
    run(descend, tmp_path / "second", name="other", config={"x": 2, "steps": 2}, sync_config=sync, resume=word)
    monkeypatch.setattr("pawl.tune.places._ask", lambda folder: True)
    found = run(descend, tmp_path / "third", config={"x": 1, "steps": 2}, sync_config=sync, resume="PROMPT")
    assert [one.attempts for one in found.trials] == [1]  # it was fetched, and had ended


def test_a_place_of_rsync_is_not_looked_at(tmp_path: pathlib.Path) -> None:
    assert places.find(str(tmp_path / "exp"), tune.SyncConfig(upload_dir="me@nowhere.invalid:/x"), None) == 0


# ---- clones in a bucket


def sent_and_copied(fake: Fake, word: str) -> tuple[list[str], list[str]]:
    """Keys that were written with a body, and those that the server copied."""
    rows = [
        (row.removeprefix("PUT ").partition("?")[0].partition("/")[2].partition("/")[2], "x-amz-copy-source" in headers)
        for row, headers in zip(fake.requests, fake.headers, strict=True)
        if row.startswith("PUT ") and word in row
    ]
    return [key for key, copied in rows if not copied], [key for key, copied in rows if copied]


def test_R158_files_that_are_links_are_copied_by_the_server(tmp_path: pathlib.Path, fake: Fake) -> None:
    """Of all names that a file has, one is sent, once; also when it came there by an earlier sync. A file that was
    changed since is sent."""
    folder = tmp_path / "s"
    for name in ("a", "b/deep", "c"):
        (folder / name).mkdir(parents=True)
    (folder / "b" / "deep" / "model").write_bytes(os.urandom(1000))
    os.link(folder / "b" / "deep" / "model", folder / "c" / "model")
    with contextlib.closing(pawl.Syncer(folder, remote="s3://my-checkpoints-bucket/s")) as syncer:
        syncer.up()
        (sent,), (copied,) = sent_and_copied(fake, "model")
        assert {sent, copied} == {"s/b/deep/model", "s/c/model"}  # in the order of the folder
        os.link(folder / "c" / "model", folder / "a" / "model")  # sorts before both
        syncer.up()
        assert sent_and_copied(fake, "model") == ([sent], [copied, "s/a/model"])
        when = os.stat(folder / "a" / "model").st_mtime + 1000
        (folder / "a" / "model").write_bytes(b"n" * 1000)  # all of them are this now
        os.utime(folder / "a" / "model", (when, when))
        syncer.up()
    assert {fake.state()[f"s/{name}/model"] for name in ("a", "b/deep", "c")} == {b"n" * 1000}


def test_R158_a_file_that_is_written_to_while_it_is_synced_is_sent_again_before_it_is_linked(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    folder = tmp_path / "s"
    for name in ("a", "b"):
        (folder / name).mkdir(parents=True)
    model = folder / "a" / "model"
    model.write_bytes(b"o" * 1000)
    os.link(model, folder / "b" / "model")
    when = os.stat(model).st_mtime + 1000
    puts: list[str] = []

    def write(method: str, target: str) -> None:
        if method == "PUT" and target.endswith("/model"):
            puts.append(target)
        if len(puts) == 1:  # by both of its names, of the same size
            model.write_bytes(b"n" * 1000)
            os.utime(model, (when, when))

    fake.always = write
    with contextlib.closing(pawl.Syncer(folder, remote="s3://my-checkpoints-bucket/s")) as syncer:
        syncer.up()
        sent, copied = sent_and_copied(fake, "model")
        assert sent in (["s/a/model"] * 2, ["s/b/model"] * 2) and {*sent, *copied} == {"s/a/model", "s/b/model"}
        assert fake.state()["s/a/model"] == fake.state()["s/b/model"] == b"n" * 1000
        syncer.up()
    assert fake.state()["s/a/model"] == fake.state()["s/b/model"] == b"n" * 1000


def test_R158_a_population_whose_search_is_synced_to_a_bucket_sends_no_clone(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches", sync_period=10_000)
    scheduler = PopulationBasedTraining(
        time_attr="training_iteration", perturbation_interval=2, hyperparam_mutations={"x": [1, 2]}, synch=True
    )
    analysis = run(
        descend, tmp_path, config={"x": tune.grid_search([1, 2]), "steps": 4}, scheduler=scheduler, sync_config=sync
    )
    clones = {str(path.relative_to(tmp_path)) for path in (tmp_path / "exp").glob("*/checkpoint_*_of_*/state")}
    assert clones
    sent, copied = ({urllib.parse.unquote(key) for key in keys} for keys in sent_and_copied(fake, "/state"))
    names: dict[int, set[str]] = {}
    for path in (tmp_path / "exp").glob("*/*/state"):
        names.setdefault(path.stat().st_ino, set()).add(f"searches/{path.relative_to(tmp_path)}")
    assert {f"searches/{one}" for one in clones} <= sent | copied
    assert any(len(same) > 1 for same in names.values())
    # of a clone and what it was made of one is sent, whichever the folder has first
    assert all(len(same & sent) <= 1 and len(same & copied) >= len(same) - 1 for same in names.values())
    for one in clones:
        assert fake.state()[f"searches/{one}"] == (tmp_path / one).read_bytes()
    assert all(one.status == "TERMINATED" for one in analysis.trials)


def test_R158_a_folder_is_cloned_where_it_is(tmp_path: pathlib.Path, fake: Fake) -> None:
    for name in ("one/checkpoint_1/model", "one/checkpoint_1/deep/more", "one/other", "two/clone/model"):
        fake.objects[name] = Object(name.encode(), f'"{name}"', {})
    place = "s3://my-checkpoints-bucket"
    for _ in range(2):  # it may be repeated; what was there by that name is made again
        _pawl.clone_folder(f"{place}/one/checkpoint_1", f"{place}/two/clone")
        assert {key: body for key, body in fake.state().items() if key.startswith("two/")} == {
            "two/clone/model": b"one/checkpoint_1/model",
            "two/clone/deep/more": b"one/checkpoint_1/deep/more",
        }
    assert not [row for row in fake.requests if row.startswith("GET ") and "model" in row]
    folder = tmp_path / "one" / "deep"
    folder.mkdir(parents=True)
    (folder / "model").write_text("x")
    _pawl.clone_folder(str(tmp_path / "one"), str(tmp_path / "two" / "clone"))
    assert (tmp_path / "two" / "clone" / "deep" / "model").samefile(folder / "model")
    # Next to it, under a name that begins or ends as its own does; a slash at the end says nothing.
    _pawl.clone_folder(str(tmp_path / "one"), str(tmp_path / "one_more"))
    assert (tmp_path / "one_more" / "deep" / "model").samefile(folder / "model")
    _pawl.clone_folder(str(tmp_path / "one_more"), str(tmp_path / "one_mo"))
    assert (tmp_path / "one_mo" / "deep" / "model").samefile(folder / "model")
    _pawl.clone_folder(f"{place}/one/checkpoint_1/", f"{place}/one/checkpoint_10")
    assert fake.state()["one/checkpoint_10/deep/more"] == b"one/checkpoint_1/deep/more"
    for source, target, error in [
        (f"{place}/none", f"{place}/two", pawl.NotFoundError),
        (f"{place}/one", "s3://another/one", pawl.UnsupportedError),
        (f"{place}/one", str(tmp_path), pawl.UnsupportedError),
        (f"{place}/one", f"{place}/one/in", pawl.UsageError),
        (f"{place}/one/in", f"{place}/one", pawl.UsageError),
        (f"{place}/one", f"{place}/one/", pawl.UsageError),
        ("hdfs://x/a", "hdfs://x/b", pawl.UnsupportedError),
    ]:
        with pytest.raises(error):
            _pawl.clone_folder(source, target)


def test_R158_the_note_of_a_clone_is_the_old_one_or_the_new_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whenever it is killed: what is in the folder next to the note would be taken for the checkpoint itself."""
    for name in ("donor", "place"):
        (tmp_path / name).mkdir()
    (tmp_path / "donor" / "state").write_text("x")
    folder, sync = str(tmp_path / "checkpoint_1"), tune.SyncConfig(upload_dir=tmp_path)
    elsewhere.stand_in(folder, str(tmp_path / "donor"), sync)
    seen = []

    def look(source: str, target: str) -> None:
        seen.append(elsewhere.note_of(folder))
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", look)
    with pytest.raises(KeyboardInterrupt):
        elsewhere.copy(folder, str(tmp_path / "place" / "clone"), sync)
    monkeypatch.undo()
    assert [note and note["place"] for note in [*seen, elsewhere.note_of(folder)]] == [str(tmp_path / "donor")] * 2
    elsewhere.copy(folder, str(tmp_path / "place" / "clone"), sync)
    note = elsewhere.note_of(folder)
    assert note is not None and note["place"] == str(tmp_path / "place" / "clone")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint_1", "donor", "place"]


@pytest.mark.parametrize("fails", [False, True])
def test_R158_P6_a_donor_does_not_start_before_the_clone_has_files_of_its_own(
    tmp_path: pathlib.Path, fake: Fake, fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of trials on a cluster whose checkpoints are in a bucket only. A failed copy is reported, and the clone keeps
    its donor's files."""
    bucket = "s3://my-checkpoints-bucket"
    fake.objects["exp/winner/checkpoint_000002/state"] = Object(b"x", '"x"', {})
    sync = tune.SyncConfig(upload_dir=bucket)
    names = {"winner": "checkpoint_000002", "loser": "checkpoint_000002_of_00000_2", "other": None}
    for trial in ("winner", "loser"):
        (tmp_path / "exp" / trial).mkdir(parents=True)
        elsewhere.stand_in(str(tmp_path / "exp" / trial / names[trial]), f"{bucket}/exp/winner/checkpoint_000002", sync)
    rows = [{"name": name, "checkpoint": checkpoint} for name, checkpoint in names.items()]
    experiment: Any = types.SimpleNamespace(counts=lambda: {"trials": len(rows)}, trial=rows.__getitem__)
    document = {"scheduler": {"type": "pbt"}}
    plan: Any = types.SimpleNamespace(sync=sync, document=document, folder=str(tmp_path / "exp"), local="")
    may_go_on, told, real = threading.Event(), [], _pawl.clone_folder

    def slow(source: str, target: str) -> None:
        assert may_go_on.wait(HANG_SECONDS)
        real(f"{source}-nothing" if fails else source, target)

    monkeypatch.setattr(_pawl, "clone_folder", slow)
    with ThreadPoolExecutor(1) as threads:
        clones = ray_clones.Clones(experiment, plan, threads, lambda number, text: told.append((number, text)))
        clones.look()
        work = clones.wanted("loser")
        assert work is not None and clones.wanted("winner") is work and clones.wanted("other") is None
        may_go_on.set()
        work.result(HANG_SECONDS)
        assert [clones.wanted(name) for name in names] == [None] * 3
        clones.look()  # it is not begun again
        assert clones.wanted("loser") is None
    note = elsewhere.note_of(str(tmp_path / "exp" / "loser" / str(names["loser"])))
    own = f"{bucket}/exp/loser/{names['loser']}"
    assert note is not None and note["place"] == (f"{bucket}/exp/winner/checkpoint_000002" if fails else own)
    assert (f"exp/loser/{names['loser']}/state" in fake.state()) is not fails
    assert [number for number, _ in told] == [1] * fails and all("was not copied" in text for _, text in told)


# ---- the programs of the guide, complete


def program(name: str, folder: pathlib.Path) -> None:
    """Runs one; only /tmp/mypath is another folder."""
    for path in EXAMPLES.glob("*.py"):
        (folder / path.name).write_text(path.read_text().replace("/tmp/mypath", str(folder / "mypath")))
    env = {**os.environ, "HOME": str(folder), "PYTHONPATH": str(pathlib.Path(pawl.__file__).parent.parent)}
    done = subprocess.run(
        [sys.executable, folder / name],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        cwd=folder,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def keys(fake: Fake) -> set[str]:
    return {match[0] for key in fake.objects if (match := re.match(r"path/[^/]+/[^/]+/checkpoint_\d+", key))}


def test_R108_R111_R123_R127_R128_R129_R131_the_programs_of_the_guide_with_a_bucket(
    tmp_path: pathlib.Path, fake: Fake
) -> None:
    """With pawl in the place of ray. The bucket has the experiment and its trial's checkpoints; run again, nothing is done
    again; from the bucket alone another machine continues, under another name."""
    program("cloud.py", tmp_path)
    exp = tmp_path / "mypath" / "my-tune-exp"
    assert "path/my-tune-exp/experiment.json" in fake.objects
    assert len(checkpoints(exp)) == 5  # the best are the newest here
    assert {key.rpartition("/")[2] for key in keys(fake)} >= set(checkpoints(exp))
    lines = [json.loads(line) for line in next(exp.glob("*/result.json")).read_text().splitlines()]
    assert len(lines) == 8 and all("auc" in line for line in lines)
    program("cloud.py", tmp_path)
    assert len(next(exp.glob("*/result.json")).read_text().splitlines()) == 8
    shutil.rmtree(tmp_path / "mypath")
    program("restart.py", tmp_path)
    found = tune.ExperimentAnalysis(tmp_path / "ray_results" / "my-tune-exp-restart")
    assert [(one.status, one.last_result["training_iteration"]) for one in found.trials] == [("TERMINATED", 8)]


def test_R125_R126_R132_the_program_of_the_guide_without_a_bucket(tmp_path: pathlib.Path) -> None:
    program("local.py", tmp_path)
    analysis = tune.ExperimentAnalysis(tmp_path / "mypath" / "my-tune-exp", "auc", "max")
    assert [one.status for one in analysis.trials] == ["TERMINATED"]
    best = analysis.best_checkpoint
    assert best is not None and json.loads(pathlib.Path(best, "state.json").read_text())["step"] == 7


# ---- an experiment that is elsewhere, by its URL


def test_an_experiment_in_a_bucket_is_read_and_continued_by_its_url(
    tmp_path: pathlib.Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read from a copy, which the next one brings up to date; continued in ~/ray_results, and synced to there again."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    url, flag = "s3://my-checkpoints-bucket/searches/exp", tmp_path / "flag"

    def fails(config: dict[str, Any], checkpoint_dir: str | None = None) -> None:
        if config["x"] == 1 and not pathlib.Path(config["flag"]).exists():
            raise RuntimeError("not yet")
        descend({"x": config["x"], "steps": 2}, checkpoint_dir)

    space = {"x": tune.grid_search([1, 2]), "flag": str(flag)}
    sync = tune.SyncConfig(upload_dir="s3://my-checkpoints-bucket/searches")
    run(fails, tmp_path / "first", config=space, sync_config=sync, raise_on_failed_trial=False)
    shutil.rmtree(tmp_path / "first")

    def statuses() -> list[str]:
        return [one.status for one in tune.ExperimentAnalysis(url).trials]

    assert statuses() == ["ERROR", "TERMINATED"]
    best = tune.ExperimentAnalysis(url).best_checkpoint
    assert (
        best is not None and (pathlib.Path(best) / "state").exists() and str(best).startswith(str(tmp_path / "cache"))
    )
    assert tune.Tuner.can_restore(url) and not tune.Tuner.can_restore(url + "2")
    flag.touch()
    for _ in range(2):  # the second time with what is here
        tuner = tune.Tuner.restore(url, fails, resume_errored=True)
        tuner._run.verbose = 0
        grid = tuner.fit()
        assert [one.trial.status for one in grid] == ["TERMINATED"] * 2
        assert grid.experiment_path == str(tmp_path / "home" / "ray_results" / "exp")
    assert statuses() == ["TERMINATED"] * 2
    assert fake.state()["searches/exp/journal"] == (pathlib.Path(grid.experiment_path) / "journal").read_bytes()


def test_places_without_an_experiment_are_named(
    tmp_path: pathlib.Path, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    for url in ("s3://my-checkpoints-bucket/none", f"file://{tmp_path}/none"):
        with pytest.raises(pawl.NotFoundError):
            tune.ExperimentAnalysis(url)
        with pytest.raises(pawl.NotFoundError):
            tune.Tuner.restore(url, descend)
        assert not list((tmp_path / "ray_results").iterdir())
    (tmp_path / "ray_results" / "mine").mkdir()
    (tmp_path / "ray_results" / "mine" / "x").touch()
    with pytest.raises(pawl.ExistsError, match="mine is not an experiment"):
        tune.Tuner.restore("s3://my-checkpoints-bucket/mine", descend)
    with pytest.raises(pawl.UsageError, match="an experiment's own folder below a place"):
        tune.Tuner.restore("s3://my-checkpoints-bucket", descend)
    for place in ("me@nowhere.invalid:exp", "me@nowhere.invalid:/exp"):
        with pytest.raises(pawl.UsageError, match=rf"{place}: expected an experiment's own folder .* user@host:\./exp"):
            tune.Tuner.restore(place, descend)
    (tmp_path / "a:b").mkdir()  # a folder of this machine that has a colon in its name
    monkeypatch.chdir(tmp_path)
    with pytest.raises(pawl.NotFoundError, match="a:b"):
        tune.ExperimentAnalysis("a:b")
