# SPDX-License-Identifier: Apache-2.0
"""The S3 engine against real servers: moto, and Ceph's gateway, which checks signatures and sums of bodies strictly."""

from __future__ import annotations

import pathlib
import re
import subprocess
from collections.abc import Iterator

import pytest
from s3_servers import BUILD, Server, moto, rgw, tool
from slow_net import wire
from store_session import PART, assert_any_keys, assert_parts
from waiting import HANG_SECONDS

import cli

pytestmark = pytest.mark.server


@pytest.fixture(name="server", scope="module", params=["moto", "rgw"])
def started_server(request: pytest.FixtureRequest) -> Iterator[Server]:
    with {"moto": moto, "rgw": rgw}[request.param]() as server:
        yield server


def run_suite(name: str, server: Server, **more: str) -> str:
    program = BUILD / "tests" / name
    if not program.exists():
        pytest.skip("the C tests are not built")
    env = server.env | {"PAWL_TEST_S3": f"{server.url}/suite", "CMOCKA_MESSAGE_OUTPUT": "STDOUT"} | more
    done = subprocess.run([str(program)], env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    return out


def test_the_conformance_suite_runs_over_s3(server: Server) -> None:
    """The suite of every engine; what an object store has not is skipped by what it says it can do."""
    out = run_suite("test_store", server)
    skipped = set(re.findall(r"SKIPPED \] (test_\w+)", out))
    assert skipped == {
        "test_what_was_put_is_cached_where_a_cache_is_known",
        "test_a_folder_is_no_object_and_an_object_no_folder",
        "test_publish_moves_a_folder_whole",
        "test_P10_publish_never_replaces",
        "test_P10_of_two_racing_publishes_exactly_one_wins",
    }


@pytest.mark.parametrize("server", ["moto"], indirect=True)  # the faster one
def test_the_conformance_suite_runs_under_the_fault_layer(server: Server) -> None:
    run_suite("test_store", server, PAWL_TEST_S3_FAULT="1")


def test_uploads_and_copies_in_parts(server: Server) -> None:
    out = run_suite("test_store_s3", server)
    assert "SKIPPED" not in out


def test_keys_of_any_characters_are_signed_right(server: Server) -> None:
    assert_any_keys(server.url, server.env)


def test_row_28_an_object_of_many_parts_is_the_same_bytes(server: Server) -> None:
    assert_parts(server.url, server.env)


@pytest.mark.parametrize("algorithm", ["", "CRC64NVME", "MD5", "SHA256"])
def test_sums_are_sent_on_request(server: Server, algorithm: str) -> None:
    env = server.env | {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_supported", "PAWL_S3_CHECKSUM_ALGORITHM": algorithm}
    size = PART + 777
    operations = f"write b {size} 1 {PART}", f"check b {size} 1"
    lines = tool(f"{server.url}/sums{algorithm}", "put a x", "get a", *operations, env=env)
    assert lines == ["ok", "ok", "ok x", "ok", "ok"]


def profile(folder: pathlib.Path, setting: str) -> dict[str, str]:
    (folder / "config").write_text(f"[default]\ns3 =\n  {setting}\n")
    return {"AWS_CONFIG_FILE": str(folder / "config")}


@pytest.mark.parametrize("server", ["rgw"], indirect=True)  # moto believes every body
@pytest.mark.parametrize("algorithm", ["MD5", "signature"])
def test_P14_a_real_server_refuses_a_body_that_was_changed(
    server: Server, tmp_path: pathlib.Path, algorithm: str
) -> None:
    env = server.env | ({} if algorithm == "signature" else profile(tmp_path, "payload_signing_enabled = false"))
    if algorithm != "signature":
        env |= {"PAWL_S3_CHECKSUM_ALGORITHM": algorithm}
    with wire(server.endpoint) as net:
        net.flip, net.flips_left = "up", 1
        lines = tool(
            f"{server.url}/changed{algorithm}",
            "write b 3000000 1 3000000",
            "check b 3000000 1",
            env=env | {"AWS_ENDPOINT_URL": net.endpoint},
        )
        assert net.flips == 1
    assert lines == ["ok", "ok", "ok"]


@pytest.mark.parametrize("server", ["rgw"], indirect=True)
def test_control_a_real_server_without_a_sum_takes_it(server: Server, tmp_path: pathlib.Path) -> None:
    env = server.env | profile(tmp_path, "payload_signing_enabled = false")
    env |= {"AWS_REQUEST_CHECKSUM_CALCULATION": "when_required"}
    with wire(server.endpoint) as net:
        net.flip, net.flips_left = "up", 1
        operations = "write b 3000000 1 3000000", "check b 3000000 1"
        lines = tool(f"{server.url}/taken", *operations, env=env | {"AWS_ENDPOINT_URL": net.endpoint})
        assert net.flips == 1
    assert lines[:2] == ["ok", "ok"] and lines[2] != "ok"


SUMS = f"write b {PART + 777} 1 {PART}", f"check b {PART + 777} 1"


def test_bodies_without_a_signed_sum_carry_another(server: Server, tmp_path: pathlib.Path) -> None:
    env = server.env | profile(tmp_path, "payload_signing_enabled = false")
    lines = tool(f"{server.url}/unsigned", "put a x", "putx c x", "get a", *SUMS, "link b d", env=env)
    assert lines == ["ok", "ok", "ok", "ok x", "ok", "ok", "ok"]


@pytest.mark.parametrize(
    "server", ["rgw"], indirect=True
)  # the one that checks signatures, of which the host is a part
def test_the_bucket_in_the_host_name(server: Server, tmp_path: pathlib.Path) -> None:
    """Addressing by virtual hosts: pawl-test.localhost, which every resolver takes for this machine."""
    port = server.endpoint.rpartition(":")[2]
    env = server.env | {"AWS_ENDPOINT_URL": f"http://localhost:{port}"}
    env |= profile(tmp_path, "addressing_style = virtual")
    lines = tool(f"{server.url}/by host", "put a+b/c x", "get a+b/c", "list a+b", *SUMS, "link b d", env=env)
    assert lines == ["ok", "ok", "ok x", "ok c", "ok", "ok", "ok"]
    by_path = tool(f"{server.url}/by host", "get a+b/c", "list ", env=server.env)
    assert by_path == ["ok", "ok x", "ok a+b/ b d"]
    missing = tool("s3://no-such-bucket/x", env=env)
    assert "no-such-bucket" in missing[0] and not missing[0].startswith("ok")


@pytest.mark.parametrize("server", ["rgw"], indirect=True)  # the one that checks signatures
def test_refused_credentials_are_told_apart(server: Server) -> None:
    wrong = tool(server.url, env=server.env | {"AWS_SECRET_ACCESS_KEY": "CANARYCANARY"})
    assert wrong[0].startswith("auth: ") and "the secret key does not match the access key" in wrong[0]
    unknown = tool(server.url, env=server.env | {"AWS_ACCESS_KEY_ID": "NOBODY"})
    assert unknown[0].startswith("auth: ") and "does not know the access key" in unknown[0]
    assert "CANARY" not in wrong[0]


def test_missing_buckets_and_folders_are_told(server: Server) -> None:
    lines = tool("s3://no-such-bucket/x", env=server.env)
    assert re.match(r"(not-found|auth): s3://no-such-bucket/x: (there is no bucket|cannot open)", lines[0]), lines
    lines = tool(f"{server.url}/nothing/here", env=server.env, options=("--read",))
    assert lines == [f"not-found: {server.url}/nothing/here: there is nothing below it"]


@pytest.mark.parametrize("words", [("ls",), ("ls", "-r"), ("show",), ("verify",), ("du",), ("doctor",)])
@pytest.mark.parametrize("below", ["/", "/runs/demo"])
@pytest.mark.parametrize("server", ["moto"], indirect=True)
def test_the_command_says_that_a_bucket_is_missing(server: Server, words: tuple[str, ...], below: str) -> None:
    """Not that there is no run in it."""
    env = {name: value for name, value in server.env.items() if name.startswith("AWS_")}
    found = cli.run(*words, f"s3://no-such-bucket{below}", status=3, **env)
    assert 'there is no bucket "no-such-bucket" at 127.0.0.1:' in found.stderr
    assert "create it, or check its name and the endpoint" in found.stderr
    assert "no run and no checkpoint here" in cli.run("ls", f"{server.url}/none", status=3, **env).stderr


def test_killed_uploads_leave_nothing_visible_and_are_swept(server: Server) -> None:
    """Row 27: a writer that dies between its parts."""
    url = f"{server.url}/killed"
    assert tool(url, f"abandon x {2 * PART} 1 {PART}", env=server.env) == ["ok", "ok"]
    lines = tool(url, "list ", "sweep 3600", "sweep -10", "sweep -10", env=server.env)[1:]
    # For moto every upload was begun in the year 2010.
    assert lines == (["ok", "ok 1", "ok 0", "ok 0"] if server.name == "moto" else ["ok", "ok 0", "ok 1", "ok 0"])


@pytest.mark.parametrize("server", ["rgw"], indirect=True)
def test_T8_a_real_server_over_TLS_with_an_authority_of_its_own(server: Server) -> None:
    """As buckets are used: no body is signed, the authority is named by AWS_CA_BUNDLE, and without that it is refused."""
    assert server.tls
    lines = [f"write tls {2 * PART + 9} 1 {PART}", f"check tls {2 * PART + 9} 1", "remove tls"]
    assert tool(server.tls.url, *lines, env=server.tls.env) == ["ok"] * 4
    alone = {key: value for key, value in server.tls.env.items() if key != "AWS_CA_BUNDLE"}
    assert tool(server.tls.url, env=alone)[0].startswith("auth: s3://pawl-test: cannot open: 127.0.0.1:")
