# SPDX-License-Identifier: Apache-2.0
"""The S3 engine and the retry layer against a server that fails on command: every request of a session, with every
fault, comes to the same as without one (P15), or fails clearly with nothing half visible."""

from __future__ import annotations

import calendar
import os
import pathlib
import re
import subprocess
import time
from collections.abc import Iterator

import pytest
from s3_fake import FAULTS, SUMS, Answer, Fake, crc64nvme, error
from s3_servers import environment, tool
from slow_net import wire
from store_session import PART, SESSION


@pytest.fixture(name="fake")
def fake_server() -> Iterator[Fake]:
    fake = Fake()
    yield fake
    fake.close()


def env_of(fake: Fake, **more: str) -> dict[str, str]:
    keys = {"AWS_ACCESS_KEY_ID": "AKCANARY", "AWS_SECRET_ACCESS_KEY": "SKCANARY", "AWS_SESSION_TOKEN": "TOKENCANARY"}
    return environment(**(keys | {"AWS_ENDPOINT_URL": fake.endpoint, "AWS_REGION": "us-east-1"} | more))


def run(fake: Fake, *operations: str, options: tuple[str, ...] = ("--base-ms", "1"), **more: str) -> list[str]:
    lines = tool("s3://bucket/run", *operations, env=env_of(fake, **more), options=options)
    assert "CANARY" not in "\n".join(lines)
    return lines


def test_the_session_needs_no_luck_without_faults(fake: Fake) -> None:
    lines = run(fake, *SESSION)
    assert all(line.startswith("ok") for line in lines), lines
    assert len(lines) == len(SESSION) + 1
    assert not fake.uploads
    names = "a lease log pack small"
    assert lines[SESSION.index("list d") + 1] == f"ok {names}"
    assert fake.state()["run/d/log"] == b"lineline"


def cases() -> int:
    """How many cases are run of each fault: all by PAWL_FAULT_EVERY=1."""
    return int(os.environ.get("PAWL_FAULT_EVERY", "3"))


@pytest.mark.parametrize("fault", FAULTS)
def test_P15_any_request_may_fail_once(fake: Fake, fault: str) -> None:
    """P15, rows 24 and 25: each request in turn meets the fault; results and objects are those of a calm session."""
    calm = run(fake, *SESSION)
    expected, count = fake.state(), len(fake.requests)
    assert count >= 40
    for index in range(FAULTS.index(fault) % cases(), count, cases()):
        fake.clear()
        fake.faults = {index: fault}
        lines = run(fake, *SESSION)
        what = fake.requests[index] if index < len(fake.requests) else "?"
        assert lines == calm, f"{fault} at request {index}, {what}"
        assert fake.state() == expected, f"{fault} at request {index}, {what}"


@pytest.mark.parametrize(
    ("size", "closing", "refusal", "failing"),
    [
        (PART + 10, "POST .*uploadId=", None, 0),
        (PART + 10, "POST .*uploadId=", error(412, "PreconditionFailed"), 0),
        (10, "PUT .*/run/pack", None, 0),
        (10, "PUT .*/run/pack", None, 1),
    ],
)
def test_P15_an_object_is_found_after_a_lost_answer_although_a_look_for_it_failed(
    fake: Fake, size: int, closing: str, refusal: Answer | None, failing: int
) -> None:
    """The request that completes the object is carried out, and its repetition refused. Then one HEAD gets a 503."""
    work = f"write pack {size} 1 {PART}"
    assert run(fake, work) == ["ok", "ok"]
    (lost,) = [i for i, r in enumerate(fake.requests) if re.match(closing, r)]
    fake.clear()
    fake.faults = {lost: "lost_500"}
    looks: list[str] = []

    def fail_one_look(method: str, target: str) -> Answer | None:
        if len(fake.requests) <= lost + 1 or "/run/pack" not in target:
            return None
        looks.extend([target] if method == "HEAD" else [])
        if method == "HEAD":
            return Answer(503) if len(looks) == failing + 1 else None
        return refusal if method == "POST" else None

    fake.always = fail_one_look
    assert run(fake, work, f"check pack {size} 1") == ["ok", "ok", "ok"]
    assert len(looks) > failing + 1 and not fake.uploads


@pytest.mark.parametrize(
    ("fault", "what"), [("reset", "PUT"), ("500", "PUT"), ("lost_500", "PUT"), ("lost_body", "GET")]
)
def test_without_the_retry_layer_the_same_faults_show(fake: Fake, fault: str, what: str) -> None:
    """The negative control: the faults are real."""
    calm = run(fake, *SESSION, options=("--no-retry",))
    # A copy has no body: libcurl sends it again by itself on a kept connection, which does no harm.
    chosen = [i for i, r in enumerate(fake.requests) if re.match(f"{what} /bucket/run/d/(?!linked)", r)]
    assert len(chosen) >= 3
    for index in chosen:
        fake.clear()
        fake.faults = {index: fault}
        assert run(fake, *SESSION, options=("--no-retry",)) != calm


@pytest.mark.parametrize("fault", ["reset", "500", "503", "lies_short", "lost_body"])
def test_P4_a_server_that_stays_down_leaves_nothing_half_visible(fake: Fake, fault: str) -> None:
    """P4: from any request on everything fails: clear errors, and every object that shows is complete."""
    run(fake, *SESSION)
    whole = fake.state() | {
        "run/d/a": b"one",
        "run/d/linked": b"",
        "run/f/x": b"1",
        "run/f/y": b"2",
    }
    for index in range(3, len(fake.requests), 4):
        fake.clear()
        fake.faults = dict.fromkeys(range(index, 1000), fault)
        lines = run(fake, *SESSION, options=("--base-ms", "1", "--tries", "2"))
        bad = [line for line in lines if not line.startswith("ok")]
        # What answers without a body cannot be cut short; all else must show.
        assert bad or fault.startswith(("lies", "lost"))
        for line in bad:
            assert re.match(r"(transient|timeout|not-found|corrupt|unsupported|mismatch|exists): ", line), line
        for key, body in fake.state().items():
            assert key in whole
            assert len(body) in (len(whole[key]), 1000, 4) or body == whole[key], (index, key, len(body))


def test_P14_damaged_bodies_are_refused_by_the_server(fake: Fake) -> None:
    """Every body is signed by its SHA-256, or carries a CRC32C; with both on request."""
    run(fake, "put a text", f"write pack {PART + 10} 1 {PART}", AWS_REQUEST_CHECKSUM_CALCULATION="when_supported")
    puts = [h for r, h in zip(fake.requests, fake.headers, strict=True) if r.startswith("PUT") and ".probe." not in r]
    assert len(puts) == 3
    assert all(len(h["x-amz-content-sha256"]) == 64 and "x-amz-checksum-crc32c" in h for h in puts)
    assert len(fake.state()["run/pack"]) == PART + 10


HEADERS = {h.removeprefix("x-amz-checksum-").removeprefix("content-"): h for h in SUMS}  # by algorithm
CHANGED = "write pack 3000000 1 3000000", "check pack 3000000 1"


def unsigned(folder: pathlib.Path) -> dict[str, str]:
    (folder / "config").write_text("[default]\ns3 =\n  payload_signing_enabled = false\n")
    return {"AWS_CONFIG_FILE": str(folder / "config")}


@pytest.mark.parametrize("algorithm", HEADERS)
def test_P14_a_body_that_changes_on_the_way_is_refused_and_sent_again(
    fake: Fake, tmp_path: pathlib.Path, algorithm: str
) -> None:
    with wire(fake.endpoint) as net:
        net.flip, net.flips_left = "up", 1
        more = unsigned(tmp_path) | {"AWS_ENDPOINT_URL": net.endpoint, "PAWL_S3_CHECKSUM_ALGORITHM": algorithm.upper()}
        assert run(fake, *CHANGED, **more) == ["ok", "ok", "ok"]
        assert net.flips == fake.refused == 1
    # A build whose ISA-L has no CRC64NVME sends CRC32C instead.
    expected = {HEADERS[algorithm]} | ({HEADERS["crc32c"]} if algorithm == "crc64nvme" else set())
    sent = [h for r, h in zip(fake.requests, fake.headers, strict=True) if r.startswith("PUT")]
    assert any(all(header in h for h in sent) for header in expected)


def test_control_without_a_sum_the_server_takes_what_was_changed(fake: Fake, tmp_path: pathlib.Path) -> None:
    with wire(fake.endpoint) as net:
        net.flip, net.flips_left = "up", 1
        more = unsigned(tmp_path) | {"AWS_ENDPOINT_URL": net.endpoint}
        lines = run(fake, *CHANGED, AWS_REQUEST_CHECKSUM_CALCULATION="when_required", **more)
        assert lines[:2] == ["ok", "ok"] and lines[2] != "ok"
        assert net.flips == 1 and fake.refused == 0


def test_an_upload_in_parts_carries_the_sum_of_the_whole_object(fake: Fake) -> None:
    """By CRC64NVME, which the server makes of those of the parts, as pawl does. Without it in ISA-L: by CRC32C."""
    size = PART + 10
    lines = run(fake, f"write pack {size} 1 {PART}", PAWL_S3_CHECKSUM_ALGORITHM="CRC64NVME")
    assert lines == ["ok", "ok"]
    asked = list(zip(fake.requests, fake.headers, strict=True))
    (begin,) = [h for r, h in asked if r.startswith("POST") and "uploads=" in r]
    (end,) = [h for r, h in asked if r.startswith("POST") and "uploadId=" in r]
    if begin["x-amz-checksum-algorithm"] == "CRC32C":
        puts = [h for r, h in asked if r.startswith("PUT") and "partNumber=" in r]
        assert len(puts) == 2 and all("x-amz-checksum-crc32c" in h for h in puts)
        return
    assert begin["x-amz-checksum-algorithm"] == "CRC64NVME"
    assert begin["x-amz-checksum-type"] == end["x-amz-checksum-type"] == "FULL_OBJECT"
    assert end["x-amz-checksum-crc64nvme"] == crc64nvme(fake.state()["run/pack"])


def test_a_server_that_refuses_a_sum_is_sent_another(fake: Fake) -> None:
    fake.unknown_sum = "x-amz-checksum-crc32c"
    lines = run(fake, "put a text", f"write pack {PART + 10} 1 {PART}", PAWL_S3_CHECKSUM_ALGORITHM="CRC32C")
    assert lines == ["ok", "ok", "ok"]
    puts = [h for r, h in zip(fake.requests, fake.headers, strict=True) if r.startswith("PUT")]
    assert [r for r in puts if fake.unknown_sum in r] == puts[:1]  # found out when the store is opened
    assert all("content-md5" in h for h in puts[1:])


def test_P20_a_server_without_conditions_is_found_out(fake: Fake) -> None:
    """Row 26: If-None-Match is tried when the store is opened, and an exclusive put is refused where it is ignored."""
    fake.conditions = False
    lines = run(fake, "caps", "putx a 1", "put a 2", "write b 10 1 10")
    assert "exclusive_put" not in lines[1]
    assert lines[2].startswith("unsupported: a: cannot be put exclusively: 127.0.0.1:")
    assert lines[3:] == ["ok", "ok"]
    assert not [key for key in fake.objects if ".probe." in key]
    fake.always = lambda method, target: error(501, "NotImplemented") if "probe" in target else None
    assert "exclusive_put" not in run(fake, "caps")[1]


def test_row_27_abandoned_uploads_are_swept(fake: Fake) -> None:
    run(fake, f"abandon x {2 * PART} 1 {PART}", f"abandon y {2 * PART} 1 {PART}")
    assert len(fake.uploads) == 2 and not fake.state()
    fake.uploads["other"] = next(iter(fake.uploads.values())).__class__("elsewhere/z", {})
    assert run(fake, "sweep 3600", "sweep -10") == ["ok", "ok 0", "ok 2"]
    assert list(fake.uploads) == ["other"]


def test_row_27_an_upload_that_cannot_be_dropped_is_an_error_and_does_not_keep_the_others(fake: Fake) -> None:
    run(fake, f"abandon x {2 * PART} 1 {PART}", f"abandon y {2 * PART} 1 {PART}")
    refused = error(403, "AccessDenied")
    fake.always = lambda method, target: refused if method == "DELETE" and "/x?uploadId" in target else None
    assert run(fake, "sweep -10")[1].startswith("auth: x: cannot drop an upload: access is denied")
    assert [upload.key for upload in fake.uploads.values()] == ["run/x"]
    refused = error(404, "NoSuchUpload")  # another process was first
    assert run(fake, "sweep -10") == ["ok", "ok 1"]


def listing(inner: str) -> Answer:
    return Answer(200, f"<ListBucketResult>{inner}</ListBucketResult>".encode())


def test_P8_long_lists_come_in_pages_and_damaged_ones_are_no_short_lists(fake: Fake) -> None:
    """Row 33: a page that is cut or says nothing is an error, a token that comes again ends the listing."""
    fake.page = 7
    names = [f"n{i:02d}" for i in range(30)]
    run(fake, *(f"put d/{name} x" for name in names))
    assert run(fake, "list d")[1] == "ok " + " ".join(names)
    real = fake.list
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    bad = Answer(200)
    fake.list = lambda words: bad if words["prefix"] == "run/d/" else real(words)  # type: ignore[method-assign]
    assert run(fake, "list d", options=("--base-ms", "1", "--tries", "2"))[1].startswith("transient: d: cannot list")
    bad = Answer(200, real({"prefix": "run/d/"}).body[:-30])
    assert run(fake, "list d", options=("--base-ms", "1", "--tries", "2"))[1].startswith("transient: d: cannot list")
    bad = listing(more)
    assert run(fake, "list d")[1] == "io: d: cannot list: the list does not end"
    fake.list = real  # type: ignore[method-assign]
    assert run(fake, "rmtree d", "list d")[1:] == ["ok", "not-found: d: there is no such folder"]


def test_P8_an_empty_page_does_not_end_the_search_for_a_first_key(fake: Fake) -> None:
    run(fake, "put d/a x")
    real = fake.list
    more = "<IsTruncated>true</IsTruncated><NextContinuationToken>!</NextContinuationToken>"
    fake.list = lambda words: real(words) if "continuation-token" in words else listing(more)  # type: ignore[method-assign]
    assert run(fake, "stat d", "list d", options=("--read",)) == ["ok", "ok folder", "ok a"]


@pytest.mark.parametrize(
    "body", [b"", b"<html>Sign in<br></html>", b"<html>Sign in</html>", b"<ListBucketResult><IsTruncated>false"]
)
def test_P8_a_root_is_not_missing_because_the_first_list_is_damaged(fake: Fake, body: bytes) -> None:
    run(fake, "put d/a x")
    fake.list = lambda words: Answer(200, body)  # type: ignore[method-assign]
    lines = run(fake, options=("--read", "--base-ms", "1", "--tries", "2"))
    assert len(lines) == 1 and lines[0].startswith("transient: s3://bucket/run: cannot open: the list is damaged")


def test_P17_names_of_a_hostile_list_are_passed_over(fake: Fake) -> None:
    run(fake, "put d/good x")
    keys = ["run/d/../../etc", "run/d/..", "elsewhere/x", "run/d/a%0Ab", "run/d/", "run/d/good"]
    inner = "".join(f"<Contents><Key>{key}</Key><Size>1</Size></Contents>" for key in keys)
    text = f"<EncodingType>url</EncodingType><IsTruncated>false</IsTruncated>{inner}"
    fake.list = lambda words: listing(text)  # type: ignore[method-assign]
    assert run(fake, "list d")[1] == "ok good"
    assert run(fake, "rmtree d")[1].startswith("io: d: cannot remove: the list has keys of other folders")
    assert "run/d/good" in fake.state()


def test_a_skewed_clock_is_corrected_once_and_named_else(fake: Fake) -> None:
    """Row 25: the Date of the refusal is believed; a server that continues refusing is named with the seconds."""
    fake.skew = 7200.0

    def refuse_wrong_date(method: str, target: str) -> Answer | None:
        signed = calendar.timegm(time.strptime(fake.headers[-1]["x-amz-date"], "%Y%m%dT%H%M%SZ"))
        late = abs(signed - time.time() - fake.skew) > 900
        return error(403, "RequestTimeTooSkewed") if late else None

    fake.always = refuse_wrong_date
    assert run(fake, "put a 1", "get a")[1:] == ["ok", "ok 1"]
    assert sum(not r.startswith("GET") for r in fake.requests) >= 2
    fake.always = lambda method, target: error(403, "RequestTimeTooSkewed")
    fake.skew = -4000.0
    lines = run(fake, "get a")
    assert len(lines) == 1
    assert re.search(
        r"auth: s3://bucket/run: cannot open: the clock of this machine is \d{4,5} s ahead of the server's", lines[0]
    )


def test_a_wrong_region_is_named_with_the_right_one(fake: Fake) -> None:
    fake.always = lambda method, target: error(
        301, "PermanentRedirect", "<Endpoint>elsewhere</Endpoint>", x_amz_bucket_region="eu-west-9"
    )
    assert run(fake)[0].startswith('usage: s3://bucket/run: cannot open: the bucket is in region "eu-west-9", expected')
    fake.always = lambda method, target: error(400, "AuthorizationHeaderMalformed", "<Region>eu-west-8</Region>")
    assert '"eu-west-8"' in run(fake)[0]


def test_expired_credentials_are_looked_up_again(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The keys of a process are refused as expired; it is asked again, once."""
    script = tmp_path / "keys.sh"
    script.write_text(
        f'echo x >>{tmp_path}/n; printf \'{{"Version":1,"AccessKeyId":"K%s","SecretAccessKey":"SKCANARY"}}\''
        f" $(wc -l <{tmp_path}/n)\n"
    )
    config = tmp_path / "config"
    config.write_text(f"[default]\ncredential_process = sh {script}\n")
    fake.always = lambda method, target: (
        error(400, "ExpiredToken") if "Credential=K1/" in fake.headers[-1]["authorization"] else None
    )
    env = {key: value for key, value in env_of(fake).items() if key not in ("AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN")}
    env.pop("AWS_SECRET_ACCESS_KEY")
    env["AWS_CONFIG_FILE"] = str(config)
    assert tool("s3://bucket/run", "put a 1", env=env) == ["ok", "ok"]
    assert (tmp_path / "n").read_text() == "x\nx\n"


def test_P19_a_replaced_object_is_never_mixed(fake: Fake) -> None:
    """The reader is pinned to the ETag; also where the server ignores If-Match."""
    run(fake, f"write pack {3 * PART} 1 {PART}")
    seen = 0

    def replace_before_get(method: str, target: str) -> Answer | None:
        nonlocal seen
        if method != "GET" or not target.endswith("/pack"):
            return None
        seen += 1
        old = fake.objects["run/pack"]
        fake.objects["run/pack"] = old.__class__(bytes(len(old.body)), '"other"', {})
        fake.headers[-1].pop("if-match", None)
        return None

    fake.always = replace_before_get
    lines = run(fake, f"check pack {3 * PART} 1")
    assert seen > 0
    assert lines[1] == "conflict: pack: has been replaced while it was read"


def test_an_error_inside_of_a_success_is_an_error(fake: Fake) -> None:
    """Row 25: 200 with an error in its body, as for requests that take long."""
    times = 0

    def fail_complete(method: str, target: str) -> Answer | None:
        nonlocal times
        if method != "POST" or "uploadId" not in target or times:
            return None
        times += 1
        return Answer(200, b"<?xml version='1.0'?>\n  <Error><Code>InternalError</Code></Error>")

    fake.always = fail_complete
    assert run(fake, f"write pack {PART + 5} 1 {PART}", f"check pack {PART + 5} 1") == ["ok", "ok", "ok"]
    times = 0
    lines = run(fake, f"write other {PART + 5} 1 {PART}", options=("--no-retry",))
    assert lines[1].startswith("transient: other: cannot complete the upload: the server has failed")
    assert "run/other" not in fake.state() and not fake.uploads


@pytest.mark.parametrize("body", [b"<DeleteResult><Error><Key>run/f/a</Key><Code>Inter", b"<html>busy</html>"])
def test_an_answer_that_does_not_confirm_a_removal_is_an_error(fake: Fake, body: bytes) -> None:
    times = 0

    def remove_nothing(method: str, target: str) -> Answer | None:
        nonlocal times
        if method != "POST" or "delete" not in target or times:
            return None
        times += 1
        return Answer(200, body)

    fake.always = remove_nothing
    assert run(fake, "put f/a 1", "put f/b 2", "rmtree f") == ["ok"] * 4
    assert times == 1 and not fake.state()
    times = 0
    lines = run(fake, "put f/a 1", "put f/b 2", "rmtree f", options=("--no-retry",))
    assert lines[3].startswith("transient: f: cannot remove: the answer does not confirm it")


def test_early_errors_name_what_is_wrong(fake: Fake) -> None:
    """Missing bucket, refused keys, read-only bucket, no server: found when the store is opened."""
    lines = tool("s3://other-bucket/x", env=env_of(fake))
    assert lines[0].startswith('not-found: s3://other-bucket/x: there is no bucket "other-bucket" at 127.0.0.1:')
    fake.always = lambda method, target: error(403, "InvalidAccessKeyId")
    assert "the server does not know the access key" in run(fake)[0]
    assert "credentials from the environment" in run(fake)[0]
    fake.always = lambda method, target: error(403, "AccessDenied") if method == "PUT" else None
    assert run(fake)[0].startswith("auth: .probe.")
    assert run(fake, "list ", options=("--read",))[0].startswith(("ok", "not-found"))
    lines = tool("s3://bucket/x", env=env_of(fake) | {"AWS_ENDPOINT_URL": "http://127.0.0.1:9"})
    assert lines[0].startswith("transient: s3://bucket/x: cannot open: 127.0.0.1:9: ")
    nobody = {key: value for key, value in env_of(fake).items() if "KEY" not in key and "TOKEN" not in key}
    assert "no credentials for S3" in tool("s3://bucket/x", env=nobody)[0]


def test_P18_no_secret_in_any_message(fake: Fake) -> None:
    """A server that sends back what it was sent, at each request: `run` looks for the keys in all that is printed."""

    def echo(method: str, target: str) -> Answer | None:
        if len(fake.requests) % 5:
            return None
        sent = " ".join(f"{k}: {v}" for k, v in fake.headers[-1].items()) + " SKCANARY"
        return error(400, "TOKENCANARY SKCANARY", f"<StringToSign>{sent}</StringToSign><Region>SKCANARY</Region>")

    fake.always = echo
    lines = run(fake, *SESSION, options=("--base-ms", "1", "--tries", "2"))
    assert any(not line.startswith("ok") for line in lines)
    assert any("TOKENCANARY" in h.get("x-amz-security-token", "") for h in fake.headers)


def make_certificate(folder: pathlib.Path) -> pathlib.Path:
    folder.mkdir(exist_ok=True)
    path = folder / "server.pem"
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=127.0.0.1"]
    command += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "crt")]
    subprocess.run(command, check=True, capture_output=True)
    path.write_text((folder / "key").read_text() + (folder / "crt").read_text())
    return path


def test_TLS_is_verified_and_bodies_carry_a_sum(tmp_path: pathlib.Path) -> None:
    """T8: an untrusted certificate is refused; with AWS_CA_BUNDLE it works, unsigned bodies with their CRC32C."""
    fake = Fake(str(make_certificate(tmp_path)))
    try:
        lines = run(fake)
        assert lines[0].startswith("auth: s3://bucket/run: cannot open: 127.0.0.1:")
        assert not fake.requests
        lines = run(
            fake, f"write pack {PART + 9} 1 {PART}", f"check pack {PART + 9} 1", AWS_CA_BUNDLE=str(tmp_path / "crt")
        )
        assert lines == ["ok", "ok", "ok"]
        parts = [h for r, h in zip(fake.requests, fake.headers, strict=True) if "partNumber" in r]
        assert len(parts) == 2
        assert all(h["x-amz-content-sha256"] == "UNSIGNED-PAYLOAD" and h["x-amz-checksum-crc32c"] for h in parts)
    finally:
        fake.close()


def test_the_file_of_SSL_CERT_FILE_is_trusted_and_AWS_CA_BUNDLE_goes_before_it(tmp_path: pathlib.Path) -> None:
    fake = Fake(str(make_certificate(tmp_path / "ours")))
    own, other = str(tmp_path / "ours/crt"), str(make_certificate(tmp_path / "other").with_name("crt"))
    advice = "install ca-certificates, or set SSL_CERT_FILE"
    try:
        assert run(fake, SSL_CERT_FILE=own) == ["ok"]
        assert advice in run(fake, SSL_CERT_FILE=other)[0]
        assert run(fake, SSL_CERT_FILE=other, AWS_CA_BUNDLE=own) == ["ok"]
        assert advice in run(fake, SSL_CERT_FILE=own, AWS_CA_BUNDLE=other)[0]
        assert advice in run(fake, SSL_CERT_FILE=str(tmp_path / "missing"))[0]
        named = run(fake, SSL_CERT_FILE=own, AWS_ENDPOINT_URL=fake.endpoint.replace("127.0.0.1", "localhost"))[0]
        assert named.startswith("auth: ") and advice not in named  # the certificate is of another name
    finally:
        fake.close()


def test_P18_the_log_of_a_store_shows_each_try_and_no_secret(fake: Fake, tmp_path: pathlib.Path) -> None:
    """The log layer: what was asked, how many bytes, how long, how it ended; a try that failed and the one after it."""
    log = tmp_path / "log"
    opening = len((run(fake), fake.requests)[1])
    fake.requests.clear()
    fake.faults = {opening: "500"}
    lines = run(fake, "put d/a one", "get d/a", "get d/none", PAWL_STORE_LOG=str(log))
    assert [line.split(":")[0] for line in lines] == ["ok", "ok", "ok one", "not-found"]
    text = log.read_text()
    tries = [line for line in text.splitlines() if " put s3://bucket/run d/a 3 bytes " in line]
    assert len(tries) == 2 and " transient: " in tries[0] and tries[1].endswith(" ms ok"), text
    assert re.search(r"^\d+\.\d{6} \d+ read s3://bucket/run d/a 3 bytes \d+\.\d{3} ms ok$", text, re.MULTILINE), text
    assert re.search(r" d/none \d+\.\d{3} ms not-found: ", text), text
    assert "CANARY" not in text
    assert log.stat().st_mode & 0o777 == 0o600
    refused = run(fake, PAWL_STORE_LOG=str(tmp_path / "no" / "log"))
    assert refused[0].startswith("not-found: PAWL_STORE_LOG: cannot open"), refused


def test_an_expired_token_is_named(fake: Fake) -> None:
    """One from the environment, which is never renewed: at open, and in the middle of a session."""
    fake.always = lambda method, target: error(400, "ExpiredToken")
    line = run(fake)[0]
    assert re.match(r"auth: s3://bucket/run: cannot open: the session token has expired \(.*credentials from", line), (
        line
    )
    fake.always = lambda method, target: error(400, "ExpiredToken") if method == "PUT" and "late" in target else None
    lines = run(fake, "put early 1", "put late 1", "get early")
    assert lines[:2] == ["ok", "ok"] and lines[3] == "ok 1"
    assert lines[2].startswith("auth: late: cannot put: the session token has expired"), lines[2]
    assert "run/late" not in fake.state()
