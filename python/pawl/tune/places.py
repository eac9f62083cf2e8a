# SPDX-License-Identifier: Apache-2.0
"""Where an experiment is stored: here, at the place that it is synced to, or at a place to begin
from.
"""

from __future__ import annotations

import contextlib
import glob
import hashlib
import json
import logging
import os
import shutil
import stat
import sys
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from .. import _checks, _pawl
from .._fsspec import has, takes
from .._names import listed
from .._pawl import AccessError, ExistsError, NotFoundError, PawlError, UsageError
from ..syncer import SyncConfig, Syncer, SyncReport
from . import elsewhere

_log = logging.getLogger("pawl")
_FETCHED = ".restore"  # suffix of a folder next to the experiment's
_KIND_OTHER = 3  # of enum pawl_kind
_RESUME = {"AUTO": 1, "LOCAL": 2, "ERRORED_ONLY": 3}  # of enum tune_resume


def is_experiment(folder: str) -> bool:
    path = os.path.join(folder, "experiment.json")
    try:
        return stat.S_ISREG(os.stat(path).st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except PermissionError as error:
        raise AccessError(f"{path}: {error.strerror}") from error


def _syncs(sync: SyncConfig) -> bool:
    return sync.upload_dir is not None and sync.syncer is not None


def _fetch(folder: str, sync: SyncConfig, must: bool) -> None:
    """Fetches the experiment from the place that it was synced to, if it exists there.

    A local experiment gets the files that it lacks.
    """
    place = _place_of(folder, sync)
    fetched = folder if is_experiment(folder) else _partial(folder)
    syncer = Syncer(fetched, sync, remote=place)
    try:
        syncer.down()
        if must and not is_experiment(fetched):
            raise NotFoundError(f"{place} has no experiment")
    except PawlError as error:
        own = sync.syncer == "auto"
        if must or is_experiment(fetched) or (own and not isinstance(error, NotFoundError)):
            raise
        if not own:  # a command cannot report that nothing exists yet
            _log.warning("%s: nothing was fetched from %s: %s", folder, place, error)
    finally:
        syncer.close()
    if is_experiment(fetched):
        _take_over(fetched, folder)
    else:
        shutil.rmtree(fetched, ignore_errors=True)


def _partial(folder: str) -> str:
    """The folder that an experiment is fetched into.

    After an interrupt it is not an experiment yet.
    """
    above, name = os.path.split(folder)
    return os.path.join(above, f".{name}.fetched")


def _take_over(fetched: str, folder: str) -> None:
    if fetched == folder:
        return
    if os.path.isdir(folder) and os.listdir(folder):
        raise ExistsError(f"{folder} is not an experiment, but the fetched experiment has this name; move the folder")
    os.rename(fetched, folder)


def is_elsewhere(place: str) -> bool:
    """Whether it is a URL or user@host:path, and not the name of a local folder."""
    return "://" in place or (_is_of_rsync(place) and not os.path.exists(place))


def _bring(place: str, folder: str) -> None:
    """Fetches the experiment at a place into a folder. Existing files are not fetched again."""
    syncer = Syncer(folder, SyncConfig(), remote=place)
    try:
        syncer.down()
        if not is_experiment(folder):
            raise NotFoundError(f"{place} has no experiment")
    except NotFoundError:
        if not is_experiment(folder):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        syncer.close()


def to_read(place: str) -> str:
    """Makes or updates a copy of the experiment at a place, in the user's cache.

    Returns its folder.
    """
    above = os.environ.get("XDG_CACHE_HOME") or os.path.join("~", ".cache")
    mark = hashlib.sha256(place.encode()).hexdigest()[:12]
    name = place.partition("?")[0].rstrip("/").replace(":", "/").rpartition("/")[2]
    folder = os.path.join(os.path.expanduser(above), "pawl", "experiments", f"{name}-{mark}")
    _bring(place, folder)
    return folder


def to_continue(place: str, local_dir: str) -> tuple[str, SyncConfig]:
    """The local folder of an experiment at a place, and the SyncConfig that syncs it to that place.

    The folder is below local_dir. The experiment is fetched unless it exists there.
    """
    start, options = _checks.split_options(place)
    above, _, name = start.rstrip("/").rpartition("/")
    if not name or not above or above.endswith((":", "/")):
        raise UsageError(
            f"{place}: expected an experiment's own folder below a place, such as s3://bucket/searches/exp, "
            "user@host:searches/exp or user@host:./exp"
        )
    folder, sync = os.path.join(local_dir, name), SyncConfig(upload_dir=above + options)
    if not is_experiment(folder):
        if os.path.isdir(folder) and os.listdir(folder):
            raise ExistsError(f"{folder} is not an experiment, but {place} is to be fetched there; move the folder")
        _bring(place, _partial(folder))
        _take_over(_partial(folder), folder)
    return folder, sync


def can_continue(place: str) -> bool:
    """Whether a place holds something that may be an experiment."""
    if takes(place):
        return has(place, "experiment.json")
    try:
        return _pawl.kind_of(place) == _KIND_OTHER
    except PawlError:
        return False


def _place_of(folder: str, sync: SyncConfig) -> str:
    """The place that the folder is synced to."""
    syncer = Syncer(folder, sync)
    try:
        return str(syncer.remote)
    finally:
        syncer.close()


def _is_of_rsync(place: str) -> bool:
    head, colon, _ = place.partition(":")
    return "://" not in place and bool(colon) and "/" not in head


def _is_taken(folder: str, sync: SyncConfig) -> bool:
    """Whether the place to sync to already holds something.

    Places of rsync and commands are not checked.
    """
    if is_experiment(folder) or not _syncs(sync) or sync.syncer != "auto":
        return False
    place = _place_of(folder, sync)
    if takes(place):
        return has(place, "experiment.json")
    if _is_of_rsync(place):
        return False
    with contextlib.suppress(PawlError):  # the first sync raises it again
        return _pawl.kind_of(place) > 0
    return False


def find(folder: str, sync: SyncConfig, word: str | None) -> int:
    """How to open the experiment. Fetches it if the word requests that.

    A new experiment is refused if another one was synced to its place: it would overwrite that.
    """
    if word is None:
        if _is_taken(folder, sync):
            raise ExistsError(
                f"{_place_of(folder, sync)} already holds something that a new experiment would overwrite; "
                'resume="AUTO" continues it, another name begins a new one'
            )
        return 0
    if word == "REMOTE":
        if not _syncs(sync):
            raise UsageError('resume="REMOTE" needs sync_config with an upload_dir to fetch the experiment from')
        _fetch(folder, sync, must=True)
        return _RESUME["LOCAL"]
    if word == "PROMPT":
        there = is_experiment(folder) or _is_taken(folder, sync)
        return find(folder, sync, "AUTO" if there and _ask(folder) else None)
    if not is_experiment(folder) and _syncs(sync):
        _fetch(folder, sync, must=False)
    return _RESUME[word]


def _ask(folder: str) -> bool:
    if not sys.stdin.isatty():
        raise UsageError(f'{folder} already exists, and resume="PROMPT" finds no terminal to ask; give "AUTO"')
    return input(f"{folder}: an experiment of this name exists. Continue it? [Y/n] ").strip().lower() in (
        "",
        "y",
        "yes",
    )


@dataclass(frozen=True)
class Given:
    """What an experiment begins with: another experiment, a checkpoint for all trials, or both."""

    experiment: str | None = None
    checkpoint: str | None = None


def given(restore: str | os.PathLike[str] | SyncConfig | None, folder: str) -> Given:
    """``restore`` of tune.run.

    An experiment in ``upload_dir`` or at another place is copied next to ``folder`` first. An
    experiment that is resumed imports nothing, but its trials still begin with the same checkpoint.
    """
    place = None
    if isinstance(restore, str | os.PathLike) and is_elsewhere(_checks.path("restore", restore)):
        restore = SyncConfig(upload_dir=restore)
    if restore is not None and not isinstance(restore, SyncConfig):
        place = os.path.abspath(_checks.path("restore", restore))
        if os.path.isdir(place) and not is_experiment(place):
            return Given(checkpoint=place)
    if is_experiment(folder):
        return Given(checkpoint=_first_checkpoint(folder))
    if isinstance(restore, SyncConfig):
        place = _fetched(restore, folder)
    if place is None:
        return Given()
    if not is_experiment(place):
        raise NotFoundError(f"restore: {place} is neither an experiment nor a checkpoint")
    return Given(place, _first_checkpoint(place))


def note(begin: Given, document: dict[str, Any]) -> None:
    """Notes the checkpoint in the document of the experiment, where ``_first_checkpoint`` finds it."""
    if begin.checkpoint is not None:
        document["user"] = {**document.get("user", {}), "restore": begin.checkpoint}


def _first_checkpoint(folder: str) -> str | None:
    """The checkpoint that all trials of an experiment begin with."""
    try:
        with open(os.path.join(folder, "experiment.json"), encoding="utf-8") as file:
            found = json.load(file)["document"].get("user", {}).get("restore")
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # opening the experiment reports the damage
    return found if isinstance(found, str) else None


def _fetched(config: SyncConfig, folder: str) -> str:
    """Fetches the only experiment in upload_dir.

    Returns its local folder. Nothing is fetched twice.
    """
    if config.upload_dir is None or config.syncer is None:
        raise UsageError("restore: the SyncConfig needs an upload_dir, where the experiment is")
    above, name = os.path.split(folder)
    cache = os.path.join(above, f".{name}{_FETCHED}")
    syncer = Syncer(cache, config, remote=_checks.place("upload_dir", config.upload_dir))
    try:
        syncer.down()
    finally:
        syncer.close()
    if is_experiment(cache):
        return cache
    found = sorted(one for one in os.listdir(cache) if one != name and is_experiment(os.path.join(cache, one)))
    if len(found) != 1:
        what = f"{len(found)}: {listed(found)}; name one of them in upload_dir" if found else "none"
        raise NotFoundError(f"restore: expected one experiment in {config.upload_dir}, found {what}")
    return os.path.join(cache, found[0])


def forget(experiment: str | None) -> None:
    """Removes the copy that ``_fetched`` made, since the new experiment has its own."""
    above, name = os.path.split(experiment or "")
    if name.startswith(".") and name.endswith(_FETCHED):
        shutil.rmtree(str(experiment), ignore_errors=True)
    elif os.path.basename(above).startswith(".") and above.endswith(_FETCHED):
        shutil.rmtree(above, ignore_errors=True)


class _ExperimentSyncer(Syncer):
    """Also removes from the place the checkpoints that the experiment has deleted.

    It does so after a sync has sent the kept ones. A checkpoint that cannot be removed is only
    logged.
    """

    _told = False

    def up(self) -> SyncReport | None:
        before = _pawl.tune_leftovers(self.local)
        report = super().up()
        if report is not None and before is not None:
            try:
                needed = self._needed()
                self._prune([one for one in _pawl.tune_leftovers_after(before) if one not in needed])
            except Exception as error:  # also of a file system of fsspec
                if not self._told:
                    _log.warning("%s: old checkpoints stay at %s: %s", self.local, self.remote, error)
                self._told = True
        return report

    def _needed(self) -> set[str]:
        """Folders at the place that clones of their checkpoints still read."""
        notes = glob.glob(os.path.join(glob.escape(self.local), "*", "*", elsewhere.NOTE))
        places = [elsewhere.note_of(os.path.dirname(note)) for note in notes]
        return {"/".join(str(one["place"]).partition("?")[0].rstrip("/").split("/")[-2:]) for one in places if one}


class Synced:
    """Syncs the experiment's folder while it runs.

    A place that is not writable is an error before the first trial begins. A later sync that fails
    is logged and tried again. An error is raised at the end only if the last sync fails.
    """

    def __init__(self, folder: str, config: SyncConfig) -> None:
        self._folder = folder
        self._syncer = _ExperimentSyncer(folder, config) if _syncs(config) else None

    @property
    def is_on(self) -> bool:
        """Whether there is a place that is synced after each checkpoint."""
        return self._syncer is not None and self._syncer.config.sync_on_checkpoint

    def request(self) -> None:
        """Requests a sync, after a new checkpoint or the end of a trial."""
        if self._syncer is not None and self.is_on:
            self._syncer.request()

    def __enter__(self) -> Self:
        if self._syncer is not None:
            self._syncer.up()
            self._syncer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._syncer is None:
            return
        try:
            self._syncer.close()
        except PawlError as problem:
            _log.error("%s: the experiment was not synced completely: %s", self._folder, problem)
            if error is None:
                problem.add_note(f"The trials have ended; tune.ExperimentAnalysis({self._folder!r}) has their results.")
                raise
