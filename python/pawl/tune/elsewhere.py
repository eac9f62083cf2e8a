# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of trials that are stored at another place (``upload_dir``) and not on this machine.

Here a folder with one note represents each of them. The experiment keeps, clones and removes it
like any other checkpoint. The note of a clone names its donor's files until the clone has its own
files at the place (``copy``).
"""

from __future__ import annotations

import json
import os

from .. import _checks, _files, _pawl
from .._pawl import UnsupportedError
from ..syncer import SyncConfig, Syncer

NOTE = ".elsewhere.json"


def place_of(sync: SyncConfig, experiment: str, *names: str) -> str:
    """Where a folder of an experiment is synced to, below upload_dir."""
    above = _checks.place("upload_dir", sync.upload_dir)
    return _checks.below(above, os.path.basename(experiment.rstrip("/")), *map(os.path.basename, names))


def send(sync: SyncConfig, place: str, folder: str) -> None:
    syncer = Syncer(folder, sync, remote=place)
    try:
        syncer.up()
    finally:
        syncer.close()


def fetch(sync: SyncConfig, place: str, folder: str) -> None:
    """Copies the files at a place into a new folder."""
    syncer = Syncer(folder, sync, remote=place)
    try:
        syncer.down()
    finally:
        syncer.close()
    if os.path.lexists(note := os.path.join(folder, NOTE)):
        os.unlink(note)


def stand_in(folder: str, place: str, sync: SyncConfig) -> None:
    """Makes the folder that represents a checkpoint."""
    partial = _files.hidden(folder)
    os.mkdir(partial)
    _write(partial, place, sync)
    _files.publish(partial, folder)


def copies(sync: SyncConfig) -> bool:
    """Whether the place can copy by itself. Commands and functions cannot do that."""
    return sync.upload_dir is not None and sync.syncer == "auto"


def copy(folder: str, place: str, sync: SyncConfig) -> None:
    """Gives a clone its own files at a place: links, or copies that the server makes.

    The clone's note then names these. If the place can do neither, the note still names the donor's
    files.
    """
    note = note_of(folder)
    if note is None or note["place"] == place:
        return
    try:
        _pawl.clone_folder(str(note["place"]), place)
    except UnsupportedError:
        return
    _write(folder, place, sync)


def _write(folder: str, place: str, sync: SyncConfig) -> None:
    """Replaces the note atomically.

    Any other file in the folder would be taken for the checkpoint.
    """
    command = sync.syncer if isinstance(sync.syncer, str) else None
    note = json.dumps({"place": place, "syncer": command, "shell": sync.shell})
    _files.replace(os.path.join(folder, NOTE), note, near=folder)


def note_of(folder: str) -> dict[str, object] | None:
    """The note of a checkpoint that is stored elsewhere; None if it is on this machine."""
    if not os.path.isdir(folder) or os.listdir(folder) != [NOTE]:
        return None
    return _files.read_dict(os.path.join(folder, NOTE))


def bring(folder: str) -> None:
    """Copies a checkpoint to this machine if it is stored elsewhere."""
    note = note_of(folder)
    if note is None:
        return
    syncer = note["syncer"]
    if not isinstance(syncer, str):
        raise UnsupportedError(f"{folder} is at {note['place']}, where a sync function copied it: fetch it from there")
    partial = _files.hidden(folder)
    fetch(SyncConfig(syncer=syncer, shell=bool(note["shell"])), str(note["place"]), partial)
    _files.publish(partial, folder)


def files_of(folder: str) -> list[tuple[str, int]]:
    """All files and folders below a folder, with sizes.

    Folders have -1 and precede their contents.
    """
    found: list[tuple[str, int]] = [(".", -1)]
    for above, folders, files in os.walk(folder):
        inner = os.path.relpath(above, folder)
        found += [(os.path.normpath(os.path.join(inner, one)), -1) for one in folders]
        for one in files:
            path = os.path.join(above, one)
            found.append((os.path.normpath(os.path.join(inner, one)), os.path.getsize(path)))
    return found
