# SPDX-License-Identifier: Apache-2.0
"""A trainable of the kind that the guide assumes: it takes checkpoint_dir and calls tune.checkpoint_dir."""

import json
import os

from pawl import tune


def my_trainable(config: dict[str, object], checkpoint_dir: str | None = None) -> None:
    step, auc = 0, 0.5
    if checkpoint_dir:
        with open(os.path.join(checkpoint_dir, "state.json")) as file:
            state = json.load(file)
        step, auc = state["step"] + 1, state["auc"]
    while step < 8:
        auc = auc + (0.9 - auc) / 4
        with tune.checkpoint_dir(step=step) as folder:
            with open(os.path.join(folder, "state.json"), "w") as file:
                json.dump({"step": step, "auc": auc}, file)
        tune.report(auc=auc)
        step += 1
