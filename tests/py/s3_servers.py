# SPDX-License-Identifier: Apache-2.0
"""Real S3 servers for the tests, started and stopped by them: moto's server and a Ceph object gateway.

moto lives in a virtual environment of its own (.venv/servers, or PAWL_TEST_SERVERS), made on first use. Ceph comes from
the system's packages, which are installed where this is root and apt is there (tools/install-deps.sh rgw). What cannot be
had is skipped, saying why.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
import uuid
from collections.abc import Iterator

import pytest
from needs import need
from ports import free_port
from waiting import HANG_SECONDS, wait_until

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build"))
TOOL = BUILD / "tests" / "store_tool"
SERVERS = pathlib.Path(os.environ.get("PAWL_TEST_SERVERS", ROOT / ".venv" / "servers"))
MOTO = ["moto[s3]==5.2.*", "flask<4", "flask-cors<7"]
# One request at a time: moto looks whether a key exists and makes it in two steps, so that two threads both may. On
# another host a connection may hang while others come.
MOTO_MAIN = """
import sys
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import run_simple
app = DomainDispatcherApplication(create_backend_app)
run_simple(sys.argv[1], int(sys.argv[2]), app, threaded=sys.argv[1] != "127.0.0.1")
"""
BUCKET = "pawl-test"


class Server:
    """An endpoint, and the environment in which store_tool finds it."""

    def __init__(self, name: str, endpoint: str, access_key: str, secret_key: str) -> None:
        self.name = name
        self.endpoint = endpoint
        self.env = environment(
            AWS_ACCESS_KEY_ID=access_key,
            AWS_SECRET_ACCESS_KEY=secret_key,
            AWS_ENDPOINT_URL=endpoint,
            AWS_REGION="us-east-1",
        )
        self.url = f"s3://{BUCKET}"
        self.tls: Server | None = None  # the same over https, by an authority of its own


def environment(**more: str) -> dict[str, str]:
    """Ours, without anything that leads to real credentials."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}
    nowhere = {"AWS_SHARED_CREDENTIALS_FILE": "/nonexistent/c", "AWS_CONFIG_FILE": "/nonexistent/f"}
    return kept | nowhere | {"AWS_EC2_METADATA_DISABLED": "true"} | more


def tool(url: str, *operations: str, env: dict[str, str], options: tuple[str, ...] = ("--base-ms", "2")) -> list[str]:
    """What store_tool prints: one line for opening, one for each operation."""
    if not TOOL.exists():
        pytest.skip("the C tests are not built")
    done = subprocess.run(
        [str(TOOL), *options, url, *operations],
        env=env,
        capture_output=True,
        text=True,
        timeout=HANG_SECONDS,
        check=False,
    )
    assert done.returncode == 0, f"status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout.splitlines()


def answers(url: str, seconds: float = 60) -> bool:
    try:
        urllib.request.urlopen(url, timeout=seconds).close()
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
    return True


def stop(process: subprocess.Popen[bytes], seconds: float = 8) -> None:
    """Whatever has not ended by itself by then is killed: nothing that it has is needed."""
    process.terminate()
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


# ------------------------------------------------------------------------ moto


@contextlib.contextmanager
def installing(name: str) -> Iterator[None]:
    """Two processes that want the same at once install it once."""
    SERVERS.mkdir(parents=True, exist_ok=True)
    with (SERVERS / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def moto_python() -> pathlib.Path:
    part = SERVERS / "moto"
    with installing("moto"):
        if not (part / "bin" / "moto_server").exists():
            install_moto(part)
    return part / "bin" / "python"


def install_moto(part: pathlib.Path) -> None:
    shutil.rmtree(part, ignore_errors=True)
    try:
        subprocess.run([sys.executable, "-m", "venv", str(part)], check=True, capture_output=True, timeout=HANG_SECONDS)
        pip = [str(part / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check", "--no-input", *MOTO]
        subprocess.run(pip, check=True, capture_output=True, timeout=HANG_SECONDS)
    except (subprocess.SubprocessError, OSError) as why:
        shutil.rmtree(part, ignore_errors=True)
        pytest.skip(f"moto cannot be installed: {why}")


@contextlib.contextmanager
def moto(address: str = "127.0.0.1", namespace: str | None = None) -> Iterator[Server]:
    """namespace: of the network, in which the address is."""
    need("server")
    port = free_port()
    command = [str(moto_python()), "-c", MOTO_MAIN, address, str(port)]
    if namespace is not None:
        command = ["ip", "netns", "exec", namespace, *command]
    endpoint = f"http://{address}:{port}"
    process = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        wait_until(lambda: answers(endpoint + "/moto-api/"), "moto", process)
        request = urllib.request.Request(f"{endpoint}/{BUCKET}", method="PUT")
        urllib.request.urlopen(request, timeout=HANG_SECONDS).close()
        yield Server("moto", endpoint, "AKIDEXAMPLE", "not-a-secret")
    finally:
        stop(process)


# ------------------------------------------------------------------------ Ceph

CEPH_CONF = """
[global]
fsid={fsid}
mon_host=[v2:127.0.0.1:{v2},v1:127.0.0.1:{v1}]
mon_initial_members=a
public_addr=127.0.0.1
auth_cluster_required=cephx
auth_service_required=cephx
auth_client_required=cephx
run_dir={dir}/sock
admin_socket={dir}/sock/$name.asok
log_file={dir}/log/$name.log
keyring={dir}/keyring
mon_data={dir}/mon
osd_data={dir}/osd
osd_objectstore=memstore
memstore_device_bytes=2147483648
osd_pool_default_size=1
osd_pool_default_min_size=1
osd_pool_default_pg_num=8
osd_pool_default_pgp_num=8
osd_pool_default_pg_autoscale_mode=off
osd_crush_chooseleaf_type=0
mon_allow_pool_size_one=true
mon_max_pg_per_osd=2000
mon_data_avail_crit=1
rgw_data={dir}/rgw
rgw_frontends=beast endpoint=127.0.0.1:{port} ssl_endpoint=127.0.0.1:{tls_port} ssl_certificate={dir}/tls/server.pem
rgw_thread_pool_size=32
rgw_dns_name=localhost
rgw_dynamic_resharding=false
rgw_data_log_num_shards=1
rgw_md_log_max_shards=1
"""


def need_ceph() -> None:
    programs = ["radosgw", "radosgw-admin", "ceph", "ceph-mon", "ceph-osd", "ceph-authtool", "monmaptool"]
    if os.geteuid() != 0:
        pytest.skip("a Ceph gateway is started by root only")
    if all(shutil.which(name) for name in programs):
        return
    if os.environ.get("PAWL_TEST_RGW") == "0" or not shutil.which("apt-get"):
        pytest.skip("Ceph is not installed: tools/install-deps.sh rgw")
    with installing("rgw"):
        install = [str(ROOT / "tools" / "install-deps.sh"), "rgw"]
        done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not all(shutil.which(name) for name in programs):
        pytest.skip(f"Ceph cannot be installed: {done.stderr[-300:]}")


def make_authority(folder: pathlib.Path) -> pathlib.Path:
    """An authority (ca.crt) and a server of 127.0.0.1 that it vouches for (server.pem: key and certificate)."""
    folder.mkdir(exist_ok=True)
    (folder / "san").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    new, ca = ["-newkey", "rsa:2048", "-nodes"], [str(folder / "ca.crt"), str(folder / "ca.key")]
    request = ["openssl", "req", *new, "-subj", "/CN=127.0.0.1", "-keyout", str(folder / "key")]
    for command in (
        ["openssl", "req", "-x509", *new, "-days", "2", "-subj", "/CN=pawl tests", "-out", ca[0], "-keyout", ca[1]],
        [*request, "-out", str(folder / "csr")],
        ["openssl", "x509", "-req", "-days", "2", "-in", str(folder / "csr"), "-CA", ca[0], "-CAkey", ca[1]]
        + ["-CAcreateserial", "-extfile", str(folder / "san"), "-out", str(folder / "crt")],
    ):
        subprocess.run(command, check=True, capture_output=True)
    (folder / "server.pem").write_text((folder / "key").read_text() + (folder / "crt").read_text())
    return folder / "ca.crt"


class Ceph:
    """One monitor, one object store in memory, one gateway, in a temporary folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.dir = folder
        self.port = free_port()
        self.conf = folder / "ceph.conf"
        self.daemons: list[subprocess.Popen[bytes]] = []
        for name in ("mon", "osd", "rgw", "sock", "log"):
            (folder / name).mkdir()
        self.fsid = str(uuid.uuid4())
        self.v1, self.v2, self.tls_port = free_port(), free_port(), free_port()
        self.authority = make_authority(folder / "tls")
        ports = {"v1": self.v1, "v2": self.v2, "port": self.port, "tls_port": self.tls_port}
        self.conf.write_text(CEPH_CONF.format(fsid=self.fsid, dir=folder, **ports))

    def run(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        if check and done.returncode != 0:
            pytest.fail(f"{' '.join(command)}: {done.stderr[-500:]}")
        return done.stdout if done.returncode == 0 else ""

    def daemon(self, *command: str) -> None:
        with (self.dir / "log" / f"{command[0]}.out").open("wb") as out:
            self.daemons.append(subprocess.Popen([*command, "-c", str(self.conf)], stdout=out, stderr=out))

    def ceph(self, *words: str, check: bool = True) -> str:
        return self.run("ceph", "--connect-timeout", "60", "-c", str(self.conf), *words, check=check)

    def make_keys(self) -> None:
        keyring = str(self.dir / "keyring")
        self.run("ceph-authtool", "--create-keyring", keyring, "--gen-key", "-n", "mon.", "--cap", "mon", "allow *")
        everything = [word for part in ("mon", "osd", "mgr", "mds") for word in ("--cap", part, "allow *")]
        self.run("ceph-authtool", keyring, "--gen-key", "-n", "client.admin", *everything)
        caps = ["--cap", "mon", "allow profile osd", "--cap", "osd", "allow *", "--cap", "mgr", "allow profile osd"]
        self.run("ceph-authtool", keyring, "--gen-key", "-n", "osd.0", *caps)
        caps = ["--cap", "mon", "allow rw", "--cap", "osd", "allow rwx"]
        self.run("ceph-authtool", keyring, "--gen-key", "-n", "client.rgw.a", *caps)
        address = f"[v2:127.0.0.1:{self.v2},v1:127.0.0.1:{self.v1}]"
        monmap = str(self.dir / "monmap")
        self.run("monmaptool", "--create", "--clobber", "--fsid", self.fsid, "--addv", "a", address, monmap)

    def start(self) -> None:
        self.make_keys()
        conf, keyring, monmap = str(self.conf), str(self.dir / "keyring"), str(self.dir / "monmap")
        self.run("ceph-mon", "--mkfs", "-i", "a", "--monmap", monmap, "--keyring", keyring, "-c", conf)
        self.daemon("ceph-mon", "-f", "-i", "a")
        wait_until(lambda: self.ceph("mon", "stat", check=False), "the monitor")
        osd = str(uuid.uuid4())
        self.ceph("osd", "create", osd, "0")
        self.run("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd, "-c", conf)
        self.daemon("ceph-osd", "-f", "-i", "0")
        wait_until(lambda: "1 up" in self.ceph("osd", "stat", check=False), "the object store")
        self.daemon("radosgw", "-f", "-n", "client.rgw.a")
        wait_until(lambda: answers(f"http://127.0.0.1:{self.port}/"), "the gateway")

    def add_user(self, access_key: str, secret_key: str) -> None:
        words = ["user", "create", f"--uid=u{access_key}", "--display-name=u"]
        keys = [f"--access-key={access_key}", f"--secret-key={secret_key}"]
        self.run("radosgw-admin", "-c", str(self.conf), *words, *keys)

    def stop(self) -> None:
        for process in reversed(self.daemons):
            process.send_signal(signal.SIGTERM)
        for process in reversed(self.daemons):
            stop(process, 4)


@contextlib.contextmanager
def rgw() -> Iterator[Server]:
    need("server")
    need_ceph()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pawl-rgw-", dir="/var/tmp"))
    ceph = Ceph(folder)
    try:
        ceph.start()
        server = Server("rgw", f"http://127.0.0.1:{ceph.port}", "AKTEST", "SKtest")
        server.tls = Server("rgw", f"https://127.0.0.1:{ceph.tls_port}", "AKTEST", "SKtest")
        server.tls.env["AWS_CA_BUNDLE"] = str(ceph.authority)
        ceph.add_user("AKTEST", "SKtest")
        make_bucket(server)
        yield server
    finally:
        ceph.stop()
        shutil.rmtree(folder, ignore_errors=True)


def make_bucket(server: Server) -> None:
    """A bucket by a signed request of our own: Ceph refuses any other."""
    import datetime
    import hashlib
    import hmac

    host = server.endpoint.removeprefix("http://")
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    empty = hashlib.sha256(b"").hexdigest()
    names = "host;x-amz-content-sha256;x-amz-date"
    lines = f"host:{host}\nx-amz-content-sha256:{empty}\nx-amz-date:{now}\n"
    canonical = f"PUT\n/{BUCKET}\n\n{lines}\n{names}\n{empty}"
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    key = b"AWS4" + server.env["AWS_SECRET_ACCESS_KEY"].encode()
    for part in scope.split("/"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    credential = f"{server.env['AWS_ACCESS_KEY_ID']}/{scope}"
    headers = {
        "x-amz-date": now,
        "x-amz-content-sha256": empty,
        "Authorization": f"AWS4-HMAC-SHA256 Credential={credential},SignedHeaders={names},Signature={signature}",
    }
    request = urllib.request.Request(f"{server.endpoint}/{BUCKET}", method="PUT", headers=headers)

    def is_made() -> bool:
        try:
            urllib.request.urlopen(request, timeout=HANG_SECONDS).close()
        except urllib.error.HTTPError as error:  # a server whose parts are still starting
            if error.code not in (409, 503):
                raise
            return error.code == 409  # made by a try whose answer did not come
        return True

    wait_until(is_made, "the bucket")
