# SPDX-License-Identifier: Apache-2.0
"""`pawl tune` and `pawl report`: searches whose trials are shell scripts and C programs: reports, checkpoints, failures, stops,
kills, resources, wrong documents."""

from __future__ import annotations

import csv
import fcntl
import io
import json
import os
import pathlib
import re
import signal
import socket
import subprocess

import pytest
from sweeps import COUNT, Sweep, compile_c, is_alive
from waiting import HANG_SECONDS, wait_until

from cli import PAWL, environment, on_terminal, run, run_json

C_TRIAL = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
	int fd = atoi(getenv("PAWL_TUNE_FD"));
	char answer[256];
	FILE *in = fdopen(fd, "r");
	for (int i = 1; i <= 100; i++) {
		dprintf(fd, "{\"report\": {\"score\": %d}}\n", i * atoi(argv[1]));
		if (fgets(answer, sizeof(answer), in) == NULL)
			return 1;
		if (strstr(answer, "\"continue\"") == NULL)
			return strstr(answer, "\"stop\"") == NULL;
	}
	return 2;
}
"""


def test_R104_R126_R129_a_search_of_a_shell_script(tmp_path: pathlib.Path) -> None:
    """Every trial's reports and checkpoints, by the names and in the files that are documented."""
    sweep = Sweep(tmp_path, COUNT, checkpoint={"keep": 2})
    sweep.run()
    trials = sweep.trials()
    assert [trial["state"] for trial in trials] == ["TERMINATED"] * 3
    for trial in trials:
        lr, folder = trial["config"]["lr"], sweep.folder / trial["name"]
        assert json.loads((folder / "params.json").read_text()) == {"lr": lr}
        results = sweep.results(trial)
        assert [row["training_iteration"] for row in results] == [1, 2, 3, 4, 5, 6]
        assert [row["loss"] for row in results] == [1000 - lr * n for n in range(1, 7)]
        kept = sorted(path.name for path in folder.glob("checkpoint_*"))
        assert kept == ["checkpoint_000005", "checkpoint_000006"]
        assert (folder / "checkpoint_000006" / "n").read_text() == "6\n"
        assert len((folder / "progress.csv").read_text().splitlines()) == 7
        assert sweep.starts(trial) == ["new"]
    best = run_json("tune", "best", sweep.folder)
    assert best["trial"]["config"] == {"lr": 3} and best["trial"]["metric"] == 982
    assert pathlib.Path(best["best_checkpoint"]) == sweep.folder / trials[2]["name"] / "checkpoint_000006"
    assert "--resume continues it" in sweep.run(status=7)


def test_a_search_of_a_C_program_in_YAML(tmp_path: pathlib.Path) -> None:
    program = compile_c(tmp_path, C_TRIAL)
    document = tmp_path / "good one.yaml"
    document.write_text(
        f"""
local_dir: {json.dumps(str(tmp_path))}
run: [{json.dumps(str(program))}, "{{inner/factor}}"]
metric: score
mode: max
stop:
  training_iteration: 4   # else it would go on to 100
space:
  inner:
    factor: {{$grid: [1, 5]}}
"""
    )
    report = run_json("tune", document)
    assert report["best"]["metric"] == 20 and report["best"]["config"] == {"inner": {"factor": 5}}
    assert [(trial["iteration"], trial["state"]) for trial in report["trials"]] == [(4, "TERMINATED")] * 2
    assert report["folder"] == str(tmp_path / "good one")
    rows = list(csv.DictReader(io.StringIO(run("tune", "export", report["folder"]).stdout)))
    assert [(row["trial"], row["score"]) for row in rows if row["training_iteration"] == "4"] == [
        (trial["name"], score) for trial, score in zip(report["trials"], ("4", "20"), strict=True)
    ]


def test_numbers_are_exported_in_their_shortest_form(tmp_path: pathlib.Path) -> None:
    script = '#!/bin/sh\n"$PAWL" report loss=0.1 sum=0.30000000000000004 whole=1e300\n'
    sweep = Sweep(tmp_path, script, space={"lr": {"$grid": [0.7]}})
    sweep.run()
    lines = run("tune", "export", str(sweep.folder)).stdout.splitlines()
    row = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    assert [row[name] for name in ("loss", "sum", "config/lr")] == ["0.1", "0.30000000000000004", "0.7"]
    assert float(row["whole"]) == 1e300
    assert '"loss":0.1,' in run("tune", "export", str(sweep.folder), "--json").stdout


FAILS = COUNT.replace(
    '"$PAWL" report', '[ $n != 4 ] || [ -e "$0.$lr" ] || { >"$0.$lr"; echo boom >&2; exit 3; }\n\t"$PAWL" report'
)


def test_R105_a_failed_trial_goes_on_from_its_last_checkpoint(tmp_path: pathlib.Path) -> None:
    sweep = Sweep(tmp_path, FAILS, max_failures=1)
    said = sweep.run()
    assert "failed, will be tried again: exit status 3: boom" in said
    for trial in sweep.trials():
        assert (trial["state"], trial["failures"], trial["iteration"]) == ("TERMINATED", 1, 6)
        assert sweep.starts(trial) == ["new", "checkpoint_000003"]


def test_a_failure_too_many_is_told_and_can_be_tried_again(tmp_path: pathlib.Path) -> None:
    """The negative control of the one before: without max_failures it is the end."""
    sweep = Sweep(tmp_path, FAILS)
    sweep.run(status=1)
    for trial in sweep.trials():
        assert (trial["state"], trial["iteration"], trial["error"]) == ("ERROR", 3, "exit status 3: boom")
        assert "boom" in (sweep.folder / trial["name"] / "error.txt").read_text()
        assert (sweep.folder / trial["name"] / "stderr").read_text() == "boom\n"
    sweep.run("--resume", status=1)
    sweep.run("--retry-failed")
    assert {(trial["state"], trial["iteration"]) for trial in sweep.trials()} == {("TERMINATED", 6)}


@pytest.mark.parametrize("reports", [1, 5, 9, 14])
def test_R128_R130_a_killed_search_goes_on(tmp_path: pathlib.Path, reports: int) -> None:
    """SIGKILL of the runner after some reports: no trial outlives it, none loses a reported checkpoint, and the end is the end
    of an undisturbed search."""
    sweep = Sweep(tmp_path, COUNT)
    with sweep.running() as process:
        wait_until(lambda: sweep.count_lines("result.json") >= reports, process=process)
        process.kill()
        process.wait(HANG_SECONDS)
    pids = [int(line.split()[0]) for path in sweep.folder.glob("*/starts") for line in path.read_text().splitlines()]
    wait_until(lambda: not any(is_alive(pid) for pid in pids))
    with (sweep.folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the guard, which ended them, holds it until it ends
    before = {trial["name"]: trial["iteration"] for trial in sweep.trials()}
    assert sum(before.values()) >= reports
    assert "--resume" in sweep.run(status=7)  # the control: it is not begun again by accident
    sweep.run("--resume")
    for trial in sweep.trials():
        assert (trial["state"], trial["iteration"]) == ("TERMINATED", 6)
        assert trial["metric"] == 1000 - 6 * trial["config"]["lr"]
        starts = sweep.starts(trial)
        if before.get(trial["name"], 0) == 6:
            assert len(starts) <= 2
        elif before.get(trial["name"], 0) > 0:
            assert starts[-1] >= f"checkpoint_{before[trial['name']]:06d}"
    assert run_json("tune", "best", sweep.folder)["trial"]["config"] == {"lr": 3}


# Reports once, then waits for a file before it continues; never ends by itself before that.
WAITS = r"""#!/bin/sh
set -e
echo "$$ ${PAWL_TUNE_CHECKPOINT:-new}" >>"$PAWL_TUNE_FOLDER/starts"
n=0
[ -z "$PAWL_TUNE_CHECKPOINT" ] || n=$(cat "$PAWL_TUNE_CHECKPOINT/n")
while [ "$n" -lt 3 ]; do
	n=$((n + 1))
	mkdir -p "$PAWL_TUNE_FOLDER/.out"
	echo "$n" >"$PAWL_TUNE_FOLDER/.out/n"
	"$PAWL" report loss=$n -c "$PAWL_TUNE_FOLDER/.out"
	[ "$n" != 1 ] || [ -n "$PAWL_TUNE_CHECKPOINT" ] || while [ ! -e "$0.go" ]; do sleep 0.02; done
done
"""


def test_R130_a_stopped_search_lets_its_trials_save_and_goes_on(tmp_path: pathlib.Path) -> None:
    sweep = Sweep(tmp_path, WAITS, space={"lr": {"$grid": [1, 2]}})
    with sweep.running() as process:
        wait_until(lambda: sweep.count_lines("result.json") == 2, process=process)
        assert f"process {process.pid}" in sweep.run("--resume", status=6)
        stop = subprocess.Popen([PAWL, "tune", "stop", str(sweep.folder)], env=environment(), stderr=subprocess.PIPE)
        assert process.stderr
        for line in process.stderr:
            if "stopping: 2 trials" in line:
                break
        (tmp_path / "trial.sh.go").touch()
        assert process.wait(HANG_SECONDS) == 130
        stop.communicate(timeout=HANG_SECONDS)
        assert stop.returncode == 0
    assert [(trial["state"], trial["iteration"]) for trial in sweep.trials()] == [("PENDING", 2)] * 2
    assert "no process runs this search" in run("tune", "stop", sweep.folder, status=3).stderr
    sweep.run("--resume")
    for trial in sweep.trials():
        assert (trial["state"], trial["iteration"], trial["failures"]) == ("TERMINATED", 3, 0)
        assert sweep.starts(trial) == ["new", "checkpoint_000002"]


def test_stop_signals_no_other_process_than_the_one_in_the_note(tmp_path: pathlib.Path) -> None:
    """A number that is too large for a process is not cut to the one of another process."""
    sweep = Sweep(tmp_path, COUNT, space={"lr": {"$grid": [1]}}, grace_s=1)
    sweep.run()
    host = socket.gethostname()
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as other, (sweep.folder / ".lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (sweep.folder / ".runner").write_text(f"{2**32 + other.pid} {signal.SIGINT.value} {host}\n")
        assert "no process runs this search" in run("tune", "stop", sweep.folder, status=3).stderr
        assert other.poll() is None
        assert other.stdin
        other.stdin.close()
        assert other.wait(HANG_SECONDS) == 0


def test_a_trial_that_does_not_end_is_killed(tmp_path: pathlib.Path) -> None:
    """P16: one that ignores SIGTERM and never reports again."""
    script = '#!/bin/sh\ntrap "" TERM\necho $$ x >"$PAWL_TUNE_FOLDER/starts"\n"$PAWL" report loss=1\nwhile :; do sleep 0.05; done\n'
    sweep = Sweep(tmp_path, script, space={}, grace_s=0.2)
    with sweep.running() as process:
        wait_until(lambda: sweep.count_lines("result.json") == 1, process=process)
        process.send_signal(signal.SIGTERM)
        assert process.wait(HANG_SECONDS) == 143
    [trial] = sweep.trials()
    assert (trial["state"], trial["failures"]) == ("PENDING", 0)
    assert not is_alive(int((sweep.folder / trial["name"] / "starts").read_text().split()[0]))


def test_a_trial_without_a_sign_of_life_has_failed_and_starts_again(tmp_path: pathlib.Path) -> None:
    """P16: silent forever at its first start. (That one which says that it lives is left alone: test_tune_clock.)"""
    script = """#!/bin/sh
[ -e "$0.started" ] || { >"$0.started"; exec sleep 100000; }
echo '{"heartbeat": 1}' >&"$PAWL_TUNE_FD"
"$PAWL" report loss=0
"""
    sweep = Sweep(tmp_path, script, space={}, heartbeat_s=5, max_failures=-1)
    assert "failed, will be tried again: no sign of life for 5 s" in sweep.run()
    [trial] = sweep.trials()
    assert (trial["state"], trial["iteration"]) == ("TERMINATED", 1) and trial["failures"] >= 1


@pytest.mark.parametrize("stop", [{"training_iteration": 3}, {"time_total_s": 0.001}, {"loss": 0}])
def test_a_trial_ends_at_its_limits(tmp_path: pathlib.Path, stop: dict[str, float]) -> None:
    """Of iterations, of its own time, of any metric; by itself it would never end."""
    sweep = Sweep(tmp_path, '#!/bin/sh\nset -e\nwhile :; do "$PAWL" report loss=0; done\n', space={}, stop=stop)
    sweep.run()
    [trial] = sweep.trials()
    assert trial["state"] == "TERMINATED" and (trial["iteration"] == 3 or "loss" in stop or "time_total_s" in stop)
    [(name, limit)] = stop.items()
    assert sweep.results(trial)[-1][name] >= limit and sweep.results(trial)[-1]["done"] is True


def test_a_search_ends_when_its_time_is_spent_and_goes_on(tmp_path: pathlib.Path) -> None:
    """What runs then ends as finished; what had no place yet begins at the next call. By themselves the trials would not
    end before there is a file."""
    script = '#!/bin/sh\nset -e\nwhile :; do "$PAWL" report loss="$1"; [ ! -e "$0.enough" ] || exit 0; done\n'
    sweep = Sweep(tmp_path, script, time_budget_s=2)
    assert "the time budget of 2 s is spent" in sweep.run()
    before = sweep.trials()
    assert len(before) < 3 and {trial["state"] for trial in before} <= {"TERMINATED"}
    (tmp_path / "trial.sh.enough").touch()
    sweep.change(time_budget_s=0)
    sweep.run("--resume")
    after = sweep.trials()
    assert after[: len(before)] == before and [trial["state"] for trial in after] == ["TERMINATED"] * 3


def test_devices_are_shared_out(tmp_path: pathlib.Path) -> None:
    """Each trial sees its own; two at a time, because there are two."""
    script = """#!/bin/sh
echo "$CUDA_VISIBLE_DEVICES $OMP_NUM_THREADS" >"$PAWL_TUNE_FOLDER/devices"
"$PAWL" report loss=0
while [ $(ls "$PAWL_TUNE_FOLDER"/../*/devices | wc -l) -lt 2 ]; do sleep 0.02; done
"""
    sweep = Sweep(tmp_path, script, space={"lr": {"$grid": [1, 2, 3, 4]}}, resources={"cpu": 0.5, "gpu": 1})
    sweep.run(CUDA_VISIBLE_DEVICES="4,GPU-7", OMP_NUM_THREADS="")
    seen = [(sweep.folder / trial["name"] / "devices").read_text().split()[0] for trial in sweep.trials()]
    assert sorted(seen[:2]) == ["4", "GPU-7"] and set(seen) == {"4", "GPU-7"}
    sweep.change(name="t", resources={"gpu": 3})
    assert "resources.gpu: a trial needs 3 devices, there are 2" in sweep.run(status=2, CUDA_VISIBLE_DEVICES="4,GPU-7")


GREEDY = r"""
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
static int is_in_group(void)
{
	char text[4096];
	FILE *file = fopen("/proc/self/cgroup", "r");
	size_t n = fread(text, 1, sizeof(text) - 1, file);
	fclose(file);
	text[n] = 0;
	return strstr(text, "/pawl-") != NULL;
}
int main(int argc, char **argv)
{
	size_t nbytes = (size_t)atoi(argv[1]) << 20;
	char *memory;
	while (argc > 2 && !is_in_group())
		usleep(10000);
	memory = malloc(nbytes);
	memset(memory, argc, nbytes);
	dprintf(atoi(getenv("PAWL_TUNE_FD")), "{\"report\": {\"loss\": %d}}\n", memory[nbytes / 2]);
	sleep(nbytes > 64u << 20 ? 1000 : 3);
	return 0;
}
"""


def memory_sweep(folder: pathlib.Path, by_group: bool) -> Sweep:
    """by_group: its trials take nothing before they are in a control group."""
    run = [str(compile_c(folder, GREEDY)), "{mb}", *["wait"] * by_group]
    return Sweep(folder, "", run=run, space={"mb": {"$grid": [200, 20]}}, resources={"memory_bytes": 100_000_000})


def test_a_trial_that_uses_too_much_memory_has_failed(tmp_path: pathlib.Path) -> None:
    """P16; the other one, which uses less, is left alone. By a control group where this process may make one; that is
    found out here without asking pawl."""
    by_group = is_v1_ours()
    sweep = memory_sweep(tmp_path, by_group)
    sweep.run(status=1)
    greedy, modest = sweep.trials()
    text = "it used more memory than the 100 MB that it may use"
    assert greedy["state"] == "ERROR" and modest["state"] == "TERMINATED"
    assert greedy["error"] == text if by_group else "100" in greedy["error"] and "memory" in greedy["error"]


def is_v1_ours() -> bool:
    """May groups with the memory controller of version 1 be made below our own?"""
    lines = [line.split(":", 2) for line in pathlib.Path("/proc/self/cgroup").read_text().splitlines()]
    paths = [path for _, names, path in lines if "memory" in names.split(",") and "/.." not in path]
    group = pathlib.Path(f"/sys/fs/cgroup/memory{paths[0] if paths else ''}/tried-{os.getpid()}")
    try:
        group.mkdir()
    except OSError:
        return False
    try:
        (group / "memory.limit_in_bytes").write_text("100000000")
        return True
    except OSError:
        return False
    finally:
        group.rmdir()


def test_a_trial_that_uses_too_much_memory_has_failed_without_control_groups(tmp_path: pathlib.Path) -> None:
    sweep = memory_sweep(tmp_path, False)
    unshare = ["unshare", "--user", "--map-root-user", "--mount"] if os.getuid() else ["unshare", "--mount"]
    hidden = 'mount -t tmpfs none /sys/fs/cgroup && exec "$0" "$@"'
    words = [*unshare, "sh", "-c", hidden, PAWL, "tune", str(sweep.file), "--cpus", "2"]
    done = subprocess.run(words, env=environment(PAWL=PAWL), capture_output=True, text=True, timeout=HANG_SECONDS)
    assert done.returncode == 1, done.stderr
    greedy, modest = sweep.trials()
    assert greedy["state"] == "ERROR" and "of memory, it may use 100" in greedy["error"]
    assert modest["state"] == "TERMINATED"


@pytest.mark.parametrize("scheduler", ["hyperband", "bohb"])
def test_paused_trials_go_on_from_their_checkpoints(tmp_path: pathlib.Path, scheduler: str) -> None:
    """R105: HyperBand pauses between its rungs, and so do the brackets of BOHB; a trial that continues does so from what it
    had saved."""
    sweep = Sweep(
        tmp_path,
        COUNT.replace('"$last"', "100"),
        space={"lr": {"$grid": [1, 2, 3, 4]}},
        scheduler={"type": scheduler, "max_t": 4, "reduction_factor": 2},
        checkpoint={"keep": 1},
    )
    said = sweep.run()
    trials = sweep.trials()
    assert "paused" in said
    assert {trial["state"] for trial in trials} == {"TERMINATED"}
    assert max(trial["iteration"] for trial in trials) == 4
    again = [start for trial in trials for start in sweep.starts(trial)[1:]]
    assert again and "new" not in again


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"schedular": {}}, 2, "key 'schedular' is not known; did you mean 'scheduler'? (known: name"),
        ({"scheduler": {"type": "best"}}, 2, "best"),
        ({"space": {"lr": {"$uniform": [2, 1]}}}, 2, "lr"),
        ({"space": {"lr": {"$oops": [2, 1]}}}, 2, "$oops"),
        ({"run": []}, 2, "run"),
        ({"run": ["true", "{rate}"]}, 2, "the space has no 'rate' (known: lr"),
        ({"run": ["/no/such/program"]}, 3, "/no/such/program: there is no such program"),
        ({"run": ["python3", "missing.py"]}, 1, "missing.py"),
        ({"run": ["true", "{{lr}}"]}, 1, "no argument names a value of the space, such as {lr}"),
        ({"run": ["true"]}, 1, "failed: it ended without a report of 'loss', which the experiment needs"),
        ({"run": ["sh", "-c", "printf 'odd \\377 bytes' >&2; exit 3"]}, 1, "exit status 3: odd"),
        ({"run": ["sh", "-c", '"$PAWL" report other=1']}, 1, "loss"),
        ({"run": ["sh", "-c", 'echo nonsense >&"$PAWL_TUNE_FD"; "$PAWL" report loss=1']}, 1, "a message of the trial"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: pathlib.Path, change: dict[str, object], status: int, message: str) -> None:
    assert message in Sweep(tmp_path, COUNT, **change).run(status=status)


def test_wrong_calls_and_files(tmp_path: pathlib.Path) -> None:
    assert "DIR is missing" in run("tune", "ls", status=2).stderr
    assert "unexpected argument 'b'" in run("tune", "a.yaml", "b", status=2).stderr
    assert "No such file" in run("tune", tmp_path / "a.yaml", status=3).stderr
    (tmp_path / "a.yaml").write_text("run: [1,\n2\nname: x\n")
    assert "a.yaml:3: while parsing a flow sequence" in run("tune", tmp_path / "a.yaml", status=2).stderr
    assert "write the document as YAML (sweep.yaml)" in run("tune", tmp_path / "a.toml", status=2).stderr
    (tmp_path / "a.json").write_text('{"run": [}')
    assert "a.json: byte 9: expected a value" in run("tune", tmp_path / "a.json", status=2).stderr
    assert run("tune", "ls", tmp_path, status=3).stderr
    for word in ("ls", "show", "best", "export", "stop"):
        for url in ("s3:/b/x", "s3://b/x"):
            told = run("tune", word, url, status=2).stderr
            assert f"{url}: expected a folder of this machine, found a URL" in told


def test_a_dry_run_shows_what_would_be_tried(tmp_path: pathlib.Path) -> None:
    sweep = Sweep(tmp_path, COUNT, run=["train", "--lr={lr}", "{{x}}"], num_samples=20)
    shown = run("tune", sweep.file, "-n")
    assert "train --lr=1 {x}" in shown.stdout and "and 40 more" in shown.stderr
    plan = run_json("tune", sweep.file, "--dry-run")
    assert plan["trials"] == 60 and plan["configs"][:3] == [{"lr": 1}, {"lr": 2}, {"lr": 3}]
    assert not sweep.folder.exists()
    sweep.change(run=["train", "{rate}"])
    assert "the space has no 'rate'" in run("tune", sweep.file, "-n", status=2).stderr


def test_what_a_trial_hands_in(tmp_path: pathlib.Path) -> None:
    """A folder, a file, a folder on another disk, one already in its place, the same number twice, not a number."""
    script = r"""#!/bin/sh
set -e
cd "$PAWL_TUNE_FOLDER"
mkdir -p "$0.out/sub"; echo folder >"$0.out/sub/x"; "$PAWL" report loss=3 -c "$0.out/"
echo file >model.bin; "$PAWL" report loss=2 -c model.bin
elsewhere=$(mktemp -d -p /dev/shm); echo far >"$elsewhere/x"; "$PAWL" report loss=nan note=hello -c "$elsewhere"
[ ! -e "$elsewhere" ]
mkdir checkpoint_mine; echo mine >checkpoint_mine/x; "$PAWL" report loss=1e-3 -c checkpoint_mine
mkdir again; echo again >again/x; "$PAWL" report loss=1 -c again --step 1
"$PAWL" report loss=1 -c nothing && exit 1
"$PAWL" report loss && exit 1
"$PAWL" report loss=1 --json >answer
"""
    sweep = Sweep(tmp_path, script, space={})
    sweep.run()
    [trial] = sweep.trials()
    folder = sweep.folder / trial["name"]
    names = [checkpoint["name"] for checkpoint in trial["checkpoints"]]
    assert sorted(set(names)) == ["checkpoint_000001", "checkpoint_000002", "checkpoint_000003", "checkpoint_mine"]
    assert (folder / "checkpoint_000002" / "model.bin").read_text() == "file\n"
    assert (folder / "checkpoint_000003" / "x").read_text() == "far\n"
    assert (folder / "checkpoint_mine" / "x").read_text() == "mine\n"
    assert (folder / "checkpoint_000001" / "x").read_text() == "again\n"
    assert [row["loss"] for row in sweep.results(trial)] == [3, 2, "NaN", 0.001, 1, 1]
    assert sweep.results(trial)[2]["note"] == "hello"
    assert json.loads((folder / "answer").read_text())["verdict"] == "continue"
    assert not [path for path in os.listdir(folder) if path.startswith(".") or path.endswith("partial")]


def test_a_report_outside_of_a_search_says_so_and_succeeds() -> None:
    done = run("report", "loss=0.5")
    assert 'not inside a trial, nothing was reported: {"loss":0.5}' in done.stderr
    assert run_json("report", "loss=0.5")["trial"] is False
    assert "expected NAME=VALUE" in run("report", "=1", status=2).stderr
    assert "PAWL_TUNE_FD: expected the number" in run("report", "a=1", status=2, PAWL_TUNE_FD="99").stderr


def test_the_table_on_a_terminal(tmp_path: pathlib.Path) -> None:
    """It is drawn over itself while trials run; what stays is the table at the end."""
    sweep = Sweep(tmp_path, COUNT)
    shown = on_terminal("tune", sweep.file, "--cpus", 1, columns=160, PAWL=PAWL)
    assert "3 trials: 3 finished" in shown and "checkpoint_000006" in shown
    final = shown[shown.rindex("\x1b[J") :]
    assert final.count("TERMINATED") == 3 and "best" in final and str(sweep.folder) in final
    assert re.search(r"trial +state +iter .*best +checkpoint +host", re.sub(r"\x1b\[\d*m", "", final)), final
    assert "RUNNING" in shown[: shown.rindex("\x1b[J")]


def test_R127_a_search_that_keeps_few_checkpoints_at_its_place_has_nothing_to_report(tmp_path: pathlib.Path) -> None:
    sweep = Sweep(tmp_path, COUNT, checkpoint={"keep": 1}, sync={"upload_dir": str(tmp_path / "far")})
    assert "old checkpoints" not in sweep.run()
    names = [path.name for path in (tmp_path / "far").rglob("checkpoint_*") if path.is_dir()]
    assert names == ["checkpoint_000006"] * len(sweep.trials())
