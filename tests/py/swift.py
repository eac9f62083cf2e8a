# SPDX-License-Identifier: Apache-2.0
"""OpenStack Swift with its s3api, started and stopped by the tests: an S3 server that refuses conditional puts (501). It
comes from Debian's packages, which are installed where they are missing (tools/install-deps.sh swift)."""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import shutil
import subprocess
import tempfile
from collections.abc import Iterator

from needs import need
from ports import free_port
from s3_servers import ROOT, Server, answers, environment, make_bucket, stop
from waiting import HANG_SECONDS, wait_until

PROGRAMS = ["swift-proxy-server", "swift-account-server", "swift-container-server", "swift-object-server"]
KINDS = ("account", "container", "object")
COMMON = """[DEFAULT]
bind_ip = 127.0.0.1
bind_port = {port}
swift_dir = {dir}
devices = {dir}/devices
mount_check = false
workers = 0
user = {user}
fallocate_reserve = 0
log_level = ERROR
# A process that stands still for a moment must not lose an update, or a server its place.
conn_timeout = 3600
node_timeout = 3600
container_update_timeout = 3600
error_suppression_limit = 1000000
"""
STORAGE = """[pipeline:main]
pipeline = {kind}-server
[app:{kind}-server]
use = egg:swift#{kind}
"""
PROXY = """[pipeline:main]
pipeline = catch_errors gatekeeper healthcheck cache listing_formats s3api tempauth copy slo dlo proxy-server
[app:proxy-server]
use = egg:swift#proxy
account_autocreate = true
[filter:tempauth]
use = egg:swift#tempauth
user_test_tester = testing .admin
[filter:s3api]
use = egg:swift#s3api
location = us-east-1
[filter:cache]
use = egg:swift#memcache
memcache_servers = 127.0.0.1:{memcached}
[filter:catch_errors]
use = egg:swift#catch_errors
[filter:gatekeeper]
use = egg:swift#gatekeeper
[filter:healthcheck]
use = egg:swift#healthcheck
[filter:listing_formats]
use = egg:swift#listing_formats
[filter:copy]
use = egg:swift#copy
[filter:slo]
use = egg:swift#slo
[filter:dlo]
use = egg:swift#dlo
"""
SWIFT = """[swift-hash]
swift_hash_path_suffix = pawl
swift_hash_path_prefix = pawl
[storage-policy:0]
name = Policy-0
default = yes
"""


def need_swift() -> None:
    if all(shutil.which(name) for name in [*PROGRAMS, "swift-ring-builder", "memcached"]):
        return
    script = str(ROOT / "tools" / "install-deps.sh")
    done = subprocess.run([script, "swift"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-500:]


class Swift:
    def __init__(self, folder: pathlib.Path) -> None:
        self.dir = folder
        self.ports = {kind: free_port() for kind in (*KINDS, "proxy", "memcached")}
        self.processes: list[subprocess.Popen[bytes]] = []

    def write(self, kind: str, more: str) -> pathlib.Path:
        head = COMMON.format(port=self.ports[kind], dir=self.dir, user=getpass.getuser())
        path = self.dir / f"{kind}-server.conf"
        path.write_text(head + more.format(kind=kind, memcached=self.ports["memcached"]))
        return path

    def build_ring(self, kind: str) -> None:
        builder = f"{kind}.builder"
        device = f"r1z1-127.0.0.1:{self.ports[kind]}/d1"
        for words in (["create", "2", "1", "0"], ["add", device, "1"], ["rebalance"]):
            command = ["swift-ring-builder", builder, *words]
            done = subprocess.run(
                command, cwd=self.dir, capture_output=True, text=True, timeout=HANG_SECONDS, check=False
            )
            assert done.returncode == 0, done.stdout + done.stderr

    def begin(self, *command: str) -> None:
        with (self.dir / "log").open("ab") as log:
            self.processes.append(subprocess.Popen(command, env=environment(), stdout=log, stderr=log))

    def start(self) -> None:
        (self.dir / "devices" / "d1").mkdir(parents=True)
        (self.dir / "swift.conf").write_text(SWIFT)
        memcached = ["memcached", "-l", "127.0.0.1", "-p", str(self.ports["memcached"]), "-m", "16"]
        self.begin(*memcached, *(["-u", "root"] if os.geteuid() == 0 else []))
        for kind in KINDS:
            self.build_ring(kind)
        for kind in KINDS:
            self.begin(f"swift-{kind}-server", str(self.write(kind, STORAGE)))
        self.begin("swift-proxy-server", str(self.write("proxy", PROXY)))

    def stop(self) -> None:
        for process in reversed(self.processes):
            process.terminate()
        for process in reversed(self.processes):
            stop(process, 4)


@contextlib.contextmanager
def swift() -> Iterator[Server]:
    need("server")
    need_swift()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pawl-swift-", dir="/var/tmp"))
    servers = Swift(folder)
    try:
        servers.start()
        endpoint = f"http://127.0.0.1:{servers.ports['proxy']}"
        wait_until(lambda: answers(endpoint + "/healthcheck"), f"Swift in {folder}")
        server = Server("swift", endpoint, "test:tester", "testing")
        make_bucket(server)
        yield server
    finally:
        servers.stop()
        shutil.rmtree(folder, ignore_errors=True)
