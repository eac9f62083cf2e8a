# SPDX-License-Identifier: Apache-2.0
"""The engine for Google Cloud Storage: the conformance suite over a real server that speaks S3 (moto), behind one of our
own that verifies signatures and tokens and knows generation preconditions; the ways to credentials; early errors; faults."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator

import pytest
from gcs_fake import SECRET_KEY, GcsFake, gate
from s3_fake import Answer, error
from s3_servers import BUILD, tool
from store_session import PART, SESSION, assert_any_keys
from waiting import HANG_SECONDS


@pytest.fixture(name="before", scope="module")
def gate_before_moto() -> Iterator[GcsFake]:
    with gate() as started:
        yield started


@pytest.fixture(name="fake")
def fake_server() -> Iterator[GcsFake]:
    fake = GcsFake()
    yield fake
    fake.close()


def run(fake: GcsFake, *operations: str, options: tuple[str, ...] = ("--base-ms", "1"), **more: str) -> list[str]:
    lines = tool("gs://bucket/run", *operations, env=fake.env | more, options=options)
    assert "CANARY" not in "\n".join(lines)
    return lines


def without_keys(fake: GcsFake, **more: str) -> dict[str, str]:
    """The same server, and other credentials."""
    return {key: value for key, value in fake.env.items() if not key.startswith("GS_")} | more


@pytest.mark.server
def test_the_conformance_suite_runs_over_gcs(before: GcsFake) -> None:
    env = before.env | {"PAWL_TEST_S3": "gs://bucket/suite", "CMOCKA_MESSAGE_OUTPUT": "STDOUT"}
    program = str(BUILD / "tests" / "test_store")
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(re.findall(r"SKIPPED \] test_\w+", done.stdout)) == 5


@pytest.mark.server
def test_keys_of_any_characters_are_signed_right(before: GcsFake) -> None:
    assert_any_keys("gs://bucket", before.env)


def test_uploads_in_parts_and_their_sums(fake: GcsFake) -> None:
    """Row 28, P14: an object of many parts is the same bytes; every body carries its CRC32C, which the server checks."""
    fake.thorough = True
    size = PART + 12345
    lines = run(fake, f"write pack {size} 5 {PART}", f"check pack {size} 5", f"write pack {size} 5 {PART}")
    assert lines == ["ok", "ok", "ok", "exists: pack: already exists"]
    puts = [h for r, h in zip(fake.requests, fake.headers, strict=True) if "partNumber" in r]
    assert len(puts) == 2 and all(h["x-goog-hash"].startswith("crc32c=") for h in puts)


def test_a_session_puts_exclusively_by_generation(fake: GcsFake) -> None:
    lines = run(fake, *SESSION, "putx d/lease other")
    assert all(line.startswith("ok") for line in lines[:-1]), lines
    assert lines[-1] == "exists: d/lease: already exists" and not fake.uploads
    assert any(h.get("x-goog-if-generation-match") == "0" for h in fake.headers)


def test_a_service_account_is_given_tokens(fake: GcsFake, tmp_path: pathlib.Path) -> None:
    """The statement is signed with RS256 and verified by plain integers; the token is asked for once."""
    env = without_keys(fake, GOOGLE_APPLICATION_CREDENTIALS=fake.key_file(tmp_path))
    lines = tool("gs://bucket/run", *SESSION, env=env)
    assert all(line.startswith("ok") for line in lines), lines
    assert set(fake.asked) == {"service account"}
    assert len([h for h in fake.headers if h.get("authorization", "").startswith("Bearer ")]) >= len(SESSION)


def test_a_service_account_from_a_mounted_secret_is_found(fake: GcsFake, tmp_path: pathlib.Path) -> None:
    """Kubernetes mounts each file of a secret as a link to ..data/name, where ..data is a link, too."""
    (tmp_path / "..first").mkdir()
    name = pathlib.Path(fake.key_file(tmp_path / "..first")).name
    (tmp_path / "..data").symlink_to("..first")
    (tmp_path / name).symlink_to(f"..data/{name}")
    env = without_keys(fake, GOOGLE_APPLICATION_CREDENTIALS=str(tmp_path / name))
    assert tool("gs://bucket/run", "put a 1", env=env) == ["ok", "ok"]
    assert set(fake.asked) == {"service account"}


@pytest.mark.server
def test_tokens_are_renewed_before_they_expire_and_when_they_are_refused(fake: GcsFake, tmp_path: pathlib.Path) -> None:
    # Renewed when a quarter is left. Only that makes it ask again: the server refuses no token here, since the last
    # quarter may be over before it looks, on a machine that stands still.
    fake.life, fake.grace = 4, 3600
    env = without_keys(fake, GOOGLE_APPLICATION_CREDENTIALS=fake.key_file(tmp_path))
    fake.delay = 0.5
    lines = tool("gs://bucket/run", *(["put a 1"] * 4), env=env, options=("--no-retry",))
    assert set(lines) == {"ok"} and len(fake.asked) >= 2
    fake.life, fake.grace, fake.delay = 3600, 0, 0.0
    before = len(fake.asked)
    real = fake.answer

    def take_back(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if method == "PUT" and target.endswith("/b"):
            fake.answer = real  # type: ignore[method-assign]
            fake.tokens.clear()
        return real(method, target, headers, body)

    fake.answer = take_back  # type: ignore[method-assign]
    assert tool("gs://bucket/run", "put a 1", "put b 1", "get b", env=env, options=("--no-retry",))[1:] == [
        "ok",
        "ok",
        "ok 1",
    ]
    assert len(fake.asked) == before + 2


def test_users_and_machines_are_given_tokens(fake: GcsFake, tmp_path: pathlib.Path) -> None:
    env = without_keys(fake, GOOGLE_APPLICATION_CREDENTIALS=fake.user_file(tmp_path))
    assert tool("gs://bucket/run", "put a 1", env=env) == ["ok", "ok"]
    host = fake.endpoint.removeprefix("http://")
    env = without_keys(fake, GCE_METADATA_HOST=host, NO_GCE_CHECK="false")
    assert tool("gs://bucket/run", "get a", env=env) == ["ok", "ok 1"]
    assert list(dict.fromkeys(fake.asked)) == ["user", "machine"]  # again where the machine has been slow
    fake.flavor = "Other"  # a server, but not a metadata server
    assert tool("gs://bucket/run", "get a", env=env)[0].startswith("auth: ")
    fake.flavor = "Google"
    fake.tokens["ya29.given"] = 1e12
    env = without_keys(fake, GOOGLE_OAUTH_ACCESS_TOKEN="ya29.given")
    assert tool("gs://bucket/run", "get a", env=env) == ["ok", "ok 1"]


@pytest.mark.parametrize("status", [408, 429, 503])
def test_a_busy_token_service_is_asked_again(fake: GcsFake, tmp_path: pathlib.Path, status: int) -> None:
    user = without_keys(fake, GOOGLE_APPLICATION_CREDENTIALS=fake.user_file(tmp_path))
    machine = without_keys(fake, GCE_METADATA_HOST=fake.endpoint.removeprefix("http://"), NO_GCE_CHECK="false")
    busy: list[Answer] = []
    fake.always = lambda method, target: busy.pop() if busy else None
    for env in (user, machine):
        fake.requests.clear()
        busy.append(Answer(status, b"", {"Metadata-Flavor": "Google"}))
        assert tool("gs://bucket/run", "put a 1", env=env, options=("--base-ms", "1")) == ["ok", "ok"]
        assert fake.requests[0].endswith("/token") and fake.requests[0] in fake.requests[1:]
    assert set(fake.asked) == {"user", "machine"}


def test_early_errors_name_what_is_wrong(fake: GcsFake, tmp_path: pathlib.Path) -> None:
    """Wrong keys, missing bucket, no server, bad files, clock skew, a read-only bucket: found at open (P18: no secret)."""

    def first(env: dict[str, str], url: str = "gs://bucket/run") -> str:
        line = tool(url, env=env, options=("--base-ms", "1"))[0]
        assert "CANARY" not in line and "PRIVATE" not in line
        return line

    assert "the secret key does not match the access key" in first(fake.env | {"GS_SECRET_ACCESS_KEY": "CANARYWRONG"})
    assert "the server does not know the access key" in first(fake.env | {"GS_ACCESS_KEY_ID": "NOBODY"})
    assert "no GS_SECRET_ACCESS_KEY" in first(without_keys(fake, GS_ACCESS_KEY_ID="X"))
    line = first(fake.env, "gs://other/x")
    assert line.startswith('not-found: gs://other/x: there is no bucket "other" at 127.0.0.1:')
    assert first(fake.env, "gs://").startswith("usage: gs://: has no bucket, expected gs://bucket/prefix")
    line = first(fake.env | {"STORAGE_EMULATOR_HOST": "127.0.0.1:9"})
    assert line.startswith("transient: gs://bucket/run: cannot open: 127.0.0.1:9: ")
    nobody = without_keys(fake)
    nobody.pop("STORAGE_EMULATOR_HOST")
    assert "no credentials for Google Cloud Storage" in first(nobody)

    name = "GOOGLE_APPLICATION_CREDENTIALS"
    assert "does not exist (GOOGLE_APPLICATION_CREDENTIALS)" in first(without_keys(fake, **{name: "/nonexistent/x"}))
    good = pathlib.Path(fake.key_file(tmp_path))
    account = json.loads(good.read_text())
    for change, text in (
        ({"private_key": "CANARY"}, "the private key of the service account is malformed"),
        ({"type": "external_account"}, 'expected service_account or authorized_user, found "external_account"'),
        ({"client_email": ""}, "has no client_email"),
        ({"token_uri": "http://example.com/t"}, "token_uri: expected https, or http to this machine"),
        ({"client_email": "somebody@else"}, "the token service answered with status 400 invalid_grant"),
    ):
        bad = tmp_path / "bad.json"
        bad.write_text(json.dumps(account | change))
        line = first(without_keys(fake, **{name: str(bad)}))
        assert line.startswith("auth: gs://bucket/run: cannot open: ") and text in line, line
    bad.write_text("CANARY")
    assert "expected a JSON document" in first(without_keys(fake, **{name: str(bad)}))
    good.chmod(0o666)
    assert "all users can write to it" in first(without_keys(fake, **{name: str(good)}))
    good.chmod(0o600)
    fake.skew = 7200.0
    line = first(without_keys(fake, **{name: str(good)}))
    assert re.search(r"the clock of this machine is 7\d{3} s behind the token service's", line), line
    assert run(fake, "put a 1") == ["ok", "ok"], "the skew of a signature is corrected"
    fake.skew = 0.0
    fake.always = lambda method, target: error(403, "AccessDenied") if method == "PUT" else None
    assert first(fake.env).startswith("auth: .probe.")


def every() -> int:
    """How thinly cases are run: all by PAWL_FAULT_EVERY=1."""
    return int(os.environ.get("PAWL_FAULT_EVERY", "17"))


@pytest.mark.parametrize("fault", ["reset", "lost_reset", "lost_body", "500", "lost_500", "503", "lies_short"])
def test_P15_any_request_may_fail_once(fake: GcsFake, fault: str) -> None:
    """P15, rows 24 and 25: each request in turn meets the fault; results and objects are those of a calm session."""
    calm = run(fake, *SESSION)
    expected, count = fake.state(), len(fake.requests)
    assert all(line.startswith("ok") for line in calm) and count >= 40
    for index in range(sum(map(ord, fault)) % every(), count, every()):
        fake.clear()
        fake.faults = {index: fault}
        lines = run(fake, *SESSION)
        what = fake.requests[index] if index < len(fake.requests) else "?"
        assert lines == calm, f"{fault} at request {index}, {what}"
        assert fake.state() == expected, f"{fault} at request {index}, {what}"


def test_P18_no_secret_in_any_message(fake: GcsFake, tmp_path: pathlib.Path) -> None:
    """A server that sends back what it was sent, at each request."""

    def echo(method: str, target: str) -> Answer | None:
        if len(fake.requests) % 5:
            return None
        sent = " ".join(f"{k}: {v}" for k, v in fake.headers[-1].items())
        return error(400, "CANARY CANARY", f"<StringToSign>{sent} {SECRET_KEY}</StringToSign><Region>CANARY</Region>")

    fake.always = echo
    env = without_keys(fake, GOOGLE_APPLICATION_CREDENTIALS=fake.key_file(tmp_path))
    for each in (fake.env, env):
        lines = tool("gs://bucket/run", *SESSION, env=each, options=("--base-ms", "1", "--tries", "2"))
        assert any(not line.startswith("ok") for line in lines)
        assert "CANARY" not in "\n".join(lines)
    assert any("CANARY" in h.get("authorization", "") for h in fake.headers), "the control: it was sent"
