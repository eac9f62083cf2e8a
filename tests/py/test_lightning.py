# SPDX-License-Identifier: Apache-2.0
"""pawl.lightning below the real Lightning."""

from __future__ import annotations

import json
import pathlib
import signal
import subprocess
import sys

import pytest
from frameworks import run
from s3_fake import serving

import cli
import pawl

pytestmark = pytest.mark.framework

WORKER = "lightning_worker.py"
STEPS_PER_EPOCH = 6


def test_a_killed_training_goes_on_bit_for_bit(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "kill", expect=-signal.SIGKILL)
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.latest_step() in (STEPS_PER_EPOCH, 2 * STEPS_PER_EPOCH)
        assert manager.verify() == []
        assert manager.metrics(manager.latest_step())["loss"] > 0
    run("lightning", WORKER, tmp_path, "resume")
    assert (tmp_path / "steps").read_text() == "[18, 24]"


def test_a_signal_saves_once_more(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "term")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.all_steps() == [16]


def test_a_second_training_with_the_same_saver_saves_the_step_that_the_first_one_saved(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "twice")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert [(info.id, info.step) for info in manager.checkpoints()] == [(1, 16), (2, 16)]


def test_a_save_has_what_the_module_and_other_callbacks_change_at_the_end_of_an_epoch(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "ends")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        for epoch, info in enumerate(manager.checkpoints(), 1):
            state = manager.restore(id=info.id).state
            assert state["state_dict"]["ends"] == info.metrics["ends"] == epoch
            (stopping,) = [value for name, value in state["callbacks"].items() if name.startswith("EarlyStopping")]
            assert (stopping["wait_count"], stopping["best_score"]) == (epoch - 1, 1)


def test_each_rank_gets_its_own_generators_back(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "ranks")
    (first, fresh), (second, fresh_second) = (json.loads((tmp_path / f"rank-{rank}").read_text()) for rank in range(2))
    assert (first, second) == (fresh, fresh_second)
    assert first != second


def test_a_training_that_fails_releases_the_run(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "fails")  # twice, in one process
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert manager.all_steps() == [6]


def test_a_training_that_fails_saves_once_more_if_it_is_told_to(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "leaves")
    with pawl.CheckpointManager(tmp_path / "run", read_only=True) as manager:
        assert [info.step for info in manager.checkpoints()] == [6, 8]
        restored = manager.restore()
        assert restored is not None and restored.interrupted and restored.state["global_step"] == 8


def test_the_plugin_writes_what_lightning_names(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "plugin")
    names = sorted(path.name for path in tmp_path.iterdir() if path.is_dir())
    kept = [name for name in names if name.startswith("epoch=")]
    assert len(kept) == 1 and {"by_hand.ckpt", "last.ckpt"} <= set(names), names
    for name in [*kept, "by_hand.ckpt", "last.ckpt"]:
        assert pawl.load(tmp_path / name)["pytorch-lightning_version"]


def test_P6_a_checkpoint_stays_if_the_save_that_replaces_it_fails(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "failed")


def test_the_plugin_removes_checkpoints_at_urls(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run("lightning", WORKER, tmp_path, "url", (tmp_path / "saved").as_uri())
    assert [path.name for path in (tmp_path / "saved").iterdir()] == ["2.ckpt"]
    with serving(monkeypatch) as fake:
        run("lightning", WORKER, tmp_path, "url", "s3://bucket/saved")
        assert {key.rpartition("/")[0] for key in fake.objects} == {"saved/2.ckpt"}


def test_R148_R151_a_file_that_lightning_wrote_is_read_and_written_again(tmp_path: pathlib.Path) -> None:
    run("lightning", WORKER, tmp_path, "own")
    file = tmp_path / "last.ckpt"
    assert file.is_file()
    cli.run("verify", file)
    assert "optimizer_states" in cli.run("show", file).stdout
    cli.run("convert", file, tmp_path / "weights.safetensors", "--include", "state_dict/*")
    read, wanted = pawl.load(tmp_path / "weights.safetensors"), pawl.load(file)["state_dict"]
    assert len(read) == len(wanted) and all((read[f"state_dict/{name}"] == wanted[name]).all() for name in wanted)
    cli.run("diff", file, tmp_path / "again.ckpt")
    content = bytearray(file.read_bytes())
    place = content.index(wanted["net.0.weight"].numpy().tobytes())
    content[place] ^= 1
    file.write_bytes(content)
    assert "CRC" in str(cli.run_json("verify", file, status=4))


@pytest.mark.parametrize("module", ["lightning"])
def test_without_the_library_the_error_says_what_to_install(module: str) -> None:
    done = subprocess.run([sys.executable, "-c", f"import pawl.{module}"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and f"pip install 'libpawl[{module}]'" in done.stderr
