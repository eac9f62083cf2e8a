# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of trials that are stored at another place (``upload_dir``) and not here: here a folder with one note in
it stands for each, which the experiment keeps, clones and removes as it does with others. A clone's note is that of its
donor, until the clone has files of its own there (``copy``)."""

from __future__ import annotations

import json
import os

from .. import _checks, _files, _pawl
from .._pawl import UnsupportedError
from ..syncer import SyncConfig, Syncer

NOTE = ".elsewhere.json"


def place_of(sync: SyncConfig, experiment: str, *names: str) -> str:
    """Where a folder of an experiment is synced to, below upload_dir."""
    whole = _checks.path("upload_dir", sync.upload_dir)
    base, mark, options = whole.partition("?") if "://" in whole else (whole, "", "")
    parts = [base.rstrip("/"), os.path.basename(experiment.rstrip("/")), *map(os.path.basename, names)]
    return "/".join(parts) + mark + options


def send(sync: SyncConfig, place: str, folder: str) -> None:
    syncer = Syncer(folder, sync, remote=place)
    try:
        syncer.up()
    finally:
        syncer.close()


def fetch(sync: SyncConfig, place: str, folder: str) -> None:
    """Brings what is at a place into a new folder."""
    syncer = Syncer(folder, sync, remote=place)
    try:
        syncer.down()
    finally:
        syncer.close()
    if os.path.lexists(note := os.path.join(folder, NOTE)):
        os.unlink(note)


def stand_in(folder: str, place: str, sync: SyncConfig) -> None:
    """Makes the folder that stands for a checkpoint."""
    partial = _files.hidden(folder)
    os.mkdir(partial)
    _write(partial, place, sync)
    _files.publish(partial, folder)


def copies(sync: SyncConfig) -> bool:
    """Can the place copy by itself? Commands and functions cannot be asked for that."""
    return sync.upload_dir is not None and sync.syncer == "auto"


def copy(folder: str, place: str, sync: SyncConfig) -> None:
    """Gives a clone its own files at a place: links, or copies that the server makes. Its note then names these.
    Where the place can do neither, the note still names the donor's files."""
    note = note_of(folder)
    if note is None or note["place"] == place:
        return
    try:
        _pawl.clone_folder(str(note["place"]), place)
    except UnsupportedError:
        return
    _write(folder, place, sync)


def _write(folder: str, place: str, sync: SyncConfig) -> None:
    """The note, replaced at once. Nothing else is ever in the folder: it would be taken for the checkpoint."""
    command = sync.syncer if isinstance(sync.syncer, str) else None
    note = json.dumps({"place": place, "syncer": command, "shell": sync.shell})
    _files.replace(os.path.join(folder, NOTE), note, near=folder)


def note_of(folder: str) -> dict[str, object] | None:
    """What stands for the checkpoint that is not here; None: it is here."""
    if not os.path.isdir(folder) or os.listdir(folder) != [NOTE]:
        return None
    with open(os.path.join(folder, NOTE), encoding="utf-8") as file:
        return dict(json.load(file))


def bring(folder: str) -> None:
    """Brings a checkpoint here, if something else stands for it."""
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
    """All below a folder, with sizes; folders, which come before what is in them, have -1."""
    found: list[tuple[str, int]] = [(".", -1)]
    for above, folders, files in os.walk(folder):
        inner = os.path.relpath(above, folder)
        found += [(os.path.normpath(os.path.join(inner, one)), -1) for one in folders]
        for one in files:
            path = os.path.join(above, one)
            found.append((os.path.normpath(os.path.join(inner, one)), os.path.getsize(path)))
    return found
