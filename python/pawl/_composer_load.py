# SPDX-License-Identifier: Apache-2.0
"""Finding and loading the checkpoint files that composer.py writes, and Composer's own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from . import _checks, _fsspec, _pawl
from ._pawl import MismatchError, NotFoundError, UsageError
from .checkpoint import load

Path = str | os.PathLike[str]
IgnoreKeys = Sequence[str] | Callable[[dict[str, Any]], object] | None

_FOLDER = "{run_name}/checkpoints"
_LATEST = "latest-rank{rank}.pt"


def text_of(option: str, value: Path | None) -> str | None:
    return None if value is None else _checks.path(option, value)


def remote_of(option: str, value: Path | None) -> str | None:
    """The same for a name in a store, or a URL of a file in a store that can be opened."""
    text = text_of(option, value)
    if text is None or "://" not in text or _fsspec.takes(text) or text.split("://")[0] in _pawl.url_schemes():
        return text
    known = ", ".join(_pawl.url_schemes())
    raise UsageError(f"{option}: expected a URL of {known} or of fsspec, received {_checks.shown(value)}")


def find_latest(
    run_name: str | None = None,
    *,
    folder: Path = _FOLDER,
    latest_filename: Path | None = _LATEST,
    latest_remote_file_name: Path | None = None,
    remote_file_name: Path | None = None,
) -> str | None:
    """Finds the checkpoint file from which a run continues after a restart.

    Args:
        run_name: Name of the run, for templates. Default: None.
        folder: As in ``CheckpointSaver``.
        latest_filename: As in ``CheckpointSaver``.
        latest_remote_file_name: As in ``CheckpointSaver``.
        remote_file_name: As in ``CheckpointSaver``.

    Returns:
        The path that the latest link leads to. If there is none and a remote name is a URL, the URL
        that the remote latest leads to. None for a run that has neither.
    """
    remotes = (
        text_of("latest_remote_file_name", latest_remote_file_name),
        text_of("remote_file_name", remote_file_name),
    )
    names = (_checks.path("folder", folder), text_of("latest_filename", latest_filename))
    return _pawl.saver_find(run_name, *names, *remotes)


def load_checkpoint(
    path: Path,
    state: Any = None,
    *,
    run_name: str | None = None,
    folder: Path = _FOLDER,
    latest_filename: Path | None = _LATEST,
    latest_remote_file_name: Path | None = None,
    load_weights_only: bool = False,
    load_ignore_keys: IgnoreKeys = None,
    strict: bool = True,
) -> Any:
    """Loads a checkpoint file, ours or Composer's own. No code in it is run.

    Args:
        path: A file, a template ({run_name}, {rank}, ...), "latest", or the URL of a file or of a
            remote latest. Of a tar file, the state in it is loaded.
        state: A tree of live objects and values, which take what was saved under the same keys.
            Default: None.
        run_name: As in ``find_latest``.
        folder: As in ``find_latest``.
        latest_filename: As in ``find_latest``.
        latest_remote_file_name: As in ``find_latest``.
        load_weights_only: Only the model. Default: False.
        load_ignore_keys: Paths with ``*`` that are left out, or a function that changes the tree.
        strict: Demand the same keys on both sides. Default: True.

    Returns:
        The tree with new tensors.
    """
    names = (_checks.path("folder", folder), text_of("latest_filename", latest_filename))
    remote = text_of("latest_remote_file_name", latest_remote_file_name)
    with tempfile.TemporaryDirectory() as there:
        tree = _load(lambda: _pawl.saver_find(run_name, *names, remote, None, _checks.path("path", path), there))
    tree = _chosen(tree, load_weights_only, load_ignore_keys)
    if state is not None:
        _give(state, tree, strict, "")
    return tree


def _load(find: Callable[[], str | None]) -> Any:
    """Loads what a link leads to. Its file may be removed meanwhile, when the link leads to a newer one."""
    found = find()
    while True:
        assert found is not None
        try:
            return load(found)
        except NotFoundError:
            last, found = found, find()
            if found == last:
                raise


def _chosen(tree: Any, weights_only: bool, ignore: IgnoreKeys) -> Any:
    if weights_only and isinstance(tree, dict):
        inner = tree.get("state")
        if isinstance(inner, dict) and "model" in inner:
            tree = {"state": {"model": inner["model"]}}
        elif "model" in tree:
            tree = {"model": tree["model"]}
        else:
            raise MismatchError('load_weights_only: expected the weights at "model" or "state/model", found neither')
    if callable(ignore):
        ignore(tree)
    elif ignore is not None:
        tree = _without(tree, _checks.names("load_ignore_keys", ignore), "")
    return tree


def _without(tree: Any, globs: tuple[str, ...], place: str) -> Any:
    if not isinstance(tree, dict):
        return tree
    kept = {}
    for key, value in tree.items():
        path = f"{place}/{key}" if place else str(key)
        if not any(_pawl.path_matches(glob, path) for glob in globs):
            kept[key] = _without(value, globs, path)
    return kept


def _give(live: Any, saved: Any, strict: bool, place: str) -> None:
    """Loads what was saved into live objects and live dicts."""
    if hasattr(live, "load_state_dict"):
        if strict or not hasattr(live, "named_parameters"):
            live.load_state_dict(saved)
        else:
            live.load_state_dict(saved, strict=False)
        return
    if not isinstance(live, dict) or not isinstance(saved, dict):
        raise MismatchError(f"{place or 'the state'}: expected a dict, or a live object with load_state_dict")
    if strict and live.keys() != saved.keys():
        odd = sorted(str(key) for key in live.keys() ^ saved.keys())
        raise MismatchError(f"{place or 'the state'}: only one of live and saved state has {', '.join(odd)}")
    for key in live.keys() & saved.keys():
        if hasattr(live[key], "load_state_dict") or isinstance(live[key], dict):
            _give(live[key], saved[key], strict, f"{place}/{key}" if place else str(key))
        else:
            live[key] = saved[key]
