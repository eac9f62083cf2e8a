# SPDX-License-Identifier: Apache-2.0
"""Hostile archives for test_attack_archives.py: files of torch.save, numpy and compressed ones, each wrong in one way
that was published or that a limit is there for. Nothing here is random; no shape needs the library it attacks."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

FLOATS = struct.pack("<4f", 1, 2, 3, 4)


def text(value: str) -> bytes:
    """As an operation of pickle."""
    data = value.encode()
    return b"X" + struct.pack("<I", len(data)) + data


def tensor(key: str = "0", numel: int = 4, shape: bytes = b"(K\x04t", strides: bytes = b"(K\x01t") -> bytes:
    """What torch.save writes of a tensor of four floats, without the end."""
    return (
        b"ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu")
        + b"\x8a\x08" + struct.pack("<q", numel) + b"tQK\x00" + shape + strides
        + b"\x89ccollections\nOrderedDict\n)RtR"
    )  # fmt: skip


def state(value: bytes, name: str = "t") -> bytes:
    return b"\x80\x02}" + text(name) + value + b"s."


GOOD = state(tensor())


def archive(
    stream: bytes = GOOD, storage: bytes = FLOATS, change: Callable[[zipfile.ZipFile], None] | None = None
) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr(zipfile.ZipInfo("x/data.pkl"), stream)
        file.writestr(zipfile.ZipInfo("x/data/0"), storage)
        file.writestr(zipfile.ZipInfo("x/version"), b"3\n")
        if change:
            change(file)
    return out.getvalue()


def legacy(
    stream: bytes = GOOD, numel: int = 4, keys: tuple[str, ...] = ("0",), magic: int = 0x1950A86A20F9469CFC6C
) -> bytes:
    sizes = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"short": 2, "int": 4, "long": 4}}
    head = [pickle.dumps(part, 2) for part in (magic, 1001, sizes)]
    # A storage of this form says a sixth thing of itself: what it is a view of.
    stream = stream.replace(b"tQK\x00", b"NtQK\x00")
    return b"".join([*head, stream, pickle.dumps(list(keys), 2)]) + struct.pack("<q", numel) + FLOATS


def calls(bait: str) -> dict[str, bytes]:
    """Streams that would run something if they were executed."""
    touch = f"touch {bait}/called"
    end = text(touch) + b"\x85R"
    inner = pickle.dumps(["x"], 2)
    return {
        "system": b"cos\nsystem\n" + end,
        "system-by-its-other-name": b"cposix\nsystem\n" + end,
        "eval": b"c__builtin__\neval\n" + text(f"open({bait + '/called'!r}, 'w')") + b"\x85R",
        "exec-of-python-3": b"cbuiltins\nexec\n" + text(f"open({bait + '/called'!r}, 'w')") + b"\x85R",
        # a submodule of what a list forbids: CVE-2025-10157
        "a-submodule": b"casyncio.unix_events\n_UnixSubprocessTransport._start\n(tR",
        "a-dotted-name": text("torch") + text("serialization.os.system") + b"\x93" + end,
        "a-dotted-module": b"ctorch.serialization.os\nsystem\n" + end,
        "getattr": b"c__builtin__\ngetattr\n(ctorch\nSize\n" + text("__class__") + b"tR",
        "import": b"cimportlib\nimport_module\n" + text("antigravity") + b"\x85R",
        "apply": b"c__builtin__\napply\n(cos\nsystem\n(" + text(touch) + b"ttR",
        "inst": b"(S'" + touch.encode() + b"'\nios\nsystem\n",
        "obj": b"(cos\nsystem\n" + text(touch) + b"o",
        "newobj": b"csubprocess\nPopen\n" + text(touch) + b"\x85\x81",
        "newobj-ex": b"csubprocess\nPopen\n" + text(touch) + b"\x85}\x92",
        "extension-register": b"\x82\x01" + end,
        "state-of-a-function": b"cos\nsystem\n}" + text("x") + text(touch) + b"sb",
        # one pickle inside another, as torch.storage once unpacked it
        "bytes-that-are-loaded": b"ctorch.storage\n_load_from_bytes\nC" + bytes([len(inner)]) + inner + b"\x85R",
        "a-hidden-call-that-is-dropped": b"cos\nsystem\n" + end + b"0N",
        "a-scheme-of-its-own": b"ctorch._utils\n_rebuild_wrapper_subclass\n(cos\nsystem\ntR",
        "a-parameter-of-a-call": b"ctorch._utils\n_rebuild_parameter\n(cos\nsystem\n" + end + b"\x89}tR",
        "a-codec-that-is-none": b"c_codecs\nencode\n(" + text("x") + text("rot13") + b"tR",
        "a-codec-with-a-call": b"c_codecs\nencode\n(cos\nsystem\n" + end + text("latin1") + b"tR",
        "a-type-from-elsewhere": b"ctorch._tensor\n_rebuild_from_type_v2\n(cos\nsystem\ncposix\nsystem\n)}tR",
    }


def numbers_that_collide() -> list[int]:
    """Numbers of the memo whose products with the multiplier of Fibonacci hashing differ in few bits only."""
    inverse = pow(0x9E3779B97F4A7C15, -1, 1 << 64)
    products = (number * inverse % (1 << 64) for number in range(1, 1 << 20))
    return [index for index in products if index < 10**18][:40_000]


# Streams that break the rules of the machine; in the archive.
STREAMS = {
    # items put into what is not a dict: CVE-2026-24747
    "setitem-on-a-tensor": state(tensor() + b"K\x00K\x01s"),
    "setitems-on-a-tensor": state(tensor() + b"(K\x00K\x01u"),
    "setitem-on-a-list": state(b"]K\x00K\x01s"),
    "setitem-on-a-storage-class": state(b"ctorch\nFloatStorage\nK\x00K\x01s"),
    "append-to-a-tensor": state(tensor() + b"K\x01a"),
    # a storage that is not what it says: CVE-2026-24747
    "a-storage-said-to-be-longer": state(tensor(numel=5)),
    "a-storage-said-to-be-shorter": state(tensor(numel=3, shape=b"(K\x03t")),
    "a-storage-of-2-to-the-62": state(tensor(numel=1 << 62)),
    "a-storage-below-nothing": state(tensor(numel=-4)),
    "a-view-beyond-its-storage": state(tensor(shape=b"(K\x05t")),
    "a-view-that-overflows": state(tensor(shape=b"(\x8a\x08" + b"\xff" * 7 + b"\x7ft")),
    "a-stride-below-nothing": state(tensor(strides=b"(J\xff\xff\xff\xfft")),
    "a-window-without-end": state(tensor(shape=b"(J\xff\xff\xff\x7ft", strides=b"(K\x00t")),
    "a-storage-that-is-not-there": state(tensor(key="7")),
    "a-storage-by-a-path": state(tensor(key="../../x/data/0")),
    # a memo that is far away (python/cpython#115952), doubles (tracel-ai/burn#5120), or is never put
    "memo-far-away": b"\x80\x02N"
    + b"".join(b"r" + struct.pack("<I", 0xFFFFFFFF - i) for i in range(64))
    + b"j\0\0\0\0.",
    "memo-of-numbers-that-collide": b"\x80\x02N"
    + b"".join(b"p%d\n" % i for i in numbers_that_collide())
    + b"j\0\0\0\0.",
    "a-tensor-with-129-flags": state(
        tensor()[:-2] + b"}(" + text("a") + b"q\x01\x89q\x02" + b"h\x01h\x02" * 128 + b"utR"
    ),
    "memo-doubling": b"\x80\x02(K\x01l" + b"".join(b"q%c(h%ch%cl" % (i, i, i) for i in range(1, 60)) + b".",
    "memo-doubling-of-tuples": b"\x80\x02)" + b"".join(b"q%ch%c\x86" % (i, i) for i in range(1, 60)) + b".",
    "a-text-in-many-places": b"\x80\x02(X\0\0\x20\0" + b"x" * (2 << 20) + b"q\x01" + b"h\x01" * 2000 + b"l.",
    "a-list-that-holds-itself": b"\x80\x02]q\x01h\x01a.",
    "a-dict-that-holds-itself": b"\x80\x02}q\x01" + text("x") + b"h\x01s.",
    # huggingface/candle#3617, #3628
    "lists-in-lists": b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",
    "tuples-in-tuples": b"\x80\x02N" + b"\x85" * 100_000 + b".",
    "two-million-marks": b"\x80\x02" + b"(" * 2_000_000 + b".",
    "an-integer-of-a-megabyte": b"\x80\x02\x8b" + struct.pack("<i", 1 << 20) + b"\x01" * (1 << 20) + b".",
    # a frame that says more than there is: trailofbits/fickling#317
    "a-frame-beyond-the-end": b"\x80\x04\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "a-frame-that-cuts": b"\x80\x04\x95" + struct.pack("<Q", 2) + b"J\x01\0\0\0.",
    "protocol-200": b"\x80\xc8N.",
    "two-values": b"\x80\x02NN.",
    "nothing-at-the-end": b"\x80\x02N",
    "behind-the-end": b"\x80\x02N." + b"cos\nsystem\n(S'x'\ntR.",
    "a-text-of-4-gibibytes": b"\x80\x02X\xff\xff\xff\xffx.",
    "a-text-of-2-to-the-63": b"\x80\x04\x8d" + b"\xff" * 7 + b"\x7fx.",
    "a-persistent-id-in-text": b"\x80\x02Pstorage\n.",
    "a-storage-of-five-words": b"\x80\x02(K\x01K\x02K\x03K\x04K\x05tQ.",
    "a-set": b"\x80\x04\x8f.",
    "a-bytearray": b"\x80\x05\x96\x01\0\0\0\0\0\0\0x.",
    "a-buffer-from-outside": b"\x80\x05\x97.",
}


def _patched(data: bytes, signature: bytes, which: int, offset: int, value: bytes) -> bytes:
    at = -1
    for _ in range(which + 1):
        at = data.index(signature, at + 1)
    return data[: at + offset] + value + data[at + offset + len(value) :]


LOCAL, CENTRAL, END = b"PK\x03\x04", b"PK\x01\x02", b"PK\x05\x06"


def archives() -> dict[str, bytes]:
    good = archive()
    deflated = io.BytesIO()
    with zipfile.ZipFile(deflated, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("x/data.pkl", GOOD + b"\0" * 1_000_000)
    one, two = archive(), archive(state(b"K\x01"))
    bare = GOOD.replace(b"storage", b"storagx")
    return {
        # a sum that is wrong, so that a scanner gives up but a loader does not: CVE-2025-10156
        "a-wrong-sum": _patched(_patched(good, LOCAL, 0, 14, b"abcd"), CENTRAL, 0, 16, b"abcd"),
        "a-wrong-sum-in-the-directory": _patched(good, CENTRAL, 0, 16, b"abcd"),
        "a-wrong-sum-before-the-member": _patched(good, LOCAL, 0, 14, b"abcd"),
        # a flag that makes a scanner pass over the member
        "flag-encrypted": _patched(_patched(good, LOCAL, 0, 6, b"\x01\0"), CENTRAL, 0, 8, b"\x01\0"),
        "flag-encrypted-in-the-directory": _patched(good, CENTRAL, 0, 8, b"\x01\0"),
        "flag-patched-data": _patched(_patched(good, LOCAL, 0, 6, b"\x20\0"), CENTRAL, 0, 8, b"\x20\0"),
        "method-unknown": _patched(_patched(good, LOCAL, 0, 8, b"\x63\0"), CENTRAL, 0, 10, b"\x63\0"),
        "another-name-in-the-directory": _patched(good, CENTRAL, 0, 46, b"x/data.pkx"),
        "another-name-before-the-member": _patched(good, LOCAL, 0, 30, b"x/data.pkx"),
        "another-size-in-the-directory": _patched(good, CENTRAL, 1, 20, struct.pack("<II", 12, 12)),
        "another-volume": _patched(good, END, 0, 4, b"\x01\0"),
        "more-members-than-there-are": _patched(good, END, 0, 8, b"\xff\x7f\xff\x7f"),
        "members-over-each-other": _patched(good, CENTRAL, 1, 42, struct.pack("<I", 0)),
        "a-directory-elsewhere": _patched(good, END, 0, 16, struct.pack("<I", 5)),
        "something-before-it": b"MZ" + good,
        "something-behind-it": good + b"x",
        "two-archives": one + two,
        "an-archive-in-the-comment": _patched(one, END, 0, 20, struct.pack("<H", len(two))) + two,
        "the-pickle-twice": archive(change=lambda z: z.writestr("x/data.pkl", state(b"K\x01"))),
        "a-second-folder": archive(change=lambda z: z.writestr("y/data.pkl", state(b"K\x01"))),
        "a-way-out": archive(change=lambda z: z.writestr("x/../../out", b"x")),
        "an-absolute-name": archive(change=lambda z: z.writestr("/x/out", b"x")),
        "a-name-with-a-backslash": archive(change=lambda z: z.writestr(zipfile.ZipInfo("x/..\\out"), b"x")),
        "a-name-of-70000": archive(change=lambda z: z.writestr("x/" + "n" * 60_000, b"x")),
        "packed": deflated.getvalue(),
        "big-endian": archive(change=lambda z: z.writestr("x/byteorder", b"big")),
        "byte-order-of-nonsense": archive(change=lambda z: z.writestr("x/byteorder", b"middle")),
        "no-pickle": _zip({"x/data/0": FLOATS}),
        "only-a-directory": good[good.index(CENTRAL) :],
        "an-empty-archive": _zip({}),
        "a-storage-type-that-is-none": archive(bare),
    }


def _zip(members: dict[str, bytes], method: int = zipfile.ZIP_STORED) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", method) as file:
        for name, data in members.items():
            file.writestr(zipfile.ZipInfo(name), data, method)
    return out.getvalue()


def older() -> dict[str, bytes]:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("storages", "tensors", "pickle"):
            info = tarfile.TarInfo(name)
            info.size = len(GOOD)
            tar.addfile(info, io.BytesIO(GOOD))
    return {
        # the form that weights_only did not guard: CVE-2025-32434
        "a-tar": out.getvalue(),
        "another-magic": legacy(magic=0x1950A86A20F9469CFC6D),
        "more-numbers-than-there-are": legacy(numel=5),
        "2-to-the-61-numbers": legacy(numel=1 << 61),
        "fewer-than-no-numbers": legacy(numel=-1),
        "a-key-twice": legacy(keys=("0", "0")),
        "a-key-more": legacy(keys=("0", "1")),
        "no-keys": legacy(keys=()),
        "something-behind-it": legacy() + b"x",
        "cut": legacy()[:-1],
        "a-bare-pickle": GOOD,  # the bytes of torch's own, but nothing around them
    }


def _npy(descr: str = "'<f4'", shape: str = "(4,)", data: bytes = FLOATS) -> bytes:
    line = f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}".encode()
    line += b" " * (-(len(line) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(line)) + line + data


def numpys(bait: str) -> dict[str, bytes]:
    evil = b"\x80\x02cos\nsystem\n" + text(f"touch {bait}/called") + b"\x85R."
    return {
        "objects": _zip({"a.npy": _npy("'|O'", "(1,)", evil)}),
        "a-pickle-for-a-member": _zip({"a.npy": evil}),
        "code-for-a-header": _zip({"a.npy": _npy(f"open({bait + '/called'!r}, 'w')")}),
        "a-shape-that-overflows": _zip({"a.npy": _npy(shape="(4294967296, 4294967296, 4)")}),
        "a-shape-of-a-terabyte": _zip({"a.npy": _npy(shape="(274877906944,)")}),
        "a-header-beyond-the-end": _zip({"a.npy": b"\x93NUMPY\x02\0\xff\xff\xff\x7f"}),
        "a-way-out": _zip({"../a.npy": _npy()}),
        "the-same-twice": _twice(),
        "members-over-each-other": _patched(_zip({"a.npy": _npy(), "b.npy": _npy()}), CENTRAL, 1, 42, b"\0" * 4),
        "a-wrong-sum": _patched(_patched(_zip({"a.npy": _npy()}), LOCAL, 0, 14, b"abcd"), CENTRAL, 0, 16, b"abcd"),
    }


def _deflated(stream: bytes, plain: int, crc: int) -> bytes:
    """An archive of one member that is said to be this, compressed."""
    data = _zip({"a.npy": stream})
    changes = ((8, 10, struct.pack("<H", 8)), (14, 16, struct.pack("<I", crc)), (22, 24, struct.pack("<I", plain)))
    for local, central, value in changes:
        data = _patched(_patched(data, LOCAL, 0, local, value), CENTRAL, 0, central, value)
    return data


def packed_numpys() -> dict[str, bytes]:
    """As numpy.savez_compressed writes them, but for one thing."""
    plain, zeros = _npy(), b"\0" * (2 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    stream = packer.compress(plain) + packer.flush()
    crc = zlib.crc32(plain)
    packer = zlib.compressobj(9, zlib.DEFLATED, -15)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(100)), packer.flush()])
    small = _npy(shape="(524288,)", data=zeros)
    return {
        "a-bomb": _deflated(bomb, 200 << 20, 0),
        "a-bomb-that-says-it-is-none": _deflated(bomb, len(plain), crc),
        "many-small-bombs": _zip({f"{i:03}.npy": small for i in range(60)}, zipfile.ZIP_DEFLATED),
        "says-more-than-there-is": _deflated(stream, len(plain) + 1, crc),
        "says-less-than-there-is": _deflated(stream, len(plain) - 1, crc),
        "a-wrong-sum-of-what-is-packed": _deflated(stream, len(plain), crc ^ 1),
        "a-stream-that-is-cut": _deflated(stream[:-3], len(plain), crc),
        "a-stream-with-something-behind": _deflated(stream + b"x", len(plain), crc),
        "no-stream": _deflated(b"\xff" * 64, len(plain), crc),
        "nothing-for-a-stream": _deflated(b"", len(plain), crc),
    }


def _twice() -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as file:
        file.writestr("a.npy", _npy())
        file.writestr("b.npy", _npy())
    return out.getvalue().replace(b"b.npy", b"a.npy")


def _zstd(descriptor: int, window: int, block: bytes) -> bytes:
    """A frame by hand: what it says of its window, and one last block of it."""
    return b"\x28\xb5\x2f\xfd" + bytes([descriptor, window]) + struct.pack("<I", len(block) << 3 | 1)[:3] + block


def _planes(plain: int, segments: bytes) -> bytes:
    """A frame by hand, whose checksum is wrong: its contents are checked before that."""
    return b"PwPl" + struct.pack("<III", 32 + len(segments), plain, 0) + bytes(16) + segments


def compressed() -> dict[str, bytes]:
    """By the name with its suffix."""
    good, xz = archive(), lzma.compress(b"x" * 1000)
    alone = lzma.compress(good, format=lzma.FORMAT_ALONE)
    zeros = b"\0" * (1 << 20)
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    bomb = b"".join([*(packer.compress(zeros) for _ in range(200)), packer.flush()])
    raw = zlib.compressobj(9, zlib.DEFLATED, 31)
    huge = raw.compress(good) + raw.flush()
    return {
        "bomb.pt.gz": bomb,
        "bomb-in-a-bomb.pt.gz": gzip.compress(bomb, 9, mtime=0),
        "cut.pt.gz": gzip.compress(good, mtime=0)[:-1],
        "wrong-sum.pt.gz": huge[:-8] + b"abcd" + huge[-4:],
        "wrong-length.pt.gz": huge[:-4] + b"abcd",
        "something-behind.pt.gz": huge + b"x",
        "another-format.pt.gz": bz2.compress(good),
        "nothing.pt.gz": b"",
        "cut.pt.bz2": bz2.compress(good)[:-1],
        "something-behind.pt.bz2": bz2.compress(good) + b"x",
        "cut.pt.xz": lzma.compress(good)[:-1],
        "needs-4-gibibytes.pt.lzma": alone[:1] + struct.pack("<I", 0xFFFFFFFF) + alone[5:],
        "needs-1-gibibyte.pt.xz": lzma.compress(
            good, format=lzma.FORMAT_XZ, filters=[{"id": lzma.FILTER_LZMA2, "dict_size": 1 << 20}]
        ).replace(b"\x21\x01\x10", b"\x21\x01\x24", 1),
        "an-index-that-lies.pt.xz": xz[:-20] + bytes([xz[-20] ^ 1]) + xz[-19:],
        "cut.pt.lzma": alone[:-1],
        "window-of-2-tebibytes.pt.zst": _zstd(0, 0xF8, b"x"),
        "wants-a-dictionary.pt.zst": b"\x28\xb5\x2f\xfd" + bytes([1, 0, 7]) + b"\x09\0\0x",
        "cut.pt.zst": _zstd(0, 0, b"x")[:-1],
        "only-what-is-passed-over.pt.zst": b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"abcd",
        "nothing-of-4-gibibytes.pt.lz4": b"\x50\x2a\x4d\x18\xff\xff\xff\xff",
        "cut.pt.lz4": b"\x04\x22\x4d\x18\x64\x40\xa7",
        "cut.pt.planes": _planes(64, b"\x01\x00" + bytes(64))[:-1],
        "more-than-a-frame-holds.pt.planes": _planes(0xFFFFFFFF, b"\x01\x01\x00"),
        "numbers-of-three-bytes.pt.planes": _planes(64, b"\x03\x01a\x01a\x01a"),
        "codes-for-nothing.pt.planes": _planes(64, b"\x01\x02" + struct.pack("<I", 200) + bytes(200)),
    }
