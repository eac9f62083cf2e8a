# SPDX-License-Identifier: Apache-2.0
"""The ssh engine against a real sshd on another host and, where only the protocol counts, its sftp-server alone."""

from __future__ import annotations

import os
import pathlib
import re
import stat
import subprocess
import sys
import textwrap

import pytest
from s3_servers import BUILD, environment, tool
from ssh_servers import SFTP_SERVER, Host, need_ssh, sshd, started_host
from waiting import HANG_SECONDS

import pawl

__all__ = ["started_host"]

# Speaks for ssh: starts the server right here, and on its first start cuts its answers off after so many bytes.
CUT = """#!{python}
import os, select, subprocess, sys
first = not os.path.exists("{mark}")
open("{mark}", "a").write("x")
left = {limit} if first else 1 << 60
server = subprocess.Popen(["{server}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
fds = [0, server.stdout.fileno()]
while left > 0:
    for fd in select.select(fds, [], [])[0]:
        data = os.read(fd, min(65536, left) if fd else 65536)
        if not data:
            sys.exit(0)
        if fd == 0:
            os.write(server.stdin.fileno(), data)
        else:
            left -= len(data)
            while data:
                data = data[os.write(1, data):]
server.kill()
server.wait()
sys.exit(255)
"""


# Speaks for ssh: starts the server right here. `starts` counts its starts. A rule looks at each request, which comes in any
# number of pieces, and may answer in place of the server or end the connection.
RULED = """#!{python}
import os, select, subprocess, sys
with open("{mark}", "a+") as mark:
    mark.write("x")
    starts = mark.tell()
seen = 0
requests = b""
server = subprocess.Popen(["{server}"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
fds = [0, server.stdout.fileno()]
def send(to, data):
    while data:
        data = data[os.write(to, data):]
while True:
    for fd in select.select(fds, [], [])[0]:
        data = os.read(fd, 65536)
        if not data:
            sys.exit(0)
        if fd:
            send(1, data)
        else:
            requests += data
        while len(requests) >= 4 and len(requests) >= (end := 4 + int.from_bytes(requests[:4], "big")):
            data, requests = requests[:end], requests[end:]
            answer = b""
{rule}
            send(1 if answer else server.stdin.fileno(), answer or data)
"""


def ruled_ssh(tmp_path: pathlib.Path, rule: str) -> dict[str, str]:
    need_ssh()
    text = RULED.format(
        python=sys.executable, mark=tmp_path / "starts", server=SFTP_SERVER, rule=textwrap.indent(rule, " " * 12)
    )
    return fake_ssh(tmp_path, text)


def fake_ssh(tmp_path: pathlib.Path, text: str) -> dict[str, str]:
    program = tmp_path / "fake-ssh"
    program.write_text(text)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return environment(PAWL_SSH=str(program))


@pytest.mark.server
def test_the_conformance_suite_runs_over_ssh(host: Host) -> None:
    """The suite of every engine, over a real sshd on another host."""
    program = BUILD / "tests" / "test_store"
    (host.home / "suite").mkdir()
    env = host.env | {"PAWL_TEST_S3": host.url("/suite"), "CMOCKA_MESSAGE_OUTPUT": "STDOUT"}
    done = subprocess.run([str(program)], env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    assert set(re.findall(r"SKIPPED \] (test_\w+)", out)) == {"test_what_was_put_is_cached_where_a_cache_is_known"}


@pytest.mark.server
def test_large_objects_are_the_same_bytes(host: Host) -> None:
    size = (24 << 20) + 12345
    lines = tool(host.url("/large"), f"write a {size} 3 8388608", f"check a {size} 3", "stat a", "space", env=host.env)
    assert lines[:4] == ["ok", "ok", "ok", f"ok {size}"]


@pytest.mark.server
def test_keys_of_any_characters(host: Host) -> None:
    name = "step=1+x,:@&$;!'()*-._é%41#?"
    lines = tool(host.url("/odd"), f"put {name}/{name} text", f"get {name}/{name}", "list ", env=host.env)
    assert lines == ["ok", "ok", "ok text", f"ok {name}/"]


@pytest.mark.server
def test_a_run_lives_on_another_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved, restored and verified with no folder of its own here."""
    monkeypatch.setenv("PAWL_SSH", host.ssh)
    with pawl.CheckpointManager(host.url("/run"), num_to_keep=2) as manager:
        for step in range(4):
            manager.save(step, {"x": list(range(step + 1)), "y": b"z" * 100000})
            manager.wait_until_finished()
        restored = manager.restore()
        assert restored is not None and restored.step == 3
        assert manager.all_steps() == [2, 3]
    assert sorted(p.name for p in (host.home / "run" / "checkpoints").iterdir()) == [
        "checkpoint_000003",
        "checkpoint_000004",
    ]
    assert os.readlink(host.home / "run" / "latest") == "checkpoints/checkpoint_000004"
    # It is an ordinary run when it is read from there.
    with pawl.CheckpointManager(str(host.home / "run"), read_only=True) as manager:
        restored = manager.restore()
        assert restored is not None and restored.step == 3


@pytest.mark.server
def test_who_is_not_let_in_is_told_at_once(host: Host) -> None:
    """Wrong key, unknown host key, no such host, no such port, a missing folder; and the negative control."""
    other = host.ssh.replace("user_key", "other_key")
    (line,) = tool(host.url("/x"), env=host.env | {"PAWL_SSH": other})
    assert line.startswith(f"auth: ssh://{host.user}@") and "ermission denied" in line
    wrong = host.ssh.replace("known_hosts", "known_hosts.wrong")
    (line,) = tool(host.url("/x"), env=host.env | {"PAWL_SSH": wrong})
    assert line.startswith("auth: ") and "Host key verification failed" in line
    (line,) = tool(host.url("/x").replace(host.address, "no-such-host.invalid"), env=host.env)
    assert line.startswith("not-found: ") and "resolve" in line
    (line,) = tool(host.url("/missing"), env=host.env, options=("--read", "--base-ms", "2"))
    assert line == f"not-found: {host.url('/missing')}: cannot stat: there is no such file"
    assert tool(host.url("/x"), env=host.env) == ["ok"]


def test_P18_no_password_is_taken_or_shown() -> None:
    (line,) = tool("ssh://me:CANARY-PASSWORD@host/x", env=environment())
    assert line.startswith("usage: ssh://...: a password") and "CANARY" not in line


@pytest.mark.parametrize(
    "url",
    [
        "ssh://-oProxyCommand=x/y",
        "ssh://me@-oProxyCommand=x/y",
        "ssh://host;touch/x",
        "ssh://host:99999/x",
        "ssh://host/",
        "ssh://host/x?option=ProxyCommand",
        "ssh:///x",
        "ssh://[::1/x",
        "ssh://host/%0/x",
        "ssh://host/a%0ab",
    ],
)
def test_P17_a_url_cannot_become_an_option(url: str, tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "ran"
    env = fake_ssh(tmp_path, f"#!/bin/sh\ntouch {mark}\nexit 255\n")
    (line,) = tool(url, env=env)
    assert line.startswith("usage: "), line
    assert not mark.exists()


def test_what_ssh_says_is_in_the_error(tmp_path: pathlib.Path) -> None:
    env = fake_ssh(tmp_path, "#!/bin/sh\necho 'kex_exchange: some reason' >&2\nexit 255\n")
    (line,) = tool("ssh://host/x", env=env)
    assert line.startswith("transient: ssh://host/x: cannot connect: kex_exchange: some reason")
    env = environment(PAWL_SSH="no-such-program-anywhere")
    assert tool("ssh://host/x", env=env) == ["not-found: no-such-program-anywhere: there is no such program"]


def test_P16_a_server_that_hangs_is_left_in_time(tmp_path: pathlib.Path) -> None:
    env = fake_ssh(tmp_path, "#!/bin/sh\nsleep 600\n")
    (line,) = tool("ssh://host/x?timeout=1", env=env, options=("--base-ms", "2", "--tries", "1"))
    assert line.startswith("timeout: ")


def test_P15_a_connection_cut_anywhere_is_mended(tmp_path: pathlib.Path) -> None:
    """Cut after so many bytes of answers; the retry layer brings everything to its end on the next connection. With the
    largest limit nothing is cut: the negative control."""
    need_ssh()
    operations = [
        "put a/b one",
        "putx a/x first",
        "write pack 100000 7 65536",
        "check pack 100000 7",
        "append log line-one",
        "append log -and-two",
        "put f/g/h text",
        "publish f F",
        "link pack pack2",
        "move a/b c",
        "pointer latest F",
        "get log",
        "list a",
        "rmtree F",
    ]
    cuts = 0
    for limit in [*range(1, 1200, 97), *range(1200, 104000, 20011), 104300, 104800, 105300, 1 << 30]:
        folder = tmp_path / str(limit)
        folder.mkdir()
        mark = folder / "starts"
        env = fake_ssh(folder, CUT.format(python=sys.executable, mark=mark, limit=limit, server=SFTP_SERVER))
        lines = tool(f"ssh://host{folder}/root", *operations, env=env)
        assert lines[0] == "ok", (limit, lines)
        assert lines[1:12] == ["ok"] * 11, (limit, lines)
        assert lines[12] == "ok line-one-and-two" and lines[14] == "ok", (limit, lines)
        assert [name for name in lines[13].split() if not name.startswith(".")] == ["ok", "x"], (limit, lines)
        assert sorted(p.name for p in (folder / "root").iterdir() if not p.name.startswith(".")) == [
            "a",
            "c",
            "latest",
            "log",
            "pack",
            "pack2",
        ]
        cuts += mark.read_text().count("x") - 1
    assert cuts >= 10


def test_P19_a_file_that_was_replaced_stays_a_conflict_for_its_reader(tmp_path: pathlib.Path) -> None:
    """The connection ends at the first read, and the file is replaced before the next one."""
    read = 5  # SSH_FXP_READ
    rule = f"""
if data[4] == {read} and starts == 1:
    open("{tmp_path}/next", "w").write("other and longer")
    os.rename("{tmp_path}/next", "{tmp_path}/far/pack")
    sys.exit(255)
"""
    env = ruled_ssh(tmp_path, rule)
    lines = tool(
        f"ssh://host{tmp_path}/far", "put pack text", "reread pack 4 3", "get pack", env=env, options=("--no-retry",)
    )
    assert lines == ["ok", "ok", "ok transient conflict conflict", "ok other and longer"]


def test_P5_a_server_that_lost_what_was_written_is_found_out_by_a_later_try(tmp_path: pathlib.Path) -> None:
    """The connection ends at the second write, and what the first one wrote is lost. The server then refuses to show the
    size, once."""
    write, fstat = 6, 8  # SSH_FXP_WRITE, SSH_FXP_FSTAT
    rule = f"""
kind = data[4]
if kind == {write} and starts == 1:
    seen += 1
    if seen == 2:
        [temp] = [name for name in os.listdir("{tmp_path}/root") if name.endswith(".tmp")]
        os.truncate("{tmp_path}/root/" + temp, 0)
        sys.exit(255)
if kind == {fstat} and starts == 2 and not seen:
    seen += 1
    answer = bytes([101]) + data[5:9] + bytes([0, 0, 0, 7]) + bytes(8)  # SSH_FXP_STATUS: the connection is lost
    answer = len(answer).to_bytes(4, "big") + answer
"""
    env = ruled_ssh(tmp_path, rule)
    lines = tool(f"ssh://host{tmp_path}/root", "write pack 3000 7 1000", "list ", env=env)
    assert lines == [
        "ok",
        "io: pack: the server has lost what was written: 0 of 1000 bytes are there",
        "ok",
    ]


def test_P4_an_exclusive_put_that_is_not_durable_is_withdrawn_over_ssh(tmp_path: pathlib.Path) -> None:
    """The server syncs the object, but not the folder, once."""
    rule = """
if b"fsync@openssh.com" in data:
    seen += 1
    if seen == 2:
        answer = bytes([101]) + data[5:9] + bytes([0, 0, 0, 4]) + bytes(8)  # SSH_FXP_STATUS, a failure
        answer = len(answer).to_bytes(4, "big") + answer
"""
    env = ruled_ssh(tmp_path, rule)
    lines = tool(f"ssh://host{tmp_path}/root", "putxd a text", "list ", "putxd a more", "get a", env=env)
    assert lines[1].startswith("io: a: "), lines
    assert lines[2:] == ["ok", "ok", "ok more"]


@pytest.mark.server
def test_a_server_without_extensions() -> None:
    """It cannot link, sync or replace in one step: what is not offered is not used."""
    without = "-P hardlink,posix-rename,fsync,statvfs,fstatvfs,limits,lsetstat,expand-path,copy-data"
    with sshd(f"{without},home-directory,users-groups-by-id") as host:
        lines = tool(
            host.url("/bare"),
            "caps",
            "putx a one",
            "putx a two",
            "put a three",
            "get a",
            "write pack 100000 7 65536",
            "check pack 100000 7",
            "put f/g x",
            "publish f F",
            "publish F a",
            "link pack pack2",
            "move a b",
            "get b",
            env=host.env,
        )
    assert lines[1].split()[1:] == ["exclusive_put", "rename_folder"]
    assert lines[2:6] == ["ok", "exists: a: already exists", "ok", "ok three"]
    assert lines[6:10] == ["ok", "ok", "ok", "ok"]
    assert lines[10].startswith("exists: a: already exists")
    assert lines[11].startswith("unsupported: ")
    assert lines[12:] == ["ok", "ok three"]
