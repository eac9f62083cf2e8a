# SPDX-License-Identifier: Apache-2.0
"""Writes tensors of a checkpoint, or of another program's file, in another program's format."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import TypedDict, Unpack

from . import _checks, _pawl, checkpoint
from ._names import explained
from .options import DType, Size
from .records import Converted

Renames = str | Sequence[str | tuple[str, str]]


class Options(TypedDict, total=False):
    """The options of ``convert``."""

    to: str | None
    include: str | Sequence[str]
    exclude: str | Sequence[str]
    rename: Renames
    dtype: DType | None
    max_shard_bytes: Size
    strip_prefix: str | None
    model: bool
    dots: bool
    overwrite: bool
    progress: Callable[[int, int], object] | None


def write(run: _pawl.Run, id: int, dst: str | os.PathLike[str], **options: Unpack[Options]) -> Converted:
    """Converts one checkpoint of an open run."""
    counts = run.convert(
        id,
        _checks.path("dst", dst),
        options.get("to"),
        _checks.names("include", options.get("include", ())),
        _checks.names("exclude", options.get("exclude", ())),
        _checks.rules(options.get("rename", ())),
        None if (dtype := options.get("dtype")) is None else _checks.dtype_name(dtype),
        _checks.size("max_shard_bytes", options.get("max_shard_bytes", 0)),
        options.get("dots", False),
        options.get("overwrite", False),
        options.get("strip_prefix"),
        options.get("model", False),
        options.get("progress"),
    )
    return Converted(**counts)


@explained
def convert(
    src: str | os.PathLike[str],
    dst: str | os.PathLike[str],
    *,
    select: str | None = None,
    to: str | None = None,
    include: str | Sequence[str] = (),
    exclude: str | Sequence[str] = (),
    rename: Renames = (),
    dtype: DType | None = None,
    max_shard_bytes: Size = 0,
    strip_prefix: str | None = None,
    model: bool = False,
    dots: bool = False,
    overwrite: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Converted:
    """Writes a checkpoint, or another program's file, in another format. Needs constant memory and
    runs no code of a file. ``dst`` appears complete and durable, or not at all. ``pawl.export`` is
    another name of this function.

    Args:
        src: What ``pawl.load`` takes; with ``select`` a run.
        dst: Path of a file or a folder.
        select: A checkpoint of the run ``src``: "latest", "best", "400" for a step, "id:7".
            Default: None.
        to: "safetensors", "hf", "pt", "dcp", "pawl", "npz" or "npy". Default: None, by the suffix
            of ``dst``.
        include: Globs of the names to write. Default: (), all.
        exclude: Globs of names to leave out. Default: (), none.
        rename: Pairs of an old and a new name, ``("old/*", "new/*")``, or texts "GLOB=TEMPLATE"
            (docs/how-to/convert.md). Default: (), none.
        dtype: For all floats: "float16", "bfloat16", "float32" or "float64", or "fp16", "bf16",
            "fp32", "fp64", or one of torch or NumPy. Default: None, as they were saved.
        max_shard_bytes: Most bytes of a file of "safetensors" or "hf", as a size. Default: 0, no
            limit.
        strip_prefix: A prefix to remove from names ("model/"). Default: None.
        model: Write the model alone, under the names that ``load_state_dict`` takes. Default:
            False.
        dots: Write "." between the parts of a name. Default: False, "/".
        overwrite: Replace what exists at ``dst``; a checkpoint of pawl replaces nothing. Default:
            False.
        progress: Called with the bytes done and all bytes, a few times a second.

    Returns:
        What was written.

    Raises:
        ExistsError: ``dst`` exists, or two tensors would get one name.
        UnsupportedError: The format lacks a dtype.
        NotFoundError: There is no such checkpoint.
        CorruptError: It is damaged.
    """
    place = _checks.path("src", src)

    def convert_one(run: _pawl.Run) -> Converted:
        id = checkpoint.only(run, checkpoint.opened_as(run, place))["id"] if select is None else run.find(select)
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


export = convert
