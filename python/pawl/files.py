# SPDX-License-Identifier: Apache-2.0
"""Single files that other programs read.

They are written in the background, complete and durable or not at all.
"""

from __future__ import annotations

import os
from types import TracebackType

from . import _checks, _pawl
from ._pawl import Ticket, UsageError
from .options import Duration

_FORMATS = (".pt", ".pth", ".safetensors")
_COMPRESSIONS = (".gz", ".bz2", ".lz4", ".lzma", ".lzo", ".planes", ".xz", ".zst")


def is_file_name(path: str) -> bool:
    """Whether the name is that of a single file, and not of a checkpoint's folder.

    Raises:
        UsageError: It is that of a file with an unknown compression.
    """
    stem, suffix = os.path.splitext(path)
    if suffix not in (*_FORMATS, *_COMPRESSIONS) and stem.endswith(_FORMATS) and not os.path.isdir(path):
        known = ", ".join(_COMPRESSIONS)
        raise UsageError(f"{path}: expected one of {known} after {os.path.splitext(stem)[1]}, received {suffix}")
    return (stem if suffix in _COMPRESSIONS else path).endswith(_FORMATS) and not os.path.isdir(path)


class FileSaver:
    """Writes states to single files in the background: ``torch.save`` without blocking the
    training.

    The suffix of the name selects the format: ``.pt`` and ``.pth`` for ``torch.load``, or
    ``.safetensors``. The suffix of a compression may follow (``x.pt.zst``). ``save`` copies the
    tensors and returns. A file appears under its name when it is complete and durable. An earlier
    file of that name stays until then.

    Args:
        threads: Threads that copy and write. Default: 0, one per core.
        bandwidth: Limit of writing in bytes per second, as a size. Default: None, no limit.

    Raises:
        UsageError: One of them is out of range.
    """

    def __init__(self, threads: int = 0, bandwidth: int | str | None = None) -> None:
        """``threads``: those that copy and write; 0 = one per core. ``bandwidth``: of writing, in
        bytes per second or as a text such as "20MB"; None = no limit.
        """
        limit = 0 if bandwidth is None else _checks.size("bandwidth", bandwidth)
        if threads < 0 or (bandwidth is not None and limit == 0):
            raise UsageError(f"FileSaver: expected threads >= 0 and bandwidth > 0, received {threads} and {bandwidth}")
        self._files = _pawl.Files(threads=threads, bandwidth=limit)

    def save(
        self,
        path: str | os.PathLike[str],
        state: object,
        *,
        overwrite: bool = True,
        wait: bool = False,
        raw_pickle: bool = False,
        format: str | None = None,
        level: int = 0,
    ) -> Ticket:
        """Begins a file and returns when the tensors have been copied.

        Args:
            path: Where the file appears; its suffix gives the format.
            state: What ``pawl.save`` takes.
            overwrite: Replace a file that exists. Default: True.
            wait: Return when the file is durable. Default: False.
            raw_pickle: In .pt files, ``{"$pickle": opcodes}`` stands for the object that these
                pickle opcodes make. Default: False.
            format: A suffix in place of the path's. Default: None.
            level: Level of the compression. Default: 0, the codec's own.

        Returns:
            The file's ticket.
        """
        ticket = self._files.save(
            _checks.path("path", path), state, overwrite=overwrite, raw_pickle=raw_pickle, format=format, level=level
        )
        if wait:
            ticket.wait()
        return ticket

    def wait_until_finished(self, timeout: Duration | None = None) -> None:
        """Waits until all files begun so far are durable.

        Args:
            timeout: Longest wait, as a duration. Default: None, no limit.

        Raises:
            PawlError: The first error that no call has raised.
        """
        self._files.wait(timeout)

    def check_for_errors(self) -> None:
        """Raises the first error of the background that no call has raised. Never waits.

        Raises:
            PawlError: That error.
        """
        self._files.check()

    def close(self) -> None:
        """Waits for files that are being written.

        Raises:
            PawlError: The first error that no call has raised.
        """
        self._files.close()

    def __enter__(self) -> FileSaver:
        """Returns the saver itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes it. An error of the block takes precedence over an error of a file."""
        try:
            self.close()
        except _pawl.PawlError:
            if kind is None:
                raise
