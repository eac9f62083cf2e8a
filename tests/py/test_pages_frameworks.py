# SPDX-License-Identifier: Apache-2.0
"""The programs of docs/how-to/frameworks.md and docs/reference/composer.md run with the real frameworks, as they stand there."""

from __future__ import annotations

import pathlib

import pytest
from composer_venv import composer_python
from frameworks import environment, python_of
from pages import ROOT, Reader, blocks

pytestmark = pytest.mark.framework

TORCH = """
import torch
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.AdamW(model.parameters())
state, step, loss = {"model": model}, 1, torch.tensor(0.5)
"""
STEPS = "\nwith pawl.CheckpointManager('runs/demo', read_only=True) as manager:\n    print(manager.all_steps())\n"
# What is around each program of the page, by its first line: the environment, what stands before and after it, what it prints last.
AROUND = {
    "from lightning.pytorch import Trainer": (
        "lightning",
        """
import torch
from lightning.pytorch import LightningModule

class Model(LightningModule):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def training_step(self, batch):
        return self.net(batch).sum()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())

    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)

model = Model()
""",
        STEPS,
        "[16, 18, 20]",
    ),
    "from transformers import Trainer, TrainingArguments": (
        "huggingface",
        """
import torch

class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, x):
        return {"loss": self.net(x).sum()}

model, data = Model(), [{"x": torch.ones(4)}] * 16
""",
        STEPS,
        "[6]",
    ),
    "import pawl.accelerate": (
        "huggingface",
        f"""
from accelerate import Accelerator
{TORCH}
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
accelerator = Accelerator(cpu=True)
""",
        STEPS,
        "[17, 18, 19]",
    ),
    "import ray.train": (
        "ray",
        TORCH.replace("torch.tensor(0.5)", "0.5"),
        """
from ray.train.torch import TorchTrainer
config = ray.train.RunConfig(name="demo", storage_path=__import__("os").path.abspath("runs"))
result = TorchTrainer(train_func, scaling_config=ray.train.ScalingConfig(num_workers=2), run_config=config).fit()
print(result.metrics["loss"], pawl.CheckpointManager("runs/demo/pawl", read_only=True).latest_step())
""",
        "0.5 9",
    ),
    "from ray import tune": (
        "ray",
        TORCH.replace("torch.tensor(0.5)", "0.5"),
        """
config = tune.RunConfig(name="demo", storage_path=__import__("os").path.abspath("runs"))
[result] = tune.Tuner(trial, param_space={"lr": 0.1}, run_config=config).fit()
print(result.metrics["training_iteration"], result.error)
""",
        "100 None",
    ),
    "from torch.utils.tensorboard import SummaryWriter": (
        "loggers",
        f"import pathlib\nimport pawl\n{TORCH}",
        "print(len(list(pathlib.Path('tb').iterdir())))\n",
        "1",
    ),
}
PROGRAMS = [block for block in blocks("docs/how-to/frameworks.md") if block.language]


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.first)
def test_the_program_of_the_page_on_frameworks_runs(block, tmp_path: pathlib.Path) -> None:  # noqa: ANN001
    name, before, after, last = AROUND[block.first]
    reader = Reader(tmp_path, environment=environment(), python=str(python_of(name)))
    text = block.text.replace("10_000", "20")  # steps
    (tmp_path / "program.py").write_text(f"{before}\n{text}\n{after}")
    assert last in reader.run([reader.python, "program.py"]).splitlines()


def test_the_programs_of_the_page_on_composer_run(tmp_path: pathlib.Path) -> None:
    trainer, loop = (block.text for block in blocks("docs/reference/composer.md") if block.language == "python")
    reader = Reader(tmp_path, environment=environment(), python=str(composer_python()))
    (tmp_path / "composer_page.py").write_text(
        f"""
import torch
from composer.models import ComposerModel

class Model(ComposerModel):
    def __init__(self):
        super().__init__()
        self.net = torch.nn.Linear(4, 1)

    def forward(self, batch):
        return self.net(batch)

    def loss(self, outputs, batch):
        return outputs.sum()

model, data = Model(), torch.utils.data.DataLoader(torch.ones(8, 4), batch_size=4)
{trainer}"""
    )
    reader.run([reader.python, str(ROOT / "tests/py/example_runner.py"), "", "composer_page.py"])
    assert {path.name for path in (tmp_path / "demo/checkpoints").iterdir()} >= {"ep1-ba2-rank0.pt", "ep2-ba4-rank0.pt"}
    assert len(list((tmp_path / "demo/weights").glob("*.pt"))) == 2  # a link, and the one at the end
    (tmp_path / "demo").rename(tmp_path / "before")
    (tmp_path / "loop.py").write_text(f"import pawl.composer\n{TORCH}n, epoch = 1000, 0\n{loop}")
    reader.run(["python", "loop.py"])
    assert (tmp_path / "demo/checkpoints/ep0-ba1000-rank0.pt").exists()
