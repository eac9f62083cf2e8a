# SPDX-License-Identifier: Apache-2.0
"""The manager: what it keeps, when it saves, how errors and signals reach the caller."""

from __future__ import annotations

import math
import os
import pathlib
import shutil
import signal
import sys
import time
from typing import Any

import numpy as np
import pytest
import torch
from common import interpreter
from waiting import HANG_SECONDS

import pawl

STATE: dict[str, Any] = {"w": torch.arange(10.0)}


def folders(root: pathlib.Path) -> list[str]:
    return (
        sorted(p.name for p in (root / "checkpoints").glob("checkpoint_*")) if (root / "checkpoints").exists() else []
    )


def fill(manager: pawl.CheckpointManager, scores: list[float], name: str = "a") -> None:
    for step, score in enumerate(scores):
        manager.save(step, STATE, metrics={name: score}, wait=True)


# ---- what is kept ----


def test_R2_without_rules_everything_is_kept(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        fill(manager, [1.0] * 6)
        assert manager.all_steps() == list(range(6))


def test_the_path_of_a_checkpoint_in_memory_has_the_root_too() -> None:
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(1, STATE, wait=True)
        restored = manager.restore()
        assert restored is not None
        assert restored.path == manager.checkpoints()[0].path == "mem:/checkpoints/checkpoint_000001"


def test_R4_R6_R12_the_newest_n_are_kept_under_their_names(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, num_to_keep=2) as manager:
        fill(manager, [1.0] * 5)
    assert folders(tmp_path) == ["checkpoint_000004", "checkpoint_000005"]


def test_R3_num_to_keep_0_writes_nothing_and_keeps_the_newest_in_memory(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, num_to_keep=0, score_attribute="a") as manager:
        for step in range(3):
            ticket = manager.save(step, {"w": torch.full((3,), float(step))}, wait=True)  # no score: no error
            assert ticket is not None
            assert ticket.id == step + 1  # E1: the id advances
            assert ticket.done()
        assert manager.best_step() is None
        restored = manager.restore()
        assert restored is not None
        assert restored.state["w"].tolist() == [2.0] * 3
    assert folders(tmp_path) == []
    assert not list(tmp_path.rglob("*.safetensors"))


@pytest.mark.parametrize("value", [-1, -2, -100, 1.5, "2", True])
def test_R5_other_numbers_to_keep_are_refused(tmp_path: pathlib.Path, value: Any) -> None:
    with pytest.raises(ValueError, match="None or a non-negative integer") as caught:
        pawl.CheckpointManager(tmp_path, num_to_keep=value)
    assert repr(value) in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("order", ["MAX", "", "up", None, 1])
def test_R9_other_orders_are_refused(tmp_path: pathlib.Path, order: Any) -> None:
    with pytest.raises(ValueError) as caught:
        pawl.CheckpointManager(tmp_path, score_attribute="a", score_order=order if isinstance(order, str) else [order])
    assert '"max"' in str(caught.value)
    assert '"min"' in str(caught.value)


@pytest.mark.parametrize(("order", "kept", "best"), [("max", [1, 3], 3), ("min", [2, 4], 2)])
def test_R8_R50_the_best_n_are_kept_by_order(tmp_path: pathlib.Path, order: Any, kept: list[int], best: int) -> None:
    with pawl.CheckpointManager(
        tmp_path,
        num_to_keep=2,
        score_attribute="a",
        score_order=order,
        retention=pawl.Retention(keep_latest=False),
    ) as manager:
        fill(manager, [0.3, 0.7, 0.1, 0.9, 0.2])
        assert manager.all_steps() == kept
        assert manager.best_step() == best


def test_E4_the_latest_is_kept_beside_the_best_unless_told_otherwise(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "a", num_to_keep=1, score_attribute="a") as manager:
        fill(manager, [0.9, 0.1, 0.2])
        assert manager.all_steps() == [0, 2]
    with pawl.CheckpointManager(
        tmp_path / "b", num_to_keep=1, score_attribute="a", retention=pawl.Retention(keep_latest=False)
    ) as manager:
        fill(manager, [0.9, 0.1, 0.2])
        assert manager.all_steps() == [0]


def test_R35_E3_on_a_tie_the_older_one_stays_best(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, score_attribute="a") as manager:
        fill(manager, [0.5, 0.5, 0.5])
        assert manager.best_step() == 0


def test_R33_R34_a_full_list_refuses_a_tie_or_worse_when_strict(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(
        tmp_path, num_to_keep=2, score_attribute="a", retention=pawl.Retention(strict_score=True)
    ) as manager:
        stages, ids = [], []
        for step, score in enumerate([0.5, 0.6, 0.5, 0.4, 0.7]):
            ticket = manager.save(step, STATE, metrics={"a": score}, wait=True)
            assert ticket is not None and ticket.id == ticket.result()
            stages.append(ticket.stage)
            ids.append(ticket.id)
        assert stages == ["settled", "settled", "skipped", "skipped", "settled"]
        assert ids == [1, 2, None, None, 5]
        assert manager.all_steps() == [1, 4]
    assert folders(tmp_path) == ["checkpoint_000002", "checkpoint_000005"]  # R23: numbers have gaps


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("order", ["max", "min"])
def test_R36_R155_E5_scores_that_are_not_finite_are_never_best_and_evict_nothing(
    tmp_path: pathlib.Path, value: float, order: Any
) -> None:
    with pawl.CheckpointManager(tmp_path, num_to_keep=1, score_attribute="a", score_order=order) as manager:
        fill(manager, [value, 0.5, value])
        assert manager.best_step() == 1
        assert manager.all_steps() == [1, 2]
        np.testing.assert_equal(manager.metrics(2)["a"], value)


def test_R27_a_missing_score_is_an_error_before_anything_is_written(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, score_attribute="acc") as manager:
        for metrics in (None, {}, {"loss": 1.0}):
            with pytest.raises(ValueError, match="not saved.*'acc'.*include it in the metrics"):
                manager.save(0, STATE, metrics=metrics)
    assert folders(tmp_path) == []


@pytest.mark.parametrize("value", ["0.5", None, [1], {}, 1j, torch.zeros(2)], ids=repr)
def test_R28_R29_a_score_that_is_no_number_is_an_error_before_anything_is_written(
    tmp_path: pathlib.Path, value: Any
) -> None:
    with (
        pawl.CheckpointManager(tmp_path, score_attribute="acc") as manager,
        pytest.raises(ValueError, match="not saved.*'acc'.*numerical") as caught,
    ):
        manager.save(0, STATE, metrics={"acc": value})
    assert repr(value) in str(caught.value)
    assert folders(tmp_path) == []


def test_R28_any_number_passes(tmp_path: pathlib.Path) -> None:
    from decimal import Decimal
    from fractions import Fraction

    values = [
        1,
        True,
        0.5,
        np.float32(0.25),
        torch.tensor(2.0),
        Fraction(1, 4),
        Decimal("1.5"),
        np.array(3.0),
        10**400,
        -(10**400),
        Fraction(10**400, 3),
        Decimal("-1e999"),
        Decimal("Infinity"),
        np.float64("inf"),
        float("nan"),
    ]
    with pawl.CheckpointManager(tmp_path, score_attribute="a") as manager:
        fill(manager, values)  # type: ignore[arg-type]
        largest = sys.float_info.max
        found = [manager.metrics(s)["a"] for s in range(14)]
        assert found[:8] == [1, 1, 0.5, 0.25, 2, 0.25, 1.5, 3]
        assert found[8:] == [largest, -largest, largest, -largest, math.inf, math.inf]
        assert manager.best_step() == 8  # the earliest of equals; an infinite one is never best (P13)


def test_metrics_that_no_score_needs_may_be_anything_and_numbers_are_kept(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(0, STATE, metrics={"loss": 0.1, "note": "text"}, wait=True)
        assert manager.metrics(0) == {"loss": 0.1}
        with pytest.raises(ValueError, match="expected a name"):
            manager.save(1, STATE, metrics={1: 2.0})  # type: ignore[dict-item]


def test_R155_E5_several_scores_and_late_ones(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, score_attribute=["acc", "loss"], score_order=["max", "min"]) as manager:
        for step, (acc, loss) in enumerate([(0.5, 0.3), (0.5, 0.2), (0.4, 0.1)]):
            manager.save(step, STATE, metrics={"acc": acc, "loss": loss}, wait=True)
        assert manager.best_step() == 1
        manager.score(2, {"acc": 0.9, "loss": 1.0, "late": 7})
        assert manager.best_step() == 2
        assert manager.metrics(2) == {"acc": 0.9, "loss": 1.0, "late": 7}
    with pawl.CheckpointManager(tmp_path, score_attribute=("acc", "loss"), score_order=["max", "min"]) as manager:
        assert manager.best_step() == 2  # E7
    with pytest.raises(ValueError, match="2 score attributes, but 3 score orders"):
        pawl.CheckpointManager(tmp_path, score_attribute=("acc", "loss"), score_order=["max"] * 3)


def test_R141_rules_are_united_and_reasons_given(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(
        tmp_path, retention=pawl.Retention(keep_last=1, keep_best=1, keep_every=4), score_attribute="a"
    ) as manager:
        for step in range(8):
            manager.save(step, STATE, metrics={"a": 10 - abs(step - 2)}, wait=True)
        assert manager.all_steps() == [0, 2, 4, 7]
        assert manager.pin(7) and not manager.pin(7)
        manager.save(9, STATE, metrics={"a": 0}, wait=True)
        assert manager.all_steps() == [0, 2, 4, 7, 9]
        rows = {d.id: d for d in manager.prune(dry_run=True)}
        assert all(d.keep for d in rows.values())
        assert "pinned" in rows[8].reason
        assert manager.unpin(7) and not manager.unpin(7)
        assert [d.id for d in manager.prune(dry_run=True) if not d.keep] == [8]
        assert manager.all_steps() == [0, 2, 4, 7, 9]
        manager.prune()
        assert manager.all_steps() == [0, 2, 4, 9]


def test_deleting_by_step_and_id(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        fill(manager, [1.0, 2.0, 3.0, 4.0])
        manager.delete(1)
        manager.delete(id=1)
        with pytest.raises(pawl.BusyError, match="latest"):
            manager.delete(3)
        manager.pin(2)
        with pytest.raises(pawl.BusyError, match="pinned"):
            manager.delete(2)
        manager.delete(2, force=True)
        manager.delete(3, force=True)
        assert manager.all_steps() == []
        with pytest.raises(pawl.NotFoundError):
            manager.delete(3)
        with pytest.raises(pawl.UsageError, match="a step or an id"):
            manager.pin()


def test_E7_R139_everything_is_read_back_from_the_manifests(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=2, score_attribute="a") as manager:
        fill(manager, [0.1, 0.9, 0.2, 0.3])
        run_id = manager.run_id
    for name in ("latest", "best", "events.jsonl"):
        path = tmp_path / "run" / name
        path.unlink(missing_ok=True)
    shutil.move(tmp_path / "run", tmp_path / "moved")  # R152
    with pawl.CheckpointManager(tmp_path / "moved", num_to_keep=2, score_attribute="a") as manager:
        assert (manager.latest_step(), manager.best_step(), manager.run_id) == (3, 1, run_id)
        ticket = manager.save(4, STATE, metrics={"a": 0.0}, wait=True)
        assert ticket is not None
        assert ticket.id == 5  # E1: ids never repeat
        assert manager.all_steps() == [1, 3, 4]


def test_facts_of_checkpoints(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, score_attribute="a") as manager:
        before = time.time()
        manager.save(7, STATE, metrics={"a": 0.5}, progress={"epoch": 1, "batch": 7, "token": 900}, wait=True)
        (info,) = manager.checkpoints()
    assert (info.id, info.step, info.name, info.score, info.n_tensors, info.latest, info.best) == (
        1,
        7,
        "checkpoint_000001",
        0.5,
        1,
        True,
        True,
    )
    assert before - 1 <= info.time.timestamp() <= time.time() + 1
    assert {k: info.progress[k] for k in ("epoch", "batch", "token")} == {"epoch": 1, "batch": 7, "token": 900}
    assert info.nbytes >= 40
    assert info.path == tmp_path / "checkpoints/checkpoint_000001"


# ---- when to save ----


def test_save_interval_makes_save_free_to_call(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, save_interval="3ba") as manager:
        made = [step for step in range(1, 10) if manager.save(step, STATE)]
        assert made == [3, 6, 9]
        assert manager.save(10, STATE) is None
        assert manager.save(10, STATE, force=True) is not None
        assert manager.should_save(12)
        manager.wait_until_finished()


def test_R91_save_interval_takes_numbers_of_steps_and_functions(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "a", save_interval=2) as manager:
        made = [step for step in range(1, 7) if manager.save(step, STATE, progress={"epoch": 0})]
        assert made == [2, 4, 6]
    with pawl.CheckpointManager(tmp_path / "b", save_interval=lambda step: step in (2, 5)) as manager:
        assert [s for s in range(7) if manager.save(s, STATE)] == [2, 5]


@pytest.mark.parametrize("interval", ["", "x", "-1ep", "0ba", "1 fortnight", True, 1.5, []], ids=repr)
def test_bad_intervals_are_refused(tmp_path: pathlib.Path, interval: Any) -> None:
    with pytest.raises(ValueError):
        pawl.CheckpointManager(tmp_path, save_interval=interval)


def test_time_strings_need_their_counter(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path, save_interval="100tok") as manager:
        with pytest.raises(pawl.UsageError, match="token"):
            manager.save(1, STATE)
        assert manager.save(1, STATE, progress={"token": 100})
        with pytest.raises(pawl.UsageError, match="unknown counter 'tokens'"):
            manager.save(2, STATE, progress={"tokens": 1})


def test_R154_auto_interval_and_young_daly(tmp_path: pathlib.Path) -> None:
    assert pawl.optimal_interval(1.0, 20_000.0) == pytest.approx((2 * 20_000) ** 0.5, rel=0.02)
    with pawl.CheckpointManager(tmp_path, save_interval="auto", timeouts=pawl.Timeouts(mtbf=1e12)) as manager:
        assert manager.save(0, STATE, wait=True)  # the first one measures the cost
        assert manager.save(1, STATE) is None


def test_R153_a_signal_makes_a_save_due_and_tells_the_time_left(tmp_path: pathlib.Path) -> None:
    earlier = signal.getsignal(signal.SIGUSR1)
    with pawl.CheckpointManager(tmp_path, save_interval="1000000ba", timeouts=pawl.Timeouts(grace=3600)) as manager:
        assert not manager.preempted
        assert manager.seconds_left is None
        assert manager.save(1, STATE) is None
        os.kill(os.getpid(), signal.SIGUSR1)
        assert manager.preempted
        assert manager.seconds_left is not None
        assert 0 < manager.seconds_left <= 3600
        with pawl.CheckpointManager(tmp_path / "other", save_interval="1000000ba") as second:
            assert second.preempted  # one watcher for the process
        assert manager.should_save(2)
        assert manager.save(2, STATE, wait=True) is not None
        assert manager.save(3, STATE) is None  # once
        assert manager.preempted
    assert signal.getsignal(signal.SIGUSR1) is earlier
    with pawl.CheckpointManager(tmp_path / "third", signals=False) as manager:
        assert not manager.preempted


def test_R153_a_python_handler_still_runs(tmp_path: pathlib.Path) -> None:
    seen: list[int] = []
    earlier = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        with pawl.CheckpointManager(tmp_path, signals=True) as manager:
            os.kill(os.getpid(), signal.SIGUSR1)
            assert manager.preempted
            assert seen == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, earlier)


def test_R153_a_manager_that_is_dropped_stops_watching_signals(tmp_path: pathlib.Path) -> None:
    program = f"""
import signal
import pawl
dropped = pawl.CheckpointManager({str(tmp_path)!r} + "/dropped", signals=True)
kept = pawl.CheckpointManager({str(tmp_path)!r} + "/kept")
assert not kept.preempted
del dropped
signal.raise_signal(signal.SIGTERM)
assert kept.preempted
print("preempted", flush=True)
del kept
signal.raise_signal(signal.SIGTERM)
print("still alive")
"""
    process = interpreter(program)
    assert process.communicate(timeout=HANG_SECONDS) == ("preempted\n", "")
    assert process.returncode == -signal.SIGTERM


def test_save_on_exception_saves_what_was_given_last(tmp_path: pathlib.Path) -> None:
    for keep, expected in [(True, [5, 7]), (False, [5])]:
        root = tmp_path / str(keep)
        with (
            pytest.raises(KeyError),
            pawl.CheckpointManager(root, save_interval="5ba", save_on_exception=keep) as manager,
        ):
            for step in range(1, 8):
                manager.save(step, {"step": step})
            raise KeyError("mine")
        with pawl.CheckpointManager(root, read_only=True) as manager:
            assert manager.all_steps() == expected


# ---- opening and closing ----


def test_a_second_writer_is_refused(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        manager.save(0, STATE, wait=True)
        with pytest.raises(pawl.BusyError, match="this process has the run open already; close it first"):
            pawl.CheckpointManager(tmp_path)
        with pawl.CheckpointManager(tmp_path, read_only=True) as reader:
            assert reader.all_steps() == [0]
            for write in (lambda: reader.save(1, STATE), lambda: reader.delete(0)):
                with pytest.raises(pawl.ReadOnlyError):
                    write()
            manager.save(1, STATE, wait=True)
            reader.reload()
            assert reader.all_steps() == [0, 1]


def test_R90_a_folder_with_checkpoints_of_another_run_is_refused(tmp_path: pathlib.Path) -> None:
    for name, n in [("a", 2), ("b", 5)]:
        with pawl.CheckpointManager(tmp_path / name) as manager:
            fill(manager, [1.0] * n)
    shutil.copytree(tmp_path / "b/checkpoints/checkpoint_000005", tmp_path / "a/checkpoints/checkpoint_000005")
    with pytest.raises(pawl.ExistsError) as caught:
        pawl.CheckpointManager(tmp_path / "a")
    assert isinstance(caught.value, FileExistsError)
    with pawl.CheckpointManager(tmp_path / "a", overwrite=True) as manager:
        ticket = manager.save(5, STATE, wait=True)
        assert ticket is not None
        assert ticket.id == 6
    with pytest.raises(pawl.PawlError, match="run"):
        pawl.CheckpointManager(tmp_path / "a", naming=pawl.Naming(run_id="0" * 32))


def test_a_closed_manager_says_so_and_closes_twice(tmp_path: pathlib.Path) -> None:
    manager = pawl.CheckpointManager(tmp_path)
    assert repr(manager) == f"CheckpointManager('{tmp_path}')"
    assert manager.root == tmp_path
    assert len(manager.run_id) == 32
    manager.close()
    manager.close()
    assert "closed" in repr(manager)
    with pytest.raises(pawl.UsageError, match="closed"):
        manager.save(0, STATE)
    with pytest.raises(pawl.UsageError, match="closed"):
        manager.all_steps()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"staging": pawl.Staging(mode="fast")}, '"snapshot" or "ring" or "direct"'),
        ({"on_busy": "drop"}, '"wait" or "skip" or "replace"'),
        ({"nonfinite": 1}, '"accept" or "flag" or "refuse"'),
        ({"staging": pawl.Staging(arena_bytes=-1)}, "0 or more"),
        ({"packs": pawl.Packs(block_bytes=12345)}, "block"),
        ({"save_interval": "1parsec"}, "1parsec"),
    ],
)
def test_bad_options_are_named(tmp_path: pathlib.Path, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValueError, match=word):
        pawl.CheckpointManager(tmp_path, **options)


def test_recycling_and_other_names(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(
        tmp_path, num_to_keep=1, packs=pawl.Packs(recycle=1), naming=pawl.Naming(name_template="step{step}-{id:03d}")
    ) as manager:
        for step in range(4):
            manager.save(step, {"w": torch.full((1 << 18,), float(step))}, wait=True)
        restored = manager.restore()
        assert restored is not None
        assert restored.state["w"].eq(3).all()
        assert restored.path.name == "step3-004"


@pytest.mark.parametrize(
    ("template", "good", "bad"), [("{step}-{id}", 5, -5), ("x" * 119 + "_{id}_{step}", 5, 1000000)]
)
def test_a_save_whose_name_no_list_would_show_is_refused(
    tmp_path: pathlib.Path, template: str, good: int, bad: int
) -> None:
    with pawl.CheckpointManager(tmp_path, naming=pawl.Naming(name_template=template)) as manager:
        manager.save(good, {"step": good}, wait=True)
        with pytest.raises(pawl.UsageError, match=f"makes the name '.*{bad}.*' at step {bad}"):
            manager.save(bad, {"step": bad})
        manager.save(good + 1, {"step": good + 1}, wait=True)
        assert manager.all_steps() == [good, good + 1]
    assert len(list((tmp_path / "checkpoints").iterdir())) == 2


def test_steps_are_the_addresses(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "me@home"
    with pawl.CheckpointManager(root, score_attribute="loss", score_order="min") as manager:
        assert bool(manager) and len(manager) == 0
        for step, loss in ((100, 0.5), (200, 0.1), (300, 0.4)):
            manager.save(step, {"step": step}, metrics={"loss": loss}).wait()
        assert len(manager) == 3
        assert "id:1" in manager and "best" in manager and all(one in manager for one in manager)
        assert not any(other in manager for other in (7, -1, 1.5, None, "none", pawl.Checkpoint(tmp_path)))
        assert [pawl.load(found.path or "") for found in manager] == [{"step": 100}, {"step": 200}, {"step": 300}]
        for key, step in ((200, 200), ("300", 300), ("best", 200), ("latest", 300), ("id:1", 100)):
            assert manager[key].to_dict()["step"] == step
        with pytest.raises(pawl.NotFoundError, match=r"no checkpoint has the step 7; there are 100, 200, 300"):
            manager[7]
        with pytest.raises(pawl.NotFoundError, match=r"write id:2"):
            manager.restore(step=2)
    assert pawl.load(f"{root}@200") == pawl.load(f"file://{root}@id:2") == {"step": 200}
    assert pawl.load(root / "checkpoints" / "checkpoint_000001") == {"step": 100}
    assert pawl.Checkpoint(f"{root}@100").path == root / "checkpoints" / "checkpoint_000001"
    with pytest.raises(pawl.NotFoundError, match=r"there are 100, 200, 300"):
        pawl.load(f"{root}@400")
    assert pawl.load(f"{root}@best") == {"step": 200}  # by the score of the last training


def test_a_step_below_zero_is_an_address_and_equal_steps_are_listed_once(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path / "run") as manager:
        for step in (-1, 5, 5):
            manager.save(step, {"step": step}, wait=True)
        with pytest.raises(pawl.NotFoundError, match=r"no checkpoint has the step 7; there are -1, 5$"):
            manager[7]
    assert pawl.load(f"{tmp_path}/run@-1") == {"step": -1}
    with pytest.raises(pawl.NotFoundError, match=r"no checkpoint has the step -2; there are -1, 5$"):
        pawl.load(f"{tmp_path}/run@-2")


def test_load_of_an_address_follows_a_training(tmp_path: pathlib.Path) -> None:
    """What RUN@latest named is deleted between the search and the reading: the newer one is taken."""
    with pawl.CheckpointManager(tmp_path / "run", num_to_keep=1) as manager:
        manager.save(1, {"step": 1}).wait()
        places = []

        def read(run: pawl._pawl.Run) -> object:
            places.append(run.root)
            if len(places) == 1:
                manager.save(2, {"step": 2}).wait()
                raise pawl.NotFoundError("the first one is gone")
            answer = run.restore(None)
            assert answer is not None
            return answer[0]

        assert pawl.checkpoint.look(f"{tmp_path}/run@latest", read) == {"step": 2}
        assert len(places) == 2


def test_a_folder_that_cannot_be_made_is_no_wrong_path(tmp_path: pathlib.Path) -> None:
    """Only a reader gets the hint of a near name: a writer may want a new run."""
    with pytest.raises(pawl.NotFoundError, match="^/proc/rum: make folder: ") as caught:
        pawl.CheckpointManager("/proc/rum/demo")
    assert "did you mean" not in str(caught.value)


def test_a_large_value_in_the_wrong_place_is_named_in_short(tmp_path: pathlib.Path) -> None:
    state = {f"layer{i}": torch.ones(300) for i in range(30)}
    with pawl.CheckpointManager("mem:") as manager:
        with pytest.raises(pawl.UsageError, match=r"^step must be a whole number of 64 bits, received dict of 30$"):
            manager.save(state, 1)  # type: ignore[arg-type]
    with pytest.raises(pawl.UsageError, match=r"path must be a path .*, received dict of 30$"):
        pawl.load(state)  # type: ignore[arg-type]


def test_no_run_is_made_over_the_runs_of_a_folder(tmp_path: pathlib.Path) -> None:
    """It would hide them. So would one that is named like a checkpoint."""
    with pawl.CheckpointManager(tmp_path / "runs/demo") as m:
        m.save(10, {"n": 1}, wait=True)
    with pytest.raises(
        pawl.ExistsError, match="holds runs, such as demo; open one of them, or name a new folder in it"
    ):
        pawl.CheckpointManager(tmp_path / "runs")
    with pytest.raises(pawl.NotFoundError, match="runs: no run and no checkpoint here .*; below it: demo"):
        pawl.load(f"{tmp_path}/runs@10")
    with pytest.raises(pawl.UsageError, match="demo@10 names a checkpoint of the run .*demo; open the run"):
        pawl.CheckpointManager(tmp_path / "runs/demo@10")
    assert [path.name for path in (tmp_path / "runs").iterdir()] == ["demo"]
    pawl.CheckpointManager(tmp_path / "runs/other@1").close()


def test_the_checkpoints_of_a_run_in_memory_are_objects_too(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager("mem:") as manager:
        for step in (1, 2):
            manager.save(step, {"step": step}, metadata={"n": step}, wait=True)
        first = manager[1]
        assert first.path is None and first.to_dict()["step"] == 1 and first.get_metadata() == {"n": 1}
        assert [found.to_dict()["step"] for found in manager] == [1, 2]
        assert pawl.load(first.to_directory(tmp_path / "one")) == {"step": 1}
        assert first in manager and pawl.Checkpoint.from_dict({"step": 1}) not in manager
    with pytest.raises(pawl.UsageError, match="the run is closed"):
        first.to_dict()


def test_a_closed_manager_is_named_and_is_not_entered_again(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        pass
    assert repr(manager) == f"CheckpointManager('{tmp_path}', closed)" and manager.root == tmp_path
    for call in (manager.restore, manager.__enter__, lambda: manager.save(1, STATE)):
        with pytest.raises(pawl.UsageError, match=f"^{tmp_path}: the run is closed; open it again$"):
            call()


def test_a_loop_over_the_manager_may_go_backwards(tmp_path: pathlib.Path) -> None:
    with pawl.CheckpointManager(tmp_path) as manager:
        fill(manager, [1.0, 2.0, 3.0])
        assert [one.path for one in reversed(manager)] == [manager[step].path for step in (2, 1, 0)]
