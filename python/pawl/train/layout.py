# SPDX-License-Identifier: Apache-2.0
"""Names of folders and files of a training run."""

from __future__ import annotations

import os
import pathlib
import time


def construct_checkpoint_file_name(checkpoint_id: int) -> str:
    """The name of a checkpoint's folder.

    Args:
        checkpoint_id: Its number.

    Returns:
        ``checkpoint_000007`` for 7.
    """
    return f"checkpoint_{checkpoint_id:06d}"


def construct_path(path: pathlib.Path, parent_path: pathlib.Path) -> pathlib.Path:
    """Returns an absolute path unchanged, and any other below the parent."""
    path = path.expanduser()
    return path if path.is_absolute() else parent_path.expanduser().joinpath(path).resolve()


def create_log_dir(base: str | os.PathLike[str] = "~/ray_results") -> pathlib.Path:
    """``~/ray_results/train_<date and time>``."""
    return pathlib.Path(base).expanduser() / time.strftime("train_%Y-%m-%d_%H-%M-%S")


def next_run_dir(log_dir: pathlib.Path) -> str:
    """Makes the first free folder ``<log_dir>/run_<number>``, so that no other process takes it."""
    log_dir.mkdir(parents=True, exist_ok=True)
    for number in range(1, 1000):
        run_dir = log_dir / f"run_{number:03d}"
        try:
            run_dir.mkdir()
        except FileExistsError:
            continue
        return str(run_dir)
    raise FileExistsError(f"{log_dir} holds 999 runs already")


def default_run_dir(base: str | os.PathLike[str] = "~/ray_results") -> str:
    """``<base>/train_<date and time>/run_<number>``."""
    return next_run_dir(create_log_dir(base))
