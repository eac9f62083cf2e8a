# SPDX-License-Identifier: Apache-2.0
"""Options of CheckpointManager: their groups, their names, sizes and durations as text, and the library's table."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pawl
import pawl.composer
import pawl.train
import pawl.tune
from pawl import _arguments, _names, _options, _pawl

ROOT = Path(__file__).resolve().parents[2]
GROUPS = _options._GROUPS

# What a manager has no keyword for: it opens runs of its own, and counts what it is given.
WITHOUT_KEYWORD = {"root", "single", "maintenance", "retention.n_scores", "n_mirrors"}


def test_each_option_of_the_library_has_a_keyword() -> None:
    page = (ROOT / "docs/reference/options.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([\w.]+)` \| (?!C only)", page, re.MULTILINE))
    keywords = inspect.signature(pawl.CheckpointManager).parameters
    given = {name: row.default for name, row in keywords.items()} | {"root": "mem:"}
    _, _, options = _options.read(given)
    named = set(options)
    for group, kind in GROUPS.items():
        for row in dataclasses.fields(kind):
            keyword = f"{group}.{row.name}"
            named.add(_options._OTHERS.get(keyword, (keyword,))[0])
    assert listed - named == WITHOUT_KEYWORD


def test_the_types_of_the_arguments_name_each_of_them() -> None:
    keywords = set(inspect.signature(pawl.CheckpointManager).parameters)
    assert set(_arguments.Options.__annotations__) == keywords - {"root", "save_interval", "on_busy"}


def test_everyday_options_are_few_and_groups_hold_the_rest() -> None:
    keywords = set(inspect.signature(pawl.CheckpointManager).parameters) - {"root"} - set(GROUPS)
    assert len(keywords) <= 17
    for kind in [*GROUPS.values(), pawl.Mirror]:
        assert kind.__dataclass_params__.frozen


def test_an_option_is_refused_by_its_keyword_or_by_the_library(tmp_path: Path) -> None:
    with pytest.raises(pawl.UsageError, match=r"^packs\.recycle must be a whole number of 0 .*, received -1"):
        pawl.CheckpointManager(tmp_path / "run", packs=pawl.Packs(recycle=-1))
    with pytest.raises(pawl.UsageError, match=r"packs\.recycle: expected 0 to 1000, found 1001"):
        pawl.CheckpointManager(tmp_path / "run", packs=pawl.Packs(recycle=1001))
    with pawl.CheckpointManager(tmp_path / "run", packs=pawl.Packs(recycle=1000)) as opened:
        assert opened.latest_step() is None


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("max_to_keep", "use num_to_keep"),
        ("save_top_k", "use num_to_keep"),
        ("save_total_limit", "use num_to_keep"),
        ("num_checkpoints_to_keep", "use num_to_keep"),
        ("every_n_train_steps", "use save_interval"),
        ("max_checkpoints", "use num_to_keep"),
        ("keep_period", "use retention=pawl.Retention(keep_every=...)"),
        ("step_prefix", "use naming=pawl.Naming(name_template=...)"),
        ("async", "CheckpointManager.save works in the background, and wait=True waits"),
        ("async_save", "CheckpointManager.save works in the background, and wait=True waits"),
        ("enable_async_checkpointing", "CheckpointManager.save works in the background"),
        ("resume", "open the manager, then call restore()"),
        ("monitor", "use score_attribute"),
        ("num_to_kep", "did you mean num_to_keep?"),
        ("keep_last", "retention=pawl.Retention(keep_last=...)"),
        ("keep_lst", "retention=pawl.Retention(keep_last=...)"),
        ("ring_bytes", "staging=pawl.Staging(ring_bytes=...)"),
        ("folder", "use root"),
        ("path", "use root"),
        ("callbacks", "use on_durable (also on_uploaded, on_deleted and on_error)"),
        ("zzz", "expected one of root, num_to_keep, "),
        ("zzz", "read_only, ... and 16 more"),
    ],
)
def test_an_unknown_option_is_answered_with_the_one_that_was_meant(name: str, meant: str) -> None:
    with pytest.raises(TypeError, match=re.escape(meant)) as caught:
        pawl.CheckpointManager("mem:", **{name: 3})  # type: ignore[arg-type]
    assert repr(name) in str(caught.value)


@pytest.mark.parametrize(
    ("function", "name", "says"),
    [
        (pawl.prune, "keep_last", "prune has no option 'keep_last'; it is retention=pawl.Retention(keep_last=...)"),
        (pawl.prune, "max_to_keep", "prune has no option 'max_to_keep'; use num_to_keep"),
        (pawl.prune, "keep_period", "use retention=pawl.Retention(keep_every=...)"),
        (pawl.prune, "dryrun", "did you mean dry_run?"),
        (pawl.prune, "zzz", "expected one of run, num_to_keep, score_attribute, "),
        (pawl.load, "map_location", "load has no option 'map_location'; tensors come back where"),
        (pawl.load, "device", "load has no option 'device'; tensors come back where"),
        (pawl.load, "weights_only", "no code of a checkpoint is ever run"),
        (pawl.load, "ring_bytes", "expected one of path, paths, state, strict, rename, cast"),
        (pawl.save, "async_", "CheckpointManager.save works in the background"),
        (pawl.gc, "dry", "did you mean dry_run?"),
        (pawl.load, "step", "load has no option 'step'; the path names the step: 'RUN@400'"),
        (pawl.load, "id", "the path names the id: 'RUN@id:7'"),
        (pawl.load, "which", "the path names it: 'RUN@best'"),
        (pawl.hold, "step", "hold has no option 'step'; it takes the id; manager.checkpoints() has id and step"),
        (pawl.wait_for_new, "timout", "did you mean timeout?"),
        (pawl.convert, "cast", "convert has no option 'cast'; use dtype"),
        (pawl.convert, "step", "use select='400'"),
    ],
)
def test_an_unknown_option_of_a_function_is_answered_as_well(function: Any, name: str, says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        function("x", **{name: 3})


def test_an_unknown_option_of_save_and_restore_is_answered_as_well() -> None:
    with pawl.CheckpointManager("mem:") as opened:
        with pytest.raises(
            TypeError, match=r"CheckpointManager.save has no option 'async_save'; CheckpointManager.save"
        ):
            opened.save(1, {}, async_save=True)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"CheckpointManager.restore has no option 'stp'; did you mean step\?"):
            opened.restore(stp=1)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"CheckpointManager.save has no option 'blocking'; use wait"):
            opened.save(1, {}, blocking=True)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match=r"CheckpointManager.save has no option 'now'; expected one of step, state"):
            opened.save(1, {}, now=True)  # type: ignore[call-arg]
        assert opened.all_steps() == []


@pytest.mark.parametrize(
    ("method", "name", "says"),
    [
        ("pin", "stp", "CheckpointManager.pin has no option 'stp'; did you mean step?"),
        ("unpin", "stp", "CheckpointManager.unpin has no option 'stp'; did you mean step?"),
        ("delete", "forse", "CheckpointManager.delete has no option 'forse'; did you mean force?"),
        ("checkpoint", "which", "CheckpointManager.checkpoint has no option 'which'; expected one of step, id"),
        ("checkpoints", "bad", "CheckpointManager.checkpoints has no option 'bad'; expected with_bad"),
        ("poll", "wait", "CheckpointManager.poll has no option 'wait'; expected none"),
        ("verify", "ids", "CheckpointManager.verify has no option 'ids'; did you mean id?"),
        ("metrics", "stp", "CheckpointManager.metrics has no option 'stp'; did you mean step?"),
        ("wait_until_finished", "levl", "did you mean level?"),
        ("score", "acc", "CheckpointManager.score has no option 'acc'; write metrics={'acc': 3}"),
        ("save", "loss", "CheckpointManager.save has no option 'loss'; write metrics={'loss': 3}"),
    ],
)
def test_an_unknown_option_of_each_method_is_answered_as_well(method: str, name: str, says: str) -> None:
    with pawl.CheckpointManager("mem:") as opened, pytest.raises(TypeError) as caught:
        getattr(opened, method)(**{name: 3})
    assert says in str(caught.value)


def test_no_message_shows_the_name_of_an_internal_class() -> None:
    with pawl.CheckpointManager("mem:") as opened:
        with pytest.raises(TypeError, match=r"CheckpointManager\.pin\(\) takes from 1 to 2 positional"):
            opened.pin(1, 2)  # type: ignore[misc]
        with pytest.raises(TypeError, match=r"CheckpointManager\.score\(\) missing 1 required"):
            opened.score(1)  # type: ignore[call-arg]


@pytest.mark.parametrize("which", [100, "100", "id:1"])
def test_which_that_is_a_step_or_an_id_is_answered_with_their_options(which: Any) -> None:
    says = f'which must be "latest", "best" or "good", received {which!r}; step=400 selects a step, id=7 an id'
    with pawl.CheckpointManager("mem:") as opened, pytest.raises(pawl.UsageError, match=says):
        opened.restore(which=which)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("wait", "wait_until_finished()"),
        ("load_checkpoint", "restore()"),
        ("latest_checkpoint", "checkpoint()"),
        ("best_model_path", '["best"]'),
        ("reached_preemption", "preempted"),
        ("zzz", None),
    ],
)
def test_a_method_of_another_library_is_answered_with_ours(name: str, use: str | None) -> None:
    with pawl.CheckpointManager("mem:") as opened:
        with pytest.raises(AttributeError) as caught:
            getattr(opened, name)
        assert not hasattr(opened, name)
        says = f"'CheckpointManager' object has no attribute '{name}'"
        assert str(caught.value) == (f"{says}; use {use}" if use else says)
        if use:
            member = use.removesuffix("()")
            assert hasattr(opened, member) or member.startswith("[")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("restore", "load"),
        ("async_save", "CheckpointManager, whose save works in the background"),
        ("ModelCheckpoint", "CheckpointManager"),
        ("zzz", None),
    ],
)
def test_a_function_of_another_library_is_answered_with_ours(name: str, use: str | None) -> None:
    with pytest.raises(AttributeError) as caught:
        getattr(pawl, name)
    says = f"module 'pawl' has no attribute '{name}'"
    assert str(caught.value) == (f"{says}; use {use}" if use else says)


def test_facts_that_a_checkpoint_lacks_are_answered_with_where_they_are() -> None:
    one = pawl.Checkpoint.from_dict({"a": 1})
    for name, use in (("step", "checkpoints(), whose rows have it"), ("load", "to_dict()"), ("state", "to_dict()")):
        with pytest.raises(AttributeError, match=re.escape(f"no attribute '{name}'; use ") + ".*" + re.escape(use)):
            getattr(one, name)
    with pytest.raises(AttributeError, match="no attribute 'zzz'$"):
        getattr(one, "zzz")  # noqa: B009
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(1, {"model": 1})
        restored = manager.restore()
    with pytest.raises(TypeError, match=re.escape("write restored.state['model']")):
        restored["model"]  # type: ignore[index]


def test_each_name_of_another_library_leads_to_one_that_exists() -> None:
    known = set(inspect.signature(pawl.CheckpointManager).parameters)
    known |= set(inspect.signature(pawl.load).parameters) | set(
        inspect.signature(pawl.CheckpointManager.save).parameters
    )
    for other, ours in _names._ELSEWHERE.items():
        assert other not in known and re.split("[= ]", ours)[0] in known, other
        for group, option in re.findall(r"pawl\.(\w+)\((\w+)=", ours):
            assert option in inspect.signature(getattr(pawl, group)).parameters, other
    assert not _names._SAID.keys() & (known | _names._ELSEWHERE.keys())


def test_a_long_list_of_names_is_cut_after_ten_with_a_count() -> None:
    assert _names.listed("abc") == "a, b, c"
    assert _names.listed(range(10)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9"
    assert _names.listed(range(13)) == "0, 1, 2, 3, 4, 5, 6, 7, 8, 9, ... and 3 more"


def test_an_unknown_option_of_a_group_is_answered_as_well() -> None:
    with pytest.raises(TypeError, match=r"Retention has no option 'keep_period'; use keep_every"):
        pawl.Retention(keep_period=3)  # type: ignore[call-arg]
    with pytest.raises(
        TypeError, match=r"Retention has no option 'max_to_keep'; it is num_to_keep of CheckpointManager"
    ):
        pawl.Retention(max_to_keep=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"did you mean ring_bytes\?"):
        pawl.Staging(ring_byte=3)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"it is num_to_keep of CheckpointManager"):
        pawl.Retention(num_to_keep=3)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("10GB", 10**10),
        ("2GiB", 2**31),
        ("2G", 2**31),
        ("0.5MB/s", 500_000),
        ("1 kB", 1000),
        ("17", 17),
        ("0", 0),
        ("10gb", 10**10),
        ("1 mib", 2**20),
    ],
)
def test_sizes_are_text_as_well(text: str, nbytes: int) -> None:
    assert _pawl.parse_bytes(text) == nbytes
    pawl.CheckpointManager("mem:", io=pawl.IO(write_bytes_per_second=text)).close()


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1  kB", "0.5B", "1e30GB", "nanGB", "0x10"])
def test_a_text_that_is_not_a_size_is_refused(text: str) -> None:
    with pytest.raises(pawl.UsageError, match="500MB"):
        pawl.CheckpointManager("mem:", staging=pawl.Staging(arena_bytes=text))


@pytest.mark.parametrize(
    ("text", "seconds"), [("250ms", 0.25), ("90s", 90), ("5min", 300), ("5 min", 300), ("12h", 43200), ("7d", 604800)]
)
def test_durations_are_text_or_timedelta(text: str, seconds: float) -> None:
    assert _pawl.parse_seconds(text) == seconds
    for value in (text, seconds, timedelta(seconds=seconds)):
        pawl.CheckpointManager("mem:", retention=pawl.Retention(keep_seconds=value)).close()


def test_the_optimal_interval_takes_durations() -> None:
    expected = pawl.optimal_interval(30, 86400)
    assert pawl.optimal_interval("30s", "1d") == expected == pawl.optimal_interval(timedelta(seconds=30), 86400.0)
    with pytest.raises(pawl.UsageError, match="mtbf_seconds must be a number of seconds, a timedelta .* 'soon'"):
        pawl.optimal_interval(30, "soon")
    with pytest.raises(pawl.UsageError, match="save_cost_seconds must be .* None"):
        pawl.optimal_interval(None, 1)  # type: ignore[arg-type]


def test_a_url_that_pathlib_has_broken_is_refused_by_each_option(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would be a folder s3: below the working folder."""
    monkeypatch.chdir(tmp_path)
    place = Path("s3://bucket/runs")
    words = {"folder": place, "filename": "a{epoch}.pt", "remote_file_name": None}
    calls: list[Callable[[], object]] = [
        lambda: pawl.CheckpointManager(place),
        lambda: pawl.save({"w": 1}, place / "x.pt"),
        lambda: pawl.convert(place, tmp_path / "x.pt"),
        lambda: pawl.train.RunConfig(storage_path=place),
        lambda: pawl.tune.run(lambda config: None, name="a", local_dir=place),
        lambda: pawl.composer.CheckpointSaver(**words),
        lambda: pawl.composer.CheckpointSaver(remote_file_name=f"{place}/a{{epoch}}.pt"),
    ]
    for call in calls:
        with pytest.raises(pawl.UsageError, match="a URL has two slashes, expected s3://bucket/runs"):
            call()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "s3:").mkdir()
    pawl.save({"w": 1}, "./s3:/x.pt")
    assert (tmp_path / "s3:" / "x.pt").is_file()


def test_a_size_may_be_a_whole_float() -> None:
    pawl.CheckpointManager("mem:", retention=pawl.Retention(max_bytes=10e9), num_to_keep=np.int64(3)).close()
    for wrong in (2.5, float("inf"), float("nan"), -1.0):
        with pytest.raises(pawl.UsageError, match="must be a size of 0 or more"):
            pawl.CheckpointManager("mem:", retention=pawl.Retention(max_bytes=wrong))


def test_an_order_of_scores_without_a_score_is_refused() -> None:
    for order in ("min", ["min"]):
        with pytest.raises(pawl.UsageError, match='score_order="min" needs score_attribute, the name of the metric'):
            pawl.CheckpointManager("mem:", score_order=order)  # type: ignore[arg-type]
    pawl.CheckpointManager("mem:", score_order="max").close()


def test_a_number_as_interval_counts_steps() -> None:
    for interval in (500, "500", "500 steps", np.int64(500)):
        with pawl.CheckpointManager("mem:", save_interval=interval) as opened:
            assert [step for step in range(1, 1501) if opened.save(step, {"n": step})] == [500, 1000, 1500]


@pytest.mark.parametrize("every", ["5min", "300sec", timedelta(minutes=5)])
def test_an_interval_is_also_a_duration(tmp_path: pathlib.Path, every: Any) -> None:
    with pawl.CheckpointManager("mem:", save_interval=every) as opened:
        times = [200.0, 400.0, 500.0, 650.0]
        saved = [opened.save(i, {"n": i}, progress={"total_wct": time}) for i, time in enumerate(times)]
    assert [ticket is not None for ticket in saved] == [False, True, False, True]
    with pawl.CheckpointManager(tmp_path / "run", mirrors=[pawl.Mirror(tmp_path / "away", every=every)]):
        pass


@pytest.mark.parametrize("every", [0, "0", timedelta(0), timedelta(seconds=-1)])
def test_an_interval_of_nothing_is_named_as_it_was_given(every: Any) -> None:
    with pytest.raises(pawl.UsageError, match=re.escape(f"save_interval must be above 0, received {every!r}")):
        pawl.CheckpointManager("mem:", save_interval=every)
    with pytest.raises(pawl.UsageError, match=re.escape(f"mirrors: every must be above 0, received {every!r}")):
        pawl.CheckpointManager("mem:", mirrors=[pawl.Mirror("/tmp/away", every=every)])


@pytest.mark.parametrize("limit", ["10min", 600, timedelta(minutes=10)])
def test_a_timeout_is_a_number_a_text_or_a_timedelta(limit: Any) -> None:
    with pawl.CheckpointManager("mem:") as opened:
        ticket = opened.save(1, {"n": 1})
        ticket.wait(limit)
        opened.before_step(limit)
        opened.wait_until_finished(limit)
        for wrong in ("10 fortnights", "", [], float("nan")):
            with pytest.raises(
                pawl.UsageError, match="timeout must be None, a number of seconds, a timedelta or a text"
            ):
                ticket.wait(wrong)
