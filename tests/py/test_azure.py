# SPDX-License-Identifier: Apache-2.0
"""The engine for Azure Blob storage against Azurite, which checks its signatures: the conformance suite, parts, both kinds
of credentials, early errors, and faults on the way (rows 24 and 25) by a proxy that fails on command."""

from __future__ import annotations

import base64
import calendar
import os
import re
import subprocess
import time
import urllib.parse
from collections.abc import Iterator

import pytest
from azurite import ACCOUNT, KEY, AzureProxy, Azurite, azurite, environment
from s3_fake import Answer, error
from s3_servers import BUILD, tool
from store_session import PART, SESSION, assert_any_keys, assert_parts
from waiting import HANG_SECONDS

pytestmark = pytest.mark.server


@pytest.fixture(name="server", scope="module")
def started_server() -> Iterator[Azurite]:
    with azurite() as server:
        yield server


@pytest.fixture(name="proxy")
def started_proxy(server: Azurite) -> Iterator[AzureProxy]:
    proxy = AzureProxy(server)
    yield proxy
    proxy.close()


def run_suite(name: str, server: Azurite, **more: str) -> str:
    env = server.env | {"PAWL_TEST_S3": f"{server.url}/suite", "CMOCKA_MESSAGE_OUTPUT": "STDOUT"} | more
    program = str(BUILD / "tests" / name)
    done = subprocess.run([program], env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    out = done.stdout + done.stderr
    assert done.returncode == 0, out
    return out


def test_the_conformance_suite_runs_over_azure(server: Azurite) -> None:
    """The suite of every engine; what an object store has not is skipped by what it says it can do."""
    skipped = set(re.findall(r"SKIPPED \] (test_\w+)", run_suite("test_store", server)))
    assert skipped == {
        "test_what_was_put_is_cached_where_a_cache_is_known",
        "test_a_folder_is_no_object_and_an_object_no_folder",
        "test_publish_moves_a_folder_whole",
        "test_P10_publish_never_replaces",
        "test_P10_of_two_racing_publishes_exactly_one_wins",
    }


def test_keys_of_any_characters_are_signed_right(server: Azurite) -> None:
    assert_any_keys(server.url, server.env)


def test_row_28_an_object_of_many_blocks_is_the_same_bytes(server: Azurite) -> None:
    assert_parts(server.url, server.env)


def test_P8_lists_of_many_pages(proxy: AzureProxy) -> None:
    """Row 33: Azurite's own markers, with pages made small on the way."""
    real = proxy.answer

    def short_pages(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        return real(method, target.replace("maxresults=1000", "maxresults=7"), headers, body)

    proxy.answer = short_pages  # type: ignore[method-assign]
    names = [f"n{i:04d}" for i in range(30)]
    url, env = "az://pawl-test/many", with_sas_of(proxy)
    assert set(tool(url, *(f"put d/{name} x" for name in names), env=env)) == {"ok"}
    lines = tool(url, "list d", "rmtree d", "list d", env=env)
    assert lines[1].split()[1:] == names
    assert lines[2:] == ["ok", "not-found: d: there is no such folder"]
    assert sum("marker=" in request for request in proxy.requests) >= 6


def with_sas(server: Azurite, token: str) -> dict[str, str]:
    return {key: value for key, value in server.env.items() if key != "AZURE_STORAGE_KEY"} | {
        "AZURE_STORAGE_SAS_TOKEN": token
    }


def test_a_shared_access_signature_opens_the_container(server: Azurite) -> None:
    """All operations, copies included, whose source must carry the signature, too; and by a connection string."""
    env = with_sas(server, "?" + server.sas("rwdlac"))
    lines = tool(f"{server.url}/sas", *SESSION, env=env)
    assert all(line.startswith("ok") for line in lines), lines
    text = f"BlobEndpoint={server.account_url};SharedAccessSignature={server.sas('rl')}"
    lines = tool(
        f"{server.url}/sas", "get d/log", env=environment(AZURE_STORAGE_CONNECTION_STRING=text), options=("--read",)
    )
    assert lines == ["ok", "ok lineline"]


def test_a_connection_string_says_all(server: Azurite) -> None:
    text = f"DefaultEndpointsProtocol=http;AccountName={ACCOUNT};AccountKey={KEY};BlobEndpoint={server.account_url};"
    env = environment(AZURE_STORAGE_CONNECTION_STRING=text)
    assert tool(f"{server.url}/conn", "put a x", "get a", env=env) == ["ok", "ok", "ok x"]


def test_early_errors_name_what_is_wrong(server: Azurite) -> None:
    """Wrong key, expired token, read-only token, missing container, wrong endpoint, no account: found at open, and no
    message shows a secret (P18)."""
    url = f"{server.url}/x"

    def first(env: dict[str, str], url: str = url, options: tuple[str, ...] = ("--base-ms", "1")) -> str:
        line = tool(url, env=env, options=options)[0]
        assert KEY not in line and "CANARY" not in line and "sig=" not in line
        return line

    wrong = base64.b64encode(b"CANARYCANARY").decode()
    line = first(server.env | {"AZURE_STORAGE_KEY": wrong})
    assert line.startswith(f"auth: {url}: cannot open: "), line
    assert wrong not in line and "credentials from the environment" in line
    assert "the account key is malformed" in first(server.env | {"AZURE_STORAGE_KEY": "CANARY!"})
    line = first(with_sas(server, server.sas("rwdlac", -60)))
    assert re.match(rf"auth: {url}: cannot open: the environment: the credentials expired \d+ (s|min) ago", line), line
    assert first(with_sas(server, server.sas("rwdlac").replace("sig=", "sig=CANARY"))).startswith("auth: ")
    assert first(with_sas(server, server.sas("rl"))).startswith("auth: .probe."), "it cannot be written"
    assert first(with_sas(server, server.sas("rl")), options=("--read",)).startswith("not-found: ")
    line = first(server.env, "az://no-such-container/x")
    assert line.startswith('not-found: az://no-such-container/x: there is no container "no-such-container" at 127.')
    line = first(server.env | {"AZURE_STORAGE_SERVICE_ENDPOINT": f"http://127.0.0.1:9/{ACCOUNT}"})
    assert line.startswith(f"transient: {url}: cannot open: 127.0.0.1:9: ")
    assert "no storage account" in first(environment(AZURE_STORAGE_KEY=KEY))
    assert "no credentials for Azure" in first(environment(AZURE_STORAGE_ACCOUNT=ACCOUNT))
    line = first(server.env, "az://other.blob.core.windows.net/box/x")
    assert line.startswith("usage: az://other.blob.core.windows.net/box/x: the credentials of the environment are for")
    assert first(server.env, "az://").startswith("usage: az://: has no container, expected az://container/prefix")
    lines = tool(f"{url}/nothing", env=server.env, options=("--read",))
    assert lines == [f"not-found: {url}/nothing: there is nothing below it"]


def test_uncommitted_blocks_show_nowhere(server: Azurite) -> None:
    """Row 27: a writer that dies between its blocks; the service drops them by itself."""
    url = f"{server.url}/killed"
    assert tool(url, f"abandon x {2 * PART} 1 {PART}", env=server.env) == ["ok", "ok"]
    lines = tool(url, "list ", "stat x", "sweep -10", "write x 10 1 10", "check x 10 1", env=server.env)[1:]
    assert lines == ["ok", "not-found: x: there is no such object", "ok 0", "ok", "ok"]


# --------------------------------------------------------------------- faults


def run(proxy: AzureProxy, prefix: str, *operations: str, options: tuple[str, ...] = ("--base-ms", "1")) -> list[str]:
    lines = tool(f"az://pawl-test/{prefix}", *operations, env=proxy.env, options=options)
    assert KEY not in "\n".join(lines)
    return lines


def every() -> int:
    """How thinly cases are run: all by PAWL_FAULT_EVERY=1."""
    return int(os.environ.get("PAWL_FAULT_EVERY", "17"))


@pytest.mark.parametrize("fault", ["reset", "lost_reset", "lost_body", "500", "lost_500", "503", "lies_short"])
def test_P15_any_request_may_fail_once(proxy: AzureProxy, fault: str) -> None:
    """P15, rows 24 and 25: each request in turn meets the fault; results and objects are those of a calm session."""
    calm = run(proxy, f"calm-{fault}", *SESSION)
    assert all(line.startswith("ok") for line in calm), calm
    count = len(proxy.requests)
    assert count >= 40
    for index in range(sum(map(ord, fault)) % every(), count, every()):
        proxy.requests.clear()
        proxy.faults = {index: fault}
        lines = run(proxy, f"{fault}-{index}", *SESSION)
        what = proxy.requests[index] if index < len(proxy.requests) else "?"
        assert lines == calm, f"{fault} at request {index}, {what}"


@pytest.mark.parametrize(("fault", "what"), [("reset", "PUT"), ("500", "PUT"), ("lost_body", "GET")])
def test_without_the_retry_layer_the_same_faults_show(proxy: AzureProxy, fault: str, what: str) -> None:
    """The negative control: the faults are real."""
    calm = run(proxy, f"control-{fault}", *SESSION, options=("--no-retry",))
    chosen = [i for i, r in enumerate(proxy.requests) if re.match(rf"{what} .*/d/(?!linked)", r)]
    for index in chosen[1::4]:
        proxy.requests.clear()
        proxy.faults = {index: fault}
        assert run(proxy, f"control-{fault}-{index}", *SESSION, options=("--no-retry",)) != calm


def test_P14_a_damaged_body_is_refused_by_the_server(proxy: AzureProxy) -> None:
    """Every body carries its MD5; what arrives damaged is refused, and sent again."""
    real = proxy.answer
    spoiled: list[str] = []

    def spoil(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if method != "PUT" or len(body) <= 100 or len(spoiled) == 2 or "comp=blocklist" in target:
            return real(method, target, headers, body)
        spoiled.append(target)
        refused = real(method, target, headers, body[:-1] + bytes([body[-1] ^ 1]))
        assert refused.status == 400, "Azurite has its own name for this"
        return error(400, "Md5Mismatch")

    proxy.answer = spoil  # type: ignore[method-assign]
    lines = run(proxy, "md5", f"write pack {PART + 10} 1 {PART}", f"check pack {PART + 10} 1", "write s 1000 2 1000")
    assert lines == ["ok"] * 4 and len(spoiled) == 2
    puts = [h for r, h in zip(proxy.requests, proxy.headers, strict=True) if r.startswith("PUT") and "blockid" in r]
    assert len(puts) >= 3 and all("content-md5" in h for h in puts)


def test_P20_a_server_without_conditions_is_found_out(proxy: AzureProxy) -> None:
    real = proxy.answer

    def ignore_conditions(method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        headers.pop("if-none-match", None)
        return real(method, target, headers, body)

    proxy.answer = ignore_conditions  # type: ignore[method-assign]
    env = with_sas_of(proxy)
    lines = tool("az://pawl-test/poor", "caps", "putx a 1", "put a 2", env=env)
    assert "exclusive_put" not in lines[1]
    assert lines[2].startswith("unsupported: a: cannot be put exclusively: 127.0.0.1:")
    assert lines[3:] == ["ok"]


def with_sas_of(proxy: AzureProxy) -> dict[str, str]:
    """A signature over the URL only, so that headers may be taken away."""
    return with_sas(Azurite(f"http://127.0.0.1:{proxy.port}"), Azurite("").sas("rwdlac")) | {
        "AZURE_STORAGE_SERVICE_ENDPOINT": f"{proxy.endpoint}/{ACCOUNT}"
    }


def test_a_skewed_clock_is_corrected_once_and_named_else(proxy: AzureProxy) -> None:
    """Row 25: the Date of the refusal is believed; a server that continues refusing is named with the seconds."""
    proxy.skew = 7200.0

    def refuse_wrong_date(method: str, target: str) -> Answer | None:
        text = proxy.headers[-1]["x-ms-date"]
        signed = calendar.timegm(time.strptime(text, "%a, %d %b %Y %H:%M:%S GMT"))
        return error(403, "AuthenticationFailed") if abs(signed - time.time() - proxy.skew) > 900 else None

    proxy.always = refuse_wrong_date
    assert run(proxy, "skew", "put a 1", "get a")[1:] == ["ok", "ok 1"]
    proxy.always = lambda method, target: error(403, "AuthenticationFailed")
    proxy.skew = -4000.0
    line = run(proxy, "skew")[0]
    assert re.search(r"cannot open: the clock of this machine is \d{4,5} s ahead of the server's", line), line


def test_P18_no_secret_in_any_message(proxy: AzureProxy) -> None:
    """A server that sends back what it was sent, at each request."""
    env = with_sas_of(proxy)
    secret = env["AZURE_STORAGE_SAS_TOKEN"].rpartition("sig=")[2]

    def echo(method: str, target: str) -> Answer | None:
        if len(proxy.requests) % 5:
            return None
        sent = " ".join(f"{k}: {v}" for k, v in proxy.headers[-1].items()) + target
        return error(400, secret, f"<AuthenticationErrorDetail>{sent}</AuthenticationErrorDetail>")

    proxy.always = echo
    shown = run(proxy, "echo", *SESSION, options=("--base-ms", "1", "--tries", "2"))
    # Azurite looks at the source of a copy through the proxy, which does one thing at a time.
    others = [line for line in SESSION if not line.startswith(("link", "move"))]
    shown += tool("az://pawl-test/echo", *others, env=env, options=("--base-ms", "1", "--tries", "2"))
    assert any(not line.startswith("ok") for line in shown)
    plain = urllib.parse.unquote(secret)
    for text in (secret, plain, "sig="):
        assert text not in "\n".join(shown)

    def letters(text: str) -> str:  # however often '+', '/' and '=' are encoded
        return re.sub("[^A-Za-z0-9]", "", urllib.parse.unquote(urllib.parse.unquote(text)))

    assert any(letters(secret) in letters(request) for request in proxy.requests), "the control: it was sent"
