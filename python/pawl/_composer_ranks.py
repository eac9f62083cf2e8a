# SPDX-License-Identifier: Apache-2.0
"""Operations that all ranks of Composer's Trainer do together."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from . import _pawl
from ._pawl import MismatchError


def together(work: Callable[[], object]) -> None:
    """Does the work on every rank. Raises on all of them if it fails on one.

    The other ranks would otherwise wait for the one that failed.
    """
    from composer.utils import dist

    failure = None
    try:
        work()
    except Exception as error:
        failure = error
    texts = dist.all_gather_object(None if failure is None else (type(failure).__name__, str(failure)))
    if failure is not None:
        raise failure
    for rank, text in enumerate(texts):
        if text is not None:
            raise getattr(_pawl, text[0], _pawl.PawlError)(f"rank {rank}: {text[1]}")


def latest_for_all(options: Mapping[str, Any], folder: str, filenames: Sequence[str | None], there: str) -> str | None:
    """Finds the file that all ranks load.

    Rank 0 chooses it, since ranks may find different files.
    """
    from composer.utils import dist

    _, remote, latest, latest_remote = filenames
    names = (options["run_name"], folder)
    paths: list[str | None] = []
    if dist.get_world_size() > 1:
        dist.initialize_dist(options.get("device"), options.get("dist_timeout", 300.0))  # as the Trainer would
    found = _of_rank_0(lambda: _pawl.saver_find(*names, latest, latest_remote, remote))
    if found is not None and "://" not in found:
        seen = dist.all_gather_object(os.path.isfile(found))
        if all(seen):
            return found
        rank = seen.index(False)
        here, found = found, _of_rank_0(lambda: _pawl.saver_find(*names, None, latest_remote, remote))
        if found is None:
            raise MismatchError(
                f"autoresume: expected {here} on every rank, found none on rank {rank}; give a folder that every node "
                "sees, or the URL of a file in remote_file_name"
            )
    if found is not None:
        together(lambda: paths.append(_pawl.saver_find(*names, latest, latest_remote, remote, found, there)))
    return paths[0] if paths else None


def _of_rank_0(find: Callable[[], str | None]) -> str | None:
    from composer.utils import dist

    found: list[str | None] = [None]
    together(lambda: found.__setitem__(0, find()) if dist.get_global_rank() == 0 else None)
    dist.broadcast_object_list(found)
    return found[0]
