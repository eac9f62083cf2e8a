# SPDX-License-Identifier: Apache-2.0
"""Trains a small BERT with the Trainer of Hugging Face transformers, and resumes where it was stopped.

    pip install 'libpawl[huggingface]'
    python train.py runs/huggingface     # stop it at any time, and start it again

Nothing is downloaded: the model starts from random weights and learns which of two words a sentence has more often.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

import pawl.huggingface

STEPS = 40


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """Sentences of eleven words, numbered 1 and 2."""

    def __init__(self) -> None:
        self.words = torch.randint(1, 3, (256, 11), generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return len(self.words)

    def __getitem__(self, index: int) -> dict[str, Any]:
        words = self.words[index]
        return {"input_ids": words, "labels": int((words == 2).sum() > 5)}


class Print(TrainerCallback):  # type: ignore[misc,unused-ignore]
    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **rest: Any) -> None:
        if logs and "loss" in logs:
            print(f"step {state.global_step}: loss {logs['loss']}", flush=True)


def main(root: str) -> None:
    set_seed(0)
    config = BertConfig(
        vocab_size=3, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, num_labels=2
    )
    args = TrainingArguments(
        output_dir=f"{root}-trainer",  # the Trainer's own files; the checkpoints are pawl's, in root
        max_steps=STEPS,
        per_device_train_batch_size=16,
        learning_rate=1e-3,
        save_strategy="steps",  # whenever the Trainer would save, pawl does
        save_steps=5,
        logging_steps=5,
        report_to=[],
        disable_tqdm=True,
    )
    saver = pawl.huggingface.Saver(root, num_to_keep=3)
    model = BertForSequenceClassification(config)
    trainer = Trainer(model, args, train_dataset=Rows(), callbacks=[saver, Print()])
    newest = saver.resume()  # None in a new folder
    if newest:
        print("resumed", flush=True)
    trainer.train(resume_from_checkpoint=newest)


if __name__ == "__main__":
    main(sys.argv[1])
