# SPDX-License-Identifier: Apache-2.0
"""A real server of Azure's blob storage for the tests: Azurite, which checks SharedKey and SAS signatures. It is
installed by npm into a folder of its own (.venv/servers, or PAWL_TEST_SERVERS) on first use.

The signatures made here are written apart from those under test, so that one checks the other.
"""

from __future__ import annotations

import base64
import contextlib
import datetime
import email.utils
import hashlib
import hmac
import http.client
import os
import pathlib
import shutil
import subprocess
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Iterator

import pytest
from needs import need
from ports import free_port
from s3_fake import Answer, Fake
from s3_servers import ROOT, SERVERS, installing, stop
from waiting import HANG_SECONDS, wait_until

AZURITE = "azurite@3.35.0"
ACCOUNT = "pawltest"
KEY = base64.b64encode(b"canary key of the tests, 32 byte").decode()
VERSION = "2021-12-02"
CONTAINER = "pawl-test"


def azurite_program() -> list[str]:
    folder = SERVERS / "azurite"
    script = folder / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"
    if not shutil.which("node") or not (script.exists() or shutil.which("npm")):
        with installing("azurite"):
            subprocess.run([str(ROOT / "tools" / "install-deps.sh"), "azurite"], check=True, capture_output=True)
    if not script.exists():
        part = pathlib.Path(f"{folder}.{os.getpid()}.part")
        part.mkdir(parents=True, exist_ok=True)
        npm = ["npm", "install", "--no-audit", "--no-fund", "--silent", "--prefix", str(part), AZURITE]
        subprocess.run(npm, check=True, capture_output=True, timeout=HANG_SECONDS)
        with contextlib.suppress(OSError):  # another process may have been faster
            part.rename(folder)
        shutil.rmtree(part, ignore_errors=True)
    return ["node", str(script)]


def environment(**more: str) -> dict[str, str]:
    """Ours, without anything that leads to real credentials."""
    return {key: value for key, value in os.environ.items() if not key.startswith("AZURE_")} | more


class Azurite:
    """One server with one account; its endpoint, and the environment in which pawl finds it."""

    def __init__(self, endpoint: str) -> None:
        self.name = "azurite"
        self.endpoint = endpoint
        self.account_url = f"{endpoint}/{ACCOUNT}"
        self.env = self.environment()
        self.url = f"az://{CONTAINER}"

    def environment(self, endpoint: str = "") -> dict[str, str]:
        return environment(
            AZURE_STORAGE_ACCOUNT=ACCOUNT,
            AZURE_STORAGE_KEY=KEY,
            AZURE_STORAGE_SERVICE_ENDPOINT=f"{endpoint or self.endpoint}/{ACCOUNT}",
        )

    def request(self, method: str, path: str, query: str = "") -> int:
        """One signed request without a body; path begins behind the account."""
        date = email.utils.formatdate(usegmt=True)
        lines = [method, *[""] * 11, f"x-ms-date:{date}", f"x-ms-version:{VERSION}"]
        resource = f"/{ACCOUNT}/{ACCOUNT}{path}"
        words = sorted(urllib.parse.parse_qsl(query, keep_blank_values=True))
        text = "\n".join([*lines, resource, *(f"{name}:{value}" for name, value in words)])
        headers = {"x-ms-date": date, "x-ms-version": VERSION, "Content-Length": "0"}
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{signed(text)}"
        url = f"{self.account_url}{path}" + (f"?{query}" if query else "")
        request = urllib.request.Request(url, method=method, headers=headers)
        with urllib.request.urlopen(request, timeout=HANG_SECONDS) as answer:
            return int(answer.status)

    def sas(self, permissions: str, seconds: float = 3600) -> str:
        """An account's shared access signature for blobs."""
        until = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=seconds)
        expiry = until.strftime("%Y-%m-%dT%H:%M:%SZ")
        text = "\n".join([ACCOUNT, permissions, "b", "sco", "", expiry, "", "", VERSION, "", ""])
        words = {"sv": VERSION, "ss": "b", "srt": "sco", "sp": permissions, "se": expiry, "sig": signed(text)}
        return urllib.parse.urlencode(words)


def signed(text: str) -> str:
    return base64.b64encode(hmac.new(base64.b64decode(KEY), text.encode(), hashlib.sha256).digest()).decode()


@contextlib.contextmanager
def azurite() -> Iterator[Azurite]:
    need("server")
    port = free_port()
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pawl-azurite-", dir="/var/tmp"))
    options = ["--silent", "--disableTelemetry", "--inMemoryPersistence"]
    options += ["--blobHost", "127.0.0.1", "--blobPort", str(port)]
    env = environment(AZURITE_ACCOUNTS=f"{ACCOUNT}:{KEY}")
    process = subprocess.Popen(
        [*azurite_program(), *options], env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    server = Azurite(f"http://127.0.0.1:{port}")

    def is_up() -> bool:
        if process.poll() is not None:
            pytest.fail("Azurite has ended")
        try:
            return server.request("PUT", f"/{CONTAINER}", "restype=container") == 201
        except OSError:
            return False

    try:
        wait_until(is_up, "Azurite")
        yield server
    finally:
        stop(process)
        shutil.rmtree(folder, ignore_errors=True)


class AzureProxy(Fake):
    """Between pawl and Azurite: fails the n-th request on command, and passes on all others."""

    def __init__(self, server: Azurite) -> None:
        super().__init__()
        self.port = int(server.endpoint.rpartition(":")[2])
        self.env = server.environment(self.endpoint)

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        return forward(self.port, method, target, headers, body)


def forward(port: int, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
    """What the server behind answers; its connection is for this one request."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=HANG_SECONDS)
    try:
        connection.putrequest(method, target, skip_host=True, skip_accept_encoding=True)
        for name, value in headers.items():
            if name != "connection":
                connection.putheader(name, value)
        connection.endheaders(body or None)
        got = connection.getresponse()
        data = got.read()
        own = {"date", "connection", "keep-alive", "transfer-encoding", "server"}
        if method != "HEAD":
            own.add("content-length")
        kept = {name: value for name, value in got.getheaders() if name.lower() not in own}
        return Answer(got.status, data, kept)
    finally:
        connection.close()
