# SPDX-License-Identifier: Apache-2.0
"""The examples of README.md, the tour, and the pages on Python, C, training and resuming run as they stand there, with small stand-ins for what they call."""

from __future__ import annotations

import json
import os
import pathlib
import re
import shlex
import subprocess
import sys
import textwrap

import pytest
from common import run_program
from safetensors.numpy import load_file
from waiting import HANG_SECONDS

from cli import static_library

pytestmark = pytest.mark.long

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
BUILD = pathlib.Path(os.environ.get("PAWL_BUILD", ROOT / "build"))
PAWL = os.environ.get("PAWL_BIN", "pawl")
TOUR = (ROOT / "docs/tutorials/tour.md").read_text()

STAND_INS = """
import os, signal
import torch

def build():
    model = torch.nn.Linear(4, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    return model, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)

accuracies = iter([0.1, 0.2, 0.9, 0.3, 0.4, 0.8, 0.5, 0.5, 0.7, 0.6])

def train_one_epoch(model, optimizer, scheduler):
    forward_and_backward(model)
    optimizer.step()
    scheduler.step()
    return next(accuracies)

calls = 0

def forward_and_backward(model):
    global calls
    calls += 1
    model(torch.ones(3, 4)).sum().backward()
    if calls == 1300:
        os.kill(os.getpid(), signal.SIGTERM)  # the machine is taken away
"""


def examples(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


def blocks(section: str, language: str) -> list[str]:
    """The examples of a section of the tour, in order."""
    found = examples(TOUR.partition(f"\n## {section}\n")[2].partition("\n## ")[0], language)
    assert found, f"docs/tutorials/tour.md has no {language} in its section {section}"
    return found


@pytest.fixture(name="trained", scope="module")
def trained_run(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A folder in which the first example has run."""
    folder = tmp_path_factory.mktemp("readme")
    first = blocks("PyTorch", "python")[0]
    printed = run_program(f"import os\nos.chdir({str(folder)!r})\n{STAND_INS}\n{first}\nprint(calls)")
    assert printed == "10\n"
    return folder


def listed(run: pathlib.Path, what: str) -> list[int]:
    done = subprocess.run([PAWL, "ls", run, "--json"], capture_output=True, text=True, check=True)
    return [row[what] for row in json.loads(done.stdout)["checkpoints"]]


def ids(folder: pathlib.Path) -> list[int]:
    return listed(folder / "runs/demo", "id")


def test_the_program_of_the_first_page_continues_after_an_interruption(tmp_path: pathlib.Path) -> None:
    (example,) = examples((ROOT / "README.md").read_text(), "python")
    here = f"import os\nos.chdir({str(tmp_path)!r})\n"
    first = example.replace("100):", "40):")
    assert first != example
    assert run_program(here + first + "print(state['weights'][0])") == "20.0\n"
    assert run_program(here + example + "print(restored.step, state['weights'][0])") == "39 50.0\n"
    assert listed(tmp_path / "runs/demo", "step") == [97, 98, 99]


def test_pytorch_example_keeps_the_three_best_and_the_latest(trained: pathlib.Path) -> None:
    assert ids(trained) == [3, 6, 9, 10]


def test_the_search_example_finds_its_best_and_goes_on(tmp_path: pathlib.Path) -> None:
    (tmp_path / "search.py").write_text(blocks("Searches over hyperparameters", "python")[0])
    for _ in range(2):  # the second time there is nothing left to do
        done = subprocess.run(
            [sys.executable, "search.py"],
            capture_output=True,
            check=False,
            text=True,
            timeout=HANG_SECONDS,
            cwd=tmp_path,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout.startswith("{'lr': ") and "checkpoint_" in done.stdout, done.stdout


def train_script(folder: pathlib.Path, code: str) -> str:
    """What a program prints that trains with workers of its own."""
    (folder / "program.py").write_text(code)
    done = subprocess.run(
        [sys.executable, "program.py"],
        capture_output=True,
        check=False,
        text=True,
        timeout=HANG_SECONDS,
        cwd=folder,
        env=os.environ | {"HOME": str(folder)},
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_training_example_runs_and_its_function_goes_on(tmp_path: pathlib.Path) -> None:
    (example,) = blocks("Ray Train's interface", "python")
    assert example.count("num_workers=2)).fit()") == 1  # the end of the last line
    again = example.replace("num_workers=2))", "num_workers=2), resume_from_checkpoint=result.checkpoint)")
    again = again.replace('{"epochs": 5}', '{"epochs": 7}').partition("\nresult = ")[2]
    said = "print(result.error, result.checkpoint.to_dict()['epoch'], len(result.metrics_history))\n"
    assert train_script(tmp_path, f"{example}{said}result = {again}{said}") == "None 4 5\nNone 6 2\n"
    assert len(list(tmp_path.glob("ray_results/train_*/run_*/checkpoints/checkpoint_*"))) == 5 + 2


TRAIN_STAND_INS = """
import torch

def Net():
    return torch.nn.Linear(4, 1)

accuracies = [0.1, 0.9, 0.3, 0.4, 0.8, 0.5, 0.5, 0.7, 0.6, 0.2]

def train_one_epoch(model):
    model(torch.ones(3, 4)).sum().backward()
    return accuracies.pop(0)
"""


def test_the_example_of_the_page_on_training_keeps_the_two_best_and_the_newest(tmp_path: pathlib.Path) -> None:
    example, *_ = examples((ROOT / "docs/reference/train.md").read_text(), "python")
    assert '"s3://bucket/runs"' in example
    printed = train_script(tmp_path, TRAIN_STAND_INS + example.replace('"s3://bucket/runs"', '"runs"'))
    assert printed.startswith("9 (Checkpoint(") and printed.endswith(" {'accuracy': 0.2}\n"), printed
    assert listed(tmp_path / "runs/demo", "id") == [2, 5, 10]


def test_the_second_example_of_the_page_on_training_sees_why_it_failed(tmp_path: pathlib.Path) -> None:
    first, second = examples((ROOT / "docs/reference/train.md").read_text(), "python")
    fails = TRAIN_STAND_INS + first.partition("result = ")[0].replace('"s3://bucket/runs"', '"runs"')
    fails = fails.replace("max_failures=", "max_failures=0 * ").replace(
        "return accuracies.pop(0)", "raise KeyError('no such file')"
    )
    caught = f"try:\n{textwrap.indent(second, '    ')}except train.TrainingFailedError:\n    pass\n"
    assert "no such file" in train_script(tmp_path, fails + caught)


def test_terminal_examples(trained: pathlib.Path) -> None:
    lines = [shlex.split(line, comments=True) for line in blocks("At a terminal", "sh")[0].splitlines()]
    assert [line[:1] for line in lines] == [["pawl"]] * 8
    before = ids(trained)
    for _, *arguments in lines:
        done = subprocess.run([PAWL, *arguments], capture_output=True, text=True, cwd=trained)
        differs = arguments[0] == "diff"  # like diff(1)
        assert done.returncode == differs, f"{arguments}: {done.stdout}{done.stderr}"
        assert done.stdout or arguments[0] == "convert", arguments
        done = subprocess.run(
            [PAWL, *arguments, "--json", *(["--overwrite"] if arguments[0] == "convert" else [])],
            capture_output=True,
            text=True,
            cwd=trained,
        )
        assert done.returncode == differs, f"{arguments}: {done.stderr}"
        assert json.loads(done.stdout)["command"] == arguments[0]
    assert ids(trained) == before, "a dry run changes nothing"
    assert load_file(trained / "model.safetensors")


def test_pytorch_example_with_an_interval_resumes_and_leaves_when_asked_to(trained: pathlib.Path) -> None:
    first, second = blocks("PyTorch", "python")
    prelude = first.partition("with pawl")[0]  # what the second one continues with
    program = f"import os\nos.chdir({str(trained)!r})\n{STAND_INS}\n{prelude}\n{second}\nprint(step, restored and restored.step)"
    assert run_program(program) == "1299 None\n"
    assert listed(trained / "runs/steps", "step") == [500, 1000, 1299]
    assert run_program(program) == "2599 1299\n"
    assert listed(trained / "runs/steps", "step") == [500, 2500, 2599]
    assert len(ids(trained)) == 4, "each example has a folder of its own"


def test_pytorch_example_with_an_interval_loses_no_step_at_the_end(tmp_path: pathlib.Path) -> None:
    first, second = blocks("PyTorch", "python")
    prelude = first.partition("with pawl")[0]
    assert second.count("100_000") == second.count("99_999") == 1
    shorter = second.replace("100_000", "703").replace("99_999", "702")
    run_program(f"import os\nos.chdir({str(tmp_path)!r})\n{STAND_INS}\n{prelude}\n{shorter}")
    assert listed(tmp_path / "runs/steps", "step") == [500, 702]


def test_plain_example(tmp_path: pathlib.Path) -> None:
    (example,) = blocks("NumPy, JAX, plain trees", "python")
    printed = run_program(
        f"import os\nos.chdir({str(tmp_path)!r})\n{example}\nprint(tree['weights'].tolist(), tree['epoch'], tree['note'])"
    )
    assert printed == "[[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]] 3 final\n"


def compile_and_run(program: str, folder: pathlib.Path) -> str:
    (folder / "example.c").write_text(program)
    flags = ["-std=c17", "-Wall", "-Wextra", "-Werror", f"-I{ROOT / 'include'}"]
    subprocess.run(["gcc", *flags, "example.c", "-o", "example", *static_library()], check=True, cwd=folder)
    return subprocess.run([folder / "example"], check=True, cwd=folder, capture_output=True, text=True).stdout


def test_c_example(tmp_path: pathlib.Path) -> None:
    (example,) = blocks("C", "c")
    compile_and_run(
        "#include <stdio.h>\n"
        + example
        + "int main(void)\n{\n\tfloat weights[5] = {1, 2, 3, 4, 5};\n\tstruct pawl_error err = {0};\n"
        "\tint rc = save_weights(weights, 5, &err);\n\tfputs(err.message, stderr);\n\treturn rc != 0;\n}\n",
        tmp_path,
    )
    (pack,) = (tmp_path / "runs/plain-c/checkpoints/checkpoint_000001").glob("*.safetensors")
    assert load_file(pack)["weights"].tolist() == [1, 2, 3, 4, 5]


def test_example_of_the_page_on_c_resumes(tmp_path: pathlib.Path) -> None:
    example, *_ = examples((ROOT / "docs/reference/c.md").read_text(), "c")
    printed = compile_and_run(
        example + "int main(void)\n{\n\tfloat once[9] = {7}, again[9] = {0};\n"
        "\tint a = train(once, 9, 350), b = train(again, 9, 450);\n"
        '\tprintf("%d %d %g\\n", a, b, (double)again[0]);\n\treturn 0;\n}\n',
        tmp_path,
    )
    assert printed == "0 0 7\n"
    done = subprocess.run([PAWL, "ls", tmp_path / "runs/demo", "--json"], capture_output=True, text=True, check=True)
    assert [row["step"] for row in json.loads(done.stdout)["checkpoints"]] == [200, 300, 400]


def test_the_pieces_in_c_of_the_page_on_many_ranks_run_in_one_process(tmp_path: pathlib.Path) -> None:
    pieces = examples((ROOT / "docs/reference/c.md").read_text(), "c")[1]
    (who,) = examples((ROOT / "docs/explanation/multi-rank.md").read_text(), "c")
    main = (
        "int main(void)\n{\n\tstruct pawl_error err = {0};\n\tdouble cells[5 * 4] = {0};\n\tstruct pawl *run = NULL;\n"
        "\tstruct pawl_state *state = NULL;\n\tstruct pawl_save_opts save = PAWL_SAVE_OPTS_INIT;\n"
        "\tint rc = open_run(0, 1, &run, &err) < 0 || pawl_state_new(&state, &err) < 0 ||\n"
        "\t\tdescribe(state, cells, 3, 2, 3, 2, 0, 0, &err) < 0 || pawl_save(run, &save, state, NULL, &err) < 0 ||\n"
        f"\t\tpawl_wait(run, -1, &err) < 0;\n\tpawl_state_free(state);\n\tpawl_close(run, NULL);\n\t{{\n{who}\t}}\n\treturn rc;\n}}\n"
    )
    seen = compile_and_run(f"#include <pawl.h>\n#include <stdio.h>\n{pieces}{main}", tmp_path)
    assert seen.startswith("rank 0 of 1, started by ")
    assert listed(tmp_path / "runs/heat", "id") == [1]


PAGE_STAND_INS = """
import warnings
import torch, pawl
warnings.filterwarnings("ignore", "torch.distributed is disabled")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
weights = torch.ones(3)
accuracies = iter([0.1, 0.2, 0.8, 0.9, 0.3, 0.4, 0.4, 0.4, 0.4, 0.4])
first_step, last_step = 10, 1100

def train_one_epoch():
    forward_and_backward(None)
    optimizer.step()
    return next(accuracies)

def batch(step):
    return torch.ones(3, 4)

def forward_and_backward(data):
    model(torch.ones(3, 4)).sum().backward()

train = forward_and_backward

def evaluate(tree):
    assert "model" in tree
    raise SystemExit
"""


def test_examples_of_the_page_on_python(tmp_path: pathlib.Path) -> None:
    found = examples((ROOT / "docs/reference/python.md").read_text(), "python")
    assert len(found) == 12
    for example in found:
        if "manager" in example and "with pawl.CheckpointManager" not in example:
            example = f"with pawl.CheckpointManager('runs/demo') as manager:\n{textwrap.indent(example, '    ')}"
        run_program(f"import os\nos.chdir({str(tmp_path)!r})\n{PAGE_STAND_INS}\n{example}")
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == [
        "careful",
        "dcp",
        "demo",
        "hooks",
        "lazy",
        "preempted",
        "scored",
        "tuned",
    ]
    for name in ("lazy", "preempted"):
        assert listed(tmp_path / "runs" / name, "step") == [500, 1000, 1099]


def test_the_program_of_the_page_on_resuming_leaves_at_a_signal_and_continues(tmp_path: pathlib.Path) -> None:
    (example,) = examples((ROOT / "docs/how-to/resume.md").read_text(), "python")
    (tmp_path / "train.py").write_text(example)
    signalled = "import os, signal\n" + example.replace(
        "        stop = ", "        if step == 23:\n            os.kill(os.getpid(), signal.SIGTERM)\n        stop = "
    )
    (tmp_path / "signalled.py").write_text(signalled.replace("num_to_keep=2,", "num_to_keep=2, signals=True,"))
    for program, status, step in (("signalled.py", 75, 23), ("train.py", 0, 49), ("train.py", 0, 49)):
        done = subprocess.run([sys.executable, program], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert listed(tmp_path / "runs/resume", "step")[-1] == step


def test_links_between_the_documents_lead_somewhere() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
