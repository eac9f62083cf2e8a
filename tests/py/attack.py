# SPDX-License-Identifier: Apache-2.0
"""Hostile files for test_attack_corpus.py: what each is made of, in a folder of its own. A shape is one way of being
wrong; nothing here is random. A checkpoint's manifest gets a digest that is right, so that its contents are looked at."""

from __future__ import annotations

import ctypes
import ctypes.util
import json
import os
import pathlib
import shutil
import socket
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

ESC = "\x1b[2J"
RUN_ID = "00112233445566778899aabbccddeeff"
PACK = "rank00000-00000.safetensors"
GIB = 1 << 30


class _Sum(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]


_xxhash = ctypes.CDLL(ctypes.util.find_library("xxhash") or "libxxhash.so.0")
_xxhash.XXH3_128bits.restype = _Sum
_xxhash.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]


def digest(data: bytes) -> str:
    found = _xxhash.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"


@dataclass
class Shape:
    name: str
    kind: str  # file, checkpoint, run
    path: pathlib.Path
    harmless: bool = False
    value: Any = None  # what a harmless one holds
    says: tuple[str, ...] = ()  # one of these names the file in a message
    passes: tuple[str, ...] = ()  # what a hostile one may do anyway, because it looks elsewhere
    verifies: int = 0  # status of pawl verify, if it is harmless
    group: str = field(default="", compare=False)


# ------------------------------------------------------------------ JSON faults

# A value that no reader of JSON may accept, or that is beyond our limits.
BAD_VALUES: dict[str, bytes] = {
    "nan": b"NaN",
    "nan-lower": b"nan",
    "infinity": b"Infinity",
    "minus-infinity": b"-Infinity",
    "hexadecimal": b"0x10",
    "octal": b"010",
    "minus-octal": b"-01",
    "plus": b"+1",
    "no-integer-part": b".5",
    "no-fraction": b"5.",
    "no-exponent": b"1e",
    "no-signed-exponent": b"1e+",
    "beyond-double": b"1e999",
    "minus-only": b"-",
    "two-minuses": b"--1",
    "underscore": b"1_000",
    "beyond-64-bits": b"18446744073709551616",
    "beyond-signed-64-bits": b"-9223372036854775809",
    "number-of-2000-digits": b"1" * 2000,
    "cut-literal": b"tru",
    "upper-literal": b"TRUE",
    "python-none": b"None",
    "undefined": b"undefined",
    "single-quotes": b"'x'",
    "bad-escape": rb'"\x41"',
    "escape-at-end": b'"\\',
    "short-unicode-escape": rb'"\u12"',
    "bad-unicode-escape": rb'"\u12g4"',
    "lone-high-surrogate": rb'"\ud800"',
    "lone-low-surrogate": rb'"\udc00"',
    "two-high-surrogates": rb'"\ud800\ud800"',
    "escaped-nul": rb'"\u0000"',
    "raw-nul": b'"\0"',
    "raw-newline": b'"\n"',
    "raw-tab": b'"\t"',
    "raw-escape": b'"\x1b[2J"',
    "utf8-overlong-2": b'"\xc0\xaf"',
    "utf8-overlong-3": b'"\xe0\x80\xaf"',
    "utf8-overlong-4": b'"\xf0\x80\x80\xaf"',
    "utf8-surrogate": b'"\xed\xa0\x80"',
    "utf8-beyond-unicode": b'"\xf4\x90\x80\x80"',
    "utf8-lone-continuation": b'"\x80"',
    "utf8-cut": b'"\xe2\x82"',
    "utf8-ff": b'"\xff"',
    "latin1": b'"\xe9"',
    "unclosed-string": b'"abc',
    "comma-at-end-of-array": b"[1,]",
    "comma-at-begin-of-array": b"[,1]",
    "no-comma-in-array": b"[1 2]",
    "colon-in-array": b"[1:2]",
    "array-closed-by-brace": b"[1}",
    "unclosed-array": b"[1",
    "duplicate-keys": b'{"a":1,"a":2}',
    "duplicate-keys-by-escape": rb'{"a":1,"\u0061":2}',
    "key-without-quotes": b"{a:1}",
    "number-as-key": b"{1:2}",
    "key-without-value": b'{"a"}',
    "colon-without-value": b'{"a":}',
    "no-colon": b'{"a" 1}',
    "comma-at-end-of-object": b'{"a":1,}',
    "1100-arrays": b"[" * 1100 + b"]" * 1100,
    "1100-objects": b'{"a":' * 1100 + b"1" + b"}" * 1100,
    "60000-unclosed-arrays": b"[" * 60000,
    "nothing": b"",
}

# What may be wrong with a complete document; %s stands for members that are right.
BAD_DOCUMENTS: dict[str, bytes] = {
    "empty": b"",
    "white-space": b"  \n\t ",
    "unclosed": b"{%s",
    "closed-twice": b"{%s}}",
    "two-documents": b"{%s}{%s}",
    "garbage-behind": b"{%s}x",
    "nul-behind": b"{%s}\0",
    "comma-at-end": b"{%s,}",
    "comma-at-begin": b"{,%s}",
    "comment": b"{/* */%s}",
    "line-comment": b"{%s}\n// end",
    "array-around": b"[{%s}]",
    "a-string": b'"{}"',
    "a-number": b"0",
    "null": b"null",
    "byte-order-mark": b"\xef\xbb\xbf{%s}",
    "no-break-space": b"\xc2\xa0{%s}",
    "form-feed": b"\x0c{%s}",
    "no-members": b"{}",
}


# ------------------------------------------------------------------ safetensors

GOOD = {"t": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
GOOD_DATA = struct.pack("<2f", 1.5, -2.5)
GOOD_MEMBERS = json.dumps(GOOD)[1:-1].encode()


def file_bytes(header: Any, data: bytes = GOOD_DATA) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def row(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8), **more: Any) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets} | more


def _lengths() -> dict[str, bytes]:
    good = file_bytes(GOOD)
    body = good[8:]
    table = {f"cut-to-{n}": good[:n] for n in (0, 1, 7, 8, 9, len(good) - 9, len(good) - 8, len(good) - 1)}
    numbers = {
        "0": 0,
        "1": 1,
        "one-short": len(good) - 17,
        "one-long": len(good) - 15,
        "whole-file": len(good) - 8,
        "beyond-by-one": len(good) - 7,
        "100000001": 100_000_001,
        "2-to-31": 1 << 31,
        "2-to-32": 1 << 32,
        "2-to-63": 1 << 63,
        "minus-8": 2**64 - 8,
        "minus-1": 2**64 - 1,
    }
    table |= {f"says-{name}": struct.pack("<Q", n) + body for name, n in numbers.items()}
    table["big-endian"] = struct.pack(">Q", len(good) - 16) + body
    table["longer-by-one"] = good + b"x"
    table["twice"] = good + good
    return table


def _tables() -> dict[str, Any]:
    """Headers that are JSON and no tables, with 8 bytes of data."""
    two = {"a": row("U8", [4], [0, 4]), "b": row("U8", [4], [4, 8])}
    table: dict[str, Any] = {
        f"dtype-{name}": {"t": row(dtype=value)}
        for name, value in {
            "unknown": "F33",
            "lower-case": "f32",
            "empty": "",
            "spaced": "F32 ",
            "number": 4,
            "null": None,
            "list": ["F32"],
            "too-wide": "F64",
            "too-narrow": "U8",
            "complex128": "C128",
            "long": "F32" * 5000,
            "escape": ESC,
        }.items()
    }
    table |= {
        f"shape-{name}": {"t": row(shape=value)}
        for name, value in {
            "null": None,
            "string": "2",
            "number": 2,
            "object": {"0": 2},
            "negative": [-2],
            "twice-negative": [-1, -2],
            "float": [2.0],
            "bool": [True],
            "string-inside": ["2"],
            "nested": [[2]],
            "one-more": [3],
            "one-less": [1],
            "none": [],
            "zero": [0],
            "65-dimensions": [1] * 64 + [2],
            "100000-dimensions": [1] * 100_000,
            "2-to-64-minus-1": [2**64 - 1],
            "product-wraps-to-2": [2**63 + 1, 2],
            "product-wraps-to-0": [2**32, 2**32],
            "bytes-wrap-to-8": [2**62 + 2],
            "zero-times-much": [0, 2**64 - 1, 2**64 - 1],
        }.items()
    }
    table |= {
        f"offsets-{name}": {"t": row(offsets=value)}
        for name, value in {
            "null": None,
            "string": "0,8",
            "object": {"0": 0, "1": 8},
            "one": [8],
            "three": [0, 8, 8],
            "none": [],
            "negative": [-8, 0],
            "float": [0, 8.0],
            "strings": ["0", "8"],
            "bools": [False, 8],
            "nested": [[0, 8]],
            "reversed": [8, 0],
            "beyond": [0, 16],
            "behind": [8, 16],
            "hole-before": [1, 8],
            "2-to-64-minus-1": [2**64 - 8, 2**64 - 1],
            "wrap": [2**64 - 4, 4],
            "short": [0, 4],
        }.items()
    }
    table |= {
        "no-dtype": {"t": {"shape": [2], "data_offsets": [0, 8]}},
        "no-shape": {"t": {"dtype": "F32", "data_offsets": [0, 8]}},
        "no-offsets": {"t": {"dtype": "F32", "shape": [2]}},
        "row-is-null": {"t": None},
        "row-is-a-list": {"t": ["F32", [2], [0, 8]]},
        "row-is-a-string": {"t": "F32"},
        "row-is-empty": {"t": {}},
        "overlap-whole": {"a": row(), "b": row()},
        "overlap-part": {"a": row("U8", [6], [0, 6]), "b": row("U8", [4], [4, 8])},
        "overlap-inside": {"a": row(), "b": row("U8", [2], [2, 4])},
        "hole-between": {"a": row("U8", [3], [0, 3]), "b": row("U8", [4], [4, 8])},
        "hole-behind": {"a": row("U8", [4], [0, 4])},
        "empty-tensor-inside-another": {"a": row(), "b": row("U8", [0], [3, 3])},
        "empty-tensor-beyond": {"a": row(), "b": row("U8", [0], [9, 9])},
        "third-overlaps-first": two | {"c": row("U8", [1], [0, 1])},
        "name-of-70000-bytes": {"n" * 70_000: row()},
        "name-of-4097-bytes": {"n" * 4097: row()},
        "metadata-is-null": {"__metadata__": None} | GOOD,
        "metadata-is-a-list": {"__metadata__": ["a"]} | GOOD,
        "metadata-is-a-string": {"__metadata__": "a"} | GOOD,
        "metadata-is-a-row": {"__metadata__": row()},
        "metadata-holds-a-number": {"__metadata__": {"a": 1}} | GOOD,
        "metadata-holds-null": {"__metadata__": {"a": None}} | GOOD,
        "metadata-holds-a-list": {"__metadata__": {"a": ["b"]}} | GOOD,
        "metadata-holds-an-object": {"__metadata__": {"a": {"b": "c"}}} | GOOD,
    }
    members = GOOD_MEMBERS.decode()
    table["tensor-twice"] = f"{{{members},{members}}}".encode()
    table["tensor-twice-by-escape"] = ("{" + members + "," + members.replace('"t"', '"\\u0074"') + "}").encode()
    table["dtype-twice"] = b'{"t":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}}'
    table["metadata-twice"] = b'{"__metadata__":{},"__metadata__":{},' + GOOD_MEMBERS + b"}"
    table["shape-exponent"] = b'{"t":{"dtype":"F32","shape":[2e0],"data_offsets":[0,8]}}'
    table["exponent-offsets"] = b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[0,8e0]}}'
    table["minus-zero-offset"] = b'{"t":{"dtype":"F32","shape":[2],"data_offsets":[-0.0,8]}}'
    return table


# Names that mean something elsewhere. Here they are keys of a dict, and nothing else.
STRANGE_NAMES = {
    "parent": "../../../bait/file",
    "absolute": "/etc/passwd",
    "dots": "..",
    "dot": ".",
    "slashes": "a//b///c",
    "slash": "/",
    "backslash": "..\\..\\x",
    "drive": "C:\\x",
    "escape-sequence": ESC,
    "title-sequence": "\x1b]0;x\x07",
    "newline": "a\nb",
    "carriage-return": "a\rb",
    "delete": "a\x7fb",
    "c1-control": "a\x9bb",
    "right-to-left": "a\u202eb",
    "isolate": "a\u2066b",
    "zero-width": "a\u200bb",
    "byte-order-mark": "\ufeffa",
    "tag-characters": "a\U000e0041",
    "decomposed": "e\u0301",
    "percent": "%2e%2e%2f",
    "percent-s": "%s%n%n%s",
    "braces": "{id}{0}",
    "dollar-form": "$tensor",
    "shell": "$(touch x);`id`",
    "option": "--force",
    "tilde": "~root",
    "copy-suffix": "w~2",
    "prototype": "__proto__",
    "manifest": "manifest.json",
    "glob": "*?[a]",
    "space": " ",
    "4096-bytes": "n" * 4096,
    "emoji": "\U0001f980",
}


# ------------------------------------------------------------------ checkpoints


def manifest_text(members: dict[str, Any]) -> bytes:
    """In pawl's order, one member per line, without the digest."""
    lines = [f"{json.dumps(key)}:{json.dumps(value, separators=(',', ':'))}" for key, value in members.items()]
    return ("{" + ",\n".join(lines) + ",").encode("utf-8", "surrogatepass")


def sealed(text: bytes) -> bytes:
    return text + b'\n"digest":"' + digest(text).encode() + b'"}\n'


# A listing that fails is not an empty one: there may be pins and readers.
UNLISTED = ("holds-folder-is-a-link", "marks-folder-is-a-link", "own-folder-is-a-link")
UNUSED = ("a-file-that-is-not-there",)
Edit = Callable[[dict[str, Any]], Any]


def put(*path: Any, value: Any) -> Edit:
    def edit(m: dict[str, Any]) -> None:
        at: Any = m
        for key in path[:-1]:
            at = at[key]
        at[path[-1]] = value

    return edit


def drop(*path: Any) -> Edit:
    def edit(m: dict[str, Any]) -> None:
        at: Any = m
        for key in path[:-1]:
            at = at[key]
        del at[path[-1]]

    return edit


def _wrong_types(base: dict[str, Any]) -> dict[str, Edit]:
    """Each member gone, of another type, and out of its range."""
    table: dict[str, Edit] = {}
    for key, value in base.items():
        table[f"no-{key}"] = drop(key)
        if key != "metadata":  # which may be anything
            table[f"{key}-is-null"] = put(key, value=None)
            table[f"{key}-is-of-another-type"] = put(key, value=[[]] if not isinstance(value, list) else {"a": 1})
        if isinstance(value, int) and not isinstance(value, bool):
            table[f"{key}-is-a-text"] = put(key, value=str(value))
            table[f"{key}-is-beyond-64-bits"] = put(key, value=2**64)
    for key in ("id", "attempt", "world_size", "bytes", "new_bytes", "n_tensors", "n_files"):
        table[f"{key}-is-negative"] = put(key, value=-1)
        table[f"{key}-is-a-float"] = put(key, value=1.5)
        if key != "attempt":
            table[f"{key}-is-2-to-63"] = put(key, value=2**63)
    return table


def _summary() -> dict[str, Edit]:
    return {
        "version-0": put("pawl_manifest", value=0),
        "version-3": put("pawl_manifest", value=3),
        "version-2-to-32-plus-1": put("pawl_manifest", value=2**32 + 1),
        "version-minus-1": put("pawl_manifest", value=-1),
        "version-1.0": put("pawl_manifest", value=1.0),
        "run-of-31-digits": put("run", value=RUN_ID[1:]),
        "run-of-33-digits": put("run", value=RUN_ID + "0"),
        "run-in-capitals": put("run", value=RUN_ID.upper()),
        "run-is-a-path": put("run", value="../../../../../../../../../etc/.."[:32]),
        "token-is-empty": put("token", value=""),
        "token-in-capitals": put("token", value=RUN_ID.upper()),
        "token-is-no-hex": put("token", value="g" * 32),
        "id-0": put("id", value=0),
        "world-size-0": put("world_size", value=0),
        "blocked-negative": put("blocked_seconds", value=-1.0),
        "counter-unknown": put("progress", "epochs", value=1),
        "counter-negative": put("progress", "epoch", value=-1),
        "counter-text": put("progress", "epoch", value="1"),
        "metric-text": put("metrics", "loss", value="low"),
        "metric-list": put("metrics", "loss", value=[1]),
        "metric-bad-bits": put("metrics", "loss", value={"$float": "7ff8"}),
        "metric-name-of-4097-bytes": put("metrics", "n" * 4097, value=1),
        "member-unknown": put("more", value=1),
        "bytes-one-more": lambda m: m.update(bytes=m["bytes"] + 1),
        "new-bytes-one-less": lambda m: m.update(new_bytes=m["new_bytes"] - 1),
        "n-tensors-one-more": lambda m: m.update(n_tensors=m["n_tensors"] + 1),
        "n-files-one-more": lambda m: m.update(n_files=m["n_files"] + 1),
        "metadata-with-a-tensor": put("metadata", value={"a": {"$tensor": "model/w"}}),
        "metadata-with-a-long-text": put("metadata", value={"a": "x" * 5000}),
        "metadata-with-a-form": put("metadata", value={"$bytes": "?"}),
    }


def _file_rows() -> dict[str, Edit]:
    names = {
        "parent": "../x",
        "absolute": "/etc/passwd",
        "nested": "a/b",
        "empty": "",
        "dot": ".",
        "dots": "..",
        "hidden": ".x",
        "option": "-rf",
        "of-the-manifest": "manifest.json",
        "of-the-manifest-in-capitals": "MANIFEST.JSON",
        "of-129-bytes": "n" * 129,
        "with-a-space": "a b",
        "with-an-escape": ESC,
        "with-a-newline": "a\nb",
        "with-a-backslash": "a\\b",
        "with-a-star": "*",
        "with-an-accent": "caf\u00e9",
        "with-a-colon": "C:x",
        "of-another-file": "rank00000-00001.safetensors",
    }
    table: dict[str, Edit] = {f"name-{name}": put("files", 0, "name", value=text) for name, text in names.items()}
    table |= {f"no-{key}": drop("files", 0, key) for key in ("name", "size", "block", "reused", "sums")}
    table |= {
        f"{key}-{name}": put("files", 0, key, value=value)
        for key, name, value in [
            ("size", "0", 0),
            ("size", "negative", -1),
            ("size", "2-to-63", 2**63),
            ("size", "2-to-64-minus-1", 2**64 - 1),
            ("size", "text", "4120"),
            ("block", "0", 0),
            ("block", "1", 1),
            ("block", "513", 513),
            ("block", "2-to-41", 2**41),
            ("block", "negative", -512),
            ("reused", "number", 0),
            ("sums", "empty", ""),
            ("sums", "number", 1),
            ("sums", "short", "0" * 31),
            ("sums", "long", "0" * 64),
            ("sums", "no-hex", "z" * 32),
            ("sums", "in-capitals", "A" * 32),
            ("sums", "of-another-file", "0" * 32),
        ]
    }

    def twice(m: dict[str, Any], name: str) -> None:
        m["files"].append(dict(m["files"][0], name=name))
        m["n_files"] += 1
        m["bytes"] *= 2
        m["new_bytes"] *= 2

    def larger(m: dict[str, Any]) -> None:
        size = m["files"][0]["size"]
        m["files"][0]["size"] = m["bytes"] = m["new_bytes"] = size + 1

    def enormous(m: dict[str, Any]) -> None:
        m["files"][0]["size"] = m["bytes"] = m["new_bytes"] = 1 << 40
        m["files"][0]["block"] = 1 << 40

    table |= {
        "same-name-twice": lambda m: twice(m, m["files"][0]["name"]),
        "same-name-in-capitals": lambda m: twice(m, m["files"][0]["name"].upper()),
        "a-file-that-is-not-there": lambda m: twice(m, "rank00000-00009.safetensors"),
        "sizes-wrap": lambda m: m.update(files=[dict(m["files"][0], size=2**63 - 1)] * 3),
        "row-is-a-list": put("files", 0, value=[]),
        "row-with-more": put("files", 0, "more", value=1),
        "rows-none": lambda m: m.update(files=[], n_files=0, bytes=0, new_bytes=0),
        "larger-by-one": larger,
        "one-tebibyte": enormous,
    }
    return table


def _tensor_rows() -> dict[str, Edit]:
    def piece(**more: Any) -> Edit:
        return lambda m: m["tensors"][0]["pieces"][0].update(more)

    def pieces(*boxes: tuple[list[int], list[int]]) -> Edit:
        def edit(m: dict[str, Any]) -> None:
            at = m["tensors"][0]["pieces"][0]["begin"]
            rows = []
            for offsets, lengths in boxes:
                rows.append({"file": 0, "begin": at, "offsets": offsets, "lengths": lengths})
                at += 4 * lengths[0] * lengths[1] if lengths[1:] else 0
            m["tensors"][0]["pieces"] = rows

        return edit

    table: dict[str, Edit] = {f"no-{key}": drop("tensors", 0, key) for key in ("name", "dtype", "shape", "pieces")}
    table |= {
        "name-unknown": put("tensors", 0, "name", value="model/x"),
        "name-empty": put("tensors", 0, "name", value=""),
        "name-twice": lambda m: m["tensors"].__setitem__(1, m["tensors"][0]),
        "name-of-4097-bytes": put("tensors", 0, "name", value="n" * 4097),
        "dtype-unknown": put("tensors", 0, "dtype", value="F33"),
        "dtype-number": put("tensors", 0, "dtype", value=3),
        "dtype-wider": put("tensors", 0, "dtype", value="F64"),
        "shape-negative": put("tensors", 0, "shape", value=[-2, -3]),
        "shape-wraps": put("tensors", 0, "shape", value=[2**63 + 3, 2]),
        "shape-2-to-64-minus-1": put("tensors", 0, "shape", value=[2**64 - 1, 3]),
        "shape-65-dimensions": put("tensors", 0, "shape", value=[1] * 63 + [2, 3]),
        "shape-other": put("tensors", 0, "shape", value=[3, 3]),
        "row-gone": lambda m: m.update(tensors=m["tensors"][1:], n_tensors=m["n_tensors"] - 1),
        "row-is-null": put("tensors", 0, value=None),
        "pieces-none": put("tensors", 0, "pieces", value=[]),
        "pieces-null": put("tensors", 0, "pieces", value=None),
        "piece-of-file-1": piece(file=1),
        "piece-of-file-2-to-64-minus-1": piece(file=2**64 - 1),
        "piece-of-no-file": drop("tensors", 0, "pieces", 0, "file"),
        "piece-begins-nowhere": drop("tensors", 0, "pieces", 0, "begin"),
        "piece-begins-negative": piece(begin=-4),
        "piece-begins-beyond": piece(begin=1 << 20),
        "piece-begins-at-2-to-64-minus-8": piece(begin=2**64 - 8),
        "piece-ends-beyond": lambda m: piece(begin=m["files"][0]["size"] - 8)(m),
        "piece-offsets-only": piece(offsets=[0, 0]),
        "piece-lengths-only": piece(lengths=[2, 3]),
        "piece-offsets-of-one-dimension": piece(offsets=[0], lengths=[2]),
        "piece-offsets-beyond": piece(offsets=[1, 0], lengths=[2, 3]),
        "piece-offsets-wrap": piece(offsets=[2**64 - 1, 0], lengths=[2, 3]),
        "piece-lengths-wrap": piece(offsets=[1, 0], lengths=[2**64 - 1, 3]),
        "piece-lengths-short": piece(offsets=[0, 0], lengths=[1, 3]),
        "pieces-overlap": pieces(([0, 0], [2, 2]), ([0, 1], [2, 2])),
        "pieces-leave-a-hole": pieces(([0, 0], [2, 1]), ([0, 2], [2, 1])),
        "pieces-the-same-twice": pieces(([0, 0], [2, 3]), ([0, 0], [2, 3])),
        "pieces-100000": put("tensors", 0, "pieces", value=[{"file": 0, "begin": 4096}] * 100_000),
        "tensors-share-bytes": lambda m: m["tensors"][1]["pieces"][0].update(
            begin=m["tensors"][0]["pieces"][0]["begin"]
        ),
    }
    return table


def _states() -> dict[str, Edit]:
    """In place of a value of the state."""
    nested: Any = 1
    for _ in range(300):
        nested = [nested]
    values: dict[str, Any] = {
        "form-unknown": {"$set": [1]},
        "form-empty": {"$": 1},
        "form-and-more": {"$tuple": [], "x": 1},
        "tuple-of-an-object": {"$tuple": {}},
        "tuple-of-null": {"$tuple": None},
        "value-without-kind": {"$value": 1},
        "value-in-a-value": {"$value": {"$value": 1, "as": "x"}, "as": "x"},
        "value-of-a-tensor": {"$value": {"$tensor": "model/w"}, "as": "x"},
        "kind-empty": {"$value": 1, "as": ""},
        "kind-too-long": {"$value": 1, "as": "x" * 33},
        "dict-of-an-object": {"$dict": {}},
        "dict-of-one": {"$dict": [["a"]]},
        "dict-of-three": {"$dict": [["a", 1, 2]]},
        "dict-of-scalars": {"$dict": ["a", 1]},
        "dict-with-a-list-as-key": {"$dict": [[[1], 2]]},
        "dict-with-a-tensor-as-key": {"$dict": [[{"$tensor": "model/w"}, 2]]},
        "dict-with-a-key-twice": {"$dict": [[1, 1], [1, 2]]},
        "odict-with-a-key-twice": {"$odict": [["a", 1], ["a", 2]]},
        "odict-of-one": {"$odict": [["a"]]},
        "int-empty": {"$int": ""},
        "int-minus": {"$int": "-"},
        "int-plus": {"$int": "+99999999999999999999"},
        "int-hexadecimal": {"$int": "0x99999999999999999999"},
        "int-spaced": {"$int": " 99999999999999999999"},
        "int-underscore": {"$int": "99_999_999_999_999_999"},
        "int-number": {"$int": 99999999999999999},
        "int-60001-digits": {"$int": "1" * 60001},
        "float-short": {"$float": "7ff8"},
        "float-in-capitals": {"$float": "7FF8000000000000"},
        "float-number": {"$float": 1.5},
        "float-word": {"$float": "nan"},
        "bytes-bad": {"$bytes": "?"},
        "bytes-unpadded": {"$bytes": "QQ"},
        "bytes-stray-bits": {"$bytes": "QR=="},
        "bytes-url-letters": {"$bytes": "-_-_"},
        "bytes-number": {"$bytes": 1},
        "bytes-long": {"$bytes": "QUFB" * 2000},
        "str-no-utf8": {"$str": "/w=="},
        "str-bad": {"$str": "AA"},
        "text-long": "x" * 5000,
        "tensor-unknown": {"$tensor": "nowhere"},
        "tensor-number": {"$tensor": 1},
        "tensor-empty": {"$tensor": ""},
        "tensor-as-long": {"$tensor": "model/w", "as": "x" * 33},
        "tensor-as-number": {"$tensor": "model/w", "as": 1},
        "tensor-and-more": {"$tensor": "model/w", "more": 1},
        "str-in-a-float-tensor": {"$str_in": "model/w"},
        "bytes-in-a-float-tensor": {"$bytes_in": "model/w"},
        "str-in-unknown": {"$str_in": "nowhere"},
        "nested-300": nested,
    }
    table: dict[str, Edit] = {name: put("state", "extra", value=value) for name, value in values.items()}
    table |= {
        "key-with-dollar": put("state", "$x", value=1),
        "key-of-4097-bytes": put("state", "k" * 4097, value=1),
        "tensor-left-out": drop("state", "model"),
        "is-a-list-of-forms": put("state", value=[{"$x": 1}]),
    }
    return table


# ------------------------------------------------------------------ the corpus


class Corpus:
    """Makes the shapes below `root`. `base`: a checkpoint of pawl's own; `state`: what is in it; `bait`: a folder
    outside, which nothing may touch."""

    def __init__(self, root: pathlib.Path, base: pathlib.Path, state: Any, bait: pathlib.Path) -> None:
        self.root, self.base, self.state, self.bait = root, base, state, bait
        self.shapes: list[Shape] = []
        text = (base / "manifest.json").read_bytes()
        self.members: dict[str, Any] = json.loads(text)
        del self.members["digest"]
        self.sockets: list[socket.socket] = []

    def place(self, group: str, name: str) -> pathlib.Path:
        folder = self.root / group / name
        folder.mkdir(parents=True)
        return folder

    def add(self, group: str, name: str, kind: str, path: pathlib.Path, **more: Any) -> None:
        self.shapes.append(Shape(f"{group}/{name}", kind, path, group=group, **more))

    # one file

    def file(self, group: str, name: str, data: bytes, **more: Any) -> None:
        path = self.place(group, name) / f"{name}.safetensors"
        path.write_bytes(data)
        self.add(group, name, "file", path, **more)

    def files(self) -> None:
        for name, data in _lengths().items():
            self.file("length", name, data)
        for name, value in BAD_VALUES.items():
            self.file("header-value", name, file_bytes(b'{"__metadata__":{"x":%s},' % value + GOOD_MEMBERS + b"}"))
        for name, document in BAD_DOCUMENTS.items():
            self.file("header-document", name, file_bytes(document.replace(b"%s", GOOD_MEMBERS)))
        for name, header in _tables().items():
            self.file("header-table", name, file_bytes(header))
        for name, text in STRANGE_NAMES.items():
            held = {text: ("F32", (2,), GOOD_DATA)}
            self.file("tensor-name", name, file_bytes({text: row()}), harmless=True, value=held)
        odd = file_bytes({"__metadata__": {"../x": ESC, "pawl.state": "{", "format": "pt"}} | GOOD)
        self.file("tensor-name", "odd-metadata", odd, harmless=True, value={"t": ("F32", (2,), GOOD_DATA)})

    # a thing that is not a file

    def things(self, group: str, kind: str, target: Callable[[str], tuple[pathlib.Path, pathlib.Path]]) -> None:
        """target(name): where the hostile thing goes, and what is opened."""

        def special(name: str, make: Callable[[pathlib.Path], object]) -> None:
            at, opened = target(name)
            if at.exists():
                at.unlink()
            make(at)
            # A file that is opened is named by where its link leads.
            leads = (pathlib.Path(os.path.realpath(at)).name,) if name.startswith("link") else ()
            self.add(group, name, kind, opened, says=(opened.name, *leads))

        def listen(at: pathlib.Path) -> None:
            here = os.getcwd()
            os.chdir(at.parent)  # a socket's path is short
            self.sockets.append(socket.socket(socket.AF_UNIX))
            self.sockets[-1].bind(at.name)
            os.chdir(here)

        def sparse(at: pathlib.Path, size: int, begin: bytes) -> None:
            with at.open("wb") as file:
                file.write(begin)
                file.truncate(size)

        special("folder", lambda at: at.mkdir())
        special("fifo", lambda at: os.mkfifo(at))
        special("socket", listen)
        special("link-to-zeros", lambda at: at.symlink_to("/dev/zero"))
        special("link-to-nothing", lambda at: at.symlink_to("nowhere"))
        special("link-to-itself", lambda at: at.symlink_to(at.name))
        special("link-to-a-folder", lambda at: at.symlink_to(self.bait))
        special("link-to-a-text", lambda at: at.symlink_to(self.bait / "file"))
        special("link-to-proc", lambda at: at.symlink_to("/proc/self/environ"))
        special("link-to-memory", lambda at: at.symlink_to("/proc/self/mem"))
        special("one-tebibyte", lambda at: sparse(at, 1 << 40, b""))
        special("one-tebibyte-of-header", lambda at: sparse(at, 1 << 40, struct.pack("<Q", 1 << 39) + b"{"))
        special("header-of-zeros", lambda at: sparse(at, 1 << 30, struct.pack("<Q", 99_000_000) + b"{"))

    def special_files(self) -> None:
        def target(name: str) -> tuple[pathlib.Path, pathlib.Path]:
            path = self.place("file-is", name) / f"{name}.safetensors"
            return path, path

        self.things("file-is", "file", target)

    # checkpoints

    def copy(self, group: str, name: str) -> pathlib.Path:
        folder = self.place(group, name) / name
        shutil.copytree(self.base, folder)
        return folder

    def checkpoint(self, group: str, name: str, text: bytes, **more: Any) -> None:
        folder = self.copy(group, name)
        (folder / "manifest.json").write_bytes(text)
        self.add(group, name, "checkpoint", folder, **more)

    def edited(self, group: str, table: dict[str, Edit]) -> None:
        for name, edit in table.items():
            members = json.loads(json.dumps(self.members))
            edit(members)
            # What no tensor is in is not read by a load.
            more: dict[str, Any] = {"passes": ("load", "export"), "value": self.state} if name in UNUSED else {}
            self.checkpoint(group, name, sealed(manifest_text(members)), **more)

    def manifests(self) -> None:
        for name, value in BAD_VALUES.items():
            text = manifest_text(self.members | {"metadata": {"x": "@VALUE@"}}).replace(b'"@VALUE@"', value)
            self.checkpoint("manifest-value", name, sealed(text))
        inner = manifest_text(self.members)[1:-1]
        for name, document in BAD_DOCUMENTS.items():
            text = document.replace(b"%s", inner)
            self.checkpoint("manifest-document", name, sealed(text[:-1] + b"," if text.endswith(b"}") else text))
        self.edited("manifest-type", _wrong_types(self.members))
        self.edited("manifest-summary", _summary())
        self.edited("manifest-file", _file_rows())
        self.edited("manifest-tensor", _tensor_rows())
        self.edited("state", _states())
        for name, number in {"int-beyond-2-to-53": 2**53 + 1, "int-of-64-bits": 2**64 - 1}.items():
            members = self.members | {"state": self.members["state"] | {"extra": number}}
            value = self.state | {"extra": number}
            self.checkpoint("state", name, sealed(manifest_text(members)), harmless=True, value=value)
        self.digests()

    def digests(self) -> None:
        good = sealed(manifest_text(self.members))
        order = dict(reversed(self.members.items()))
        table = {
            "wrong": good.replace(b'"step":', b'"step":1'),
            "cut": good[:-2],
            "longer": good + b"\n",
            "in-capitals": good[:-36] + good[-36:].upper(),
            "gone": manifest_text(self.members)[:-1] + b"}\n",
            "empty-file": b"",
            "one-byte": b"{",
            "members-in-another-order": sealed(manifest_text(order)),
            "a-member-twice": sealed(manifest_text(self.members)[:-1] + b',\n"step":0,'),
            "zeros": bytes(len(good)),
        }
        for name, text in table.items():
            self.checkpoint("digest", name, text)

    def special_parts(self) -> None:
        def target(part: str) -> Callable[[str], tuple[pathlib.Path, pathlib.Path]]:
            def find(name: str) -> tuple[pathlib.Path, pathlib.Path]:
                folder = self.copy(f"{part}-is", name)
                return folder / (PACK if part == "pack" else "manifest.json"), folder

            return find

        for part in ("manifest", "pack"):
            self.things(f"{part}-is", "checkpoint", target(part))
        pack = (self.base / PACK).read_bytes()
        table = {
            "gone": None,
            "empty": b"",
            "cut-by-one": pack[:-1],
            "longer-by-one": pack + b"x",
            "half": pack[: len(pack) // 2],
            "bit-in-length": bytes([pack[0] ^ 1]) + pack[1:],
            "bit-in-header": pack[:20] + bytes([pack[20] ^ 1]) + pack[21:],
            "bit-in-padding": pack[:4090] + bytes([pack[4090] ^ 1]) + pack[4091:],
            "bit-in-data": pack[:-1] + bytes([pack[-1] ^ 128]),
            "zeros": bytes(len(pack)),
            "another-file": file_bytes(GOOD),
            "the-manifest": (self.base / "manifest.json").read_bytes(),
        }
        for name, data in table.items():
            folder = self.copy("pack", name)
            if data is None:
                (folder / PACK).unlink()
            else:
                (folder / PACK).write_bytes(data)
            self.add("pack", name, "checkpoint", folder)

    def harmless_parts(self) -> None:
        """Things next to the files of a checkpoint, which are none of its own."""
        makers: dict[str, Callable[[pathlib.Path], object]] = {
            "stray-fifo": lambda folder: os.mkfifo(folder / "stray"),
            "stray-link": lambda folder: (folder / "stray").symlink_to(self.bait),
            "stray-folder": lambda folder: (folder / "stray").mkdir(),
            "stray-name": lambda folder: (folder / f"{ESC}\n").write_text("x"),
            "stray-bytes": lambda folder: pathlib.Path(os.fsdecode(os.fsencode(folder) + b"/\xff\xfe")).write_text("x"),
            "stray-pickle": lambda folder: (folder / "data.pkl").write_bytes(b"cos\nsystem\n(S'touch x'\ntR."),
            "second-name-of-the-pack": lambda folder: os.link(folder / PACK, folder / "twin"),
        }
        for name, make in makers.items():
            folder = self.copy("beside", name)
            make(folder)
            self.add("beside", name, "checkpoint", folder, harmless=True, value=self.state)

    # runs

    def make_run(self, group: str, name: str, run_json: bytes | None = None) -> pathlib.Path:
        run = self.place(group, name) / name
        folder = run / "checkpoints" / "checkpoint_000001"
        folder.parent.mkdir(parents=True)
        shutil.copytree(self.base, folder)
        (folder / "manifest.json").write_bytes(sealed(manifest_text(self.members | {"run": RUN_ID})))
        (run / "latest").symlink_to("checkpoints/checkpoint_000001")
        members = b'"pawl_run":1,"run":"%s","attempt":1' % RUN_ID.encode()
        (run / "run.json").write_bytes(b"{%s}\n" % members if run_json is None else run_json.replace(b"%s", members))
        return run

    def run_files(self) -> None:
        bad = {f"value-{name}": b'{%s,"x":' + value + b"}" for name, value in BAD_VALUES.items()}
        bad |= {f"document-{name}": document for name, document in BAD_DOCUMENTS.items()}
        bad |= {
            "version-2": b'{"pawl_run":2,"run":"%s","attempt":1}' % RUN_ID.encode(),
            "version-2-to-64-minus-1": b'{"pawl_run":18446744073709551615,"run":"%s","attempt":1}' % RUN_ID.encode(),
            "version-text": b'{"pawl_run":"1","run":"%s","attempt":1}' % RUN_ID.encode(),
            "version-negative": b'{"pawl_run":-1,"run":"%s","attempt":1}' % RUN_ID.encode(),
            "no-version": b'{"run":"%s","attempt":1}' % RUN_ID.encode(),
            "no-run": b'{"pawl_run":1,"attempt":1}',
            "no-attempt": b'{"pawl_run":1,"run":"%s"}' % RUN_ID.encode(),
            "attempt-negative": b'{"pawl_run":1,"run":"%s","attempt":-1}' % RUN_ID.encode(),
            "attempt-float": b'{"pawl_run":1,"run":"%s","attempt":1.5}' % RUN_ID.encode(),
            "run-null": b'{"pawl_run":1,"run":null,"attempt":1}',
            "run-short": b'{"pawl_run":1,"run":"%s","attempt":1}' % RUN_ID[1:].encode(),
            "run-path": b'{"pawl_run":1,"run":"../../../../../../../../../../../..","attempt":1}'[:80],
            "run-escape": rb'{"pawl_run":1,"run":"\u001b[2J","attempt":1}',
            "70000-spaces": b"{%s}" + b" " * 70_000,
        }
        # One that cannot be read counts as lost: who the run is stands in its checkpoints, too. What another program, or a
        # later version, may have written is left alone.
        refused = {"document-no-members", "version-2", "version-2-to-64-minus-1", "no-version"}
        for name, text in bad.items():
            run = self.make_run("run.json", name, text)
            if name in refused:
                self.add("run.json", name, "run", run, says=("run.json",))
            else:
                self.add("run.json", name, "run", run, harmless=True, value=self.state)

        def target(name: str) -> tuple[pathlib.Path, pathlib.Path]:
            run = self.make_run("run.json-is", name)
            return run / "run.json", run

        first = len(self.shapes)
        self.things("run.json-is", "run", target)
        for shape in self.shapes[first:]:
            shape.says = ("run.json",)
            if shape.name.split("/")[-1] in ("header-of-zeros", "one-tebibyte", "one-tebibyte-of-header"):
                shape.harmless, shape.value = True, self.state
            if shape.path.joinpath("run.json").is_dir() and not shape.path.joinpath("run.json").is_symlink():
                shape.passes = ("ls", "verify", "restore")  # as if it were lost

    def harmless_runs(self) -> None:
        """Forgotten files in a run, which cannot keep its checkpoint from being read."""

        def said(path: str, data: bytes) -> Callable[[pathlib.Path], None]:
            def write(run: pathlib.Path) -> None:
                (run / path).parent.mkdir(parents=True, exist_ok=True)
                (run / path).write_bytes(data)

            return write

        def linked(path: str, to: object) -> Callable[[pathlib.Path], None]:
            def link(run: pathlib.Path) -> None:
                (run / path).parent.mkdir(parents=True, exist_ok=True)
                (run / path).symlink_to(str(to))

            return link

        def piped(path: str) -> Callable[[pathlib.Path], None]:
            def pipe(run: pathlib.Path) -> None:
                (run / path).parent.mkdir(parents=True, exist_ok=True)
                os.mkfifo(run / path)

            return pipe

        mark, hold = ".pawl/marks/checkpoint_000001.json", f".pawl/holds/{RUN_ID}.json"
        texts = {
            "empty": b"",
            "cut": b'{"pinned":tr',
            "list": b"[]",
            "no-utf8": b'{"\xff":1}',
            "wrong-types": b'{"pinned":1,"metrics":[],"name":1,"host":[],"boot":0,"pid":"","start":-1}',
            "deep": b"[" * 3000,
            "2000-metrics": b'{"pinned":false,"metrics":{' + b",".join(b'"m%d":1' % i for i in range(2000)) + b"}}",
            "two-mebibytes": b" " * (2 << 20),
            "huge-numbers": b'{"name":"checkpoint_000001","host":"h","boot":"b","pid":-9223372036854775808,'
            b'"start":18446744073709551615,"token":"x","renewed_unix_ns":-9223372036854775808}',
            "path": b'{"name":"../../../bait","host":"' + b"h" * 3000 + b'","boot":"b","pid":1,"start":1}',
        }
        makers: dict[str, Callable[[pathlib.Path], object]] = {}
        for what, path in (("mark", mark), ("hold", hold), ("lease", ".lease")):
            for name, text in texts.items():
                makers[f"{what}-{name}"] = said(path, text)
            makers[f"{what}-link"] = linked(path, self.bait / "file")
            makers[f"{what}-folder"] = lambda run, path=path: (run / path).mkdir(parents=True)  # type: ignore[misc]
        inner = "checkpoints/"
        makers |= {
            "checkpoint-is-a-link": linked(inner + "checkpoint_000009", self.bait),
            "checkpoint-is-a-fifo": piped(inner + "checkpoint_000009"),
            "checkpoint-is-a-file": said(inner + "checkpoint_000009", b"x"),
            "checkpoint-is-empty": lambda run: (run / inner / "checkpoint_000009").mkdir(),
            "checkpoint-manifest-is-a-folder": lambda run: (run / inner / "c9" / "manifest.json").mkdir(parents=True),
            "checkpoint-name-escape": said(inner + ESC + "/manifest.json", b"{}"),
            "checkpoint-name-option": said(inner + "-rf/manifest.json", b"{}"),
            "checkpoint-name-dots": said(inner + "..x/manifest.json", b"{}"),
            "checkpoint-name-of-200-bytes": said(inner + "n" * 200 + "/manifest.json", b"{}"),
            "checkpoint-name-no-utf8": lambda run: os.mkdir(os.fsencode(run) + b"/checkpoints/\xff\xfe"),
            "checkpoint-of-zeros": said(inner + "checkpoint_000009/manifest.json", bytes(1000)),
            "temporary-is-a-link": linked(inner + f".checkpoint_000002.{RUN_ID}.partial", self.bait),
            "temporary-is-a-fifo": piped(inner + f".checkpoint_000002.{RUN_ID}.partial"),
            "latest-loops": lambda run: (run / "best").symlink_to("best"),
            "best-leads-out": linked("best", self.bait),
            "events-is-a-link": linked("events.jsonl", self.bait / "file"),
            "events-is-a-folder": lambda run: (run / "events.jsonl").mkdir(),
            "recycle-is-a-link": linked(f".pawl/recycle/4096-{RUN_ID}", self.bait / "file"),
            "recycle-folder-is-a-link": linked(".pawl/recycle", self.bait),
            "holds-folder-is-a-link": linked(".pawl/holds", self.bait),
            "marks-folder-is-a-link": linked(".pawl/marks", self.bait),
            "own-folder-is-a-link": linked(".pawl", self.bait),
            "takeover-is-a-link": linked(".lease.takeover", self.bait / "file"),
        }
        for name, make in makers.items():
            run = self.make_run("in-a-run", name)
            make(run)
            if name in UNLISTED:
                self.add("in-a-run", name, "run", run, says=(".pawl",))
                continue
            bad = name in ("checkpoint-is-empty", "checkpoint-manifest-is-a-folder", "checkpoint-of-zeros")
            self.add("in-a-run", name, "run", run, harmless=True, value=self.state, verifies=4 if bad else 0)

    # folders of Hugging Face

    def indexes(self) -> None:
        part = "model-00001-of-00001.safetensors"
        good: dict[str, Any] = {"metadata": {"total_size": 8}, "weight_map": {"t": part}}
        maps: dict[str, Any] = {
            "parent": {"t": "../x.safetensors"},
            "absolute": {"t": "/etc/passwd"},
            "dots": {"t": ".."},
            "empty": {"t": ""},
            "escape": {"t": ESC},
            "backslash": {"t": "..\\x"},
            "number": {"t": 1},
            "null": {"t": None},
            "list": {"t": [part]},
            "missing-file": {"t": "model-00002-of-00002.safetensors"},
            "missing-tensor": {"u": part},
            "itself": {"t": "model.safetensors.index.json"},
        }
        texts = {name: json.dumps(good | {"weight_map": value}).encode() for name, value in maps.items()}
        texts |= {
            "map-is-a-list": json.dumps(good | {"weight_map": [part]}).encode(),
            "map-is-null": json.dumps(good | {"weight_map": None}).encode(),
            "no-map": b'{"metadata":{}}',
            "tensor-twice": b'{"weight_map":{"t":"%s","t":"other"}}' % part.encode(),
        }
        texts |= {
            f"document-{name}": BAD_DOCUMENTS[name] for name in ("empty", "garbage-behind", "array-around", "null")
        }
        for name, text in texts.items():
            folder = self.place("index", name) / name
            folder.mkdir()
            (folder / part).write_bytes(file_bytes(GOOD))
            (folder / "model.safetensors.index.json").write_bytes(text)
            self.add("index", name, "index", folder)
        for name, to in {"part-is-a-fifo": None, "part-leads-out": "/dev/zero", "part-is-a-loop": part}.items():
            folder = self.place("index", name) / name
            folder.mkdir()
            if to is None:
                os.mkfifo(folder / part)
            else:
                (folder / part).symlink_to(to)
            (folder / "model.safetensors.index.json").write_text(json.dumps(good))
            self.add("index", name, "index", folder)

    def make_all(self) -> list[Shape]:
        self.files()
        self.special_files()
        self.manifests()
        self.special_parts()
        self.harmless_parts()
        self.run_files()
        self.harmless_runs()
        self.indexes()
        return self.shapes
