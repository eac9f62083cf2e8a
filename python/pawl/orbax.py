# SPDX-License-Identifier: Apache-2.0
"""Loads and converts checkpoints of Orbax. Orbax itself reads them (``pip install
orbax-checkpoint``).

    state = pawl.orbax.load("checkpoints")                     # the newest step, as NumPy arrays
    pawl.orbax.convert("checkpoints", "model.safetensors", include="params/*")
    pawl.orbax.convert("checkpoints", "first", to="pawl")      # a checkpoint of pawl's, with all values

A path is the folder of an ``ocp.CheckpointManager`` (with any ``step_prefix``), of one of its
steps, or of a single checkpoint of a checkpointer. The complete state is loaded into memory. Orbax
stores no checksums that tie its arrays to their names. Damage is found only if Orbax or zstd
detects it.
"""

from __future__ import annotations

import os
import re
from typing import Any, Unpack

import numpy as np
import orbax.checkpoint as ocp

from . import _checks, _pawl
from ._convert import Options, write
from ._names import listed
from ._pawl import CorruptError, NotFoundError, UsageError
from .records import Converted

_TREE = "_METADATA"  # the file that a saved tree has
_STEP = "_CHECKPOINT_METADATA"  # the file that the folder of a step has; trees may have it, too
_UNFINISHED = ".orbax-checkpoint-tmp"


def load(path: str | os.PathLike[str], *, step: int | None = None, item: str | None = None) -> Any:
    """Loads a checkpoint of Orbax.

    Args:
        path: A checkpoint's folder, or a manager's.
        step: Step in a manager's folder. Default: None, the newest.
        item: Which tree, where several were saved together. Default: None.

    Returns:
        The saved tree; arrays are NumPy arrays, whatever devices they were on.

    Raises:
        NotFoundError: There is no such checkpoint.
        CorruptError: Orbax cannot read it.
    """
    place = _item(_step(os.path.abspath(_checks.path("path", path)), step), item)
    with ocp.PyTreeCheckpointer() as reader:
        try:
            about = reader.metadata(place).item_metadata
            if about is None:
                raise ValueError(f"its {_TREE} cannot be read as a tree")
            return reader.restore(place, restore_args=_as_numpy(about.tree))
        except (ValueError, KeyError, OSError) as error:
            raise CorruptError(f"{place}: Orbax cannot read it: {error}") from error


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    step: int | None = None,
    item: str | None = None,
    **options: Unpack[Options],
) -> Converted:
    """Loads as ``load`` does and writes as ``pawl.convert`` does.

    Args:
        src: A checkpoint of Orbax.
        dst: What to write.
        step: As in ``load``.
        item: As in ``load``.
        options: Options of ``pawl.convert``.

    Returns:
        What was written.
    """
    run = _pawl.Run("mem:")
    try:
        run.save(0, load(src, step=step, item=item)).wait()
        return write(run, run.list()[-1]["id"], dst, **options)
    finally:
        run.close()


def _as_numpy(tree: Any) -> Any:
    if isinstance(tree, dict):
        return {key: _as_numpy(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_as_numpy(value) for value in tree]
    if isinstance(tree, ocp.metadata.ArrayMetadata) and not isinstance(tree, ocp.metadata.ScalarMetadata):
        return ocp.RestoreArgs(restore_type=np.ndarray)
    return None if tree is None else ocp.RestoreArgs()


def _folders(place: str) -> list[str]:
    try:
        return sorted(one.name for one in os.scandir(place) if one.is_dir() and _UNFINISHED not in one.name)
    except (FileNotFoundError, NotADirectoryError):
        raise NotFoundError(f"{place}: no such folder") from None


def _is_tree(place: str) -> bool:
    return os.path.isfile(os.path.join(place, _TREE))


def _steps(place: str) -> dict[int, str]:
    """The steps in a manager's folder with their folders: "10", "0010", "prefix_10"."""
    names = _folders(place)
    steps = {int(name): name for name in names if name.isdecimal()}
    if steps or _is_tree(place):
        return steps
    prefixes = set()
    for name in names:
        found = re.fullmatch(r"(.+)_(\d+)", name)
        inside = os.path.join(place, name)
        if found and os.path.isfile(os.path.join(inside, _STEP)) and not _is_tree(inside):
            prefixes.add(found[1])
            steps[int(found[2])] = name
    if len(prefixes) > 1:
        raise UsageError(f"{place} holds steps of several prefixes ({listed(sorted(prefixes))}): give a step's folder")
    return steps


def _step(place: str, step: int | None) -> str:
    """The folder of a step in a manager's folder. Returns any other folder unchanged."""
    steps = _steps(place)
    if step is None:
        return os.path.join(place, steps[max(steps)]) if steps and not _is_tree(place) else place
    if step not in steps:
        there = listed(sorted(steps)) or "none"
        raise NotFoundError(f"{place} has no step {step}; it has: {there}")
    return os.path.join(place, steps[step])


def _item(place: str, item: str | None) -> str:
    """The folder of a tree in the folder of a step."""
    if _is_tree(place) and item is None:
        return place
    trees = [name for name in _folders(place) if _is_tree(os.path.join(place, name))]
    if not trees:
        raise NotFoundError(f"{place} is not a checkpoint of Orbax: expected {_TREE} in it, or in a folder in it")
    if item is None and len(trees) > 1:
        raise UsageError(f"{place} holds several trees: give item=, one of {listed(trees)}")
    if item is not None and item not in trees:
        raise NotFoundError(f"{place} has no tree '{item}'; it has: {listed(trees)}")
    return os.path.join(place, trees[0] if item is None else item)
