# SPDX-License-Identifier: Apache-2.0
"""pawl as the storage of torch.distributed.checkpoint (DCP): for save, async_save and load, with
any planner.

    writer = pawl.torch.StorageWriter("runs/demo", num_to_keep=3)
    dcp.save(state, checkpoint_id=f"step_{step}", storage_writer=writer)
    dcp.load(state, storage_reader=pawl.torch.StorageReader("runs/demo"))

Nothing is pickled: tensors are in packs, and objects that DCP would pickle are stored as values of
the state.
"""

from __future__ import annotations

import dataclasses
import io
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from types import TracebackType
from typing import Any, Self, TypeVar, cast

import torch
from torch import distributed as dist
from torch.distributed._shard.sharded_tensor.api import ShardedTensor
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import (
    LoadItemType,
    LoadPlan,
    LoadPlanner,
    ReadItem,
    SavePlan,
    SavePlanner,
    WriteItemType,
)
from torch.distributed.checkpoint.staging import AsyncStager, BlockingAsyncStager
from torch.distributed.checkpoint.state_dict_saver import save as _dcp_save
from torch.distributed.checkpoint.storage import StorageReader as _StorageReader
from torch.distributed.checkpoint.storage import StorageWriter as _StorageWriter
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future
from torch.utils._pytree import tree_map_only

from . import _checks, _dcp, _dcp_plans, _options, _pawl, _reports
from ._pawl import ExistsError, InternalError, MismatchError, NotFoundError, UnsupportedError, UsageError
from .checkpoint import is_foreign
from .manager import CheckpointManager
from .options import Staging
from .shard import Shard

__all__ = ["StorageReader", "StorageWriter", "export_dcp"]

_T = TypeVar("_T")
_COPY_BYTES = 256 << 20  # of tensors that are first read into host memory, at a time


def _done(value: _T) -> Future[_T]:
    future: Future[_T] = Future()
    future.set_result(value)
    return future


# ---- saving ----


class _OfRun:
    """The common part of StorageWriter and StorageReader."""

    _root: str
    _checkpoint_id: str | os.PathLike[str] | int | None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._root!r})"

    @property
    def checkpoint_id(self) -> str | os.PathLike[str]:
        """The id that the running save or load was given; else the run's folder."""
        return self._root if self._checkpoint_id is None else str(self._checkpoint_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        return isinstance(checkpoint_id, str | os.PathLike | int)

    def _is_root(self, checkpoint_id: object) -> bool:
        """Whether the id only names the run, as the property does if none was given."""
        if not isinstance(checkpoint_id, str | os.PathLike):
            return False
        given = _checks.path("checkpoint_id", checkpoint_id)
        if "://" in self._root or "://" in given:
            return given.rstrip("/") == self._root.rstrip("/")
        return os.path.abspath(given) == os.path.abspath(self._root)


class _Sharded:
    """Makes torch's DefaultStager copy a ShardedTensor, which it refuses. BlockingAsyncStager copies
    it, but does not keep tied tensors together, and leaves some DTensors in the live memory.
    """

    def __init__(self, tensor: ShardedTensor) -> None:
        self._tensor = tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> ShardedTensor:
        return BlockingAsyncStager().stage({"": self._tensor})[""]


class StorageWriter(_OfRun, _StorageWriter, AsyncStager):
    """Saves what DCP has planned as checkpoints of a run, with pawl's retention, checksums and
    commit.

    Make it once and keep it: it holds the run from the first save until ``close()``, or until it is
    garbage collected. All ranks save together. When ``dcp.save`` returns, or the future of
    ``dcp.async_save`` is done, the checkpoint is durable on every rank or an error was raised on
    every rank.

    The step is the last number in ``checkpoint_id`` (``step_400``), which may itself be a number.
    If there is no number, or if the id is the run's folder, the step is one more than the last. If
    one rank has several shards of a tensor, each is saved as a tensor. ``StorageReader`` joins
    them.

    Args:
        root: The run's folder or URL.
        process_group: The group that ``dcp.save`` gets. Default: None, torch's default group, or
            this process alone.
        options: Options of ``CheckpointManager``.
    """

    def __init__(self, root: str | os.PathLike[str], *, process_group: Any = None, **options: Any) -> None:
        super().__init__()
        self._root = _checks.path("root", root)
        self._group = process_group
        staging = Staging(mode="direct")  # DCP waits for the end of the save in any case
        self._options: dict[str, Any] = {"staging": staging, **options}
        self._manager: CheckpointManager | None = None
        self._checkpoint_id: str | os.PathLike[str] | int | None = None
        self._last_step: int | None = None
        self._given: dict[str, Any] = {}
        self._id: int | None = None

    @property
    def manager(self) -> CheckpointManager:
        """The run's manager. The first access opens it, on all ranks together."""
        if self._manager is None:
            rank, world_size = self._who()
            self._manager = CheckpointManager(self._root, **_options.with_rank(self._options, rank, world_size))
        return self._manager

    def next_save(
        self,
        *,
        step: int | None = None,
        metrics: Mapping[str, object] | None = None,
        metadata: Mapping[str, Any] | None = None,
        progress: Mapping[str, float] | None = None,
    ) -> None:
        """Sets what the next save stores. Call it in the same way on every rank.

        Args:
            step: Its step. Default: None, see the class.
            metrics: As in ``CheckpointManager.save``. Default: None.
            metadata: As in ``CheckpointManager.save``. Default: None.
            progress: As in ``CheckpointManager.save``. Default: None.
        """
        self._given = {"step": step, "metrics": metrics, "metadata": metadata, "progress": progress}

    def close(self) -> None:
        """Releases the run."""
        manager, self._manager = self._manager, None
        if manager is not None:
            manager.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __getstate__(self) -> dict[str, Any]:
        if self._manager is not None:
            raise UsageError("a StorageWriter that has opened its run cannot be handed to another process")
        return self.__dict__

    # ---- what DCP calls ----

    _synchronize_after_execute = False  # stage returns when the copy is complete

    def stage(self, state_dict: dict[str, Any]) -> dict[str, Any]:
        """Copies a state to the CPU for ``dcp.async_save``."""
        from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions  # older versions have none

        with closing(DefaultStager(StagingOptions(False, False, False, False))) as stager:  # as async_save makes one
            return cast(dict[str, Any], stager.stage(tree_map_only(ShardedTensor, _Sharded, state_dict)))

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        self._checkpoint_id = checkpoint_id

    def storage_meta(self) -> StorageMeta:
        return StorageMeta(checkpoint_id=self.checkpoint_id)

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        rank, world_size = self._who()
        if not kwargs.get("use_collectives", True):
            raise UsageError("use_collectives=False makes every rank save by itself, which pawl does not support")
        planned = kwargs.get("rank", rank)
        if planned != rank:
            raise UsageError(
                f"DCP saves as rank {planned}, the StorageWriter as rank {rank} of {world_size}; give it the same "
                "process_group, or rank=0 and world_size=1 where no_dist=True"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        world_size = self._who()[1]
        if len(plans) != world_size:
            raise UsageError(
                f"DCP saves with {len(plans)} ranks, the StorageWriter with {world_size}; give it that process_group"
            )
        names = frozenset(name for plan in plans for name in _dcp_plans.in_pieces(plan))
        return [dataclasses.replace(plan, storage_data=names) for plan in plans] if names else plans

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        manager = self.manager
        checkpoint_id, self._checkpoint_id = self._checkpoint_id, None
        given, self._given = self._given, {}
        try:
            step = self._step(manager, given.pop("step", None), checkpoint_id)
            note = {_dcp.NOTE: {"checkpoint_id": _plain_id(checkpoint_id)}}
            metadata = {**(given.pop("metadata", None) or {}), **note}
            state = self._state(plan, planner)
        except Exception as error:  # the other ranks are saving already
            manager._run.save_failed(str(error))
            raise
        ticket = manager.save(step, state, metadata=metadata, force=True, **given)
        if ticket is not None:
            ticket.wait_durable()  # older checkpoints are deleted in the background
        if ticket is None or ticket.id is None:
            raise UsageError(
                f"the save of step {step} was refused by its score, and DCP cannot skip a save; leave out "
                "Retention(strict_score=True)"
            )
        self._last_step, self._id = step, ticket.id
        return _done([WriteResult(item.index, _dcp_plans.nbytes(item), ticket.id) for item in plan.items])

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        found = {result.storage_data for row in results for result in row} | {self._id}
        if len(found) != 1:
            raise InternalError(f"the ranks have saved different checkpoints: {sorted(map(str, found))}")
        metadata.storage_data = {}
        metadata.storage_meta = self.storage_meta()

    # ---- inside ----

    def _who(self) -> tuple[int, int]:
        ranks = self._options.get("ranks")
        if ranks is not None and ranks.rank is not None and ranks.world_size is not None:
            return ranks.rank, ranks.world_size
        if not (dist.is_available() and dist.is_initialized()):
            return 0, 1
        return dist.get_rank(self._group), dist.get_world_size(self._group)

    def _step(self, manager: CheckpointManager, given: int | None, checkpoint_id: object) -> int:
        found = None if self._is_root(checkpoint_id) else _dcp.step_of(checkpoint_id)
        step = found if given is None else given
        if step is not None:
            return _checks.step(step)
        last = manager.latest_step() if self._last_step is None else self._last_step
        return 0 if last is None else last + 1

    def _state(self, plan: SavePlan, planner: SavePlanner) -> dict[Any, Any]:
        """The state that this rank writes. Every item is a leaf that belongs to this rank alone."""
        state: dict[Any, Any] = {}
        seen: set[Any] = set()
        paths = plan.planner_data if isinstance(plan.planner_data, dict) else {}
        in_pieces = plan.storage_data if isinstance(plan.storage_data, frozenset) else frozenset()
        for item in plan.items:
            path = paths.get(item.index.fqn, (item.index.fqn,))
            if item.type == WriteItemType.BYTE_IO:
                _dcp.put(state, path, _dcp_plans.value(planner, item, path))
                continue
            tensor = planner.resolve_data(item)
            if not isinstance(tensor, torch.Tensor) or item.tensor_data is None:
                raise UnsupportedError(f"'{_dcp.text(path)}': the planner gives no tensor for it")
            tensor = tensor.detach()
            if self._who()[1] > 1 and tensor.numel():
                # Tensors that share memory would be stored once, under one name. The ranks might
                # not choose the same name, so such tensors are copied.
                memory = (tensor.device, tensor.data_ptr(), tuple(tensor.shape), tensor.dtype)
                tensor = tensor.clone() if memory in seen else tensor
                seen.add(memory)
            shard = _dcp_plans.shard(item, tensor)
            if item.index.fqn not in in_pieces:
                _dcp.put(state, path, shard)
            elif tensor.numel():
                sizes, chunk = tuple(item.tensor_data.size), item.tensor_data.chunk
                piece = Shard(tensor, _dcp.pairs(tensor.dtype, tuple(tensor.shape)), (0,) * tensor.ndim, "here")
                _dcp.put_piece(state, path, sizes, tuple(chunk.offsets), piece)
        return state


def _plain_id(checkpoint_id: object) -> str | int | None:
    if checkpoint_id is None or isinstance(checkpoint_id, int):
        return checkpoint_id
    return os.path.normpath(os.fspath(checkpoint_id)) if isinstance(checkpoint_id, str | os.PathLike) else None


# ---- loading ----


class StorageReader(_OfRun, _StorageReader):
    """Loads checkpoints of a run, or a single one, through DCP, whatever program saved them.

    The tensors of DCP's plan are read into the tensors of the state. Only the byte ranges that they
    need are read and verified.

    ``which`` is "latest", "best", "good" or a step. A ``checkpoint_id`` given to ``dcp.load``
    replaces it: as it was given to ``dcp.save``, a step, or the name of a checkpoint's folder.

    Args:
        root: A run's folder or URL, or a single checkpoint's.
        which: "latest", "best", "good" or a step. Default: "latest".
    """

    def __init__(self, root: str | os.PathLike[str], *, which: str | int = "latest") -> None:
        super().__init__()
        self._root = _checks.path("root", root)
        self._which = which
        self._checkpoint_id: str | os.PathLike[str] | int | None = None
        self._run: _pawl.Run | None = None
        self._hold: _pawl.Hold | None = None
        self._info: _pawl.Info | None = None
        self._places: dict[str, _dcp.Place] = {}

    def close(self) -> None:
        """Releases the checkpoint. A load that has ended does this by itself."""
        run, self._run, self._hold = self._run, None, None
        if run is not None:
            run.close()

    # ---- what DCP calls ----

    def reset(self, checkpoint_id: str | os.PathLike[str] | int | None = None) -> None:
        self.close()
        self._checkpoint_id = checkpoint_id

    def read_metadata(self, *args: Any, **options: Any) -> Metadata:
        self.close()
        single = is_foreign(self._root) or _pawl.kind_of(self._root) == 2
        run = self._run = _pawl.Run(self._root, read_only=True, single=single)
        try:
            return self._describe(run, self._selector(run))
        except BaseException:
            self.close()
            raise

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **options: Any) -> None:
        pass

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        return dataclasses.replace(plan, storage_data=None if self._info is None else self._info["id"])

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        for rank, plan in enumerate(plans):
            if plan.storage_data != plans[0].storage_data:
                raise MismatchError(
                    f"rank {rank} has found checkpoint {plan.storage_data} in {self._root}, rank 0 "
                    f"{plans[0].storage_data}: one was saved meanwhile; load again, or name one"
                )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        try:
            self._read_tensors([item for item in plan.items if item.type == LoadItemType.TENSOR], planner)
            values = [item for item in plan.items if item.type == LoadItemType.BYTE_IO]
            read = self._read_values({item.storage_index.fqn for item in values})
            for item in values:
                buffer = io.BytesIO()  # planners take values in this form
                torch.save(read[item.storage_index.fqn], buffer)
                buffer.seek(0)
                planner.load_bytes(item, buffer)
        finally:
            self.close()
        return _done(None)

    # ---- inside ----

    def _selector(self, run: _pawl.Run) -> str:
        wanted, unnamed = self._checkpoint_id, self._is_root(self._checkpoint_id)
        default = f"step:{_checks.step(self._which)}" if isinstance(self._which, int) else self._which
        if wanted is None:
            return default
        for info in reversed(run.list()):
            note = _dcp.note_of(run.metadata(info["id"]))
            if note is not None and note.get("checkpoint_id") == _plain_id(wanted):
                return f"id:{info['id']}"
            if unnamed and note is not None and note.get("checkpoint_id") is None:
                break
        if unnamed:
            return default
        selector = str(wanted) if isinstance(wanted, int) else os.fspath(wanted)
        if "/" not in selector:
            with suppress(NotFoundError):
                return f"id:{run.find(selector)}"
        raise NotFoundError(f"{self._root} has no checkpoint that was saved with checkpoint_id {wanted!r}")

    def _describe(self, run: _pawl.Run, selector: str) -> Metadata:
        tree, info, fallbacks = run.describe(selector, _dcp.Leaf)
        _reports.fallbacks(self._root, info["name"], fallbacks)
        with suppress(_pawl.PawlError):  # a read-only store, where nothing is deleted either
            self._hold = run.hold(info["id"])
        note = _dcp.note_of(run.metadata(info["id"]))
        self._info = info
        self._places = _dcp.named_places(tree, note is not None)
        return Metadata(
            {name: _dcp_plans.metadata_of(name, place.value) for name, place in self._places.items()},
            planner_data={name: place.path for name, place in self._places.items()},
            storage_data={},
            storage_meta=StorageMeta(checkpoint_id=self.checkpoint_id),
        )

    def _opened(self) -> tuple[_pawl.Run, str]:
        if self._run is None or self._info is None:
            raise UsageError("call read_metadata first")
        return self._run, f"id:{self._info['id']}"

    def _read_tensors(self, items: list[ReadItem], planner: LoadPlanner) -> None:
        run, selector = self._opened()
        boxes: list[tuple[int, tuple[int, ...], object]] = []
        aside: list[tuple[ReadItem, torch.Tensor, torch.Tensor]] = []
        done: list[tuple[ReadItem, torch.Tensor]] = []
        for item in items:
            target = planner.resolve_tensor(item).detach()
            if tuple(target.shape) != tuple(item.lengths):
                raise MismatchError(
                    f"'{item.dest_index.fqn}': {tuple(item.lengths)} are to be read into {tuple(target.shape)}"
                )
            index, offsets, dtype = self._box(item)
            if _takes(target, dtype):
                boxes.append((index, offsets, target))
                done.append((item, target))
                continue
            holder = torch.empty(target.shape, dtype=dtype)
            aside.append((item, target, holder))
            boxes.append((index, offsets, holder))
            if sum(holder.nbytes for *_, holder in aside) >= _COPY_BYTES:
                _read(run, selector, boxes, aside, planner)
        _read(run, selector, boxes, aside, planner)
        for item, target in done:
            planner.commit_tensor(item, target)

    def _box(self, item: ReadItem) -> tuple[int, tuple[int, ...], torch.dtype]:
        leaf = self._places[item.storage_index.fqn].value
        start = tuple(item.storage_index.offset or (0,) * len(leaf.shape))
        if isinstance(leaf, _dcp.Pieces):
            leaf, start = leaf.leaves[start], (0,) * len(start)
        offsets = tuple(a + b for a, b in zip(start, item.storage_offsets, strict=True))
        return leaf.index, _dcp.pairs(leaf.dtype, offsets), _dcp.DTYPES[leaf.dtype]

    def _whole(self, name: str) -> torch.Tensor:
        found = self._places[name].value
        if not isinstance(found, _dcp.Pieces):
            return self._leaf(found)
        whole = torch.empty(found.shape, dtype=_dcp.DTYPES[found.dtype])
        for offsets, leaf in found.leaves.items():
            part = self._leaf(leaf)
            whole[tuple(slice(a, a + n) for a, n in zip(offsets, part.shape, strict=True))] = part
        return whole

    def _leaf(self, leaf: _dcp.Leaf) -> torch.Tensor:
        run, selector = self._opened()
        tensor = torch.empty(_dcp.halves(leaf.dtype, leaf.shape), dtype=_dcp.DTYPES[leaf.dtype])
        run.read(selector, [(leaf.index, (0,) * len(leaf.shape), tensor)])
        return tensor

    def _read_values(self, names: set[str]) -> dict[str, Any]:
        """The values that are not tensors for DCP.

        Most are in the manifest; those with arrays are read.
        """
        run, selector = self._opened()
        read = {name: self._places[name].value for name in names}
        rest = [name for name in read if _dcp.needs_reading(read[name])]
        ends = ["" if isinstance(read[name], _dcp.Leaf) else "/*" for name in rest]
        globs = [_dcp.text(self._places[name].keys) + end for name, end in zip(rest, ends, strict=True)]
        if not rest:
            return read
        answer = run.restore(selector=selector, paths=tuple(globs))
        if answer is None:
            raise NotFoundError(f"{self._root} no longer has a checkpoint '{selector}'")
        return {**read, **{name: _dcp.at(answer[0], self._places[name].keys) for name in rest}}


def _takes(target: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether data can be read directly into the target.

    Else it is copied, which also converts it.
    """
    plain = type(target) is torch.Tensor and target.layout is torch.strided and target.device.type == "cpu"
    return plain and target.dtype == dtype and not target.is_conj() and not target.is_neg()


def _read(
    run: _pawl.Run,
    selector: str,
    boxes: list[tuple[int, tuple[int, ...], object]],
    aside: list[tuple[ReadItem, torch.Tensor, torch.Tensor]],
    planner: LoadPlanner,
) -> None:
    if boxes:
        run.read(selector, boxes)
    for item, target, holder in aside:
        target.copy_(holder)
        planner.commit_tensor(item, target)
    boxes.clear()
    aside.clear()


# ---- export ----


class _ExportPlanner(DefaultSavePlanner):
    """Plans a checkpoint by its metadata. Reads its tensors one by one when they are written."""

    def __init__(self, reader: StorageReader, metadata: Metadata) -> None:
        super().__init__()
        self._reader = reader
        self._source = metadata

    def set_up_planner(
        self, state_dict: dict[str, Any], storage_meta: StorageMeta | None = None, is_coordinator: bool = False
    ) -> None:
        self.state_dict = state_dict
        self.mappings = self._source.planner_data
        self.is_coordinator = is_coordinator

    def lookup_object(self, index: MetadataIndex) -> Any:
        shown = self.state_dict[index.fqn]
        return self._reader._whole(index.fqn) if isinstance(shown, torch.Tensor) else shown


def export_dcp(
    source: str | os.PathLike[str] | CheckpointManager,
    target: str | os.PathLike[str],
    *,
    which: str | int = "latest",
) -> None:
    """Writes a checkpoint as a folder that ``dcp.load`` reads without pawl, by torch's own
    FileSystemWriter. Full tensors are written, one after the other, by this process alone.

    Args:
        source: A run's folder or its manager, or a single checkpoint's folder.
        target: A folder that does not exist yet or is empty.
        which: "latest", "best", "good" or a step. Default: "latest".

    Raises:
        ExistsError: ``target`` is not empty.
        NotFoundError: There is no such checkpoint.
    """
    folder = _checks.path("target", target)
    if os.path.isdir(folder) and os.listdir(folder):
        raise ExistsError(f"{folder} is not empty")
    root = source.root if isinstance(source, CheckpointManager) else source
    reader = StorageReader(root, which=which)
    metadata = reader.read_metadata()
    try:
        values = [n for n, kind in metadata.state_dict_metadata.items() if isinstance(kind, BytesStorageMetadata)]
        state: dict[str, Any] = {
            name: torch.empty(kind.size, dtype=kind.properties.dtype, device="meta")
            for name, kind in metadata.state_dict_metadata.items()
            if isinstance(kind, TensorStorageMetadata)
        }
        state |= reader._read_values(set(values))
        _dcp_save(
            state,
            storage_writer=FileSystemWriter(folder),
            planner=_ExportPlanner(reader, metadata),
            no_dist=True,
        )
    finally:
        reader.close()
