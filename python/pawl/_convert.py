# SPDX-License-Identifier: Apache-2.0
"""Tensors of a checkpoint, or of another program's file, written in the format of another program."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from . import _checks, _pawl, checkpoint
from .records import Converted


class Options(TypedDict, total=False):
    """Those of convert."""

    to: str | None
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    rename: str | Sequence[str]
    dtype: str | None
    max_shard_bytes: int
    strip_prefix: str | None
    model: bool
    dots: bool
    overwrite: bool
    progress: Callable[[int, int], object] | None


def write(run: _pawl.Run, id: int, dst: str | os.PathLike[str], **options: Unpack[Options]) -> Converted:
    """One checkpoint of an open run."""
    counts = run.convert(
        id,
        _checks.path("dst", dst),
        options.get("to"),
        _checks.names("include", options.get("include", ())),
        _checks.names("exclude", options.get("exclude", ())),
        _checks.names("rename", options.get("rename", ())),
        options.get("dtype"),
        _checks.size("max_shard_bytes", options.get("max_shard_bytes", 0)),
        options.get("dots", False),
        options.get("overwrite", False),
        options.get("strip_prefix"),
        options.get("model", False),
        options.get("progress"),
    )
    return Converted(**counts)


def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    select: str | None = None,
    to: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    rename: str | Sequence[str] = (),
    dtype: str | None = None,
    max_shard_bytes: int = 0,
    strip_prefix: str | None = None,
    model: bool = False,
    dots: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Converted:
    """Does what ``pawl convert SRC DST`` does: in constant memory, without running what is in a file; ``dst`` is there
    whole and durable, or not at all.

    ``src`` is what ``pawl.load`` takes, or with ``select`` ("latest", "best", "400" for a step, "id:7") a run. ``to``
    is "safetensors", "hf", "pt", "dcp", "pawl", "npz" or "npy", by default what the suffix of ``dst`` says. ``include``
    and ``exclude`` are globs of names, ``rename`` rules "GLOB=TEMPLATE", ``dtype`` is one of "fp16", "bf16", "fp32" and
    "fp64". ``model`` writes the model alone, under the names that ``load_state_dict`` takes; ``strip_prefix`` removes
    the start of names ("model/"). ``progress`` is called with the bytes that are done and all bytes.
    """
    place = _checks.path("src", src)

    def convert_one(run: _pawl.Run) -> Converted:
        id = checkpoint.only(run, place)["id"] if select is None else run.find(select)
        return write(
            run,
            id,
            dst,
            to=to,
            include=include,
            exclude=exclude,
            rename=rename,
            dtype=dtype,
            max_shard_bytes=max_shard_bytes,
            strip_prefix=strip_prefix,
            model=model,
            dots=dots,
            overwrite=overwrite,
            progress=progress,
        )

    if select is None:
        return checkpoint.look(place, convert_one)
    run = _pawl.Run(place, read_only=True)
    try:
        return convert_one(run)
    finally:
        run.close()
