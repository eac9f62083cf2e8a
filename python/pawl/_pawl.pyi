# SPDX-License-Identifier: Apache-2.0
import builtins
from collections.abc import Callable, Mapping
from typing import Any, Final, TypedDict, TypeVar, final, type_check_only

_T = TypeVar("_T")

MODE_SNAPSHOT: Final[int]
MODE_RING: Final[int]
MODE_DIRECT: Final[int]
BUSY_WAIT: Final[int]
BUSY_SKIP: Final[int]
BUSY_REPLACE: Final[int]
KEEP_MEMORY: Final[int]

class PawlError(Exception):
    code: int
    code_name: str

class UsageError(PawlError, ValueError): ...
class OutOfMemoryError(PawlError, MemoryError): ...
class NotFoundError(PawlError, LookupError): ...
class ExistsError(PawlError, FileExistsError): ...
class BusyError(PawlError): ...
class ConflictError(PawlError): ...
class NoSpaceError(PawlError, OSError): ...
class StorageError(PawlError, OSError): ...
class TransientError(PawlError, OSError): ...
class AccessError(PawlError, PermissionError): ...
class CorruptError(PawlError): ...
class VersionError(PawlError): ...
class TimeoutError(PawlError, builtins.TimeoutError): ...
class CancelledError(PawlError): ...
class MismatchError(PawlError, ValueError): ...
class LimitError(PawlError, ValueError): ...
class UnsupportedError(PawlError, TypeError): ...
class ReadOnlyError(PawlError, PermissionError): ...
class InternalError(PawlError, RuntimeError): ...

@type_check_only
class Info(TypedDict):
    id: int
    step: int
    name: str
    path: str
    run_id: str
    attempt: int
    time: float
    progress: dict[str, float]
    metrics: dict[str, float]
    score: float | None
    nbytes: int
    new_bytes: int
    plain_bytes: int
    n_tensors: int
    n_files: int
    world_size: int
    blocked_seconds: float
    problem: str
    format: str
    level: str
    here: bool
    n_mirrors: int
    latest: bool
    best: bool
    pinned: bool
    held: bool
    nonfinite: bool
    bad: bool
    denied: bool

@type_check_only
class Mirror(TypedDict):
    url: str
    n_done: int
    n_waiting: int
    n_failed: int
    done_bytes: int
    total_bytes: int
    error: str

@type_check_only
class Identity(TypedDict):
    rank: int
    world_size: int
    local_rank: int | None
    local_world_size: int | None
    node_rank: int | None
    launcher: str
    attempt: str

@type_check_only
class Conversion(TypedDict):
    n_tensors: int
    n_files: int
    nbytes: int
    n_left: int

@type_check_only
class Finding(TypedDict):
    id: int
    file: str
    begin: int
    end: int
    tensor: str
    message: str

@type_check_only
class Stats(TypedDict):
    nbytes: int
    written_bytes: int
    reused_bytes: int
    blocked_seconds: float
    stage_seconds: float
    write_seconds: float
    commit_seconds: float
    total_seconds: float
    minor_faults: int
    plain_bytes: int

@final
class Ticket:
    @property
    def done(self) -> bool: ...
    @property
    def stage(self) -> str: ...
    @property
    def error(self) -> PawlError | None: ...
    @property
    def id(self) -> int | None: ...
    @property
    def step(self) -> int: ...
    @property
    def blocked_seconds(self) -> float: ...
    @property
    def stats(self) -> Stats: ...
    def wait(self, timeout: float | None = None, /) -> None: ...
    def wait_durable(self, timeout: float | None = None, /) -> None: ...

@final
class Hold:
    def close(self) -> None: ...

@final
class Watch:
    def __new__(cls, grace_seconds: float = 0.0) -> Watch: ...
    @property
    def signal(self) -> int: ...
    @property
    def sender(self) -> int: ...
    @property
    def seconds_left(self) -> float | None: ...
    def close(self) -> None: ...

@final
class Syncer:
    def __new__(
        cls,
        local: str,
        remote: str,
        *,
        command: str | None = None,
        shell: bool = False,
        timeout_ms: int = 0,
        verify: bool = True,
    ) -> Syncer: ...
    def up(self) -> tuple[bool, int, float, str]: ...
    def down(self) -> tuple[bool, int, float, str]: ...
    def verify(self, down: bool, /) -> tuple[bool, int, float, str]: ...
    def freeze(self) -> str: ...
    def thaw(self) -> None: ...
    def prune(self, folders: list[str], /) -> None: ...
    def cancel(self) -> None: ...
    def close(self) -> None: ...

@final
class Files:
    def __new__(cls, *, threads: int = 0, bandwidth: int = 0) -> Files: ...
    def save(
        self,
        path: str,
        state: object,
        *,
        overwrite: bool = False,
        raw_pickle: bool = False,
        format: str | None = None,
        level: int = 0,
    ) -> Ticket: ...
    def wait(self, timeout: float | None = None, /) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...

@final
class Saver:
    def __new__(
        cls,
        folder: str,
        filename: str,
        remote_file_name: str | None,
        latest_filename: str | None,
        latest_remote_file_name: str | None,
        save_interval: str | None,
        *,
        overwrite: bool,
        num_checkpoints_to_keep: int,
        weights_only: bool,
        ignore_keys: tuple[str, ...],
        num_concurrent_uploads: int,
        upload_timeout_ms: int,
        run_name: str | None,
        rank: tuple[int, ...],
        uploads_by_caller: bool,
        raw_pickle: bool,
    ) -> Saver: ...
    @property
    def folder(self) -> str | None: ...
    @property
    def uploads(self) -> bool: ...
    def start(self, progress: Mapping[str, float], /) -> None: ...
    def due(self, progress: Mapping[str, float], /) -> bool: ...
    def save(self, progress: Mapping[str, float], state: object, /) -> bool: ...
    def save_folder(self, progress: Mapping[str, float], folder: str, /) -> None: ...
    def wait(self, timeout: float | None = None, /) -> None: ...
    def wait_saves(self) -> None: ...
    def check(self) -> None: ...
    def close(self) -> None: ...
    def saved(
        self, all: bool = False, /
    ) -> builtins.list[tuple[int, dict[str, float], str, str, str, bool, builtins.list[str]]]: ...
    def uploaded(self, seq: int, /) -> None: ...

@final
class Run:
    def __new__(
        cls,
        root: str,
        *,
        read_only: bool = ...,
        single: bool = ...,
        overwrite: bool = ...,
        run_id: str | None = ...,
        name_template: str | None = ...,
        num_to_keep: int = ...,
        keep_last: int = ...,
        keep_best: int = ...,
        keep_every: int = ...,
        keep_seconds: float = ...,
        max_bytes: int = ...,
        score_attributes: tuple[str, ...] = ...,
        score_orders: tuple[int, ...] = ...,
        drop_latest: bool = ...,
        strict_score: bool = ...,
        mode: int = ...,
        on_busy: int = ...,
        arena_bytes: int = ...,
        ring_bytes: int = ...,
        pack_bytes: int = ...,
        block_bytes: int = ...,
        bandwidth: int = ...,
        read_bandwidth: int = ...,
        copy_threads: int = ...,
        io_threads: int = ...,
        recycle: int = ...,
        no_reuse: bool = ...,
        no_direct_io: bool = ...,
        strict_latest: bool = ...,
        lease_timeout_ms: int = ...,
        save_interval: str | None = ...,
        mtbf_seconds: float = ...,
        nonfinite: int = ...,
        fault: tuple[str, int, int, bool] | None = ...,
        rank: int = ...,
        world_size: int = ...,
        attempt: str | None = ...,
        commit_timeout_ms: int = ...,
        broadcast: Callable[..., Any] | None = ...,
        local_world_size: int = ...,
        node_rank: int = ...,
        node_folder: str | None = ...,
        partner: int = ...,
        n_nodes: int = ...,
        mirrors: tuple[str, ...] = ...,
        mirror_keep: dict[str, float] = ...,
        num_concurrent_uploads: int = ...,
        upload_timeout_ms: int = ...,
        upload_memory: int = ...,
        drop_mirrored: bool = ...,
        mirror_errors: bool = ...,
        leave_uploads: bool = ...,
        after_id: int = ...,
        upload_bandwidth: int = ...,
        upload_error_budget: int = ...,
        compression: str | None = ...,
        compression_level: int = ...,
        lease_wait_ms: int = ...,
        on_lease_wait: Callable[[str], object] | None = ...,
    ) -> Run: ...
    @property
    def root(self) -> str | None: ...
    @property
    def run_id(self) -> str | None: ...
    @property
    def warning(self) -> str | None: ...
    @property
    def closed(self) -> bool: ...
    @property
    def fault_calls(self) -> int: ...
    def save(
        self,
        step: int,
        state: object,
        *,
        metrics: Mapping[str, object] | None = None,
        metadata: object = None,
        progress: Mapping[str, float] | None = None,
        lazy: bool = False,
        mode: int = 0,
        in_turn: bool = False,
    ) -> Ticket: ...
    def save_failed(self, why: str, /) -> None: ...
    def wait(self, timeout: float | None = None, remote: bool = False, /) -> None: ...
    def mirrors(self) -> builtins.list[Mirror]: ...
    def fence(self, timeout: float | None = None, /) -> None: ...
    def check(self, saves: bool = False, /) -> None: ...
    def is_saving(self) -> bool: ...
    def should_save(self, step: int, progress: Mapping[str, float] | None = None, /) -> bool: ...
    def close(self) -> None: ...
    def restore(
        self,
        state: object = None,
        selector: str | None = None,
        paths: tuple[str, ...] = ...,
        strict: bool = True,
        fallback: bool = True,
        ring_bytes: int = 0,
        rank_values: int = 0,
        share_reads: bool = False,
    ) -> tuple[Any, Info, builtins.list[str], builtins.list[str], Any] | None: ...
    def convert(
        self,
        id: int,
        dst: str,
        to: str | None,
        include: tuple[str, ...],
        exclude: tuple[str, ...],
        rename: tuple[str, ...],
        dtype: str | None,
        max_shard_bytes: int = 0,
        dots: bool = False,
        overwrite: bool = False,
    ) -> Conversion: ...
    def describe(
        self, selector: str | None, make: Callable[..., object], /
    ) -> tuple[Any, Info, builtins.list[str]]: ...
    def read(self, selector: str, boxes: builtins.list[tuple[int, tuple[int, ...], object]], /) -> None: ...
    def list(self, with_bad: bool = False, /) -> builtins.list[Info]: ...
    def find(self, selector: str, /) -> int | None: ...
    def info(self, id: int, /) -> Info: ...
    def metadata(self, id: int, /) -> Any: ...
    def pin(self, id: int, /) -> None: ...
    def unpin(self, id: int, /) -> None: ...
    def score(self, id: int, metrics: Mapping[str, object], /) -> None: ...
    def remove(self, id: int, force: bool = False, /) -> None: ...
    def prune(self, dry_run: bool = False, /) -> builtins.list[tuple[int, bool, str]]: ...
    def verify(self, id: int = 0, /) -> builtins.list[Finding]: ...
    def reload(self) -> None: ...
    def wait_for_new(self, after: int, timeout: float | None = None, /) -> int: ...
    def hold(self, id: int, /) -> Hold: ...

@type_check_only
class TrialRow(TypedDict):
    number: int
    name: str
    id: str
    state: str
    iteration: int
    time_s: float
    metric: float | None
    best: float | None
    config: str
    result: str | None
    checkpoint: str | None
    n_checkpoints: int
    attempts: int
    failures: int
    error: str | None
    host: str | None

@type_check_only
class TrialCounts(TypedDict):
    trials: int
    expected: int
    states: dict[str, int]
    reports: int
    time_s: float

@final
class Experiment:
    def __new__(
        cls,
        spec: str | None,
        folder: str | None = None,
        *,
        resume: int = 0,
        restore: str | None = None,
        judge: Callable[[int, str], int] | None = None,
        explore: Callable[[str], str] | None = None,
    ) -> Experiment: ...
    def about(self) -> tuple[str, str, str]: ...
    def add(self, config: str, /) -> int: ...
    def close_search(self) -> None: ...
    def counts(self) -> TrialCounts: ...
    def trial(self, trial: int, /) -> TrialRow: ...
    def checkpoints(self, trial: int, /) -> builtins.list[tuple[str, int, float | None]]: ...
    def best(self, metric: str | None, mode: str | None, scope: str | None, /) -> tuple[int, float] | None: ...
    def best_checkpoint(self, trial: int, metric: str | None, mode: str | None, /) -> str | None: ...
    def stop_trial(self, trial: int, why: str, /) -> None: ...
    def next(self) -> str | tuple[int, int, str, str, str, str | None, int]: ...
    def runs(self, trial: int, pid: int, host: str, /) -> None: ...
    def report(self, trial: int, metrics: str, checkpoint: str | None, /) -> tuple[int, bool, bool, str, str]: ...
    def checkpoint(self, trial: int, name: str, /) -> None: ...
    def ended(self, trial: int, how: int, why: str, /) -> bool: ...
    def close(self) -> None: ...

@final
class TrialRunner:
    def __new__(
        cls,
        experiment: Experiment,
        command: builtins.list[str],
        env: builtins.list[str],
        *,
        cpus: float = 0,
        gpus: int = 0,
        forker: builtins.list[str] = ...,
    ) -> TrialRunner: ...
    def poll(self, timeout_ms: int, /) -> tuple[str, int, str | None, str | None, int, str, bool] | None: ...
    def stop(self, now: bool, /) -> None: ...
    def stop_trial(self, trial: int, why: str, /) -> None: ...
    def close(self) -> None: ...

def tune_spec_check(spec: str, /) -> tuple[str, int]: ...
def tune_spec_config(spec: str, sample: int, /) -> str: ...
def clone_folder(source: str, target: str, /) -> None: ...
def hide_secrets(text: str, /) -> str: ...
def kind_of(place: str, /) -> int: ...
def tune_leftovers(folder: str, /) -> object | None: ...
def tune_leftovers_after(leftovers: object, /) -> list[str]: ...
def exchange(a: str, b: str, /) -> None: ...
def version() -> str: ...
def optimal_interval(save_cost_seconds: float, mtbf_seconds: float, /) -> float: ...
def interval_due(interval: str, last: Mapping[str, float] | None, now: Mapping[str, float] | None, /) -> bool: ...
def arena_bytes() -> int: ...
def stores() -> int: ...
def rank_identify() -> Identity: ...
def set_shard(type: _T, /) -> _T: ...
def set_per_rank(type: _T, /) -> _T: ...
def check_state(state: object, /) -> int: ...
def saver_find(
    run_name: str | None,
    folder: str,
    latest_filename: str | None,
    latest_remote_file_name: str | None,
    remote_file_name: str | None,
    place: str = ...,
    into: str = ...,
    /,
) -> str | None: ...
def path_matches(glob: str, path: str, /) -> bool: ...
def group_look(workers: list[tuple[int, bool, int, int]], silent_ms: int, still_ms: int, /) -> tuple[int, int, str]: ...
def group_late(workers: list[tuple[int, bool, int, int]], report: int, /) -> str: ...
def group_again(end: int, n_failures: int, max_failures: int, /) -> bool: ...
def group_clash(files: list[tuple[int, str, int, int]], /) -> str | None: ...
def no_numbers(metrics: Mapping[str, object], /) -> list[str]: ...
