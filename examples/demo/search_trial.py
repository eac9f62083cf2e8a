# SPDX-License-Identifier: Apache-2.0
"""One trial of the search in search.py: trains a small network on scikit-learn's handwritten digits, with numpy alone,
and says how it goes with `pawl report`. It could be written in any language."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import numpy as np

TRAINED, HIDDEN, BATCH, EPOCHS = 1200, 96, 32, 27
Network = dict[str, Any]


def load_digits() -> tuple[Any, Any]:
    """Without importing scikit-learn, which takes longer than an epoch."""
    spec = importlib.util.find_spec("sklearn")
    assert spec and spec.submodule_search_locations, "the demo needs scikit-learn's digits"
    file = pathlib.Path(spec.submodule_search_locations[0]) / "datasets" / "data" / "digits.csv.gz"
    table = np.loadtxt(file, delimiter=",")
    order = np.random.default_rng(0).permutation(len(table))
    return table[order, :64] / 16, table[order, 64].astype(int)


def begin(seed: int) -> Network:
    rng = np.random.default_rng(seed)
    sizes = [(64, HIDDEN), (HIDDEN, 10)]
    network: Network = {
        f"w{i}": rng.normal(0, (2 / rows) ** 0.5, (rows, columns)) for i, (rows, columns) in enumerate(sizes)
    }
    return network | {"v0": 0 * network["w0"], "v1": 0 * network["w1"], "epoch": 0}


def train_epoch(network: Network, images: Any, labels: Any, lr: float, momentum: float) -> None:
    rng = np.random.default_rng(int(network["epoch"]))
    for rows in np.array_split(rng.permutation(len(images)), len(images) // BATCH):
        x, hidden = images[rows], np.maximum(images[rows] @ network["w0"], 0)
        scores = hidden @ network["w1"]
        scores = np.exp(scores - scores.max(1, keepdims=True))
        error = scores / scores.sum(1, keepdims=True)
        error[np.arange(len(rows)), labels[rows]] -= 1
        error /= len(rows)
        steps = x.T @ ((error @ network["w1"].T) * (hidden > 0)), hidden.T @ error
        for i, step in enumerate(steps):
            network[f"v{i}"] = momentum * network[f"v{i}"] - lr * step
            network[f"w{i}"] = network[f"w{i}"] + network[f"v{i}"]
    network["epoch"] = int(network["epoch"]) + 1


def accuracy(network: Network, images: Any, labels: Any) -> float:
    guess = (np.maximum(images @ network["w0"], 0) @ network["w1"]).argmax(1)
    return float((guess == labels).mean())


def report(network: Network, value: float) -> None:
    folder = tempfile.mkdtemp(prefix=".out", dir=os.environ.get("PAWL_TUNE_FOLDER"))
    np.savez(os.path.join(folder, "network.npz"), **network)
    words = ["pawl", "report", f"accuracy={value:.5f}", "--checkpoint", folder]
    channel = [int(os.environ["PAWL_TUNE_FD"])] if "PAWL_TUNE_FD" in os.environ else []
    status = subprocess.run(words, pass_fds=channel, stdout=subprocess.DEVNULL).returncode
    if status:
        sys.exit(status)


def main() -> None:
    lr, momentum = float(sys.argv[1]), float(sys.argv[2])
    images, labels = load_digits()
    network = begin(seed=1)
    if "PAWL_TUNE_CHECKPOINT" in os.environ:
        with np.load(pathlib.Path(os.environ["PAWL_TUNE_CHECKPOINT"]) / "network.npz") as saved:
            network = dict(saved)
    while network["epoch"] < EPOCHS:
        with np.errstate(all="ignore"):  # some learning rates are too large
            train_epoch(network, images[:TRAINED], labels[:TRAINED], lr, momentum)
        report(network, accuracy(network, images[TRAINED:], labels[TRAINED:]))


if __name__ == "__main__":
    main()
