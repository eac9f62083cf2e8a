# SPDX-License-Identifier: Apache-2.0
"""The command as a program: options, help, completions, the manual page, terminals, signals, hostile names."""

from __future__ import annotations

import os
import pathlib
import re
import shutil
import signal
import subprocess
import threading

import numpy as np
import pytest
from s3_fake import serving
from waiting import HANG_SECONDS, wait_until

import pawl
from cli import (
    COMMANDS,
    ESCAPES,
    PAWL,
    FullPipe,
    Terminal,
    checkpoint,
    environment,
    flip,
    make,
    on_terminal,
    run,
    run_json,
)


@pytest.fixture(name="demo", scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Not to be changed by a test."""
    return make("run", tmp_path_factory.mktemp("runs") / "demo", 4)


@pytest.fixture(name="large", scope="module")
def large_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """Takes longer to read than it takes to press a key."""
    return make("large", tmp_path_factory.mktemp("runs") / "large", 60)


# ------------------------------------------------------------- options


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["ls", "--jsn"], "unknown option --jsn; did you mean --json? (known: --bad, --recursive, "),
        (["ls", "-x"], "unknown option -x (known: --bad"),
        (["prune", ".", "--num-to-keep", "1"], "unknown option --num-to-keep; use --keep-last"),
        (["ls", "--score-attribute", "a"], "unknown option --score-attribute; use --by"),
        (["ls", "--num-to-keep", "1"], "unknown option --num-to-keep (known: --bad"),
        (["prune", ".", "--keep-last"], "option --keep-last needs a value: N"),
        (["prune", ".", "--keep-last", "0"], "option --keep-last: expected a whole number from 1, found '0'"),
        (["prune", ".", "--keep-last=-3"], "option --keep-last: expected a whole number from 1, found '-3'"),
        (["prune", ".", "--max-bytes", "5parsec"], "option --max-bytes: expected a size such as 500MB, 2GiB or 2G"),
        (["prune", ".", "--max-bytes", "nan"], "option --max-bytes: expected a size"),
        (["prune", ".", "--younger-than", "soon"], "option --younger-than: expected a time such as 90s, 30min"),
        (["prune", ".", "--order", "up"], "option --order: expected max|min, found 'up'"),
        (["ls", "--json=yes"], "option --json takes no value, found 'yes'"),
        (["ls", "--color", "pink"], "option --color: expected auto|always|never, found 'pink'"),
        (["diff", "a"], "B is missing (usage: pawl diff [options] A B)"),
        (["show", "a", "b"], "unexpected argument 'b' (usage: pawl show [options] [TARGET])"),
        (["lst"], "unknown command 'lst'; did you mean 'ls'? (known: ls, du, show, "),
        (["--foo"], "unknown option --foo"),
        (["completion", "tcsh"], "unknown shell 'tcsh' (known: bash, zsh, fish)"),
        (["show", ".", "--tensors", "--files"], "--tensors and --files cannot be combined; give one of them"),
    ],
)
def test_a_wrong_call_names_what_is_wrong_and_what_is_known(args: list[str], message: str) -> None:
    done = run(*args, status=2)
    assert message in done.stderr
    assert done.stdout == ""


def test_options_and_operands_may_be_mixed_joined_and_ended(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert run("ls", "--last=1", demo, "--names").stdout == run("ls", demo, "--names", "--last", "1").stdout
    assert run("ls", "-qvC", demo.parent, demo.name).stdout
    assert run(f"-C{demo.parent}", "ls", "--", demo.name).stdout
    dash = tmp_path / "-demo"
    shutil.copytree(demo, dash, symlinks=True)
    assert run("-C", tmp_path, "ls", "--names", "--", "-demo").stdout == run("ls", demo, "--names").stdout
    assert "no such file or folder" in run("ls", "--", "--json", status=3).stderr


def test_failures_have_the_exit_status_of_their_code_and_a_json_document(tmp_path: pathlib.Path) -> None:
    for args, status, code in ((["ls", tmp_path / "x"], 3, "not-found"), (["prune", tmp_path], 2, "usage")):
        report = run_json(*args, status=status)
        assert report["command"] == args[0]
        assert report["error"]["exit_status"] == status and report["error"]["message"]
        assert report["error"]["code"] == code


def sweep_file(folder: pathlib.Path) -> pathlib.Path:
    file = folder / "sweep.yaml"
    file.write_text("run: ['true', '{lr}']\nmetric: loss\nspace:\n  lr: {$grid: [1, 2]}\n")
    return file


def test_every_command_prints_one_json_document(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    work = tmp_path / "work"
    shutil.copytree(demo, work, symlinks=True)
    calls: dict[str, list[object]] = {
        "ls": [work],
        "du": [work],
        "show": [work],
        "diff": [f"{work}@id:1", "@id:1"],
        "verify": [work],
        "restore": [work, tmp_path / "restored"],
        "cp": [work, tmp_path / "copied"],
        "sync": [work, tmp_path / "synced"],
        "convert": [work, tmp_path / "y.safetensors"],
        "export": [work, tmp_path / "x.safetensors"],
        "reshard": [work, tmp_path / "resharded", "-w", 2],
        "prune": [work, "--keep-last", 3],
        "pin": [f"{work}@latest"],
        "unpin": [f"{work}@latest"],
        "score": [f"{work}@latest", "accuracy=0.5"],
        "rm": [f"{work}@id:2"],
        "gc": [work],
        "repair": [work],
        "doctor": [tmp_path],
        "bench": [tmp_path, "-s", "64KiB", "-r", 1],
        "tune": [sweep_file(tmp_path), "--dry-run"],
        "report": ["loss=1"],
        "help": [],
        "version": [],
    }
    assert set(calls) == set(COMMANDS) - {"completion"}
    for command, args in calls.items():
        assert run_json(command, *args)["command"] == command


def test_quiet_leaves_only_data_and_verbose_adds(demo: pathlib.Path) -> None:
    assert run("verify", demo).stderr and not run("verify", demo, "-q").stderr
    assert "checkpoint_000001" not in run("ls", demo).stdout
    assert "checkpoint_000001" in run("ls", demo, "-v").stdout


def test_version_and_no_command() -> None:
    version = run("version").stdout
    assert re.fullmatch(r"pawl \d+\.\d+\.\d+ \(writes format 1\)\n", version)
    assert run("--version").stdout == run("ls", "--version").stdout == version
    done = run(status=2)
    assert done.stdout == "" and "usage: pawl COMMAND" in done.stderr


def test_output_to_a_full_disk_is_a_failure(demo: pathlib.Path) -> None:
    with open("/dev/full", "w") as full:
        done = subprocess.run([PAWL, "ls", demo], stdout=full, stderr=subprocess.PIPE, text=True, env=environment())
    assert done.returncode == 1 and "standard output" in done.stderr


# ------------------------------------------ help, completions, manual page


def test_help_mentions_every_command_and_option() -> None:
    overview = run("help").stdout
    assert overview == run("--help").stdout
    tables = run_json("help")
    assert [command["name"] for command in tables["commands"]] == COMMANDS
    for command in tables["commands"]:
        assert re.search(rf"^  {command['name']} ", overview, re.MULTILINE)
        page = run("help", command["name"]).stdout
        assert page == run(command["name"], "--help").stdout
        assert command["usage"] in page
        for option in command["options"] + tables["options"]:
            assert f"--{option['name']}" in page
        assert max(map(len, page.splitlines())) <= 80, page
    assert "unknown command 'nonsense'" in run("help", "nonsense", status=2).stderr


def test_manual_page_is_clean_and_mentions_everything(tmp_path: pathlib.Path) -> None:
    page = tmp_path / "pawl.1"
    page.write_text(run("man").stdout)
    text = page.read_text()
    for command in run_json("help")["commands"]:
        assert f".Ss {command['name']}\n" in text
        for option in command["options"]:
            assert "Fl \\-" + option["name"].replace("-", "\\-") in text
    linters = [["mandoc", "-Tlint", page], ["man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", page]]
    present = [linter for linter in linters if shutil.which(str(linter[0]))]
    assert present, "neither mandoc nor man is installed"
    for linter in present:
        done = subprocess.run(linter, capture_output=True, text=True, env=environment())
        complaints = done.stdout if linter[0] == "mandoc" else done.stderr
        assert done.returncode == 0 and complaints == "", complaints


def complete(tmp_path: pathlib.Path, *words: str) -> set[str]:
    """What bash offers for the last word."""
    script = tmp_path / "completion.bash"
    script.write_text(run("completion", "bash").stdout)
    subprocess.run(["bash", "-n", script], check=True)
    quoted = " ".join(f"'{word}'" for word in words)
    code = f"source '{script}'; COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; _pawl; "
    code += "printf '%s\\n' \"${COMPREPLY[@]}\""
    path = f"{pathlib.Path(PAWL).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, env=environment(PATH=path))
    assert done.stderr == ""
    return set(done.stdout.splitlines())


def test_bash_completes_commands_options_values_and_checkpoints(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    assert complete(tmp_path, "pawl", "") == set(COMMANDS)
    assert complete(tmp_path, "pawl", "ver") == {"verify", "version"}
    rules = {"last", "best", "every", "hourly", "daily", "weekly"}
    assert complete(tmp_path, "pawl", "prune", "--keep-") == {f"--keep-{rule}" for rule in rules}
    assert complete(tmp_path, "pawl", "ls", "--order", "") == {"max", "min"}
    assert complete(tmp_path, "pawl", "completion", "") == {"bash", "zsh", "fish"}
    assert f"{demo}@latest" in complete(tmp_path, "pawl", "show", f"{demo}@")
    assert complete(tmp_path, "pawl", "show", f"{demo}@checkpoint_000003") == {f"{demo}@checkpoint_000003"}
    assert complete(tmp_path, "pawl", "show", str(demo), "@", "b") == {"best"}


def test_bash_runs_no_command_that_a_name_contains(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither while it completes, nor when the line that it completed is entered."""
    name = "m$(touch ran) *.pt"
    files, folder = tmp_path / "files", tmp_path / "a $(touch ran) *"
    files.mkdir()
    folder.mkdir()
    (files / name).write_bytes(b"x")
    monkeypatch.chdir(tmp_path)
    for words, before in (((f"{files}@",), f"{files}@"), ((str(files), "@"), "")):
        [offered] = complete(tmp_path, "pawl", "show", *words) - {
            f"{before}{word}" for word in ("latest", "best", "good")
        }
        done = subprocess.run(["bash", "-c", f"printf %s {offered}"], capture_output=True, text=True, check=True)
        assert done.stdout == before + name
    for argument in (("pawl", "ls"), ("pawl", "ls", "-C")):
        assert complete(tmp_path, *argument, str(folder)[:-1]) == {str(folder)}
    assert not (tmp_path / "ran").exists()


def test_completions_of_all_shells_mention_every_command_and_option() -> None:
    tables = run_json("help")
    for shell in ("bash", "zsh", "fish"):
        script = run("completion", shell).stdout
        for command in tables["commands"]:
            assert re.search(rf"\b{command['name']}\b", script)
            for option in command["options"]:
                assert (f"-l {option['name']}" if shell == "fish" else f"--{option['name']}") in script
        if shutil.which(shell):
            flags = ["--no-config", "-n"] if shell == "fish" else ["-n"]
            done = subprocess.run([shell, *flags, "/dev/stdin"], input=script, capture_output=True, text=True)
            assert done.returncode == 0, done.stderr


# ----------------------------------------------------------- terminals


def test_piped_output_has_no_escape_codes(demo: pathlib.Path) -> None:
    for args in (["ls", demo], ["show", demo], ["verify", demo], ["prune", demo, "--keep-last", 1, "-n"], ["help"]):
        done = run(*args, TERM="xterm-256color")
        assert "\x1b" not in done.stdout + done.stderr and "\r" not in done.stdout + done.stderr


def test_a_terminal_gets_colour(demo: pathlib.Path) -> None:
    for args in (["ls", demo], ["show", demo], ["verify", demo], ["prune", demo, "--keep-last", 1, "-n"]):
        out = on_terminal(*args)
        assert "\x1b[" in out
        assert ESCAPES.sub("", out).count("\x1b") == 0
    assert "\x1b[36mlatest\x1b[0m" in on_terminal("ls", demo)


@pytest.mark.parametrize(
    "env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}, {"CLICOLOR": "0"}, {"TERM": ""}], ids=lambda env: next(iter(env))
)
def test_colour_can_be_turned_off(demo: pathlib.Path, env: dict[str, str]) -> None:
    assert "\x1b" not in on_terminal("ls", demo, **env)


def test_colour_can_be_forced(demo: pathlib.Path) -> None:
    assert "\x1b[" in run("ls", demo, CLICOLOR_FORCE="1").stdout
    assert "\x1b[" in run("ls", demo, "--color=always", NO_COLOR="1").stdout
    assert "\x1b[" not in run("ls", demo, CLICOLOR_FORCE="1", NO_COLOR="1").stdout
    assert "\x1b[" not in on_terminal("ls", demo, "--color=never")
    assert "\x1b[" in on_terminal("ls", demo, NO_COLOR="")


@pytest.mark.parametrize("columns", [40, 60, 80, 100, 200])
def test_tables_fit_the_terminal(demo: pathlib.Path, columns: int) -> None:
    out = ESCAPES.sub("", on_terminal("ls", demo, columns=columns))
    lines = [line for line in out.replace("\r", "").splitlines() if line]
    assert max(map(len, lines)) <= columns
    assert lines[0].split()[:2] == ["id", "step"] and "latest" in lines[4]
    assert ("blocked" in lines[0]) >= (columns >= 100)
    assert ("blocked" in lines[0]) <= (columns > 60)


def test_progress_only_where_a_terminal_is(large: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()

    def hold(method: str, target: str) -> None:
        """Until the line was drawn, which is after a while."""
        if method == "GET" and "/rank" in target:
            assert go.wait(HANG_SECONDS)

    with serving(monkeypatch) as fake:
        pawl.save({"w": np.zeros(1 << 18)}, "s3://bucket/one")
        fake.before = hold
        terminal = Terminal("verify", "s3://bucket/one")
        terminal.read(until=lambda out: "verifying" in out and "\x1b[K" in out)
        go.set()
        assert terminal.status() == 0
    assert "verifying" not in ESCAPES.sub("", terminal.output).split("\r")[-1], "the line was left behind"
    for args, env in ((["--no-progress"], {}), ([], {"TERM": "dumb"})):
        terminal = Terminal("verify", large, *args, **env)
        terminal.read(until=lambda out: "checkpoint_000030" in out)
        terminal.interrupt()
        terminal.status()
        assert "verifying" not in terminal.output
    assert told_to_end(large, signal.SIGINT) == (130, "pawl verify: interrupted\n")


# -------------------------------------------------------------- signals


def has_taken(pid: int, number: signal.Signals) -> bool:
    """Whether the process has ended, or has no such signal before it and all its threads wait."""
    folder = pathlib.Path("/proc", str(pid))
    try:
        [pending] = re.findall(r"^ShdPnd:\s*(\w+)$", (folder / "status").read_text(), re.M)
        states = [(task / "stat").read_text().rpartition(") ")[2][0] for task in (folder / "task").iterdir()]
    except OSError:  # a thread has just ended
        return False
    return set(states) == {"Z"} or (set(states) == {"S"} and not int(pending, 16) >> (number - 1) & 1)


def told_to_end(large: pathlib.Path, number: signal.Signals) -> tuple[int, str]:
    """Exit status and errors of a verify that gets a signal in its midst: there it waits until its output is read."""
    pipe = FullPipe()
    before = signal.signal(number, signal.SIG_DFL)  # nohup has SIGHUP ignored, and so does a child of it
    process = subprocess.Popen([PAWL, "verify", large], stdout=pipe.writer, stderr=subprocess.PIPE, text=True)
    signal.signal(number, before)
    wait_until(pipe.has_more, "the first line", process)
    process.send_signal(number)
    wait_until(lambda: has_taken(process.pid, number), "the signal to be taken")
    assert 0 < pipe.read().count("checkpoint_") < 60
    _, err = process.communicate(timeout=HANG_SECONDS)
    return process.returncode, err


def test_interrupting_verify_exits_130(large: pathlib.Path) -> None:
    pipe = FullPipe()
    terminal = Terminal("verify", large, stdout=pipe.writer)
    wait_until(pipe.has_more, "the first line")
    terminal.interrupt()
    terminal.read(until=lambda out: "^C" in out)
    wait_until(lambda: has_taken(terminal.pid, signal.SIGINT), "the signal to be taken")
    assert 0 < pipe.read().count("checkpoint_") < 60
    assert terminal.status() == 130
    assert "interrupted" in terminal.output


def test_interrupting_restore_leaves_nothing(large: pathlib.Path, tmp_path: pathlib.Path) -> None:
    terminal = Terminal("restore", large, tmp_path / "dest")
    terminal.read(until=lambda out: "copying" in out or "verifying" in out or "dest" in out)
    terminal.interrupt()
    terminal.status()
    assert [path.name for path in tmp_path.iterdir()] in ([], ["dest"])
    if (tmp_path / "dest").exists():  # it was there before the key was pressed
        run("verify", tmp_path / "dest")


def test_interrupting_bench_leaves_nothing(tmp_path: pathlib.Path) -> None:
    terminal = Terminal("bench", tmp_path, "--size", "16MiB", "--repeat", "100000")
    terminal.read(until=lambda out: "%" in out)
    terminal.interrupt()
    assert terminal.status() == 130
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_end_it_without_a_terminal_too(large: pathlib.Path, number: signal.Signals, status: int) -> None:
    found, err = told_to_end(large, number)
    assert found == status and "interrupted" in err


def test_works_where_interrupts_are_ignored(demo: pathlib.Path) -> None:
    done = subprocess.run(
        ["bash", "-c", f"trap '' INT; '{PAWL}' ls '{demo}' --names"], capture_output=True, text=True, env=environment()
    )
    assert done.returncode == 0 and "checkpoint_000001" in done.stdout


# -------------------------------------------------------- hostile names


@pytest.mark.parametrize("args", [["ls"], ["ls", "-v"], ["show"], ["show", "--all"], ["verify"]])
def test_control_bytes_in_names_never_reach_the_terminal(tmp_path: pathlib.Path, args: list[str]) -> None:
    """Row T13 of the threat table."""
    folder = make("hostile", tmp_path / "bad\x1b[31m\x07run")
    out = on_terminal(args[0], folder, *args[1:])
    assert not re.search(r"[\x00-\x08\x0b-\x0c\x0e-\x1a\x1c-\x1f\x7f\x80-\x9f\u202a-\u202e]", out)
    assert "\x1b" not in ESCAPES.sub("", out.replace("\x1b[K", ""))
    assert not re.search(r"\x1b\[(?!0m|1m|2m|3[1-6]m|K)", out), "a sequence that is not ours"
    assert "\x1b[31m" not in out
    done = run(args[0], folder, *args[1:])
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr)


def test_json_keeps_hostile_names_whole(tmp_path: pathlib.Path) -> None:
    folder = make("hostile", tmp_path / "run")
    shown = run_json("show", folder)
    assert "a\x1b]0;owned\x07key" in shown["state"]
    assert shown["metadata"] == {"note\r\x1b[1A": "\b\b\b"}
    assert list(shown["checkpoint"]["metrics"]) == ["acc\x1b[31m\r\n"]
    assert "\x1b" not in run("show", folder, "--json").stdout


def test_messages_about_hostile_paths_are_clean(tmp_path: pathlib.Path) -> None:
    done = run("ls", tmp_path / "no\x1b[2Jsuch", status=3)
    assert "\x1b" not in done.stderr and "no?[2Jsuch" in done.stderr
    assert "\x1b" not in run("ls", "--\x1b[2J", status=2).stderr


def test_damaged_files_never_crash_it(demo: pathlib.Path, tmp_path: pathlib.Path) -> None:
    manifest = (checkpoint(demo, 2) / "manifest.json").read_bytes()
    for number, offset in enumerate(range(0, len(manifest), max(1, len(manifest) // 12))):
        work = tmp_path / str(number)
        shutil.copytree(demo, work, symlinks=True)
        flip(checkpoint(work, 2) / "manifest.json", offset)
        listed = run_json("ls", work, "--bad")["checkpoints"]
        assert [row["state"] for row in listed] == ["saved", "bad", "saved", "saved"]
        run("show", checkpoint(work, 2), status=4)
