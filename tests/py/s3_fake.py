# SPDX-License-Identifier: Apache-2.0
"""A small S3 server of our own that fails on command: the n-th request is cut, delayed, answered wrongly, or carried
out without an answer. It keeps everything in memory, checks what real servers check (sums of bodies,
lengths, conditions), and remembers every request."""

from __future__ import annotations

import base64
import contextlib
import dataclasses
import email.utils
import hashlib
import http.server
import os
import re
import socket
import ssl
import threading
import time
import urllib.parse
import xml.sax.saxutils
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest

# What can become of a request. "lost_*": it is carried out, but the client does not learn so.
FAULTS = [
    "reset",
    "lost_reset",
    "lost_head",
    "lost_body",
    "500",
    "lost_500",
    "503",
    "429",
    "408",
    "lies_short",
    "lies_long",
]


@dataclasses.dataclass
class Object:
    body: bytes
    etag: str
    meta: dict[str, str]
    when: float = dataclasses.field(default_factory=time.time)


@dataclasses.dataclass
class Upload:
    key: str
    meta: dict[str, str]
    parts: dict[int, bytes] = dataclasses.field(default_factory=dict)
    sums: dict[int, str] = dataclasses.field(default_factory=dict)
    when: float = dataclasses.field(default_factory=time.time)


@dataclasses.dataclass
class Answer:
    status: int
    body: bytes = b""
    headers: dict[str, str] = dataclasses.field(default_factory=dict)


def error(status: int, code: str, more: str = "", **headers: str) -> Answer:
    text = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>no</Message>{more}</Error>"
    return Answer(status, text.encode(), {k.replace("_", "-"): v for k, v in headers.items()})


def crc(data: bytes, table: list[int], bits: int) -> int:
    ones = value = (1 << bits) - 1
    for byte in data:
        value = table[(value ^ byte) & 0xFF] ^ (value >> 8)
    return value ^ ones


def crc_table(polynomial: int) -> list[int]:
    def entry(value: int) -> int:
        for _ in range(8):
            value = (value >> 1) ^ (polynomial if value & 1 else 0)
        return value

    return [entry(i) for i in range(256)]


CRC32C_TABLE = crc_table(0x82F63B78)
CRC64_TABLE = crc_table(0x9A6C9329AC4BC9B5)


def crc32c(data: bytes) -> str:
    return base64.b64encode(crc(data, CRC32C_TABLE, 32).to_bytes(4, "big")).decode()


def crc64nvme(data: bytes) -> str:
    return base64.b64encode(crc(data, CRC64_TABLE, 64).to_bytes(8, "big")).decode()


SUMS: dict[str, Callable[[bytes], str]] = {  # that may come with a body, by their headers
    "x-amz-checksum-crc32c": crc32c,
    "x-amz-checksum-crc64nvme": crc64nvme,
    "x-amz-checksum-sha256": lambda data: base64.b64encode(hashlib.sha256(data).digest()).decode(),
    "content-md5": lambda data: base64.b64encode(hashlib.md5(data).digest()).decode(),
}


class Server(http.server.ThreadingHTTPServer):
    """Takes as many connections at once as pawl opens: one that is dropped comes again after a second."""

    daemon_threads = True
    request_queue_size = 128


class Fake:
    """The server. One bucket, path style only."""

    def __init__(self, certificate: str | None = None) -> None:
        self.objects: dict[str, Object] = {}
        self.uploads: dict[str, Upload] = {}
        self.requests: list[str] = []
        self.headers: list[dict[str, str]] = []
        self.faults: dict[int, str] = {}
        # What is called with each request: before, where it may wait while others are served; always, one at a time.
        self.before: Callable[[str, str], None] = lambda method, target: None
        self.always: Callable[[str, str], Answer | None] = lambda method, target: None
        self.bucket = "bucket"
        self.conditions = True  # If-None-Match is honoured
        self.matches = True  # If-Match of a put is honoured
        self.unknown_sum = ""  # the header of one that is refused
        self.refused = 0  # bodies, for their sums
        self.page = 1000
        self.delay = 0.0
        self.skew = 0.0  # of the Date in its answers
        self.flying = self.most_flying = 0  # requests that are being answered, and the most that ever were at a time
        self.lock = threading.Lock()
        self.server = Server(("127.0.0.1", 0), self.handler())
        scheme = "http"
        if certificate:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(certificate)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            scheme = "https"
        self.endpoint = f"{scheme}://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def clear(self) -> None:
        with self.lock:
            self.objects.clear()
            self.uploads.clear()
            self.requests.clear()
            self.headers.clear()
            self.faults = {}

    def state(self) -> dict[str, bytes]:
        with self.lock:
            return {key: o.body for key, o in self.objects.items() if ".probe." not in key}

    def handler(self) -> type[http.server.BaseHTTPRequestHandler]:
        fake = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def handle_one(self) -> None:
                fake.serve(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = handle_one

        return Handler

    # ------------------------------------------------------------ one request

    def serve(self, h: http.server.BaseHTTPRequestHandler) -> None:
        try:
            body = h.rfile.read(int(h.headers.get("Content-Length", 0)))
        except OSError:
            return
        headers = {name.lower(): value for name, value in h.headers.items()}
        self.before(h.command, h.path)
        with self.lock:
            index = len(self.requests)
            self.requests.append(f"{h.command} {h.path}")
            self.headers.append(headers)
            fault = self.faults.get(index, self.faults.get(-1, ""))
            if fault == "reset":
                return self.cut(h)
            if fault in ("500", "503", "429", "408"):
                codes = {"500": "InternalError", "503": "SlowDown", "429": "TooManyRequests", "408": "RequestTimeout"}
                answer = error(int(fault), codes[fault])
            else:
                answer = self.always(h.command, h.path) or self.answer(h.command, h.path, headers, body)
            self.flying += 1
            self.most_flying = max(self.flying, self.most_flying)
        if self.delay:
            time.sleep(self.delay)
        with self.lock:
            self.flying -= 1
        self.send(h, answer, fault)
        return None

    def cut(self, h: http.server.BaseHTTPRequestHandler, reset: bool = True) -> None:
        """With a reset what is on its way is lost, too."""
        h.close_connection = True
        try:
            if reset:
                linger = (1).to_bytes(4, "little") + bytes(4)
                h.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            h.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass

    def send(self, h: http.server.BaseHTTPRequestHandler, answer: Answer, fault: str) -> None:
        if fault == "lost_reset":
            return self.cut(h)
        if fault == "lost_500":
            answer = error(500, "InternalError")
        body = answer.body
        # Where the client cannot know the length, only a digest of its own can tell.
        known = answer.status < 300 and (h.command != "GET" or "If-Match" in h.headers)
        if fault == "lies_short" and known:
            body = body[: len(body) // 2]
        if fault == "lies_long" and known:
            body += b"more"
        length = str(len(body))
        if h.command == "HEAD":
            length = answer.headers.get("Content-Length", "0")
        date = email.utils.formatdate(time.time() + self.skew, usegmt=True)
        lines = [f"HTTP/1.1 {answer.status} X", f"Date: {date}", f"Content-Length: {length}"]
        lines += [f"{name}: {value}" for name, value in answer.headers.items() if name != "Content-Length"]
        head = ("\r\n".join(lines) + "\r\n\r\n").encode()
        try:
            if fault == "lost_head":
                h.wfile.write(head[: len(head) // 2])
                return self.cut(h, reset=False)
            h.wfile.write(head)
            if h.command != "HEAD":
                if fault == "lost_body":
                    h.wfile.write(body[: len(body) // 2])
                    h.wfile.flush()
                    return self.cut(h, reset=False)
                h.wfile.write(body)
        except OSError:
            h.close_connection = True
        return None

    # ------------------------------------------------------------ what it does

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        path, _, query = target.partition("?")
        words = {k: v[0] for k, v in urllib.parse.parse_qs(query, keep_blank_values=True).items()}
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        if bad := self.check(headers, body):
            return bad
        if bucket != self.bucket:
            return error(404, "NoSuchBucket")
        if not key:
            return self.on_bucket(method, words, body)
        if "uploads" in words or "uploadId" in words:
            return self.on_upload(method, key, words, headers, body)
        return self.on_object(method, key, headers, body)

    def check(self, headers: dict[str, str], body: bytes) -> Answer | None:
        if not headers.get("authorization", "").startswith("AWS4-HMAC-SHA256 Credential="):
            return error(403, "AccessDenied")
        payload = headers.get("x-amz-content-sha256", "")
        if payload not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            return error(400, "XAmzContentSHA256Mismatch")
        if self.unknown_sum in headers:
            return error(400, "InvalidRequest")
        whole = "x-amz-checksum-type" in headers  # of an object, not of this body
        if any(headers[name] != of(body) for name, of in SUMS.items() if name in headers and not whole):
            self.refused += 1
            return error(400, "BadDigest")
        return None

    def store(self, key: str, body: bytes, headers: dict[str, str], meta: dict[str, str], etag: str) -> Answer:
        if self.conditions and headers.get("if-none-match") == "*" and key in self.objects:
            return error(412, "PreconditionFailed")
        found = self.objects.get(key)
        if self.matches and "if-match" in headers and (found is None or found.etag != headers["if-match"]):
            return error(412 if found else 404, "PreconditionFailed" if found else "NoSuchKey")
        self.objects[key] = Object(body, etag, meta)
        return Answer(200, b"", {"ETag": etag})

    @staticmethod
    def meta(headers: dict[str, str]) -> dict[str, str]:
        return {name: value for name, value in headers.items() if name.startswith("x-amz-meta-")}

    def source(self, headers: dict[str, str]) -> Object | Answer:
        name = urllib.parse.unquote(headers["x-amz-copy-source"]).removeprefix("/").removeprefix(f"{self.bucket}/")
        found = self.objects.get(name)
        if found is None:
            return error(404, "NoSuchKey")
        if headers.get("x-amz-copy-source-if-match", found.etag) != found.etag:
            return error(412, "PreconditionFailed")
        return found

    def on_object(self, method: str, key: str, headers: dict[str, str], body: bytes) -> Answer:
        if method == "PUT" and "x-amz-copy-source" in headers:
            found = self.source(headers)
            if isinstance(found, Answer):
                return found
            self.objects[key] = Object(found.body, found.etag, found.meta)
            return Answer(200, f"<CopyObjectResult><ETag>{found.etag}</ETag></CopyObjectResult>".encode())
        if method == "PUT":
            return self.store(key, body, headers, self.meta(headers), f'"{hashlib.md5(body).hexdigest()}"')
        if method == "DELETE":
            self.objects.pop(key, None)
            return Answer(204)
        kept = self.objects.get(key)
        if kept is None:
            return error(404, "NoSuchKey") if method == "GET" else Answer(404)
        if headers.get("if-match", kept.etag) != kept.etag:
            return error(412, "PreconditionFailed")
        modified = email.utils.formatdate(kept.when, usegmt=True)
        common = {"ETag": kept.etag, "Last-Modified": modified} | kept.meta
        if method == "HEAD":
            return Answer(200, b"", common | {"Content-Length": str(len(kept.body))})
        if match := re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", "")):
            begin, end = int(match[1]), min(int(match[2]) + 1, len(kept.body))
            if begin >= end:
                return error(416, "InvalidRange")
            span = {"Content-Range": f"bytes {begin}-{end - 1}/{len(kept.body)}"}
            return Answer(206, kept.body[begin:end], common | span)
        return Answer(200, kept.body, common)

    def on_upload(self, method: str, key: str, words: dict[str, str], headers: dict[str, str], body: bytes) -> Answer:
        if "uploads" in words:
            name = f"upload-{len(self.requests)}"
            self.uploads[name] = Upload(key, self.meta(headers))
            inner = f"<UploadId>{name}</UploadId>"
            return Answer(200, f"<InitiateMultipartUploadResult>{inner}</InitiateMultipartUploadResult>".encode())
        upload = self.uploads.get(words["uploadId"])
        if upload is None:
            return error(404, "NoSuchUpload")
        if method == "DELETE":
            del self.uploads[words["uploadId"]]
            return Answer(204)
        if method == "PUT":
            number, result = int(words["partNumber"]), ""
            if "x-amz-copy-source" in headers:
                found = self.source(headers)
                if isinstance(found, Answer):
                    return found
                first, last = headers["x-amz-copy-source-range"].removeprefix("bytes=").split("-")
                body = found.body[int(first) : int(last) + 1]
                result = f'<CopyPartResult><ETag>"{hashlib.md5(body).hexdigest()}"</ETag></CopyPartResult>'
            upload.parts[number] = body
            upload.sums[number] = next((headers[n] for n in SUMS if n in headers and n != "content-md5"), "")
            return Answer(200, result.encode(), {"ETag": f'"{hashlib.md5(body).hexdigest()}"'})
        return self.complete(key, words["uploadId"], upload, headers, body)

    def complete(self, key: str, name: str, upload: Upload, headers: dict[str, str], body: bytes) -> Answer:
        listed = re.findall(
            r"<PartNumber>(\d+)</PartNumber><ETag>(.*?)</ETag>(?:<Checksum\w+>(.*?)</Check)?", body.decode()
        )
        whole = b""
        for number, etag, total in listed:
            part = upload.parts.get(int(number))
            if part is None or xml.sax.saxutils.unescape(etag, {"&quot;": '"'}) != f'"{hashlib.md5(part).hexdigest()}"':
                return error(400, "InvalidPart")
            if upload.sums[int(number)] != total:
                return error(400, "InvalidPart")
            if len(part) < 5 << 20 and int(number) != len(listed):
                return error(400, "EntityTooSmall")
            whole += part
        if "x-amz-checksum-crc64nvme" in headers and headers["x-amz-checksum-crc64nvme"] != crc64nvme(whole):
            return error(400, "BadDigest")
        answer = self.store(key, whole, headers, upload.meta, f'"{hashlib.md5(whole).hexdigest()}-{len(listed)}"')
        if answer.status == 200:
            del self.uploads[name]
            answer.body = b"<CompleteMultipartUploadResult><Key>x</Key></CompleteMultipartUploadResult>"
        return answer

    def on_bucket(self, method: str, words: dict[str, str], body: bytes) -> Answer:
        if method == "POST" and "delete" in words:
            for key in re.findall(r"<Key>(.*?)</Key>", body.decode()):
                self.objects.pop(xml.sax.saxutils.unescape(key), None)
            return Answer(200, b"<DeleteResult/>")
        if "uploads" in words:
            items = "".join(
                f"<Upload><Key>{u.key}</Key><UploadId>{name}</UploadId><Initiated>{stamp(u.when)}</Initiated></Upload>"
                for name, u in self.uploads.items()
            )
            inner = f"<IsTruncated>false</IsTruncated>{items}"
            return Answer(200, f"<ListMultipartUploadsResult>{inner}</ListMultipartUploadsResult>".encode())
        return self.list(words)

    def list(self, words: dict[str, str]) -> Answer:
        prefix, delimiter = words.get("prefix", ""), words.get("delimiter", "")
        entries: dict[str, str] = {}
        for key, o in sorted(self.objects.items()):
            if not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                folder = prefix + rest.split(delimiter)[0] + delimiter
                entries[folder] = f"<CommonPrefixes><Prefix>{urllib.parse.quote(folder)}</Prefix></CommonPrefixes>"
            else:
                inner = f"<Key>{urllib.parse.quote(key)}</Key><LastModified>{stamp(o.when)}</LastModified>"
                entries[key] = f"<Contents>{inner}<Size>{len(o.body)}</Size></Contents>"
        names = [name for name in sorted(entries) if name > words.get("continuation-token", "")]
        page = min(self.page, int(words.get("max-keys", self.page)))
        shown, more = names[:page], len(names) > page
        token = f"<NextContinuationToken>{xml.sax.saxutils.escape(shown[-1])}</NextContinuationToken>" if more else ""
        inner = f"<EncodingType>url</EncodingType><IsTruncated>{str(more).lower()}</IsTruncated>{token}"
        return Answer(200, f"<ListBucketResult>{inner}{''.join(entries[n] for n in shown)}</ListBucketResult>".encode())


def stamp(when: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(when))


def take_environment(monkeypatch: pytest.MonkeyPatch, env: Mapping[str, str]) -> None:
    """The AWS variables of this process become those of env."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        if name.startswith("AWS_"):
            monkeypatch.setenv(name, value)


@contextlib.contextmanager
def serving(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    """A server, to which the variables of this process lead."""
    with contextlib.closing(Fake()) as fake:
        env = {"AWS_ENDPOINT_URL": fake.endpoint, "AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x"}
        take_environment(monkeypatch, env)
        yield fake
