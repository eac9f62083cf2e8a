# SPDX-License-Identifier: Apache-2.0
"""A strict server of our own for the XML interface of Google Cloud Storage: it verifies signatures (GOOG4-HMAC-SHA256) and
bearer tokens, gives out tokens as Google's token service and metadata server do, knows generation preconditions, and
refuses what that interface does not take. Behind it is either the fake S3 server's memory, with all its faults, or a real
server that speaks S3 (moto), whose headers have other names.

Everything is verified by code of its own: signatures by hmac, statements of service accounts by RSA in plain integers.
"""

from __future__ import annotations

import base64
import calendar
import contextlib
import hashlib
import hmac
import json
import os
import pathlib
import re
import subprocess
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

from azurite import forward
from s3_fake import Answer, Fake, crc32c, error
from s3_servers import moto

ACCESS_KEY = "GOOGCANARYID"
SECRET_KEY = "GOOGCANARYSECRET"
SCOPE = "https://www.googleapis.com/auth/devstorage.read_write"
EMAIL = "pawl@tests.iam.gserviceaccount.com"
REFRESH = {"client_id": "the-client", "client_secret": "CANARYCLIENT", "refresh_token": "CANARYREFRESH"}
# The beginning of a PKCS #1 v1.5 signature of a SHA-256.
DIGEST_INFO = bytes.fromhex("3031300d060960864801650304020105000420")


def environment(**more: str) -> dict[str, str]:
    """Ours, without anything that leads to real credentials."""
    names = ("GOOGLE_", "GS_", "GCE_", "CLOUDSDK_", "STORAGE_EMULATOR")
    kept = {key: value for key, value in os.environ.items() if not key.startswith(names)}
    return kept | {"NO_GCE_CHECK": "true", "CLOUDSDK_CONFIG": "/nonexistent"} | more


def unpadded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


class GcsFake(Fake):
    """bucket "bucket" in memory, or everything that the server at `port` has."""

    def __init__(self, port: int | None = None) -> None:
        self.port = port
        self.modulus = 0
        self.tokens: dict[str, float] = {}  # and when each ends
        self.life, self.grace = 3600, 0  # what it says of a token, and how much longer it takes it
        self.refused = 0  # tokens
        self.generations: dict[str, str] = {}  # and the ETag of each
        self.asked: list[str] = []  # what tokens were asked for by
        self.flavor = "Google"
        self.thorough = False  # sums of large bodies are slow here
        super().__init__()
        self.name = "gcs"
        self.url = "gs://bucket"
        keys = {"GS_ACCESS_KEY_ID": ACCESS_KEY, "GS_SECRET_ACCESS_KEY": SECRET_KEY}
        self.env = environment(**keys, STORAGE_EMULATOR_HOST=self.endpoint)

    # ------------------------------------------------------------- credentials

    def key_file(self, folder: pathlib.Path, **more: str) -> str:
        """A service account's file, with a new key, whose public half is remembered here."""
        pem = subprocess.run(["openssl", "genrsa", "2048"], check=True, capture_output=True, text=True).stdout
        text = subprocess.run(
            ["openssl", "rsa", "-noout", "-modulus"], input=pem, check=True, capture_output=True, text=True
        ).stdout
        self.modulus = int(text.strip().partition("=")[2], 16)
        account = {"type": "service_account", "client_email": EMAIL, "private_key": pem, "private_key_id": "k1"}
        path = folder / "account.json"
        path.write_text(json.dumps(account | {"token_uri": f"{self.endpoint}/token"} | more))
        return str(path)

    def user_file(self, folder: pathlib.Path) -> str:
        path = folder / "user.json"
        path.write_text(json.dumps({"type": "authorized_user", "token_uri": f"{self.endpoint}/token"} | REFRESH))
        return str(path)

    def is_signed(self, statement: str) -> bool:
        text, _, signature = statement.rpartition(".")
        number = pow(int.from_bytes(unpadded(signature), "big"), 65537, self.modulus)
        size = (self.modulus.bit_length() + 7) // 8
        end = DIGEST_INFO + hashlib.sha256(text.encode()).digest()
        return number.to_bytes(size, "big") == b"\x00\x01" + b"\xff" * (size - 3 - len(end)) + b"\x00" + end

    def claims_fit(self, statement: str) -> bool:
        header, claims = (json.loads(unpadded(part)) for part in statement.split(".")[:2])
        now = time.time() + self.skew
        right = header == {"alg": "RS256", "typ": "JWT", "kid": "k1"} and claims["iss"] == EMAIL
        right = right and claims["aud"] == f"{self.endpoint}/token" and claims["scope"] == SCOPE
        in_time = abs(claims["iat"] - now) < 300 and claims["exp"] - claims["iat"] <= 3600
        return bool(right and in_time)

    def give(self, by: str) -> Answer:
        token = f"ya29.CANARYTOKEN{len(self.tokens)}"
        self.tokens[token] = time.time() + self.life + self.grace
        self.asked.append(by)
        text = json.dumps({"access_token": token, "expires_in": self.life, "token_type": "Bearer"})
        return Answer(200, text.encode(), {"Metadata-Flavor": self.flavor})

    def on_token(self, body: bytes) -> Answer:
        words = dict(urllib.parse.parse_qsl(body.decode()))
        grant = words.pop("grant_type", "")
        if grant == "refresh_token" and words == REFRESH:
            return self.give("user")
        statement = words.get("assertion", "")
        if grant == "urn:ietf:params:oauth:grant-type:jwt-bearer" and statement.count(".") == 2:
            if self.is_signed(statement) and self.claims_fit(statement):
                return self.give("service account")
        return Answer(400, b'{"error":"invalid_grant","error_description":"CANARY"}')

    def on_metadata(self, target: str, headers: dict[str, str]) -> Answer:
        if headers.get("metadata-flavor") != "Google":
            return Answer(403)
        right = target.endswith("/instance/service-accounts/default/token")
        return self.give("machine") if right else Answer(404, b"", {"Metadata-Flavor": "Google"})

    # -------------------------------------------------------------- signatures

    def signature(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer | None:
        found = re.fullmatch(
            r"GOOG4-HMAC-SHA256 Credential=(\w+)/(\d{8})/auto/storage/goog4_request,"
            r"SignedHeaders=([\w;-]+),Signature=([0-9a-f]{64})",
            headers["authorization"],
        )
        if not found:
            return error(400, "InvalidArgument")
        key, day, names, given = found.groups()
        if key != ACCESS_KEY:
            return error(403, "InvalidSecurity")
        date, payload = headers["x-goog-date"], headers["x-goog-content-sha256"]
        listed = names.split(";")
        must = {"host"} | {name for name in headers if name.startswith("x-goog-")}
        if listed != sorted(listed) or not must <= set(listed) or not date.startswith(day):
            return error(403, "SignatureDoesNotMatch")
        if abs(calendar.timegm(time.strptime(date, "%Y%m%dT%H%M%SZ")) - time.time() - self.skew) > 900:
            return error(403, "RequestTimeTooSkewed")
        path, _, query = target.partition("?")
        quoted = sorted(
            (urllib.parse.quote(k, safe="-_.~"), urllib.parse.quote(v, safe="-_.~"))
            for k, v in urllib.parse.parse_qsl(query, keep_blank_values=True)
        )
        lines = [method, path, "&".join(f"{k}={v}" for k, v in quoted)]
        lines += [*(f"{name}:{headers[name].strip()}" for name in listed), "", names, payload]
        digest = hashlib.sha256("\n".join(lines).encode()).hexdigest()
        text = f"GOOG4-HMAC-SHA256\n{date}\n{day}/auto/storage/goog4_request\n{digest}"
        secret = b"GOOG4" + SECRET_KEY.encode()
        for part in (day, "auto", "storage", "goog4_request"):
            secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
        if hmac.new(secret, text.encode(), hashlib.sha256).hexdigest() != given:
            return error(403, "SignatureDoesNotMatch")
        if payload not in ("UNSIGNED-PAYLOAD", hashlib.sha256(body).hexdigest()):
            return error(400, "BadDigest")
        return None

    def who(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer | None:
        given = headers.get("authorization", "")
        if given.startswith("GOOG4-HMAC-SHA256 "):
            return self.signature(method, target, headers, body)
        if not given.startswith("Bearer "):
            return error(401, "AuthenticationRequired")
        fresh = self.tokens.get(given.removeprefix("Bearer "), 0) > time.time()
        self.refused += not fresh
        return None if fresh else error(401, "AuthenticationRequired")

    # ------------------------------------------------------------- the interface

    def answer(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer:
        if target == "/token" and method == "POST":
            return self.on_token(body)
        if target.startswith("/computeMetadata/v1/"):
            return self.on_metadata(target, headers)
        if bad := self.who(method, target, headers, body) or self.strict(method, target, headers, body):
            return bad
        theirs = translated(headers)
        generation = headers.get("x-goog-if-generation-match", "0")
        if generation != "0":
            theirs["if-match"] = self.generations.get(generation, '"another"')
        if self.port is None:
            got = super().answer(method, target, theirs, body)
        else:
            target = target.replace("/bucket", "/pawl-test", 1)
            if "x-amz-copy-source" in theirs:
                theirs["x-amz-copy-source"] = theirs["x-amz-copy-source"].replace("bucket/", "pawl-test/", 1)
            got = forward(self.port, method, target, theirs, body)
        etag = next((value for name, value in got.headers.items() if name.lower() == "etag"), None)
        if etag and method in ("GET", "HEAD"):
            number = str(int.from_bytes(hashlib.sha256(etag.encode()).digest()[:6]))
            self.generations[number] = etag
            got.headers["x-goog-generation"] = number
        renamed = {re.sub("(?i)^x-amz-", "x-goog-", name): value for name, value in got.headers.items()}
        return Answer(got.status, got.body, renamed)

    def strict(self, method: str, target: str, headers: dict[str, str], body: bytes) -> Answer | None:
        """What the interface refuses or does not heed, as its documentation says."""
        if any(name.startswith("x-amz-") for name in headers):
            return error(400, "ExcessHeaderValues")
        if method != "GET" and ("if-none-match" in headers or "if-match" in headers):
            return error(400, "InvalidArgument")
        generation = headers.get("x-goog-if-generation-match")
        if generation is not None and (not generation.isdigit() or method != "PUT" or "uploadId" in target):
            return error(400, "InvalidArgument")
        if "delete" in dict(urllib.parse.parse_qsl(target.partition("?")[2], keep_blank_values=True)):
            return error(400, "InvalidArgument")
        given = headers.get("x-goog-hash")
        looked_at = given is not None and (self.thorough or len(body) < 4096)
        return error(400, "BadDigest") if looked_at and given != f"crc32c={crc32c(body)}" else None

    def check(self, headers: dict[str, str], body: bytes) -> Answer | None:
        return None  # it has been


def translated(headers: dict[str, str]) -> dict[str, Any]:
    """As S3 knows them."""
    theirs = {re.sub("^x-goog-", "x-amz-", name): value for name, value in headers.items()}
    if theirs.pop("x-amz-if-generation-match", None) == "0":
        theirs["if-none-match"] = "*"
    for name in ("x-amz-date", "x-amz-content-sha256", "x-amz-hash"):
        theirs.pop(name, None)
    scope = "AKIDEXAMPLE/20260101/us-east-1/s3/aws4_request"
    theirs["authorization"] = f"AWS4-HMAC-SHA256 Credential={scope},SignedHeaders=host,Signature={'0' * 64}"
    return theirs


@contextlib.contextmanager
def gate() -> Iterator[GcsFake]:
    """The strict server before moto."""
    with moto() as server:
        fake = GcsFake(int(server.endpoint.rpartition(":")[2]))
        try:
            yield fake
        finally:
            fake.close()
