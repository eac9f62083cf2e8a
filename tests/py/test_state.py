# SPDX-License-Identifier: Apache-2.0
"""What goes into a state comes out as it was, bit for bit, or is refused by path and type."""

from __future__ import annotations

import collections
import enum
import pathlib
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from common import TORCH_DTYPES, random_torch, round_trip, run_program, same, torch_bytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import pawl

pytestmark = pytest.mark.filterwarnings("ignore")  # torch announces that some tensors are new or old

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(min_value=-(10**300), max_value=10**300)
    | st.floats(allow_nan=True, allow_infinity=True)
    | st.text(max_size=40)
    | st.binary(max_size=40)
)
KEYS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text(max_size=12)
    | st.binary(max_size=6)
)
NUMPY_DTYPES = [
    *(np.dtype(n) for n in "? u1 i1 u2 i2 u4 i4 u8 i8 f2 f4 f8 c8 c16".split()),
    np.dtype(ml_dtypes.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2),
    np.dtype(ml_dtypes.float8_e4m3fnuz),
    np.dtype(ml_dtypes.float8_e5m2fnuz),
    np.dtype(ml_dtypes.float8_e8m0fnu),
]


def arrays() -> st.SearchStrategy[np.ndarray]:
    def build(dtype: np.dtype, shape: tuple[int, ...], seed: int) -> np.ndarray:
        count = int(np.prod(shape)) * dtype.itemsize
        raw = np.random.default_rng(seed).integers(0, 2 if dtype == np.bool_ else 256, count, dtype=np.uint8)
        return raw.view(dtype).reshape(shape)

    shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)
    return st.builds(build, st.sampled_from(NUMPY_DTYPES), shapes, st.integers(0, 1000))


def trees(leaves: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.recursive(
        leaves,
        lambda inner: (
            st.lists(inner, max_size=4)
            | st.lists(inner, max_size=4).map(tuple)
            | st.dictionaries(KEYS, inner, max_size=4)
            | st.dictionaries(KEYS, inner, max_size=4).map(collections.OrderedDict)
        ),
        max_leaves=12,
    )


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(trees(SCALARS | arrays()))
def test_any_tree_comes_back_as_it_was(tree: Any) -> None:
    assert same(round_trip({"tree": tree}), {"tree": tree})


@pytest.mark.parametrize("root", [5, None, "text", 2.5, [1, 2], (), {}, b"x", torch.arange(3)], ids=repr)
def test_the_root_may_be_anything(root: Any) -> None:
    assert same(round_trip(root), root)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(3, 4), (1,), (0, 5), (2, 0), (7, 2, 3)], ids=str)
def test_R136_every_torch_dtype_is_bit_exact(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = random_torch(dtype, shape)
    assert same(round_trip({"t": tensor})["t"], tensor)


@pytest.mark.parametrize("dtype", [d for d in TORCH_DTYPES if d != torch.float4_e2m1fn_x2], ids=str)
def test_torch_scalars_without_dimensions(dtype: torch.dtype) -> None:
    tensor = random_torch(dtype, (1,)).reshape(())
    assert same(round_trip([tensor])[0], tensor)


@pytest.mark.parametrize("dtype", NUMPY_DTYPES, ids=str)
def test_every_numpy_dtype_is_bit_exact_also_as_a_scalar(dtype: np.dtype) -> None:
    array = np.arange(6 * dtype.itemsize, dtype=np.uint8).view(dtype).reshape(2, 3)
    if dtype == np.bool_:
        array = array.view(np.uint8).astype(bool)
    back = round_trip({"a": array, "s": array[1, 2], "zero": array[:0], "one": array.reshape(-1)[0].reshape(())})
    assert same(back["a"], array)
    assert same(back["s"], array[1, 2])
    assert back["zero"].shape == (0, 3)
    assert back["one"].shape == ()


def test_numpy_scalars_keep_their_type_and_floats_theirs() -> None:
    state = {"np": np.float64(0.1), "py": 0.1, "i": np.int64(5), "b": np.bool_(True), "text": np.str_("a")}
    back = round_trip(state)
    assert [type(back[k]) for k in back] == [np.float64, float, np.int64, np.bool_, str]


VIEWS = {
    "transposed": lambda x: x.t(),
    "columns": lambda x: x[:, 3:9],
    "steps": lambda x: x[::3, ::2],
    "permuted": lambda x: x.reshape(4, 5, 6).permute(2, 0, 1),
    "expanded": lambda x: x[:1].expand(7, 6 * 1),
    "one_of_many": lambda x: x[2, 5],
    "diagonal": lambda x: x.diagonal(),
    "unfolded": lambda x: x.reshape(-1).unfold(0, 5, 2),
}


@pytest.mark.parametrize("view", VIEWS, ids=str)
def test_views_and_strides_are_saved_as_their_contents(view: str) -> None:
    base = (
        torch.arange(120, dtype=torch.float32).reshape(20, 6)
        if view == "expanded"
        else torch.arange(120.0).reshape(10, 12)
    )
    tensor = VIEWS[view](base)
    back = round_trip({"t": tensor})["t"]
    assert torch.equal(back, tensor)
    assert back.is_contiguous()


def test_numpy_views_with_negative_steps_and_fields_of_records() -> None:
    base = np.arange(60, dtype=np.int32).reshape(5, 12)
    records = np.zeros(4, dtype=[("a", "i4"), ("b", "f8")])
    records["b"] = [1.5, 2.5, -1, np.nan]
    state = {"back": base[::-1, ::-2], "f": np.asfortranarray(base), "field": records["b"]}
    back = round_trip(state)
    for key in state:
        np.testing.assert_array_equal(back[key], state[key])


def test_a_small_view_of_a_huge_storage_writes_its_own_elements(tmp_path: pathlib.Path) -> None:
    huge = torch.zeros(16 << 20, dtype=torch.float32)  # 64 MiB
    pawl.save({"view": huge[1000:1010]}, tmp_path / "one")
    assert sum(f.stat().st_size for f in (tmp_path / "one").rglob("*")) < 100_000
    assert torch.equal(pawl.load(tmp_path / "one")["view"], huge[1000:1010])


def test_conjugated_and_negated_views_are_made_real() -> None:
    z = torch.tensor([1 + 2j, 3 - 4j])
    state = {"conj": z.conj(), "neg": z.conj().imag}
    assert state["conj"].is_conj()
    assert state["neg"].is_neg()
    back = round_trip(state)
    assert torch.equal(back["conj"], torch.tensor([1 - 2j, 3 + 4j]))
    assert torch.equal(back["neg"], torch.tensor([-2.0, 4.0]))


def test_small_floats_survive_a_thread_that_flushes_them_to_zero() -> None:
    value, half = float.fromhex("0x0.fffffffffffffp-1022"), torch.tensor([6e-8, 3e-5, 1.0], dtype=torch.float16)
    if not torch.set_flush_denormal(True):
        pytest.skip("this processor has no such mode")
    try:
        with pawl.CheckpointManager("mem:") as manager:
            manager.save(0, {"value": value, "half": half}, wait=True)
            live: dict[str, Any] = {"value": 0.0, "half": torch.zeros(3)}
            assert manager.restore(live, cast={"half": "float32"})
    finally:
        torch.set_flush_denormal(False)
    assert live["value"].hex() == value.hex() and torch.equal(live["half"], half.float())


def test_tied_tensors_are_stored_once_and_come_back_tied(tmp_path: pathlib.Path) -> None:
    weight = torch.randn(1000, 100)
    pawl.save({"embedding": weight, "head": weight, "row": weight[3]}, tmp_path / "one")
    assert sum(f.stat().st_size for f in (tmp_path / "one").rglob("*")) < 1.2 * weight.nbytes
    back = pawl.load(tmp_path / "one")
    assert back["embedding"] is back["head"]
    assert back["embedding"].data_ptr() == back["head"].data_ptr()
    assert torch.equal(back["row"], weight[3])


def test_parameters_and_requires_grad_come_back() -> None:
    state = {
        "p": torch.nn.Parameter(torch.randn(3)),
        "frozen": torch.nn.Parameter(torch.randn(3), requires_grad=False),
        "leaf": torch.randn(2, requires_grad=True),
        "plain": torch.randn(2),
        "result": torch.randn(2, requires_grad=True) * 2,
    }
    back = round_trip(state)
    assert [type(back[k]) for k in back] == [torch.nn.Parameter] * 2 + [torch.Tensor] * 3
    assert [back[k].requires_grad for k in back] == [True, False, True, False, True]
    for key in state:
        assert torch_bytes(back[key]) == torch_bytes(state[key])


def test_long_texts_and_bytes_and_ints() -> None:
    state = {
        "text": "äöü€😀" * 5000,
        "nul": "a\0b",
        "bytes": bytes(range(256)) * 100,
        "int": 10**400,
        "negative": -(2**63) - 1,
        "edge": [2**63 - 1, -(2**63), 2**63, 2**53 + 1],
        "empty": ["", b"", {}, [], ()],
    }
    assert same(round_trip(state), state)


def test_keys_of_any_scalar_type_and_awkward_names() -> None:
    state = {
        "a/b": 1,
        "a": {"b": 2},
        "%2F": 3,
        "": 4,
        0: 5,
        "0": 6,
        None: 7,
        1.5: 8,
        b"k": 9,
        -1: torch.zeros(2),
        "-1": torch.ones(2),
        "$tensor": "no",
        "$dict": [1],
        "~": {"__metadata__": torch.arange(2)},
    }
    assert same(round_trip(state), state)
    assert same(round_trip({False: 1, 2: 3}), {False: 1, 2: 3})


def test_ordered_dicts_keep_their_own_order() -> None:
    ordered = collections.OrderedDict(a=1, b=2, c=3)
    ordered.move_to_end("a")
    back = round_trip({"o": ordered})["o"]
    assert type(back) is collections.OrderedDict
    assert list(back) == ["b", "c", "a"]


def test_subclasses_of_simple_types_come_back_as_their_values() -> None:
    class Colour(enum.IntEnum):
        RED = 3

    assert same(round_trip({"enum": Colour.RED, "size": torch.Size([2, 3])}), {"enum": 3, "size": (2, 3)})


class Plain:
    pass


REFUSED: dict[str, tuple[Any, str]] = {
    "object": (Plain(), "Plain"),
    "class": (Plain, "type"),
    "function": (len, "builtin_function_or_method"),
    "sparse": (torch.eye(3).to_sparse(), "layout"),
    "csr": (torch.eye(3).to_sparse_csr(), "layout"),
    "meta": (torch.empty(3, device="meta"), "meta"),
    "quantised": (torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8), "qint8"),
    "half_complex": (torch.zeros(2, dtype=torch.complex32), "complex32"),
    "buffer_subclass": (torch.nn.parameter.UninitializedParameter(), "UninitializedParameter"),
    "objects": (np.array([None, 1], dtype=object), "object"),
    "strings": (np.array(["a"]), "<U1"),
    "swapped": (np.arange(3, dtype=">i4"), ">i4"),
    "records": (np.zeros(2, dtype=[("a", "i4")]), "a"),
    "dates": (np.array(["2020-01-01"], dtype="M8[D]"), "datetime64"),
    "long_double": (
        np.zeros(2, dtype=np.longdouble),
        "longdouble" if np.dtype(np.longdouble).name == "longdouble" else "float128",
    ),
    "masked": (np.ma.masked_array([1, 2]), "MaskedArray"),
    "date": (np.datetime64("2020-01-01"), "datetime64"),
    "surrogate": ("\ud800", "surrogates"),
    "slow_int": (1 << 40000, "digits"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_is_refused_by_path_and_type(name: str) -> None:
    value, word = REFUSED[name]
    state = {"model": {"layers": [0, {"weight/0": value}]}}
    with pawl.CheckpointManager("mem:") as manager, pytest.raises(pawl.UnsupportedError) as caught:
        manager.save(0, state)
    assert isinstance(caught.value, TypeError)
    assert "'model/layers/1/weight%2F0'" in str(caught.value)
    assert word in str(caught.value)
    assert caught.value.code_name == "unsupported"


@pytest.mark.parametrize("key", [(1, 2), np.int64(3), frozenset()], ids=repr)
def test_keys_that_cannot_be_held_are_refused(key: Any) -> None:
    with pytest.raises(pawl.UnsupportedError, match="key of type"):
        round_trip({"d": {key: 1}})


def test_cycles_and_depth_are_refused_with_the_path() -> None:
    cyclic: dict[str, Any] = {"list": []}
    cyclic["list"].append(cyclic)
    with pytest.raises(pawl.UnsupportedError, match="'list/0': a container inside itself"):
        round_trip(cyclic)
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    with pytest.raises(pawl.LimitError, match="256"):
        round_trip(deep)
    shared = [1, 2]
    assert same(round_trip({"a": shared, "b": shared}), {"a": [1, 2], "b": [1, 2]})


def test_a_state_dict_that_returns_itself_is_refused() -> None:
    class Loop:
        def state_dict(self) -> Any:
            return self

    with pytest.raises(pawl.UnsupportedError, match="Loop"):
        round_trip({"a": Loop()})


def test_errors_of_a_state_dict_come_through_with_the_path() -> None:
    class Broken:
        def state_dict(self) -> Any:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine") as caught:
        round_trip({"deep": [Broken()]})
    assert any("'deep/0'" in note for note in caught.value.__notes__)


def test_a_refused_state_leaves_the_run_usable() -> None:
    with pawl.CheckpointManager("mem:") as manager:
        with pytest.raises(pawl.UnsupportedError):
            manager.save(0, {"bad": object()})
        manager.save(1, {"good": torch.ones(2)}, wait=True)
        assert manager.all_steps() == [1]


def test_shards_are_put_together() -> None:
    whole = torch.arange(24.0).reshape(4, 6)
    shard = pawl.Shard(whole[:, :6], (4, 6), (0, 0))
    assert torch.equal(round_trip({"s": shard})["s"], whole)
    for wrong in (pawl.Shard(whole, (4,), (0, 0)), pawl.Shard(5, (4,), (0,)), pawl.Shard(shard, (4, 6), (0, 0))):
        with pytest.raises(pawl.UsageError, match="'s'"):
            round_trip({"s": wrong})


def test_what_is_saved_is_what_was_there_at_the_call() -> None:
    """The copy is done when save returns; changes after that are not in the checkpoint."""
    tensor, array, numbers = torch.ones(1 << 20), np.ones(1 << 18), [1, 2]
    with pawl.CheckpointManager("mem:") as manager:
        manager.save(0, {"t": tensor, "a": array, "n": numbers})
        tensor.zero_()
        array[:] = 0
        numbers.clear()
        manager.wait_until_finished()
        restored = manager.restore()
    assert restored is not None
    assert restored.state["t"].min() == 1
    assert restored.state["a"].min() == 1
    assert restored.state["n"] == [1, 2]


def test_metadata_holds_plain_values_only() -> None:
    with pawl.CheckpointManager("mem:") as manager:
        metadata = {"lr": np.float32(0.5), "tags": ("a", "b"), 5: None, "long": "x" * 4096, "nested": {"b": b"\0"}}
        manager.save(3, {}, metadata=metadata, wait=True)
        assert same(manager.metadata(3), metadata | {"lr": 0.5})
        with pytest.raises(pawl.UnsupportedError, match="metadata"):
            manager.save(4, {}, metadata={"t": torch.ones(2)})
        with pytest.raises(pawl.UsageError, match="'long'.*4096"):
            manager.save(4, {}, metadata={"long": "x" * 4097})
        manager.save(5, {}, wait=True)
        assert manager.metadata(5) == {}


def test_frameworks_are_not_imported_by_pawl(tmp_path: pathlib.Path) -> None:

    program = (
        "import sys, pawl\n"
        f"pawl.save({{'a': [1, 2.5, b'x']}}, {str(tmp_path / 'c')!r})\n"
        f"assert pawl.load({str(tmp_path / 'c')!r}) == {{'a': [1, 2.5, b'x']}}\n"
        "print(sorted({'torch', 'numpy', 'jax', 'ml_dtypes', 'pickle', 'ctypes'} & set(sys.modules)))\n"
    )
    assert run_program(program).strip() == "[]"


# ---- what only looks like something else ----


@pytest.mark.parametrize("name", [f"{sign}int{bits}" for sign in ("", "u") for bits in range(1, 8)])
def test_integers_of_less_than_eight_bits_are_refused_by_name(name: str) -> None:
    """They show themselves as those of eight, and would come back as such."""
    dtype = getattr(torch, name, None)
    if dtype is None:
        pytest.skip("this torch has no such dtype")
    with pytest.raises(pawl.UnsupportedError, match=f"'q/w': a tensor of dtype torch.{name} cannot be held"):
        round_trip({"q": {"w": torch.empty(3, dtype=dtype)}})


@pytest.mark.parametrize("dtype", ["float32", "uint16", "complex64", "bool", "int8", "bfloat16"])
@pytest.mark.parametrize("first", ["array", "tensor"])
def test_tied_leaves_of_several_kinds_come_back_as_their_own(dtype: str, first: str) -> None:
    tensor = torch.ones((2, 3), dtype=getattr(torch, dtype))
    raw = tensor.view(torch.uint8).numpy()
    array = raw.view(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    state = {"a": array, "t": tensor} if first == "array" else {"t": tensor, "a": array}
    back = round_trip(state | {"b": array, "u": tensor})
    assert same(back, state | {"b": array, "u": tensor})
    assert back["a"] is back["b"]
    assert back["t"] is back["u"]
    back["a"][...] = 0
    assert not back["t"].any(), "one memory, as it was"


def test_tied_leaves_with_and_without_gradients_come_back_as_they_were() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    loose = torch.ones(3, requires_grad=True)
    back = round_trip({"d": weight.data, "p": weight, "q": weight, "g": loose, "n": loose.detach(), "h": loose})
    kinds = {name: (type(value), value.requires_grad) for name, value in back.items()}
    assert kinds == {
        "d": (torch.Tensor, False),
        "p": (torch.nn.Parameter, True),
        "q": (torch.nn.Parameter, True),
        "g": (torch.Tensor, True),
        "n": (torch.Tensor, False),
        "h": (torch.Tensor, True),
    }
    assert back["p"] is back["q"]
    assert back["g"] is back["h"]
    assert back["p"].data_ptr() == back["d"].data_ptr()
    assert back["g"].data_ptr() == back["n"].data_ptr()


def test_a_transpose_is_no_tie() -> None:
    weight = torch.arange(6.0).reshape(2, 3)
    back = round_trip({"w": weight, "t": weight.t()})
    assert torch.equal(back["t"], back["w"].t())
    assert back["t"].data_ptr() != back["w"].data_ptr()
