# SPDX-License-Identifier: Apache-2.0
"""pawl cp, pawl sync, pawl doctor URL, and every other command on a run in a bucket: between folders, and against the
scripted server, which keeps what it is given in memory."""

from __future__ import annotations

import json
import os
import pathlib
import re
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
from s3_fake import Answer, Fake, Object, error
from waiting import HANG_SECONDS, wait_until

import pawl
from cli import PACK, PAWL, Terminal, checkpoint, environment, flip, make, making, run, run_json, tree_of

RUN = "s3://bucket/run"
SECRETS = {"AWS_ACCESS_KEY_ID": "AKCANARY", "AWS_SECRET_ACCESS_KEY": "SKCANARY", "AWS_SESSION_TOKEN": "TOKENCANARY"}


@pytest.fixture(name="fake")
def fake_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    fake = Fake()
    settings = SECRETS | {
        "AWS_ENDPOINT_URL": fake.endpoint,
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/nonexistent",
        "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    yield fake
    fake.close()


@pytest.fixture(name="demo")
def demo_run(tmp_path: pathlib.Path) -> pathlib.Path:
    return make("run", tmp_path / "demo", 3)


def kept(folder: pathlib.Path) -> dict[str, bytes]:
    """What a copy must have the same of."""
    tree = tree_of(folder)
    return {name: body for name, body in tree.items() if name.startswith("checkpoints/") or name == "run.json"}


def states(report: Any) -> list[tuple[int, bool]]:
    return [(row["id"], row["was_there"]) for row in report["checkpoints"]]


# ------------------------------------------------------------------ folders


def test_a_run_is_copied_whole_and_then_only_what_is_missing(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """The same run with its ids, run.json and pointers; what is there is not copied again."""
    there = tmp_path / "there"
    run("pin", f"{demo}@id:1")
    report = run_json("cp", demo, there)
    assert states(report) == [(1, False), (2, False), (3, False)]
    assert report["bytes"] == sum(row["bytes"] for row in report["checkpoints"]) > 0
    assert kept(there) == kept(demo)
    assert (there / "latest").readlink() == (demo / "latest").readlink()
    assert not (there / ".lease").exists()
    assert run_json("ls", there)["checkpoints"][0]["marks"] == ["pinned"]
    again = run_json("cp", demo, there)
    assert states(again) == [(1, True), (2, True), (3, True)] and again["sent_bytes"] == 0
    make("run", demo, 1)
    assert states(run_json("sync", demo, there)["targets"][0])[-1] == (4, False)
    assert kept(there) == kept(demo)
    assert run("verify", there).stdout.count("ok") == 4


def test_a_dry_run_says_it_and_changes_nothing(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    there = tmp_path / "there"
    report = run_json("cp", "-n", demo, there)
    assert report["dry_run"] and states(report) == [(1, False), (2, False), (3, False)]
    assert not there.exists()
    assert "to be copied" in run("cp", "-n", f"{demo}@id:2", tmp_path / "one").stdout
    assert sorted(p.name for p in tmp_path.iterdir()) == ["demo"]


def test_a_selection_of_a_run(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    report = run_json("cp", demo, tmp_path / "a", "--only", "best", "--by", "accuracy")
    assert states(report) == [(2, False)]
    assert run("ls", "--names", tmp_path / "a").stdout == "checkpoint_000002\n"
    assert states(run_json("cp", demo, tmp_path / "b", "--last", "1", "--only", "id:1")) == [(1, False), (3, False)]
    assert (tmp_path / "b" / "run.json").read_bytes() == (demo / "run.json").read_bytes()
    assert (
        "--only and --last choose from a run" in run("cp", f"{demo}@id:2", tmp_path / "c", "--last", 1, status=2).stderr
    )
    assert "no checkpoint" in run("cp", demo, tmp_path / "c", "--only", "77", status=3).stderr
    assert not (tmp_path / "c").exists()


def test_one_checkpoint_becomes_one_of_its_own(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    there = tmp_path / "best"
    assert states(run_json("cp", f"{demo}@best", there, "--by", "accuracy")) == [(2, False)]
    assert tree_of(there) == tree_of(checkpoint(demo, 2))
    assert states(run_json("cp", f"{demo}@id:2", there)) == [(2, True)]
    assert "is a different one" in run("cp", f"{demo}@id:3", there, status=7).stderr
    assert tree_of(there) == tree_of(checkpoint(demo, 2))
    assert states(run_json("cp", there, tmp_path / "again")) == [(2, False)]
    assert run("verify", tmp_path / "again").stdout


def test_places_that_are_taken_are_refused(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """P10: another run, other files, a checkpoint, a run's own folders, a target that another process writes to."""
    other = make("run", tmp_path / "other", 1)
    before = kept(other)
    assert re.search(r"is the run [0-9a-f]{32}, expected .*demo, the run", run("cp", demo, other, status=7).stderr)
    assert kept(other) == before
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x").write_text("x")
    assert "something else" in run("cp", demo, tmp_path / "files", status=7).stderr
    assert "single checkpoint" in run("cp", demo, make("single", tmp_path / "one"), status=7).stderr
    assert "inside the run" in run("cp", f"{demo}@id:1", demo / "checkpoints" / "x", status=2).stderr
    run("cp", demo, tmp_path / "busy", "--only", "id:1")
    with making("busy", tmp_path / "busy"):
        run("cp", demo, tmp_path / "busy", status=6)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["busy", "demo", "files", "one", "other"]


def test_two_runs_that_went_apart_are_not_mixed(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    run("cp", demo, tmp_path / "there")
    make("run", tmp_path / "there", 1)
    make("run", demo, 1)
    before = kept(tmp_path / "there")
    assert "differs from the source's checkpoint_000004" in run("cp", demo, tmp_path / "there", status=7).stderr
    assert kept(tmp_path / "there") == before


def test_P1_a_damaged_checkpoint_is_passed_over_and_told(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    flip(checkpoint(demo, 2) / PACK, 5000)
    done = run("cp", demo, tmp_path / "there", status=4)
    assert "damaged" in done.stdout and "checkpoint_000002" in done.stderr
    assert run("ls", "--names", tmp_path / "there").stdout.split() == ["checkpoint_000001", "checkpoint_000003"]
    assert run("verify", tmp_path / "there").stdout.count("ok") == 2
    run("cp", f"{demo}@id:2", tmp_path / "one", status=4)
    assert not (tmp_path / "one").exists()


def test_wrong_calls_are_told(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert "bytes a second such as" in run("cp", demo, tmp_path / "x", "--bwlimit", "fast", status=2).stderr
    assert "DEST is missing" in run("cp", demo, status=2).stderr
    assert "no such file or folder" in run("cp", tmp_path / "none", tmp_path / "x", status=3).stderr
    assert "unknown kind of store" in run("cp", demo, "gopher://x/y", status=2).stderr
    assert "has no mirrors" in run("sync", demo, status=2).stderr
    assert "writes a folder; 'pawl convert" in run("cp", f"{demo}@latest", tmp_path / "x.pt", status=2).stderr


# -------------------------------------------------------------- interruption


def wait_for_packs(folder: pathlib.Path) -> None:
    wait_until(lambda: list(folder.glob("checkpoints/.*.partial/*")), "a pack")


@pytest.mark.parametrize("how", ["ctrl-c", "kill"])
def test_P4_an_interrupted_copy_shows_nothing_half_and_goes_on(how: str, tmp_path: pathlib.Path) -> None:
    """P4, P15: the second start finds what the first has left, and ends with the same bytes."""
    demo, there = make("parts", tmp_path / "demo", 2), tmp_path / "there"
    command = ["cp", demo, there, "--bwlimit", "10kB/s"]  # half an hour
    if how == "ctrl-c":
        terminal = Terminal(*command)
        terminal.read(lambda text: "copying" in text and " of " in text)  # the progress line
        wait_for_packs(there)
        terminal.interrupt()
        assert terminal.status() == 130
        assert "copying" in terminal.output and "interrupted" in terminal.output
    else:
        process = subprocess.Popen([PAWL, *map(str, command)], stderr=subprocess.PIPE, env=environment())
        wait_for_packs(there)
        process.kill()
        process.communicate()
    listed = run_json("ls", there)["checkpoints"]
    assert len(listed) < 2
    if listed:
        run("verify", there)
    report = run_json("cp", demo, there)
    assert report["code"] is None and kept(there) == kept(demo)
    assert not list(there.glob("checkpoints/.*"))


def test_progress_is_drawn_on_terminals_only(tmp_path: pathlib.Path) -> None:
    demo = make("parts", tmp_path / "demo", 2)
    done = run("cp", demo, tmp_path / "a", "--bwlimit", "30MB/s")
    assert "\r" not in done.stderr and "%" not in done.stderr
    assert re.search(r"2 checkpoints, 20\.\d MiB, verified", done.stderr), done.stderr


# ------------------------------------------------------------------- buckets


def test_a_run_goes_into_a_bucket_and_comes_back(demo: pathlib.Path, tmp_path: pathlib.Path, fake: Fake) -> None:
    assert states(run_json("cp", demo, RUN)) == [(1, False), (2, False), (3, False)]
    assert fake.state()["run/run.json"] == (demo / "run.json").read_bytes()
    assert fake.state()["run/latest"] == b"checkpoints/checkpoint_000003\n"
    assert "run/.lease" not in fake.state() and not fake.uploads
    back = tmp_path / "back"
    assert states(run_json("cp", RUN, back)) == [(1, False), (2, False), (3, False)]
    assert kept(back) == kept(demo)
    puts = len([r for r in fake.requests if r.startswith("PUT") and ".safetensors" in r])
    assert states(run_json("sync", demo, RUN)["targets"][0]) == [(1, True), (2, True), (3, True)]
    assert len([r for r in fake.requests if r.startswith("PUT") and ".safetensors" in r]) == puts
    assert not any("CANARY" in r for r in fake.requests)


def test_one_checkpoint_goes_into_a_bucket_and_comes_back(
    demo: pathlib.Path, tmp_path: pathlib.Path, fake: Fake
) -> None:
    one = "s3://bucket/kept/best"
    assert states(run_json("cp", f"{demo}@id:2", one)) == [(2, False)]
    assert states(run_json("cp", f"{demo}@id:2", one)) == [(2, True)]
    run("cp", f"{demo}@id:3", one, status=7)
    assert "checkpoint_000002" in run("show", one).stdout or "best" in run("show", one).stdout
    assert run("verify", one).stdout
    assert states(run_json("cp", one, tmp_path / "back")) == [(2, False)]
    assert tree_of(tmp_path / "back") == tree_of(checkpoint(demo, 2))


def test_an_upload_that_was_cut_off_goes_on(tmp_path: pathlib.Path, fake: Fake) -> None:
    """Row 27, P2, P15: killed between its parts; nothing shows, and the second start comes to the same."""
    demo = make("parts", tmp_path / "demo", 1)
    process = None

    def kill(method: str, target: str) -> Answer | None:
        if "partNumber=2" in target and process:
            process.kill()
            return error(500, "InternalError")
        return None

    fake.always = kill
    process = subprocess.Popen([PAWL, "cp", str(demo), RUN], env=environment(), stderr=subprocess.DEVNULL)
    process.wait()
    assert process.returncode == -9
    fake.always = lambda method, target: None
    assert not [key for key in fake.state() if key.endswith("manifest.json")]
    assert run_json("ls", RUN)["checkpoints"] == []
    assert states(run_json("cp", demo, RUN)) == [(1, False)]
    run("verify", RUN)


def test_a_resumed_copy_of_one_checkpoint_counts_what_it_found(tmp_path: pathlib.Path, fake: Fake) -> None:
    """P15: killed between its parts, of which the first has arrived."""
    one = f"{make('parts', tmp_path / 'demo', 1)}@id:1"
    process = None

    def kill(method: str, target: str) -> Answer | None:
        if "partNumber=2" in target and process:
            process.kill()
            return error(500, "InternalError")
        return None

    fake.always = kill
    process = subprocess.Popen([PAWL, "cp", one, RUN, "--streams", "1"], env=environment(), stderr=subprocess.DEVNULL)
    assert process.wait(HANG_SECONDS) == -9
    fake.always = lambda method, target: None
    report = run_json("cp", one, RUN)
    [row] = report["checkpoints"]
    assert row["found_bytes"] > 0 and report["sent_bytes"] == row["sent_bytes"]
    assert row["sent_bytes"] + row["found_bytes"] == row["bytes"]
    assert states(run_json("cp", one, RUN)) == [(1, True)]


def behind_its_mirror(folder: pathlib.Path, n: int = 1) -> pathlib.Path:
    """A run with checkpoints that its mirror in the bucket lacks."""
    make("parts", folder, n)
    pawl.CheckpointManager(
        folder, mirrors=[RUN], uploads=pawl.Uploads(leave_uploads=True, bytes_per_second=1000)
    ).close()
    assert run_json("sync", "-n", folder)["mirrors"][0]["waiting"] == n
    return folder


def test_a_sync_of_the_mirrors_ends_when_its_time_is_spent(tmp_path: pathlib.Path, fake: Fake) -> None:
    """P16: one request takes longer than all are allowed to. The next call uploads what is missing."""
    demo = behind_its_mirror(tmp_path / "demo")
    fake.delay = 0.2
    assert "exceeded its time limit" in run("sync", demo, "--timeout", "50ms", status=5).stderr
    fake.delay = 0
    assert [(row["done"], row["waiting"]) for row in run_json("sync", demo)["mirrors"]] == [(1, 0)]


def test_a_sync_that_is_stopped_between_two_checkpoints_is_not_a_success(tmp_path: pathlib.Path, fake: Fake) -> None:
    demo = behind_its_mirror(tmp_path / "demo", 2)
    process = None

    def stop(method: str, target: str) -> None:
        if process and method == "PUT" and target.endswith("/run/latest"):  # after the upload of the newest
            process.terminate()
            status = pathlib.Path(f"/proc/{process.pid}/status")
            wait_until(lambda: re.search(r"^ShdPnd:\t0+$", status.read_text(), re.MULTILINE), "the signal")

    fake.always = stop
    process = subprocess.Popen([PAWL, "sync", str(demo)], env=environment(), stderr=subprocess.DEVNULL)
    assert process.wait(HANG_SECONDS) == 143
    assert [(row["done"], row["waiting"]) for row in run_json("sync", "-n", demo)["mirrors"]] == [(1, 1)]


@pytest.mark.parametrize("limit", [["--streams", "1"], ["--memory", "1MiB"]], ids=lambda limit: limit[0])
def test_a_sync_of_the_mirrors_keeps_to_its_limits(tmp_path: pathlib.Path, fake: Fake, limit: list[str]) -> None:
    demo = behind_its_mirror(tmp_path / "demo")
    fake.delay, fake.most_flying = 0.05, 0
    run("sync", demo, *limit)
    assert fake.most_flying == 1
    assert "64" in run("sync", demo, "--streams", 65, status=2).stderr


FETCH = """
mount -t tmpfs -o size=6m tmpfs "$2" && echo mine >"$2/mine" || exit 99
"$1" cp "$3" "$2/run"; echo "cp $?"
cat "$2/mine"
[ -e "$2/run" ] && "$1" ls --names "$2/run"
mount -o remount,size=256m "$2" || exit 99
"$1" cp --quiet "$3" "$2/run" >"$2/out"; echo "cp $?"
"$1" verify --quiet "$2/run" >"$2/out"; echo "verify $?"
"""


def test_P4_a_disk_that_is_full_while_fetching(tmp_path: pathlib.Path, fake: Fake) -> None:
    """Nothing half is listed, what lay there is untouched, and with room the same command continues."""
    run("cp", make("parts", tmp_path / "demo", 1), RUN)
    small = tmp_path / "small"
    small.mkdir()
    unshare = ["unshare", "--user", "--map-root-user", "--mount"] if os.getuid() else ["unshare", "--mount"]
    done = subprocess.run(
        [*unshare, "sh", "-c", FETCH, "sh", str(PAWL), str(small), RUN],
        env=environment(),
        capture_output=True,
        check=False,
        text=True,
        timeout=HANG_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["cp 1", "mine", "cp 0", "verify 0"], done
    assert re.search(r"no space|space left|are free", done.stderr), done.stderr


def test_every_command_works_on_a_run_in_a_bucket(demo: pathlib.Path, tmp_path: pathlib.Path, fake: Fake) -> None:
    run("cp", demo, RUN)
    assert run("ls", "--names", RUN).stdout == run("ls", "--names", demo).stdout
    assert run_json("show", f"{RUN}@id:2")["state"] == run_json("show", f"{demo}@id:2")["state"]
    assert run("verify", RUN).stdout == run("verify", demo).stdout
    run("diff", f"{RUN}@id:2", f"{demo}@id:2")
    assert "model/layer.weight" in run("diff", f"{RUN}@id:1", f"{demo}@id:2", status=1).stdout
    assert run_json("prune", RUN, "--keep-last", 1, "-n")["deleted"] == 2
    run("pin", f"{RUN}@id:1")
    assert run_json("ls", RUN)["checkpoints"][0]["marks"] == ["pinned"]
    run("unpin", f"{RUN}@id:1")
    run("restore", f"{RUN}@id:2", tmp_path / "restored")
    assert tree_of(tmp_path / "restored") == tree_of(checkpoint(demo, 2))
    run("export", f"{RUN}@id:2", tmp_path / "m.safetensors")
    run("export", f"{demo}@id:2", tmp_path / "n.safetensors")
    assert (tmp_path / "m.safetensors").read_bytes() == (tmp_path / "n.safetensors").read_bytes()
    run("reshard", f"{RUN}@id:2", tmp_path / "two", "--world", 2)
    run("verify", tmp_path / "two")
    assert "copy the files from there" in run("export", f"{RUN}@id:2", RUN + "/m.safetensors", status=2).stderr
    assert "copies it from there" in run("reshard", f"{RUN}@id:2", RUN + "/m", "--world", 2, status=2).stderr
    run("rm", f"{RUN}@id:1")
    run("gc", RUN)
    del fake.objects["run/checkpoints/checkpoint_000002/manifest.json"]
    run("repair", f"{RUN}@checkpoint_000002")
    assert run("ls", "--names", RUN).stdout.split() == ["checkpoint_000002", "checkpoint_000003"]
    run("prune", RUN, "--keep-last", 1)
    assert run("ls", "--names", RUN).stdout.split() == ["checkpoint_000003"]
    assert "no run and no checkpoint here" in run("ls", "s3://bucket/elsewhere", status=3).stderr


def test_R137_restore_from_a_bucket_takes_an_older_one(demo: pathlib.Path, tmp_path: pathlib.Path, fake: Fake) -> None:
    run("cp", demo, RUN)
    pack = fake.objects[f"run/checkpoints/checkpoint_000003/{PACK}"]
    pack.body = pack.body[:-1] + bytes([pack.body[-1] ^ 1])
    report = run_json("restore", RUN, tmp_path / "restored")
    assert report["checkpoint"]["id"] == 2 and len(report["fallbacks"]) == 1
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) == ["demo", "restored"]


# -------------------------------------------------------------------- doctor


def test_doctor_tells_what_a_bucket_can_do_and_no_secret(fake: Fake) -> None:
    """P18, P20: found out by trying; where credentials come from, not what they are."""
    done = run("doctor", "s3://bucket/somewhere", "--json")
    assert "CANARY" not in done.stdout + done.stderr
    found = json.loads(done.stdout)["found"]
    assert found["store"] == "s3" and found["endpoint"] == fake.endpoint and found["region"] == "us-east-1"
    assert found["credentials"] == "from the environment, with a session token"
    assert found["clock skew"].startswith("none")
    assert re.fullmatch(r"\d+\.\d ms", found["round trip"])
    for key in ("writable", "reads what was written", "lists what was written", "exclusive put", "removes"):
        assert found[key] == "yes", key
    assert found["lease"] == "free"
    assert "exclusively" in found["commit of a checkpoint"]
    assert not fake.objects


def test_doctor_finds_a_poor_server_out(fake: Fake) -> None:
    fake.conditions = False
    fake.skew = 7200.0
    found = run_json("doctor", "s3://bucket/somewhere")["found"]
    assert found["exclusive put"].startswith("no: ")
    assert re.fullmatch(r"\+7(199|200|201) s .*", found["clock skew"])
    assert "up to you" in found["commit of a checkpoint"]
    fake.objects["somewhere/x"] = Object(b"x", '"x"', {})
    fake.always = lambda method, target: error(403, "AccessDenied") if method == "PUT" else None
    found = run_json("doctor", "s3://bucket/somewhere")["found"]
    assert found["writable"].startswith("no: ") and "exclusive put" not in found


def test_a_run_is_not_copied_onto_itself(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pawl.CheckpointManager(tmp_path / "demo") as manager:
        manager.save(1, {"a": 1}, wait=True)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "link").symlink_to("demo")
    for same in ("demo", "./demo/", tmp_path / "demo", "file://demo", "link"):
        says = f"{tmp_path}/demo and %s are the same run; name another place"
        path = str(same).removeprefix("file://")
        assert says % path in run("cp", "demo", same, status=2).stderr
        assert says % path in run("sync", "demo", same, status=2).stderr
        with pytest.raises(pawl.UsageError, match=re.escape(says % same)):
            pawl.copy("demo", same)
