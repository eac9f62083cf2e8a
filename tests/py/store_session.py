# SPDX-License-Identifier: Apache-2.0
"""What every kind of object store is put through by store_tool."""

from __future__ import annotations

from s3_servers import tool

PART = 8 << 20
# Every kind of request that the engines make, small objects and large.
SESSION = (
    "put d/a one",
    "putx d/lease mine",
    "get d/a",
    "append d/log line",
    "append d/log line",
    f"write d/pack {PART + 1000} 7 {PART}",
    "write d/small 1000 8 100",
    f"check d/pack {PART + 1000} 7",
    "check d/small 1000 8",
    "link d/small d/linked",
    "move d/linked e/moved",
    "check e/moved 1000 8",
    "list d",
    "stat d/a",
    "pointer d/latest d/a",
    "remove d/a",
    "put f/x 1",
    "put f/y 2",
    "rmtree f",
    "get d/log",
    "list e",
)


def assert_any_keys(root: str, env: dict[str, str]) -> None:
    """Spaces, reserved and other characters in keys and prefixes: put, read, listed, copied, removed."""
    folder = "step=1+x,:@&$;!'()*~-._é%41#?"
    url = f"{root}/run {folder}"
    for name in ("a=b.bin", "c+d%2Bé", "e&f'g"):
        lines = tool(url, f"put {folder}/{name} {name}", f"get {folder}/{name}", env=env)
        assert lines == ["ok", "ok", f"ok {name}"]
    lines = tool(url, f"list {folder}", f"link {folder}/a=b.bin {folder}/z", f"get {folder}/z", env=env)
    assert sorted(lines[1].split()[1:]) == sorted(["a=b.bin", "c+d%2Bé", "e&f'g"])
    assert lines[2:] == ["ok", "ok a=b.bin"]
    assert tool(url, f"rmtree {folder}", "list ", env=env)[1:] == ["ok", "ok"]


def assert_parts(root: str, env: dict[str, str]) -> None:
    """Row 28: an object of many parts is the same bytes, and so is its copy; it is not written again."""
    size = 3 * PART + 12345
    lines = tool(
        f"{root}/parts",
        f"write pack {size} 5 {PART}",
        f"check pack {size} 5",
        f"write odd {size} 6 1000003",
        f"check odd {size} 6",
        "link pack other",
        f"check other {size} 5",
        f"write pack {size} 5 {PART}",
        env=env,
    )
    assert lines[1:7] == ["ok"] * 6
    assert lines[7] == "exists: pack: already exists"
