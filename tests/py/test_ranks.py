# SPDX-License-Identifier: Apache-2.0
"""Jobs of several processes: one checkpoint from all of them, and back on any number. Real processes, real torch."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import safetensors
import torch
from ports import free_port
from waiting import HANG_SECONDS

import pawl

pytestmark = pytest.mark.long

WORKER = pathlib.Path(__file__).with_name("ranks_worker.py")


def environment(answers: pathlib.Path) -> dict[str, str]:
    answers.mkdir(exist_ok=True)
    for old in answers.iterdir():
        old.unlink()
    env = dict(os.environ, ANSWERS=str(answers), OMP_NUM_THREADS="1", MASTER_ADDR="127.0.0.1")
    env.update(MASTER_PORT=str(free_port()), PYTHONPATH=os.pathsep.join(sys.path))
    return env


def collect(answers: pathlib.Path, world: int) -> list[dict[str, Any]]:
    return [json.loads((answers / f"{rank}.json").read_text()) for rank in range(world)]


def job(tmp_path: pathlib.Path, world: int, *arguments: str) -> list[dict[str, Any]]:
    """Starts the ranks by their variables alone; their answers."""
    answers = tmp_path / "answers"
    env = environment(answers)
    processes = [
        subprocess.Popen(
            [sys.executable, str(WORKER), *arguments],
            env=dict(env, RANK=str(rank), WORLD_SIZE=str(world), LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world)),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world)
    ]
    outputs = [process.communicate(timeout=HANG_SECONDS)[0] for process in processes]
    for process, output in zip(processes, outputs, strict=True):
        assert process.returncode == 0, "\n".join(outputs)[-4000:] or output
    return collect(answers, world)


def torchrun(tmp_path: pathlib.Path, world: int, *arguments: str) -> list[dict[str, Any]]:
    answers = tmp_path / "answers"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    done = subprocess.run(
        [*command, str(WORKER), *arguments],
        env=environment(answers),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]
    return collect(answers, world)


def test_P11_R147_ranks_save_one_checkpoint_and_get_their_own_back(tmp_path: pathlib.Path) -> None:
    root = str(tmp_path / "run")
    saved = job(tmp_path, 3, "arrays_save", root)
    assert [(a["steps"], a["rank"], a["world"]) for a in saved] == [([3], r, 3) for r in range(3)]
    restored = job(tmp_path, 3, "arrays_restore", root, "strict")
    for rank, answer in enumerate(restored):
        assert answer["step"] == 3 and answer["whole"] and answer["rows"] and answer["report"] == []
        assert answer["place"] == 100 * rank + 7 and answer["loss"] == rank + 0.5
        assert answer["drawn"] == saved[rank]["drawn"]  # the generator continues where it was


def test_R160_another_number_of_ranks_gets_its_boxes_and_is_told_of_values_per_rank(tmp_path: pathlib.Path) -> None:
    root = str(tmp_path / "run")
    job(tmp_path, 3, "arrays_save", root)
    for answer in job(tmp_path, 2, "arrays_restore", root, "drop"):
        assert answer["whole"] and answer["rows"] and answer["place"] == -1 and answer["loss"] == 0.5
        assert [row.split(":")[:2] for row in answer["report"]] == [["dropped", " place"], ["dropped", " rng"]]
    wrapped = job(tmp_path, 4, "arrays_restore", root, "wrap")
    assert [answer["place"] for answer in wrapped] == [7, 107, 207, 7]
    for answer in job(tmp_path, 2, "strict_values", root):
        assert "per rank: place: kept per rank by 3 ranks, this job has 2" in answer["error"]


def test_ranks_see_the_saves_that_they_have_just_begun(tmp_path: pathlib.Path) -> None:
    answers = job(tmp_path, 2, "own_saves", str(tmp_path / "run"))
    assert answers == [{"pinned": pinned, "step": 4, "whole": True} for pinned in (True, None)]


def test_P11_P16_a_run_is_closed_and_opened_again_and_again_without_losing_the_other_ranks_step(
    tmp_path: pathlib.Path,
) -> None:
    """An attempt ends when all have read that they were in it; a restore that fails is made again by a new manager."""
    root = str(tmp_path / "run")
    job(tmp_path, 3, "arrays_save", root)
    for answer in job(tmp_path, 2, "opened_again", root):
        assert ["kept per rank by 3 ranks" in text for text in answer["answers"]] == [True, True, False], answer
        assert answer["answers"][2] == "restored"


def test_R21_R44_R52_R53_the_first_ranks_metrics_count_and_every_ranks_part_is_kept(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    answers = job(tmp_path, 3, "own_parts", str(root))
    assert answers == [{"best": 2, "metrics": {"loss": 1.0}}] * 3
    # R53: every rank has written its own piece, under its own name, into the run's store
    [folder] = (root / "checkpoints").iterdir()
    whole = np.arange(103 * 8, dtype=np.float32).reshape(103, 8)
    for rank, rows in enumerate(np.array_split(whole, 3)):
        own: list[np.ndarray] = []
        for pack in folder.glob(f"rank{rank:05d}-*.safetensors"):
            with safetensors.safe_open(pack, "numpy") as file:
                own += [file.get_tensor(name) for name in file.keys() if "rows" in name]
        assert any((tensor == rows).all() for tensor in own)
    # R44: the process that started them has all of it
    restored = pawl.CheckpointManager(root, read_only=True).restore()
    assert restored is not None
    assert restored.state["part"] == [f"part {rank} of step 2".encode() for rank in range(3)]
    assert (restored.state["rows"] == whole).all()


def test_a_place_that_nothing_was_saved_for_is_an_error_on_many_ranks_too(tmp_path: pathlib.Path) -> None:
    for answer in job(tmp_path, 2, "renamed", str(tmp_path / "run")):
        assert "missing" in answer["error"] and "b" in answer["error"]


def test_R160_one_process_opens_what_many_have_saved(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    job(tmp_path, 3, "arrays_save", str(root))
    tree = pawl.load(root / "latest")
    assert np.array_equal(tree["rows"], np.arange(103 * 8, dtype=np.float32).reshape(103, 8))
    assert np.array_equal(tree["whole"], np.arange(1200 * 300, dtype=np.float32).reshape(1200, 300))
    assert tree["place"] == [7, 107, 207] and tree["loss"] == 0.5 and len(tree["rng"]) == 3
    with pawl.CheckpointManager(root, read_only=True) as manager:
        assert manager.metrics(3) == {"accuracy": 0.5}


@pytest.mark.launcher
def test_R147_torchrun_and_fsdp2_save_in_the_background_and_resume_on_another_number(tmp_path: pathlib.Path) -> None:
    root = str(tmp_path / "run")
    torchrun(tmp_path, 2, "torch_save", root, "fsdp2")
    for answer in torchrun(tmp_path, 3, "torch_restore", root, "fsdp2"):
        assert answer == {"step": 3, "same": True, "class": "DTensor", "optimizer_step": 3.0}


@pytest.mark.parametrize(
    ("kind", "world", "kind_after", "world_after"),
    [("hsdp", 4, "fsdp2", 2), ("fsdp_tp", 4, "tp", 2), ("tp", 2, "plain", 1), ("ddp", 2, "ddp", 1)],
)
def test_R160_other_meshes_read_the_boxes_they_need(
    tmp_path: pathlib.Path, kind: str, world: int, kind_after: str, world_after: int
) -> None:
    root = str(tmp_path / "run")
    job(tmp_path, world, "torch_save", root, kind)
    for answer in job(tmp_path, world_after, "torch_restore", root, kind_after):
        assert answer["step"] == 3 and answer["same"] and answer["optimizer_step"] == 3.0


@pytest.mark.parametrize(
    ("kind", "world", "kind_after", "world_after"),
    [
        ("fsdp2", 2, "fsdp2", 2),
        ("fsdp2", 2, "fsdp2", 3),
        ("tp", 2, "tp", 2),
        ("fsdp_tp", 4, "fsdp_tp", 4),
        ("tp", 2, "fsdp2", 3),
        ("fsdp2", 2, "plain", 1),
    ],
)
def test_R160_an_optimizer_that_has_not_stepped_yet_gets_tensors_laid_out_as_its_parameters(
    tmp_path: pathlib.Path, kind: str, world: int, kind_after: str, world_after: int
) -> None:
    root = str(tmp_path / "run")
    job(tmp_path, world, "cold_save", root, kind)
    for answer in job(tmp_path, world_after, "cold_restore", root, kind_after):
        assert answer["report"] == [] and answer["alike"] and answer["close"], answer
        assert answer["same"] or (kind, world) != (kind_after, world_after)


def test_R160_a_part_of_an_optimizer_that_has_not_stepped_yet(tmp_path: pathlib.Path) -> None:
    root = str(tmp_path / "run")
    job(tmp_path, 2, "cold_save", root, "fsdp2")
    for answer in job(tmp_path, 2, "cold_part", root, "fsdp2"):
        assert answer == {"names": ["exp_avg", "step"], "alike": True}


def test_whole_tensors_are_written_once_by_all_ranks_together(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    job(tmp_path, 4, "arrays_save", str(root))
    packs = [p.stat().st_size for p in sorted((root / "latest").resolve().glob("rank*-00000.safetensors"))]
    payload = 1200 * 300 * 4 + 103 * 8 * 4
    assert len(packs) == 4 and sum(packs) < payload * 1.2 + 4 * 65536
    assert min(packs) > payload / 4 * 0.8  # even shares


def test_fsdp1_sharded_state_dicts(tmp_path: pathlib.Path) -> None:
    for answer in job(tmp_path, 2, "fsdp1", str(tmp_path / "run")):
        assert answer == {"classes": ["ShardedTensor"], "same": True}


def test_P11_several_shards_of_a_tensor_on_one_rank_are_refused_on_all(tmp_path: pathlib.Path) -> None:
    """Through DCP they are saved (test_dcp): the error points there."""
    for answer in job(tmp_path, 2, "several_shards", str(tmp_path / "run")):
        assert answer["steps"] == []
        assert "it has 2 shards on one rank" in answer["error"], answer
        assert "model" in answer["error"] and "pawl.torch.StorageWriter" in answer["error"], answer


def test_ranks_of_a_pipeline_hold_different_layers(tmp_path: pathlib.Path) -> None:
    root = tmp_path / "run"
    assert all(answer["same"] for answer in job(tmp_path, 3, "pipeline", str(root)))
    tree = pawl.load(root / "latest")
    assert sorted(tree) == ["layer0", "layer1", "layer2", "step"]
    assert torch.equal(tree["layer2"], torch.full((4, 3), 2.0))


def test_P11_what_one_rank_cannot_save_fails_everywhere_and_the_next_save_works(tmp_path: pathlib.Path) -> None:
    for rank, answer in enumerate(job(tmp_path, 3, "one_cannot", str(tmp_path / "run"))):
        (step, text), *others = answer["errors"]
        assert step == 2 and not others and answer["steps"] == [1, 3]
        assert "cannot be held in a state" in text and (rank == 1 or "rank 1" in text)


def test_P11_wrong_metrics_of_one_rank_fail_the_save_everywhere(tmp_path: pathlib.Path) -> None:
    says = ["metrics must be a dict", "metrics: expected a name", "1025 metrics"]
    for rank, answer in enumerate(job(tmp_path, 3, "wrong_metrics", str(tmp_path / "run"))):
        assert [step for step, _ in answer["errors"]] == [0, 1, 2] and answer["steps"] == [3]
        for (_, text), words in zip(answer["errors"], says, strict=True):
            assert words in text and (rank == 1 or "rank 1" in text), answer


def test_P11_a_save_that_failed_on_one_rank_is_due_again_on_none(tmp_path: pathlib.Path) -> None:
    first, second = job(tmp_path, 2, "wrong_metrics_and_an_interval", str(tmp_path / "run"))
    assert first == {"due": [3], "errors": [6], "steps": [6]}, first  # not before it has taken part in the next one
    assert second == {"due": [6], "errors": [3], "steps": [6]}, second


def test_P11_a_hook_that_raises_on_one_rank_does_not_keep_it_from_the_save(tmp_path: pathlib.Path) -> None:
    first, second = job(tmp_path, 2, "hook_that_raises", str(tmp_path / "run"))
    assert first == {"raised": [2, 3], "steps": [1, 2]}, first
    assert second == {"raised": [], "steps": [1, 2]}, second


def test_P11_R153_a_signal_to_one_rank_makes_no_save_due(tmp_path: pathlib.Path) -> None:
    for rank, answer in enumerate(job(tmp_path, 2, "signal_to_one", str(tmp_path / "run"))):
        assert answer == {"due": [3, 6], "steps": [3, 6], "preempted": rank == 1}, answer


@pytest.mark.parametrize(
    ("which", "says"),
    [
        ("long", ["'value' is not equal on ranks 0 and 1"] * 3 + ["'value/is' is not equal on ranks 0 and 1"]),
        (
            "kinds",
            [
                "rank 0 has a list of kind 'deque:8', rank 1 a list of kind 'deque:9'",
                "rank 0 has a dict, rank 1 a dict of kind 'counter'",
                "rank 0 has a long bytes of kind 'bytearray', rank 1 a long bytes",
                "rank 0 has a list, rank 1 a list of kind 'set'",
            ],
        ),
    ],
)
def test_P11_values_of_which_only_one_ranks_could_be_kept_are_refused_on_all(
    tmp_path: pathlib.Path, which: str, says: list[str]
) -> None:
    for answer in job(tmp_path, 2, "unlike_values", str(tmp_path / "run"), which):
        assert [row[:2] for row in answer["errors"]] == [[step, "MismatchError"] for step in range(4)], answer
        for (_, _, text), words in zip(answer["errors"], says, strict=True):
            assert words in text and (which == "kinds" or "PerRank" in text), answer
        assert answer["steps"] == [4] and answer["same"]


def test_a_broadcast_function_takes_the_place_of_files_and_decides_what_clocks_would_not(
    tmp_path: pathlib.Path,
) -> None:
    for answer in job(tmp_path, 2, "by_broadcast", str(tmp_path / "run")):
        assert answer == {"due": [True, True, True], "joins": []}


def run_program(tmp_path: pathlib.Path, code: str, world: int) -> None:
    (tmp_path / "train.py").write_text(code)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={world}"]
    done = subprocess.run(
        [*command, "train.py"],
        cwd=tmp_path,
        env=environment(tmp_path / "answers"),
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def first_program(page: str, heading: str) -> str:
    text = (pathlib.Path(__file__).parent.parent.parent / page).read_text()
    section = text.partition(f"\n{heading}\n")[2] if heading else text
    return str(re.findall(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)[0])


def replaced(code: str, old: str, new: str) -> str:
    assert old in code
    return code.replace(old, new)


def test_the_example_of_the_tour_runs_and_goes_on_with_another_number_of_ranks(tmp_path: pathlib.Path) -> None:
    code = replaced(first_program("docs/tutorials/tour.md", "## Many ranks"), "1024", "64")
    for world, end in ((2, 30), (2, 70), (3, 100)):  # each resumes where the one before has saved, and has steps to do
        run_program(tmp_path, replaced(code, " 100):", f" {end}):"), world)
    with pawl.CheckpointManager(tmp_path / "runs" / "ranks", read_only=True) as manager:
        assert manager.all_steps() == [19, 39, 59, 79, 99]


def test_the_example_of_the_page_on_many_ranks_goes_on_with_another_number_of_ranks(tmp_path: pathlib.Path) -> None:
    code = first_program("docs/explanation/multi-rank.md", "")
    code = replaced(code, "init_process_group() ", 'init_process_group("gloo") ')
    code = replaced(code, "Model()", "torch.nn.Linear(64, 64)")
    step = "model(torch.randn(8, 64)).square().mean().backward(); optimizer.step(); optimizer.zero_grad()"
    code = replaced(replaced(code, "        ...\n", f"        {step}\n"), "% 100", "% 10")
    for world, end in ((2, 15), (2, 25), (3, 35)):
        run_program(tmp_path, replaced(code, "10_000", str(end)), world)
    with pawl.CheckpointManager(tmp_path / "runs" / "demo", read_only=True) as manager:
        assert manager.all_steps() == [10, 20, 30]  # the newest three


def test_options_that_ranks_could_not_follow_together_are_refused(tmp_path: pathlib.Path) -> None:
    for options, text in [
        ({"on_busy": "skip"}, "on_busy"),
        ({"num_to_keep": 0}, "num_to_keep"),
        ({"save_interval": "30sec"}, "broadcast"),
        ({"num_to_keep": 1, "score_attribute": "a", "retention": pawl.Retention(strict_score=True)}, "strict_score"),
    ]:
        with pytest.raises(pawl.UsageError, match=text):
            pawl.CheckpointManager(tmp_path / "run", ranks=pawl.Ranks(rank=0, world_size=2), **options)  # type: ignore[arg-type]
    with pytest.raises(pawl.UsageError, match="rank and world_size go together"):
        pawl.CheckpointManager(tmp_path / "run", ranks=pawl.Ranks(rank=0))
    with pytest.raises(pawl.UsageError, match="found 2 of 2"):
        pawl.CheckpointManager(tmp_path / "run", ranks=pawl.Ranks(rank=2, world_size=2))


def test_R76_a_rank_without_a_world_size_is_an_error(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(pawl.UsageError, match="WORLD_SIZE"):
        pawl.CheckpointManager(tmp_path / "run")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_what_ends_a_program_inside_the_broadcast_function_ends_it(
    tmp_path: pathlib.Path, kind: type[BaseException]
) -> None:
    def broadcast(data: bytes) -> bytes:
        raise kind("now")

    with pytest.raises(kind, match="now"):
        pawl.CheckpointManager(tmp_path / "run", ranks=pawl.Ranks(rank=0, world_size=2, broadcast=broadcast))
