# SPDX-License-Identifier: Apache-2.0
"""A real sshd for the tests, started and stopped by them: Debian's openssh-server with keys and a configuration of its
own, on another host: a network namespace with an address of its own, where this is root, else on loopback.

What is missing is installed (tools/install-deps.sh ssh).
"""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import secrets
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator

import pytest
from needs import need
from ports import free_port, take
from s3_servers import ROOT, environment, installing, stop
from waiting import HANG_SECONDS, wait_until

SSHD = "/usr/sbin/sshd"
SFTP_SERVER = "/usr/lib/openssh/sftp-server"
CONFIG = """
Port {port}
ListenAddress {address}
HostKey {dir}/host_key
PidFile none
AuthorizedKeysFile {dir}/authorized_keys
StrictModes no
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
MaxStartups 100
LogLevel ERROR
Subsystem sftp internal-sftp {sftp}
"""


def need_ssh() -> None:
    with installing("ssh"):
        if os.path.exists(SSHD) and os.path.exists(SFTP_SERVER) and shutil.which("rsync"):
            return
        command = [str(ROOT / "tools" / "install-deps.sh"), "ssh"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and os.path.exists(SSHD) and shutil.which("rsync"), done.stderr[-500:]


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-500:]}"
    return done.stdout


class Host:
    """Where sshd listens, and what it takes to get in."""

    def __init__(self, folder: pathlib.Path, address: str, port: int, namespace: str | None) -> None:
        self.dir, self.address, self.port, self.namespace = folder, address, port, namespace
        self.user = getpass.getuser()
        self.key = folder / "user_key"
        self.known_hosts = folder / "known_hosts"
        self.home = folder / "home"
        self.home.mkdir()

    @property
    def ssh(self) -> str:
        """For PAWL_SSH."""
        options = "-oIdentitiesOnly=yes -oIdentityAgent=none"
        return f"ssh -F none -p {self.port} -i {self.key} {options} -oUserKnownHostsFile={self.known_hosts}"

    @property
    def env(self) -> dict[str, str]:
        return environment(PAWL_SSH=self.ssh)

    def url(self, path: str = "", more: str = "") -> str:
        return f"ssh://{self.user}@{self.address}:{self.port}{self.home}{path}{more}"

    def place(self, path: str = "") -> str:
        """As rsync has it."""
        return f"{self.user}@{self.address}:{self.home}{path}"

    def link(self, state: str) -> None:
        """The cable between the hosts: "up" or "down"."""
        assert self.namespace is not None
        run("ip", "link", "set", self.namespace, state)


def make_keys(folder: pathlib.Path, address: str, port: int) -> None:
    for name in ("host_key", "user_key", "other_key"):
        run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", name, "-f", str(folder / name))
    shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
    public = (folder / "host_key.pub").read_text()
    (folder / "known_hosts").write_text(f"[{address}]:{port} {public}")
    other = (folder / "other_key.pub").read_text()
    (folder / "known_hosts.wrong").write_text(f"[{address}]:{port} {other}")


def free_net() -> str:
    """The first three numbers of one that neither this machine nor another process of these tests uses."""
    routes = subprocess.run(["ip", "route"], capture_output=True, text=True, check=False).stdout
    nets = [f"10.{a}.{b}" for a in range(100, 200) for b in range(256)]
    for net in secrets.SystemRandom().sample(nets, len(nets)):
        if f"{net.rpartition('.')[0]}." not in routes and take(net):
            return net
    raise AssertionError("no net is free")


@contextlib.contextmanager
def namespace() -> Iterator[tuple[str | None, str]]:
    """A host of its own: its name and address. Without the right to make one, this host's loopback."""
    name, net = f"pawl{secrets.token_hex(3)}", free_net()
    made = ["ip", "netns", "add", name]
    if os.geteuid() != 0 or subprocess.run(made, capture_output=True, check=False).returncode != 0:
        yield None, "127.0.0.1"
        return
    inside = ["ip", "netns", "exec", name, "ip"]
    try:
        run("ip", "link", "add", name, "type", "veth", "peer", "name", "far0", "netns", name)
        run("ip", "addr", "add", f"{net}.1/24", "dev", name)
        run("ip", "link", "set", name, "up")
        run(*inside, "addr", "add", f"{net}.2/24", "dev", "far0")
        run(*inside, "link", "set", "far0", "up")
        run(*inside, "link", "set", "lo", "up")
        yield name, f"{net}.2"
    finally:
        subprocess.run(["ip", "link", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def listens(address: str, port: int) -> bool:
    try:
        socket.create_connection((address, port), 60).close()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def sshd(sftp: str = "") -> Iterator[Host]:
    """sftp: arguments of the server's internal-sftp."""
    need("server")
    need_ssh()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pawl-sshd-", dir="/var/tmp"))
    folder.chmod(0o755)
    if os.geteuid() == 0:
        os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
    with namespace() as (name, address):
        port = free_port()
        host = Host(folder, address, port, name)
        make_keys(folder, address, port)
        config = folder / "sshd_config"
        config.write_text(CONFIG.format(port=port, address=address, dir=folder, sftp=sftp))
        command = [SSHD, "-D", "-e", "-f", str(config)]
        if name is not None:
            command = ["ip", "netns", "exec", name, *command]
        with (folder / "sshd.log").open("wb") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            wait_until(lambda: listens(address, port), "sshd", process)
            yield host
        finally:
            stop(process)
            shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(name="host", scope="module")
def started_host() -> Iterator[Host]:
    with sshd() as host:
        yield host
