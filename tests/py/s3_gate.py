# SPDX-License-Identifier: Apache-2.0
"""A gate in front of a real S3 server: passes requests on as they are, counts them, and holds those that a test wants held,
before the server has seen them."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import re
import threading
import time
import urllib.parse
from collections.abc import Iterator

from s3_fake import Server
from waiting import HANG_SECONDS

HOP = {"connection", "transfer-encoding", "keep-alive"}


class Gate:
    def __init__(self, endpoint: str, delay: float = 0.0) -> None:
        self.target = urllib.parse.urlsplit(endpoint).netloc
        self.delay = delay
        self.pattern: re.Pattern[str] | None = None
        self.held = threading.Event()
        self.release = threading.Event()
        self.passed = threading.Event()
        self.requests: list[str] = []
        self.server = Server(("127.0.0.1", 0), self.handler())
        self.endpoint = f"http://127.0.0.1:{self.server.server_address[1]}"
        threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def hold(self, pattern: str) -> None:
        """From now on requests like this ("PUT /bucket/key") wait until release is set; held tells of the first,
        and passed that the server has answered one of them."""
        self.held.clear()
        self.release.clear()
        self.passed.clear()
        self.pattern = re.compile(pattern)

    def close(self) -> None:
        self.release.set()
        self.server.shutdown()
        self.server.server_close()

    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        gate = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: object) -> None:
                pass

            def pass_on(self) -> None:
                gate.pass_on(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = pass_on

        return Handler

    def pass_on(self, h: http.server.BaseHTTPRequestHandler) -> None:
        body = h.rfile.read(int(h.headers.get("Content-Length", 0)))
        line = f"{h.command} {urllib.parse.unquote(h.path)}"
        self.requests.append(line)
        is_held = bool(self.pattern and self.pattern.search(line))
        if is_held:
            self.held.set()
            self.release.wait(HANG_SECONDS)
        if self.delay:
            time.sleep(self.delay)
        headers = {name: value for name, value in h.headers.items() if name.lower() not in HOP}
        connection = http.client.HTTPConnection(self.target, timeout=HANG_SECONDS)
        connection.request(h.command, h.path, body or None, headers)  # with the Host that was signed
        answer = connection.getresponse()
        data = answer.read()
        if is_held:
            self.passed.set()
        length = answer.getheader("Content-Length", "0") if h.command == "HEAD" else str(len(data))
        head = [f"HTTP/1.1 {answer.status} {answer.reason}"]
        head += [f"{n}: {v}" for n, v in answer.getheaders() if n.lower() not in HOP | {"content-length"}]
        connection.close()
        with contextlib.suppress(OSError):  # the client may be dead by now
            h.wfile.write("\r\n".join([*head, f"Content-Length: {length}", "", ""]).encode())
            h.wfile.write(data if h.command != "HEAD" else b"")
            return
        h.close_connection = True


@contextlib.contextmanager
def gate(endpoint: str, delay: float = 0.0) -> Iterator[Gate]:
    with contextlib.closing(Gate(endpoint, delay)) as g:
        yield g
