# SPDX-License-Identifier: Apache-2.0
"""Composer's CheckpointSaver (R59-R103): in loops of one's own, and as a callback of the real Composer."""

from __future__ import annotations

import inspect
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tarfile
import time
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import torch
from composer_venv import composer_python
from s3_fake import take_environment
from s3_servers import Server, environment, moto, tool
from waiting import HANG_SECONDS

import pawl
from pawl import _composer_load
from pawl.composer import BATCH_CHECKPOINT, EPOCH_CHECKPOINT, CheckpointSaver, find_latest, load_checkpoint

HERE = pathlib.Path(__file__).parent
DEFAULTS = {
    "folder": "{run_name}/checkpoints",
    "filename": "ep{epoch}-ba{batch}-rank{rank}.pt",
    "remote_file_name": "{run_name}/checkpoints/ep{epoch}-ba{batch}-rank{rank}.pt",
    "latest_filename": "latest-rank{rank}.pt",
    "latest_remote_file_name": "{run_name}/checkpoints/latest-rank{rank}.pt",
    "save_interval": "1ep",
    "overwrite": False,
    "num_checkpoints_to_keep": -1,
    "weights_only": False,
    "ignore_keys": None,
    "num_concurrent_uploads": 1,
    "upload_timeout_in_seconds": 3600,
}


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> pathlib.Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def state(batch: int = 1) -> dict[str, Any]:
    weights = OrderedDict({"layer1.weights": torch.full((4, 3), float(batch)), "layer1.bias": torch.ones(3)})
    weights["layer2.weights"] = torch.zeros(2, dtype=torch.bfloat16)
    return {
        "state": {"model": weights, "optimizers": {"lr": 0.1}, "rank_zero_seed": 17, "metadata": {"torch": "2"}},
        "rng": [{"python": 3}],
        "batch": batch,
    }


def at(batch: int, epoch: int = 0, **more: Any) -> dict[str, Any]:
    return {"run_name": "run", "epoch": epoch, "batch": batch, **more}


def names(folder: str | os.PathLike[str] = "run/checkpoints") -> list[str]:
    return sorted(one.name for one in pathlib.Path(folder).iterdir() if not one.name.startswith("."))


def train(saver: CheckpointSaver, batches: range, per_epoch: int = 1000, total: int | None = None) -> list[int]:
    """The batches at which something was saved."""
    saved = []
    for batch in batches:
        more = {} if total is None else {"fraction": batch / total}
        if saver.step(at(batch, batch // per_epoch, **more), lambda batch=batch: state(batch)):
            saved.append(batch)
    return saved


def read(path: str | os.PathLike[str]) -> Any:
    return torch.load(path, weights_only=True)


# ------------------------------------------------------------ signature, names


def test_a_run_name_may_be_a_number() -> None:
    with CheckpointSaver(remote_file_name=None, latest_remote_file_name=None, save_interval="1ba") as saver:
        for batch in (1, 2):
            assert saver.step(at(batch, run_name=7), state())
    assert pathlib.Path("7/checkpoints/ep0-ba2-rank0.pt").exists()


def test_R59_R60_R61_R62_R63_R64_R65_R66_R67_R68_R69_R70_R71_signature_and_defaults() -> None:
    parameters = inspect.signature(CheckpointSaver).parameters
    assert {name: one.default for name, one in parameters.items()} == DEFAULTS
    assert list(parameters) == list(DEFAULTS)
    kinds = [one.kind for one in parameters.values()]
    assert kinds == [inspect.Parameter.POSITIONAL_OR_KEYWORD] * 6 + [inspect.Parameter.KEYWORD_ONLY] * 6


def test_R72_several_savers_side_by_side() -> None:
    weights = CheckpointSaver("out", "w-{batch}.pt", latest_filename=None, save_interval="2ba", weights_only=True)
    full = CheckpointSaver("out", "full-{batch}.pt", latest_filename=None, save_interval="5ba")
    assert train(weights, range(1, 7)) == [2, 4, 6] and train(full, range(1, 7)) == [5]
    weights.close()
    full.close()
    assert names("out") == ["full-5.pt", "w-2.pt", "w-4.pt", "w-6.pt"]


def test_R73_R74_R75_every_variable_in_folders_and_files(monkeypatch: pytest.MonkeyPatch) -> None:
    ranks = {"RANK": "0", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0"}
    for name, value in ranks.items():
        monkeypatch.setenv(name, value)
    places = "{run_name}-{rank}-{local_rank}-{world_size}-{local_world_size}-{node_rank}"
    counters = "{epoch:03d}-{batch}-{batch_in_epoch}-{sample}-{sample_in_epoch}-{token}-{token_in_epoch}"
    clocks = "{total_wct:d}-{epoch_wct:d}-{batch_wct:d}"
    name = f"{places}-{counters}-{clocks}"
    progress = at(7, 2, batch_in_epoch=3, sample=70, sample_in_epoch=30, token=700, token_in_epoch=300)
    with CheckpointSaver(places, f"{name}.pt", latest_filename=f"latest-{name}", save_interval="1ba") as saver:
        assert saver.step({**progress, "total_wct": 99.5, "epoch_wct": 9.25, "batch_wct": 1.5}, state)
    found = "run-0-0-4-2-0-002-7-3-70-30-700-300-99-9-1"
    assert names("run-0-0-4-2-0") == sorted([f"{found}.pt", f"latest-{found}"])
    with pytest.raises(pawl.UsageError, match=r"unknown variable \{epcoh\}, known are run_name, rank"):
        CheckpointSaver(filename="{epcoh}.pt").step(at(1), state)
    with pytest.raises(pawl.UsageError, match=r"\{run_name\} has no value"):
        CheckpointSaver().step({"batch": 1}, state)


def test_R77_R84_the_example_of_the_page() -> None:
    saver = CheckpointSaver(filename="ep{epoch}-ba{batch}-rank{rank}", latest_filename="latest-rank{rank}")
    saver.save({"run_name": "awesome-training-run", "epoch": 1, "batch": 42}, state())
    saver.close()
    folder = pathlib.Path("awesome-training-run/checkpoints")
    assert names(folder) == ["ep1-ba42-rank0", "latest-rank0"]
    assert os.readlink(folder / "latest-rank0") == "ep1-ba42-rank0"
    assert read(folder / "ep1-ba42-rank0")["batch"] == 1


def test_R78_only_rank_zero_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (1, 0):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with CheckpointSaver(save_interval="1ba") as saver:
            assert saver.step(at(1), state) == (rank == 0)
        assert pathlib.Path("run").exists() == (rank == 0)
    assert names() == ["ep0-ba1-rank0.pt", "latest-rank0.pt"]


def shards(folder: pathlib.Path, rank: int) -> pathlib.Path:
    """What DeepSpeed leaves for one rank."""
    inner = folder / f"given{rank}"
    (inner / "deepspeed").mkdir(parents=True)
    (inner / "composer_states.pt").write_bytes(b"states" * 1000)
    (inner / "deepspeed" / f"zero_pp_rank_{rank}_optim_states.pt").write_bytes(bytes([rank]) * 5000)
    return inner


def test_R76_R79_R80_R97_R103_a_folder_is_packed_by_every_rank(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "ep{epoch}-ba{batch}-rank{rank}"
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        with CheckpointSaver(filename=name, latest_filename="latest-rank{rank}", save_interval="1ba") as saver:
            saver.step(at(42, 1), shards(tmp_path, rank))
            saver.wait()
            [(_, paths)] = saver.saved_checkpoints
            assert [path.name for path in paths] == ["ep1-ba42-rank0.tar", "ep1-ba42-rank1.tar"]
        with tarfile.open(f"run/checkpoints/latest-rank{rank}.tar") as tar:
            inner = tar.extractfile(f"deepspeed/zero_pp_rank_{rank}_optim_states.pt")
            assert inner is not None and inner.read() == bytes([rank]) * 5000
        assert os.readlink(f"run/checkpoints/latest-rank{rank}.tar") == f"ep1-ba42-rank{rank}.tar"
        with pytest.raises(pawl.UsageError, match=r"expected \{rank\} in the name"):
            CheckpointSaver("b", "x-{batch}").save(at(1), tmp_path / f"given{rank}")
        with pytest.raises(pawl.UsageError, match="weights_only"):
            CheckpointSaver("b", weights_only=True).save(at(1), tmp_path / f"given{rank}")


def test_R76_the_rank_may_be_in_the_name_of_the_folder(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("WORLD_SIZE", "2")
        options: dict[str, Any] = {"filename": "ba{batch}", "latest_filename": "latest", "save_interval": "1ba"}
        with CheckpointSaver("out/{rank}", **options) as saver:
            saver.step(at(42, 1), shards(tmp_path, rank))
            saver.wait()
            [(_, paths)] = saver.saved_checkpoints
            assert [str(path) for path in paths] == ["out/0/ba42.tar", "out/1/ba42.tar"]
        with tarfile.open(f"out/{rank}/latest.tar") as tar:
            assert f"deepspeed/zero_pp_rank_{rank}_optim_states.pt" in tar.getnames()
        with pytest.raises(pawl.UsageError, match=r"expected \{rank\} in the name"):
            remote = f"file://{tmp_path}/there/ba{{batch}}"
            CheckpointSaver("b/{rank}", **options, remote_file_name=remote).save(at(1), tmp_path / f"given{rank}")
    assert names("out/0") == names("out/1") == ["ba42.tar", "latest.tar"]


@pytest.mark.parametrize("suffix", [".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.lzma"])
def test_R81_tar_files_by_suffix(suffix: str, tmp_path: pathlib.Path) -> None:
    with CheckpointSaver("out", f"x{suffix}", latest_filename=None, save_interval="1ba") as saver:
        saver.step(at(1), state)
    with tarfile.open(f"out/x{suffix}") as tar:
        tar.extract("composer_states.pt", tmp_path, filter="data")
    assert read(tmp_path / "composer_states.pt")["batch"] == 1
    assert load_checkpoint(f"out/x{suffix}")["batch"] == 1


TOOLS = {"bz2": "bzip2", "gz": "gzip", "lz4": "lz4", "lzma": "xz", "lzo": "lzop", "xz": "xz", "zst": "zstd"}


@pytest.mark.parametrize("suffix", TOOLS)
def test_R82_compressed_files_by_suffix(suffix: str, tmp_path: pathlib.Path) -> None:
    with CheckpointSaver("out", f"x.pt.{suffix}", latest_filename=None, save_interval="1ba") as saver:
        saver.step(at(1), state)
    command = [TOOLS[suffix], "-dc", f"out/x.pt.{suffix}"]  # tools/install-deps.sh has them all
    (tmp_path / "plain.pt").write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    assert read(tmp_path / "plain.pt")["batch"] == 1
    assert load_checkpoint(f"out/x.pt.{suffix}")["batch"] == 1


def test_R83_nothing_is_compressed_by_default() -> None:
    with CheckpointSaver(save_interval="1ba") as saver:
        saver.step(at(1), state)
    assert pathlib.Path("run/checkpoints/ep0-ba1-rank0.pt").read_bytes()[:2] == b"PK"


# -------------------------------------------------------------- when, conflicts


def test_R88_E12_latest_leads_to_the_last_one_and_none_disables_it() -> None:
    with CheckpointSaver(save_interval="1ba") as saver:
        for batch in (1, 2):
            saver.step(at(batch), state(batch))
            saver.wait()
            link = pathlib.Path("run/checkpoints/latest-rank0.pt")
            assert link.is_symlink() and read(link)["batch"] == batch
    assert find_latest("run") == os.path.realpath("run/checkpoints/ep0-ba2-rank0.pt")
    with CheckpointSaver("other", latest_filename=None, save_interval="1ba") as saver:
        saver.step(at(1), state)
    assert names("other") == ["ep0-ba1-rank0.pt"] and find_latest("run", folder="other") is None


def test_R90_E7_later_checkpoints_conflict_unless_they_may_be_overwritten() -> None:
    with CheckpointSaver(save_interval="10ba") as saver:
        assert train(saver, range(1, 31)) == [10, 20, 30]
    with pytest.raises(pawl.ExistsError, match=r"ep0-ba30-rank0.pt may conflict .* overwrite=True"):
        CheckpointSaver(save_interval="10ba").step(at(21), state)
    with CheckpointSaver(save_interval="10ba") as saver:  # the run continues
        assert train(saver, range(31, 41)) == [40]
        saver.wait()
        assert [one["batch"] for one, _ in saver.saved_checkpoints] == [10, 20, 30, 40]
    with CheckpointSaver(save_interval="10ba", overwrite=True) as saver:
        assert train(saver, range(1, 11)) == [10]


class Time:
    """As Composer's, as far as it is asked."""

    def __init__(self, text: str) -> None:
        self.text = text

    def to_timestring(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("interval", "expected"),
    [
        ("10ba", [10, 20, 30]),
        (1, [8, 16, 24, 30]),
        ("2ep", [16, 30]),
        (Time("10ba"), [10, 20, 30]),
        ("0.5dur", [15, 30]),
        (lambda progress, event: progress["batch"] in (3, 4), [3, 4]),
        (lambda progress, event: event == EPOCH_CHECKPOINT, [8, 16, 24]),
        (lambda progress, event: event == BATCH_CHECKPOINT and progress["batch"] < 3, [1, 2]),
    ],
)
def test_R91_R92_R93_intervals(interval: Any, expected: list[int]) -> None:
    with CheckpointSaver(save_interval=interval) as saver:
        assert train(saver, range(1, 31), per_epoch=8, total=30) == expected
        saver.wait()
        assert [one["batch"] for one, _ in saver.saved_checkpoints] == expected


def test_R93_a_run_that_continues_within_an_epoch_has_not_ended_one() -> None:
    with CheckpointSaver(save_interval=lambda progress, event: event == EPOCH_CHECKPOINT) as saver:
        assert train(saver, range(25, 42), per_epoch=8) == [32, 40]


def test_R91_other_intervals_are_refused() -> None:
    for bad in (True, 1.5, None):
        with pytest.raises(pawl.UsageError, match="save_interval must be a Time, a time string"):
            CheckpointSaver(save_interval=bad)
    for bad in ("auto", "1ba,auto", "1fortnight"):
        with pytest.raises(
            pawl.UsageError, match=r'interval "(auto|1fortnight)": expected 1ep, .*, 0\.25dur or first$'
        ):
            CheckpointSaver(save_interval=bad)


@pytest.mark.parametrize("interval", ["2it", "2iter", Time("2iter")])
def test_R91_iterations(interval: Any) -> None:
    with CheckpointSaver(save_interval=interval) as saver:
        due = [batch for batch in range(1, 20) if saver.step(at(batch, iteration=batch // 3), state)]
    assert due == [6, 12, 18]


COUNTERS = ("epoch", "batch", "batch_in_epoch", "sample", "sample_in_epoch", "token", "token_in_epoch")


@pytest.mark.parametrize("counter", [*COUNTERS, "total_wct", "epoch_wct", "batch_wct"])
def test_R73_a_counter_in_the_folder_is_refused(counter: str) -> None:
    template = f"{{run_name}}/{{{counter}}}"
    with pytest.raises(pawl.UsageError, match=rf"folder .*\{{{counter}\}} changes during the training"):
        CheckpointSaver(template)
    with pytest.raises(pawl.UsageError, match=rf"folder .*\{{{counter}\}} changes during the training"):
        find_latest("run", folder=template)


@pytest.mark.parametrize("option", ["filename", "latest_filename", "remote_file_name", "latest_remote_file_name"])
@pytest.mark.parametrize("bad", ["foo.pt.br", "{epcoh}.pt", "../foo.pt", "{step}.pt"])
def test_R73_R82_names_that_cannot_be_written_are_refused_when_the_saver_is_made(option: str, bad: str) -> None:
    for unused in ("remote_file_name", "latest_filename"):  # they make other names useless
        with pytest.raises(pawl.UsageError):
            CheckpointSaver(**{unused: None, option: bad})
    assert list(pathlib.Path().iterdir()) == []


def test_a_remote_name_that_is_not_used_needs_no_run_name() -> None:
    with CheckpointSaver("out", "x.pt", None, None, save_interval="1ba") as saver:
        assert saver.step({"batch": 1}, state)
    assert names("out") == ["x.pt"]


@pytest.mark.parametrize("option", ["remote_file_name", "latest_remote_file_name"])
@pytest.mark.parametrize("bucket", ["{run_name}", "{epcoh}", "team-{rank}"])
def test_R85_a_variable_in_the_bucket_is_refused_when_the_saver_is_made(option: str, bucket: str) -> None:
    with pytest.raises(pawl.UsageError, match="expected variables only after the bucket"):
        CheckpointSaver(**{option: f"s3://{bucket}/x.pt"})


def test_R73_an_unknown_variable_is_refused_with_those_that_the_name_may_have() -> None:
    places = "run_name, rank, local_rank, world_size, local_world_size, node_rank"
    with pytest.raises(pawl.UsageError, match=rf"\{{epcoh\}}, known are {places}, epoch, .*, batch_wct$"):
        CheckpointSaver(filename="{epcoh}.pt")
    for refused in (lambda: CheckpointSaver("{epcoh}"), lambda: load_checkpoint("{epcoh}.pt")):
        with pytest.raises(pawl.UsageError, match=rf"\{{epcoh\}}, known are {places}$"):
            refused()


def test_R85_a_url_of_an_unknown_store_is_refused_when_the_saver_is_made() -> None:
    for option in ("remote_file_name", "latest_remote_file_name"):
        with pytest.raises(pawl.UsageError, match=f"{option}: expected a URL of .*s3.*, received 'xyz://b/ep'"):
            CheckpointSaver(**{option: "xyz://b/ep"})


@pytest.mark.parametrize("option", ["filename", "latest_filename", "remote_file_name"])
@pytest.mark.parametrize(
    "suffix",
    [".tar.xz", ".tar.zst", ".gz", ".ckpt.lz4", ".planes", ".npy", ".pt.br", ".br", ".7z", ".zip", ".PT.GZ", ".TGZ"],
)
def test_R82_a_suffix_that_the_saver_does_not_write_is_refused_with_the_known_ones(option: str, suffix: str) -> None:
    with pytest.raises(pawl.UsageError, match=r"\.pth.*\.zst.*\.tar\.lzma"):
        CheckpointSaver(**{option: "ep{epoch}" + suffix})
    assert list(pathlib.Path().iterdir()) == []


@pytest.mark.parametrize(
    "name", ["ep{epoch}-ba{batch}", "ep{epoch}.ckpt", "{batch}.pt.gz", "{batch}.tgz", "{batch}.pth.xz"]
)
def test_R82_every_name_that_the_saver_takes_is_read_back(name: str) -> None:
    with CheckpointSaver(filename=name, remote_file_name=None) as saver:
        saver.save(at(1), {"state": state()})
    assert load_checkpoint(saver.saved_checkpoints[-1][1][0])["state"]["batch"] == 1


def test_R102_the_list_has_a_checkpoint_right_after_its_save() -> None:
    with CheckpointSaver(save_interval="1ba") as saver:
        for batch in range(1, 6):
            saver.step(at(batch), state)
            progress, paths = saver.saved_checkpoints[-1]
            assert progress["batch"] == batch and read(paths[0])["batch"] == 1


def test_R78_a_shard_is_refused_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        shard = pawl.Shard(torch.ones(2), (4,), (2 * rank,))
        with (
            CheckpointSaver(save_interval="1ba") as saver,
            pytest.raises(pawl.UnsupportedError, match="'model' is a shard"),
        ):
            saver.step(at(1), {"model": shard})
    assert names() == []


# ----------------------------------------------------------------- what is saved


def saved(**options: Any) -> Any:
    with CheckpointSaver("one", "x.pt", latest_filename=None, overwrite=True, **options) as saver:
        saver.save(at(1), state)
    return read("one/x.pt")


def test_R97_weights_only() -> None:
    assert saved(weights_only=True).keys() == {"state"}
    assert saved(weights_only=True)["state"].keys() == {"model", "metadata"}
    assert saved()["state"].keys() == state()["state"].keys()


def test_R98_R99_R100_paths_are_left_out() -> None:
    exact = saved(ignore_keys=["state/model/layer1.weights", "state/model/layer1.bias"])
    assert exact["state"]["model"].keys() == {"layer2.weights"}
    assert saved(ignore_keys=["state/model/*"])["state"]["model"] == {}
    assert "model" not in saved(ignore_keys=["state/model"])["state"]
    assert saved(ignore_keys=["state/model/layer*.weights"])["state"]["model"].keys() == {"layer1.bias"}
    random = saved(ignore_keys=["state/rank_zero_seed", "rng"])
    assert "rng" not in random and "rank_zero_seed" not in random["state"]


def test_R101_a_function_changes_the_state_that_is_saved_and_not_the_live_one() -> None:
    live = state()

    def change(tree: dict[str, Any]) -> None:
        del tree["state"]["model"]["layer1.bias"]
        tree["state"]["note"] = "changed"

    with CheckpointSaver("one", "x.pt", latest_filename=None, save_interval="1ba", ignore_keys=change) as saver:
        saver.step(at(1), live)
    tree = read("one/x.pt")
    assert tree["state"]["note"] == "changed" and "layer1.bias" not in tree["state"]["model"]
    assert "layer1.bias" in live["state"]["model"] and "note" not in live["state"]


# ------------------------------------------------------- uploads, what is kept


@pytest.fixture(name="server", scope="module")
def started_server() -> Iterator[Server]:
    with moto() as server:
        yield server


def test_R94_R102_so_many_are_kept_also_after_a_restart() -> None:
    with CheckpointSaver(save_interval="1ba", num_checkpoints_to_keep=2) as saver:
        train(saver, range(1, 5))
        saver.wait()
        assert [(one["batch"], [path.name for path in paths]) for one, paths in saver.saved_checkpoints] == [
            (3, ["ep0-ba3-rank0.pt"]),
            (4, ["ep0-ba4-rank0.pt"]),
        ]
    with CheckpointSaver(save_interval="1ba", num_checkpoints_to_keep=2) as saver:
        train(saver, range(5, 6))
    assert names() == ["ep0-ba4-rank0.pt", "ep0-ba5-rank0.pt", "latest-rank0.pt"]
    for bad in (-2, 1.5, True):
        with pytest.raises(pawl.UsageError, match="num_checkpoints_to_keep must be"):
            CheckpointSaver(num_checkpoints_to_keep=bad).step(at(1), state)  # type: ignore[arg-type]


@pytest.mark.server
def test_R85_R86_R89_R95_R96_E2_a_bucket(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    take_environment(monkeypatch, server.env)
    remote = f"{server.url}//{{run_name}}/ep{{epoch}}-ba{{batch}}.pt"
    options: dict[str, Any] = {"latest_remote_file_name": "/{run_name}/latest-rank{rank}.pt", "save_interval": "1ba"}
    with CheckpointSaver(remote_file_name=remote, num_checkpoints_to_keep=0, **options) as saver:
        train(saver, range(1, 4))
        saver.wait()
        assert names() == [] and saver.saved_checkpoints == []
    for batch in (1, 2, 3):  # copies stay
        assert load_checkpoint(f"{server.url}/run/ep0-ba{batch}.pt")["batch"] == batch
    latest = f"{server.url}/{{run_name}}/latest-rank{{rank}}.pt"
    assert find_latest("run", latest_remote_file_name=latest) == f"{server.url}/run/ep0-ba3.pt"
    assert load_checkpoint(latest, run_name="run")["batch"] == 3
    assert load_checkpoint(f"{server.url}/run/latest-rank0.pt.symlink")["batch"] == 3
    with pytest.raises(pawl.NotFoundError):
        load_checkpoint(f"{server.url}/run/none.pt")


def test_R87_none_disables_uploading_and_then_nothing_is_deleted_for_it() -> None:
    with CheckpointSaver(remote_file_name=None, save_interval="1ba") as saver:
        saver.step(at(1), state)
    assert names() == ["ep0-ba1-rank0.pt", "latest-rank0.pt"]
    with pytest.raises(pawl.UsageError, match="nothing is uploaded here"):
        CheckpointSaver(remote_file_name=None, num_checkpoints_to_keep=0).step(at(1), state)


def test_R95_what_could_not_be_uploaded_stays_and_is_told(tmp_path: pathlib.Path) -> None:
    (tmp_path / "there").write_text("a file where the folder should be")
    remote = f"file://{tmp_path}/there/{{run_name}}/{{batch}}.pt"
    options: dict[str, Any] = {"save_interval": "1ba", "num_checkpoints_to_keep": 1, "latest_remote_file_name": None}
    saver = CheckpointSaver(remote_file_name=remote, **options)
    train(saver, range(1, 3))
    with pytest.raises(pawl.PawlError):
        saver.wait()
    saver.close()
    assert names() == ["ep0-ba1-rank0.pt", "ep0-ba2-rank0.pt", "latest-rank0.pt"]
    (tmp_path / "there").unlink()
    with CheckpointSaver(remote_file_name=remote, **options) as saver:  # the next process continues with them
        train(saver, range(3, 4))
    assert names() == ["ep0-ba3-rank0.pt", "latest-rank0.pt"]
    assert names("there/run") == ["1.pt", "2.pt", "3.pt"]


KILLED = """
import sys, torch, pawl.composer
first, remote = int(sys.argv[1]), sys.argv[2]
weights = torch.arange(4_000_000, dtype=torch.float32)
saver = pawl.composer.CheckpointSaver(save_interval="1ba", num_checkpoints_to_keep=2, remote_file_name=remote,
                                      latest_remote_file_name="{run_name}/latest", num_concurrent_uploads=2)
for batch in range(first, first + 6):
    saver.step({"run_name": "run", "epoch": 0, "batch": batch}, {"weights": weights + batch, "batch": batch})
    print(batch, flush=True)
if len(sys.argv) > 3:
    saver.close()
print("end", flush=True)
"""


def check_files(folder: pathlib.Path) -> list[int]:
    """Every file that has the name of a checkpoint is a complete one."""
    found = []
    for path in (path for path in folder.glob("*.pt") if not path.is_symlink()):
        tree = read(path)
        assert torch.equal(tree["weights"], torch.arange(4_000_000, dtype=torch.float32) + tree["batch"])
        found.append(tree["batch"])
    return sorted(found)


def test_R85_R94_P2_killed_while_saving_and_uploading_nothing_is_half_and_the_next_goes_on(
    tmp_path: pathlib.Path,
) -> None:
    remote = f"file://{tmp_path}/there/{{run_name}}/{{batch}}.pt"
    here, there = tmp_path / "run" / "checkpoints", tmp_path / "there" / "run"
    env = environment(PYTHONPATH=os.pathsep.join(sys.path), OMP_NUM_THREADS="1")
    first = 1
    for delay in (0.0, 0.03, 0.1, 0.25):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(first), remote], env=env, stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        assert process.stdout.readline().strip() == str(first)
        time.sleep(delay)
        process.kill()
        process.communicate(timeout=HANG_SECONDS)
        if here.exists():
            first = max([first - 1, *check_files(here)]) + 1
        if there.exists():
            check_files(there)
    last = subprocess.run(
        [sys.executable, "-c", KILLED, str(first), remote, "end"], env=env, check=True, timeout=HANG_SECONDS
    )
    assert last.returncode == 0
    assert check_files(here) == [first + 4, first + 5]
    assert (there / "latest").with_suffix(".symlink").read_text() == f"run/{first + 5}.pt"
    assert check_files(there)[-6:] == list(range(first, first + 6))
    assert read(find_latest("run", folder=here) or "")["batch"] == first + 5
    work = list((here / ".pawl").glob("*.work/*"))
    assert work == []
    # the check itself sees a file that is half
    whole = (here / f"ep0-ba{first + 5}-rank0.pt").read_bytes()
    (here / "half.pt").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(Exception, match=r"(?i)zip|central directory|corrupt|failed"):
        check_files(here)


# ---------------------------------------------------------------------- loading


def test_loading_by_path_template_and_latest_with_filters() -> None:
    with CheckpointSaver(save_interval="1ba") as saver:
        train(saver, range(1, 3))
    for place in ("run/checkpoints/ep0-ba2-rank0.pt", "{run_name}/checkpoints/latest-rank{rank}.pt", "latest"):
        tree = load_checkpoint(place, run_name="run")
        assert tree["batch"] == 2 and torch.equal(tree["state"]["model"]["layer1.bias"], torch.ones(3))
    only = load_checkpoint("latest", run_name="run", load_weights_only=True)
    assert only.keys() == {"state"} and only["state"].keys() == {"model"}
    less = load_checkpoint("latest", run_name="run", load_ignore_keys=["state/model/layer*.weights", "rng"])
    assert less["state"]["model"].keys() == {"layer1.bias"} and "rng" not in less
    with pytest.raises(pawl.UsageError, match="has no value for loading"):
        load_checkpoint("{epoch}.pt")
    with pytest.raises(pawl.NotFoundError, match='no latest checkpoint of run "none"'):
        load_checkpoint("latest", run_name="none")


def test_loading_into_live_objects_strictly_or_not() -> None:
    model = torch.nn.Linear(3, 2)
    with CheckpointSaver(save_interval="1ba") as saver:
        saver.step(at(1), {"model": model, "batch": 1})
    other = torch.nn.Linear(3, 2)
    live = {"model": other, "batch": 0}
    load_checkpoint("latest", live, run_name="run")
    assert torch.equal(other.weight, model.weight) and live["batch"] == 1
    with pytest.raises(pawl.MismatchError, match="only one of live and saved state has extra"):
        load_checkpoint("latest", {**live, "extra": 1}, run_name="run")
    load_checkpoint("latest", {"model": other, "extra": 1}, run_name="run", strict=False)


def test_R81_the_latest_is_looked_up_again_where_it_is_removed_before_it_is_read(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The saver removes the file that was found and points the link to the next one."""
    link = tmp_path / "latest-rank0.pt"
    for step in (1, 2):
        pawl.save({"step": step}, tmp_path / f"ep{step}.pt")
    link.symlink_to("ep1.pt")
    load = _composer_load.load

    def remove_and_load(place: str) -> Any:
        (tmp_path / "ep1.pt").unlink(missing_ok=True)
        link.unlink()
        link.symlink_to("ep2.pt")
        return load(place)

    monkeypatch.setattr(_composer_load, "load", remove_and_load)
    assert load_checkpoint("latest", folder=tmp_path)["step"] == 2
    (tmp_path / "ep2.pt").unlink()
    with pytest.raises(pawl.NotFoundError):
        load_checkpoint(link)


# ------------------------------------------------------------ the real Composer


def composers(
    program: str, given: Mapping[str, Any], killed: bool = False, ranks: int = 1, env: Mapping[str, str] | None = None
) -> list[dict[str, Any]]:
    """What the ranks of a program with the real Composer tell, in their order."""
    env = environment(
        PYTHONPATH=str(pathlib.Path(pawl.__file__).parent.parent),
        OMP_NUM_THREADS="1",
        PYTHONWARNINGS="ignore",
        NODE_RANK="0",  # which Composer asks for and torchrun does not set
        **(env or {}),
    )
    command = [str(composer_python())]
    if ranks > 1:
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    command += [str(HERE / program), json.dumps(given)]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    if killed:
        assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
        return []
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith("ANSWER ")]
    answers: list[dict[str, Any]] = [json.loads(line.removeprefix("ANSWER ")) for line in lines]
    return sorted(answers, key=lambda answer: int(answer["rank"]))


def real(
    folder: pathlib.Path,
    saver: str,
    killed: bool = False,
    ranks: int = 1,
    env: Mapping[str, str] | None = None,
    **given: Any,
) -> dict[str, Any]:
    """What rank 0 of a training run tells."""
    told = composers("composer_real.py", {"folder": str(folder), "saver": saver, **given}, killed, ranks, env)
    return told[0] if told else {}


def peers(folder: pathlib.Path, scenario: str, ranks: int = 1) -> list[Any]:
    """What the ranks of a scenario in composer_peer.py tell."""
    given = {"folder": str(folder), "scenario": scenario}
    return [answer["told"] for answer in composers("composer_peer.py", given, ranks=ranks)]


@pytest.mark.framework
def test_R91_R93_R97_R98_the_files_are_composers_own_bit_for_bit_also_with_averaged_weights(
    tmp_path: pathlib.Path,
) -> None:
    [told] = peers(tmp_path, "same_files")
    assert {name: one["wrong"] for name, one in told.items()} == {name: [] for name in told}
    batches = ["ep0-ba3-rank0.pt", "ep0-ba6-rank0.pt", "ep1-ba12-rank0.pt", "ep1-ba15-rank0.pt", "ep1-ba9-rank0.pt"]
    assert told["ema"]["files"] == [*batches, "ep2-ba16-rank0.pt"]
    assert told["ema"]["averaged"] == [True] * 6 and told["ema function"]["averaged"] == [True]
    assert told["iterations"]["files"] == ["ep6-ba48-rank0.pt", "ep7-ba56-rank0.pt", "latest-rank0.pt"]
    assert told["iterations by text"]["files"] == ["ep2-ba16-rank0.pt", "ep4-ba32-rank0.pt", "latest-rank0.pt"]
    assert len(told["fraction"]["files"]) == 5


@pytest.mark.framework
def test_R102_the_trainer_finds_in_our_saver_what_it_finds_in_composers_own(tmp_path: pathlib.Path) -> None:
    """saved_checkpoints, save_checkpoint_to_save_folder() in and after fit, state_dict(), the Trainer's own autoresume;
    a second and a third Trainer on the same folder, also after a fit that failed."""
    [told] = peers(tmp_path, "same_trainer")
    assert told["ours"] == told["theirs"]
    ours = told["ours"]
    assert ours["is_theirs"] and told["is_subclass"] and all(ours["are"])
    assert ours["asked"] == ["/ep0-ba3-rank0.pt", "/ep0-ba5-rank0.pt"]
    assert (ours["second"], ours["error"], ours["third"]) == (8, "as asked", 9)
    assert ours["weights"] == told["weights"]
    assert told["rows"] == [[8, ["ep1-ba8-rank0.pt"]], [16, ["ep2-ba16-rank0.pt"]]]


@pytest.mark.framework
def test_R73_R91_composers_savers_with_bad_options_are_not_made(tmp_path: pathlib.Path) -> None:
    [told] = peers(tmp_path, "refused")
    assert all(one.startswith("UsageError: ") for one in told), told
    units = [one.partition("; expected ")[2] for one in told if "Composer does not take it" in one]
    assert units == ["1ep, 5it, 10ba, 5000sp, 1000000tok, 30sec or 0.25dur"] * 5
    assert list(tmp_path.iterdir()) == []


@pytest.mark.framework
def test_R78_R90_R102_two_ranks_see_the_same_and_fail_alike(tmp_path: pathlib.Path) -> None:
    told = peers(tmp_path, "two_ranks", ranks=2)
    for one in told:
        assert list(one["here"]) == ["ep0-ba3-rank0.pt", "ep1-ba4-rank0.pt", "latest-rank0.pt"]
        assert (one["resumed"], one["chosen"], one["own"]) == (4, 4, True)
        assert one["apart"].startswith("MismatchError: autoresume: expected ") and "on rank 1" in one["apart"]
        assert one["conflict"].startswith("ExistsError: ")
        assert one["sharded"].startswith("UnsupportedError: CheckpointSaver: expected full tensors")


@pytest.mark.framework
def test_R72_R93_R102_with_the_real_composer_killed_and_resumed(tmp_path: pathlib.Path) -> None:
    """As a callback; killed and resumed the training ends with the same weights as one without a break; Composer's own
    loader reads our files, ours reads Composer's."""
    ours, theirs, broken = (tmp_path / name for name in ("ours", "theirs", "broken"))
    plain = real(ours, "pawl")
    peer = real(theirs, "composer")
    assert plain["is_callback"] and plain["losses"] == peer["losses"]
    assert plain["files"] == peer["files"]  # the same names at the same points
    assert [one[0] for one in plain["saved"]] == [3, 6, 9, 12, 15, 16]
    real(broken, "trainer", killed=True, kill=12)
    resumed = real(broken, "trainer")
    begun = resumed["begun"]  # Composer's own loader, of our file; the save of batch 12 had only begun
    assert begun in (9, 12)
    assert resumed["losses"] == plain["losses"][begun:] and resumed["weights"] == plain["weights"]
    assert resumed["files"] == plain["files"]
    # and from a file of Composer's own
    from_peer = real(tmp_path / "more", "pawl", load_path=str(theirs / "ep1-ba9-rank0.pt"))
    assert from_peer["begun"] == 9 and from_peer["weights"] == plain["weights"]
    mine = load_checkpoint(ours / "latest-rank0.pt", load_weights_only=True)["state"]["model"]
    composers = load_checkpoint(theirs / "latest-rank0.pt", load_weights_only=True)["state"]["model"]
    assert mine.keys() == composers.keys() and all(torch.equal(mine[key], composers[key]) for key in mine)


@pytest.mark.framework
def test_R78_two_ranks_of_the_real_composer(tmp_path: pathlib.Path) -> None:
    """Rank 0 writes what both have: the same files as Composer's own saver, with the random generators of both; and both
    continue from it."""
    ours, theirs, more = (tmp_path / name for name in ("ours", "theirs", "more"))
    plain, peer = real(ours, "pawl", ranks=2), real(theirs, "composer", ranks=2)
    assert plain["files"] == peer["files"] and plain["losses"] == peer["losses"]
    assert [one[0] for one in plain["saved"]] == [3, 6, 8]
    mine, composers = (load_checkpoint(folder / "ep1-ba6-rank0.pt") for folder in (ours, theirs))
    assert len(mine["rng"]) == len(composers["rng"]) == 2
    assert mine["state"].keys() == composers["state"].keys()
    resumed = real(more, "composer", ranks=2, load_path=str(ours / "ep1-ba6-rank0.pt"))  # Composer's own loader
    assert resumed["begun"] == 6
    assert resumed["losses"] == plain["losses"][6:] and resumed["weights"] == plain["weights"]


@pytest.mark.server
@pytest.mark.framework
def test_R85_R86_R89_composers_own_uploaders_get_the_same_objects(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    """Without a URL in remote_file_name: RemoteUploaderDownloader uploads what our saver hands over, as it does for
    Composer's own saver."""
    take_environment(monkeypatch, server.env)
    env = {name: value for name, value in server.env.items() if name.startswith("AWS_")}
    found = []
    for saver in ("pawl", "composer"):
        options = {
            "save_interval": "3ba",
            "remote_file_name": f"/{saver}/{{run_name}}/ep{{epoch}}-ba{{batch}}.pt",
            "latest_remote_file_name": f"/{saver}/{{run_name}}/latest-rank{{rank}}.pt",
        }
        real(tmp_path / saver, saver, env=env, bucket=server.url, options=options)
        listed = tool(f"{server.url}/{saver}", "list run", env=server.env)
        latest = f"{server.url}/{saver}/{{run_name}}/latest-rank{{rank}}.pt"
        found.append(
            (
                re.findall(r"ep\d-ba\d+\.pt|latest[^ ]*", " ".join(listed)),
                find_latest("run", latest_remote_file_name=latest),
            )
        )
    assert found[0][0] == found[1][0] and len(found[0][0]) == 7
    assert [one[1] for one in found] == [f"{server.url}/{saver}/run/ep2-ba16.pt" for saver in ("pawl", "composer")]
    assert load_checkpoint(f"{server.url}/pawl/run/ep1-ba9.pt")["state"]["run_name"] == "run"
