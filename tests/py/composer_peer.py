# SPDX-License-Identifier: Apache-2.0
"""Our saver in the place of Composer's own, in one process with the real Composer (test_composer.py starts it as
composer_real.py is started): composer_peer.py '{"scenario": ..., "folder": ...}' prints one line of JSON with what the
function of that name returns. Several of these processes, started by torchrun, are ranks of one training run.
"""

from __future__ import annotations

import datetime
import json
import os
import pathlib
import re
import sys
from collections.abc import Callable
from typing import Any

import numpy
import torch
from composer_real import model  # and with it torchvision's operators

import composer  # isort: skip
from composer.algorithms import EMA, SWA
from composer.callbacks import CheckpointSaver as Theirs
from composer.core import Callback, Event, State, Time, TimeUnit
from composer.utils import dist
from torch.utils.data import DataLoader, TensorDataset
from waiting import HANG_SECONDS

import pawl.composer
from pawl.composer import CheckpointSaver as Ours

SAVERS: dict[str, Any] = {"ours": Ours, "theirs": Theirs}


def trainer(*callbacks: Any, make: Callable[..., Any] = composer.Trainer, **options: Any) -> Any:
    generator = torch.Generator().manual_seed(5)
    samples = torch.randn(64, 8, generator=generator)
    data = TensorDataset(samples, (samples.sum(1) > 0).long())
    net = model(16)
    given: dict[str, Any] = {
        "model": net,
        "train_dataloader": DataLoader(data, batch_size=8, sampler=dist.get_sampler(data)),
        "max_duration": "2ep",
        "optimizers": torch.optim.Adam(net.parameters(), lr=1e-2),
        "run_name": "run",
        "seed": 17,
        "device": "cpu",
        "progress_bar": False,
        "callbacks": list(callbacks),
    }
    return make(**{**given, **options})


def differences(mine: Any, theirs: Any, where: str = "") -> list[str]:
    """Where two trees differ in a type, a key, their order, or a bit; clocks may."""
    if type(mine) is not type(theirs):
        return [f"{where}: {type(mine)} and {type(theirs)}"]
    if isinstance(mine, dict):
        if list(mine) != list(theirs):
            return [f"{where}: keys {list(mine)} and {list(theirs)}"]
        return [one for key in mine for one in differences(mine[key], theirs[key], f"{where}/{key}")]
    if isinstance(mine, list | tuple):
        if len(mine) != len(theirs):
            return [f"{where}: {len(mine)} and {len(theirs)} values"]
        return [
            one for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) for one in differences(a, b, f"{where}/{i}")
        ]
    if isinstance(mine, torch.Tensor):
        bits = [one.detach().contiguous().reshape(-1).view(torch.uint8) for one in (mine, theirs)]
        same = mine.dtype == theirs.dtype and mine.shape == theirs.shape and torch.equal(*bits)
    elif isinstance(mine, numpy.ndarray):
        same = mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()
    elif isinstance(mine, str):
        same = re.sub(" at 0x[0-9a-f]+", "", mine) == re.sub(" at 0x[0-9a-f]+", "", theirs)  # of an object's repr
    else:
        same = isinstance(mine, datetime.timedelta) or bool(mine == theirs)
    return [] if same else [f"{where}: {mine} and {theirs}"]


def read(path: pathlib.Path) -> Any:
    return torch.load(path, weights_only=False)


def names(folder: pathlib.Path) -> dict[str, str]:
    """Each with what it leads to."""
    return {
        one.name: os.readlink(one) if one.is_symlink() else ""
        for one in sorted(folder.iterdir())
        if not one.name.startswith(".")
    }


def compare(folder: pathlib.Path, options: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """The files of one training run that is saved by each of the two."""
    for name, kind in SAVERS.items():
        algorithm = {"ema": lambda: EMA(half_life="2ba"), "swa": lambda: SWA("1ep", "2ep"), None: lambda: None}
        more = {**given, "algorithms": algorithm[given.get("algorithms")]()}
        iteration = more.pop("iteration", None)
        (folder / name).mkdir(parents=True)
        os.chdir(folder / name)  # so that the paths in the files are the same
        saver = kind("out", **options)
        training = trainer(saver, **more)
        training.state._iteration_length = iteration
        training.fit()
        training.close()
    ours, theirs = (folder / name / "out" for name in SAVERS)
    files = names(ours)
    wrong = [] if files == names(theirs) else [f"{files} and {names(theirs)}"]
    found = {name: read(ours / name) for name, link in files.items() if not link}
    if not wrong:
        wrong = [one for name, tree in found.items() for one in differences(tree, read(theirs / name), name)]
    active = [
        one[1]["ema_weights_active"]
        for tree in found.values()
        for one in tree["state"].get("algorithms", [])
        if one[0] == "EMA"
    ]
    return {"files": list(files), "wrong": wrong, "averaged": active}


def same_files(folder: pathlib.Path) -> Any:
    two = Time(2, TimeUnit.ITERATION)
    every = {"latest_filename": None, "save_interval": "3ba"}
    rows: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({"save_interval": "3ba"}, {}),
        "ema": (every, {"algorithms": "ema"}),
        "ema weights": ({**every, "weights_only": True}, {"algorithms": "ema"}),
        "ema function": (
            {"save_interval": lambda state, event: event == Event.BATCH_CHECKPOINT and int(state.timestamp.batch) == 5},
            {"algorithms": "ema"},
        ),
        "swa": ({"save_interval": "1ep"}, {"algorithms": "swa"}),
        "fraction": ({"save_interval": "0.25dur"}, {}),
        "iterations": (
            {"save_interval": two, "num_checkpoints_to_keep": 2},
            {"iteration": "1ep", "max_duration": "7ep"},
        ),
        "iterations by text": ({"save_interval": "2iter"}, {"iteration": "1ep", "max_duration": "4ep"}),
        "left out": ({"save_interval": "1ep", "ignore_keys": ["state/model/*", "rng"]}, {}),
    }
    return {name: compare(folder / name.replace(" ", "-"), *row) for name, row in rows.items()}


class Asked(Callback):  # type: ignore[misc]
    """Saves in the middle, as a program may, and looks at once."""

    trainer: Any
    found: list[str]

    def batch_end(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) == 5:
            self.trainer.save_checkpoint_to_save_folder()
            self.found = [str(one) for one in self.trainer.saved_checkpoints if pathlib.Path(one).exists()]


class Fails(Callback):  # type: ignore[misc]
    def batch_end(self, state: Any, logger: Any) -> None:
        if int(state.timestamp.batch) == 11:
            raise ValueError("as asked")


def trainers_own(folder: pathlib.Path, name: str) -> dict[str, Any]:
    """What a program does with its Trainer and the saver; all paths below the folder."""
    at = str(folder / name)
    saver = SAVERS[name](at, save_interval="3ba")
    asked = Asked()
    asked.trainer = training = trainer(asked, saver, max_duration="1ep")
    training.fit()
    told: dict[str, Any] = {
        "is_theirs": isinstance(saver, Theirs) and isinstance(saver, SAVERS[name]),
        "asked": asked.found,
        "saved": list(map(str, training.saved_checkpoints)),
        "are": [isinstance(one, str) and pathlib.Path(one).is_file() for one in training.saved_checkpoints],
        "state": [[one, at["batch"]] for one, at in saver.state_dict()["all_saved_checkpoints_to_timestamp"]],
        "known": {one: int(at.batch) for one, at in saver.all_saved_checkpoints_to_timestamp.items()},
        "names": [str(saver.filename.filename), str(saver.latest_filename.filename), saver.folder],
    }
    training.save_checkpoint_to_save_folder()  # after fit
    told["after"] = names(pathlib.Path(at))
    # a second Trainer continues in the same folder, and fails; a third continues by itself, and the first is asked again
    path = training.saved_checkpoints.pop()
    second = trainer(SAVERS[name](at, save_interval="3ba"), Fails(), load_path=path)
    told["second"] = int(second.state.timestamp.batch)
    try:
        second.fit()
    except ValueError as error:
        told["error"] = str(error)
    third = trainer(SAVERS[name](at, save_interval="3ba"), autoresume=True)
    told["third"] = int(third.state.timestamp.batch)
    third.fit()
    told["knows"] = len(third.state.callbacks[0].all_saved_checkpoints_to_timestamp)
    told["weights"] = [float(one.double().sum()) for one in third.state.model.state_dict().values()]
    told["last"] = names(pathlib.Path(at))
    for one in (second, third, training):
        one.close()
    return json.loads(json.dumps(told).replace(at, ""))


def same_trainer(folder: pathlib.Path) -> Any:
    weights = trainer(max_duration="2ep")
    weights.fit()
    told: dict[str, Any] = {name: trainers_own(folder, name) for name in SAVERS}
    told["weights"] = [float(one.double().sum()) for one in weights.state.model.state_dict().values()]
    saver = Ours(str(folder / "rows"), save_interval="1ep")
    training = trainer(saver)
    training.fit()
    told["rows"] = [[int(at.batch), [one.name for one in paths]] for at, paths in saver.saved_checkpoints]
    training.close()
    told["is_subclass"] = issubclass(Ours, Theirs)
    return told


def raised(work: Callable[[], object]) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def refused(folder: pathlib.Path) -> Any:
    """All of these when the saver is made."""
    rows: list[dict[str, Any]] = [
        {"filename": "foo.pt.br"},
        {"filename": "{epcoh}.pt"},
        {"latest_filename": "{epcoh}.pt"},
        {"remote_file_name": "{epcoh}.pt"},
        {"folder": "{epoch}/checkpoints"},
        {"folder": "{team}/checkpoints"},
        {"save_interval": "1fortnight"},
        {"save_interval": "0ba"},
        *({"save_interval": text} for text in ("first", "auto", "5min", "500 steps")),
        {"save_interval": Time(0, TimeUnit.BATCH)},
    ]
    return [raised(lambda row=row: Ours(**{"folder": str(folder), **row})) for row in rows]


def two_ranks(folder: pathlib.Path) -> Any:
    rank = dist.get_global_rank()
    dist.initialize_dist("cpu", timeout=HANG_SECONDS)
    shared = folder / "shared"
    training = trainer(Ours(str(shared), save_interval="3ba"), max_duration="1ep")
    training.fit()
    told: dict[str, Any] = {"here": names(shared)}  # of every rank, right after fit
    training.close()
    dist.barrier()
    again = trainer(Ours(str(shared), save_interval="3ba"), autoresume=True)
    told["resumed"] = int(again.state.timestamp.batch)
    again.close()
    dist.barrier()
    own = trainer(Ours(str(folder / "own-{rank}"), save_interval="3ba"))
    told["own"] = (folder / f"own-{rank}").is_dir()
    own.close()
    make = pawl.composer.Trainer
    apart: dict[str, Any] = {"save_folder": str(shared), "autoresume": True, "make": make}
    isfile = os.path.isfile
    if rank == 1:  # a node that does not see the folder
        os.path.isfile = lambda path: False
    told["apart"] = raised(lambda: trainer(**apart))
    os.path.isfile = isfile
    # rank 1 has a link of its own to an older file: the file of rank 0 is loaded by both
    if rank == 1:
        (shared / "latest-rank1.pt").symlink_to("ep0-ba3-rank0.pt")
    dist.barrier()
    one = trainer(save_folder=str(shared), save_interval="3ba", autoresume=True, make=make)
    told["chosen"] = int(one.state.timestamp.batch)
    one.close()
    # a file in the way is seen by rank 0 alone
    told["conflict"] = raised(trainer(Ours(str(shared), save_interval="3ba")).fit)
    State.fsdp_sharded_state_dict_enabled = property(lambda self: True)
    told["sharded"] = raised(lambda: trainer(Ours(str(folder / "sharded"), save_interval="3ba")))
    return told


def main() -> None:
    torch.set_num_threads(1)
    given = json.loads(sys.argv[1])
    folder = pathlib.Path(given["folder"])
    scenario = {one.__name__: one for one in (same_files, same_trainer, refused, two_ranks)}[given["scenario"]]
    answer = {"rank": dist.get_global_rank(), "told": scenario(folder)}
    os.write(1, f"\nANSWER {json.dumps(answer)}\n".encode())  # at once: ranks share this pipe


if __name__ == "__main__":
    main()
