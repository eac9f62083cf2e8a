# SPDX-License-Identifier: Apache-2.0
"""Every block of README.md and docs/ is run as it stands there, or is a part of a file that is."""

from __future__ import annotations

import importlib.util
import os
import pathlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator

import pytest
from frameworks import environment, python_of
from pages import PAGES, ROOT, Block, Reader, blocks, same_output
from ports import free_port
from s3_fake import Fake
from slurm import slurm
from ssh_servers import Host, started_host

import pawl
from cli import BUILD

__all__ = ["started_host"]

# Blocks that change the system: page, how the block begins. test_bare_install.py runs them in a root of its own.
IN_A_ROOT = [
    ("docs/how-to/installing.md", "apt-get install"),
    ("docs/reference/c.md", "make install"),
    ("docs/tutorials/c.md", "make && sudo make install"),
]
# The tests that run the other blocks of a page, and their languages.
RUN = {
    "README.md": ("test_readme.py test_wheel.py", "python sh"),
    "docs/explanation/multi-rank.md": ("test_ranks.py test_readme.py test_pages.py", "python c"),
    "docs/how-to/convert.md": ("test_pages.py", "sh"),
    "docs/how-to/extending.md": ("test_pages.py", "python"),
    "docs/how-to/files.md": ("test_pages.py", "python"),
    "docs/how-to/frameworks.md": ("test_pages_frameworks.py", "python"),
    "docs/how-to/installing.md": ("test_pages.py", "sh cmake"),
    "docs/how-to/mirrors.md": ("test_pages.py", "python"),
    "docs/how-to/resume.md": ("test_pages.py", "python sh yaml"),
    "docs/how-to/stores/command.md": ("test_pages.py", "python"),
    "docs/how-to/stores/file.md": ("test_pages.py", "console"),
    "docs/how-to/stores/fsspec.md": ("test_pages.py", "python"),
    "docs/how-to/stores/ssh.md": ("test_pages.py", "python"),
    "docs/how-to/sync.md": ("test_pages.py", "python"),
    "docs/reference/c.md": ("test_readme.py test_pages.py", "sh c"),
    "docs/reference/cli.md": ("test_pages.py", "sh console"),
    "docs/reference/composer.md": ("test_pages_frameworks.py", "python"),
    "docs/reference/format.md": ("test_pages.py", "python"),
    "docs/reference/messages.md": ("test_mistakes.py", "console pycon"),
    "docs/reference/python.md": ("test_readme.py", "python"),
    "docs/reference/train.md": ("test_readme.py test_pages.py", "python sh"),
    "docs/reference/tune-python.md": ("test_pages.py", "python"),
    "docs/reference/tune.md": ("test_pages.py", "sh yaml c"),
    "docs/tutorials/tour.md": ("test_readme.py test_ranks.py", "python sh c"),
}
# Pages that a reader follows from top to bottom.
FOLLOWED = [
    "docs/how-to/keep.md",
    pytest.param("docs/how-to/ranks.md", marks=pytest.mark.launcher),
    "docs/how-to/troubleshooting.md",
    "docs/tutorials/c.md",
    pytest.param("docs/tutorials/jax.md", marks=pytest.mark.framework),
    "docs/tutorials/pytorch.md",
    "docs/tutorials/search.md",
]


def changes_system(block: Block) -> bool:
    return any(page == block.page and block.first.startswith(text) for page, text in IN_A_ROOT)


def runnable(page: str) -> list[Block]:
    return [block for block in blocks(page) if not block.part and not changes_system(block)]


@pytest.fixture(name="prefix")
def installed_library(tmp_path: pathlib.Path) -> dict[str, str]:
    """The environment in which pkg-config, the compiler and the loader find an installed library."""
    root = tmp_path / "root"
    subprocess.run(
        [
            pathlib.Path(sys.executable).parent / "meson",
            "install",
            "--quiet",
            "--no-rebuild",
            "-C",
            BUILD,
            "--destdir",
            root,
        ],
        check=True,
        capture_output=True,
    )
    [description] = root.rglob("pawl.pc")
    return {
        "PKG_CONFIG_PATH": str(description.parent),
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        "LD_LIBRARY_PATH": str(description.parent.parent),
    }


@pytest.mark.parametrize("page", FOLLOWED)
def test_a_reader_who_follows_a_page_sees_what_it_shows(
    page: str, tmp_path: pathlib.Path, prefix: dict[str, str]
) -> None:
    Reader(tmp_path, environment=prefix).follow(runnable(page))


def test_every_block_is_run_or_is_part_of_a_file() -> None:
    followed = {page if isinstance(page, str) else str(page.values[0]) for page in FOLLOWED}
    for page in PAGES:
        tests, languages = RUN.get(page, ("", ""))
        for test in tests.split():
            assert page in (ROOT / "tests/py" / test).read_text(), f"{test} does not read {page}"
        for block in runnable(page):
            known = page in followed or not block.language or block.language in languages.split()
            assert known, f"{block}: no test runs this block"
    in_root = (ROOT / "tests/py/test_bare_install.py").read_text()
    for page, text in IN_A_ROOT:
        assert page in in_root and any(block.first.startswith(text) for block in blocks(page))


def test_the_parts_of_files_that_a_page_shows_are_in_these_files() -> None:
    parts = [block for page in PAGES for block in blocks(page) if block.part]
    assert len(parts) > 10
    for block in parts:
        assert block.text in (ROOT / block.part).read_text(), f"{block}: {block.part} has no such lines"


@pytest.mark.parametrize("part", ["tests/extending/store_shelf.c", "tests/extending/store_mask.c"])
def test_the_examples_of_stores_are_shown_completely(part: str) -> None:
    shown = "\n".join(block.text for block in blocks("docs/how-to/extending.md") if block.part == part)
    licence, _, rest = (ROOT / part).read_text().partition("\n")
    assert "SPDX" in licence
    assert shown == rest


@pytest.mark.parametrize(
    ("shown", "seen", "same"),
    [
        ("a  b\n", "a b", True),
        ("a", "b", False),
        ("a", "a\nb", False),
        ("…\nb", "x\ny\nb", True),
        ("a …", "a b", True),
        ("a …", "a", False),
        ("in 3 ms", "in 2.5 s", True),
        ("loss 0.500", "loss 0.501", True),
        ("loss 0.500", "loss 0.600", False),
        ("step 100", "step 101", False),
    ],
)
def test_an_output_is_the_same_but_for_times_and_rounding(shown: str, seen: str, same: bool) -> None:
    assert same_output(shown, seen, {}) == same


# What the programs of a page expect to exist.
MODEL = """
import os
import pathlib
import subprocess
import numpy as np
import torch
import pawl
from pawl import train
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.AdamW(model.parameters())
state = {"model": model, "optimizer": optimizer}
step, epoch, n, loss = 1, 1, 500, 0.5
"""
# The other pages with programs, and what surrounds them: the programs, and text that stands for a place of the reader's.
AROUND: dict[str, tuple[str, dict[str, str]]] = {
    "docs/how-to/files.md": (f"{MODEL}\ndef train():\n    pass\n", {}),
    "docs/how-to/mirrors.md": (MODEL, {"/mnt/nas/": "nas/"}),
    "docs/how-to/sync.md": (MODEL, {"ubuntu@192.0.0.1:/srv/results": "results"}),
    "docs/how-to/stores/command.md": (MODEL, {}),
    "docs/how-to/stores/fsspec.md": (
        f"{MODEL}\nimport fsspec\nfrom fsspec.implementations.memory import MemoryFileSystem\n"
        "for name in ('hdfs', 'webdav'):\n"
        "    kind = type(name, (MemoryFileSystem,), {'protocol': name})\n"
        "    fsspec.register_implementation(name, kind, clobber=True)\n",
        {},
    ),
    "docs/reference/format.md": (MODEL, {}),
}


@pytest.fixture(name="bucket")
def fake_bucket() -> Iterator[dict[str, str]]:
    """The environment in which s3://bucket exists."""
    fake = Fake()
    yield {
        "AWS_ACCESS_KEY_ID": "ada",
        "AWS_SECRET_ACCESS_KEY": "CANARY-of-the-pages",
        "AWS_ENDPOINT_URL": fake.endpoint,
        "AWS_REGION": "us-east-1",
    }
    fake.close()


@pytest.mark.long
@pytest.mark.parametrize("page", AROUND)
def test_the_programs_of_a_page_run(page: str, tmp_path: pathlib.Path, bucket: dict[str, str]) -> None:
    stand_ins, names = AROUND[page]
    reader = Reader(tmp_path, stand_ins, names, bucket)
    (tmp_path / "xxhash.py").write_text(XXHASH)
    reader.run([reader.python, "-c", f"{MODEL}\nwith pawl.CheckpointManager('runs/demo') as m: m.save(1, state)"])
    reader.follow(block for block in runnable(page) if block.language == "python")


# The package of this name, as far as docs/reference/format.md uses it.
XXHASH = """
import ctypes
library = ctypes.CDLL("libxxhash.so.0")

class Sum(ctypes.Structure):
    _fields_ = [("low", ctypes.c_uint64), ("high", ctypes.c_uint64)]

library.XXH3_128bits.restype = Sum
library.XXH3_128bits.argtypes = [ctypes.c_char_p, ctypes.c_size_t]

def xxh3_128_hexdigest(data):
    found = library.XXH3_128bits(data, len(data))
    return f"{found.high:016x}{found.low:016x}"
"""


def test_the_commands_of_the_page_on_converting_run(tmp_path: pathlib.Path) -> None:
    reader = Reader(tmp_path)
    make = "torch.save(model.state_dict(), 'model.pt')\nwith pawl.CheckpointManager('runs/demo', score_attribute='loss') as m:\n"
    reader.run([reader.python, "-c", f"{MODEL}{make}    m.save(1, state, metrics={{'loss': 1}})"])
    reader.follow(block for block in runnable("docs/how-to/convert.md") if block.language == "sh")
    assert (tmp_path / "hub/model.safetensors").exists() and (tmp_path / "arrays.npz").exists()


def test_the_commands_of_the_page_on_places_run(tmp_path: pathlib.Path, bucket: dict[str, str]) -> None:
    places = {"/mnt/usb/": "usb/", "s3://here/": "s3://bucket/", "s3://there/": "s3://bucket/there/"}
    reader = Reader(tmp_path, names=places, environment=bucket)
    parts = "{'encoder': {'a': torch.ones(2)}, 'head': {'w': torch.ones(2)}, 'model': {'w': torch.ones(2)}}"
    make = "with pawl.CheckpointManager('runs/demo', score_attribute='accuracy') as m:\n"
    reader.run([reader.python, "-c", f"{MODEL}{make}    m.save(1, {parts}, metrics={{'accuracy': 1}})"])
    page = [block for block in runnable("docs/reference/cli.md") if block.language]
    reader.follow(block for block in page if block.language == "sh")
    assert pawl.load(str(tmp_path / "ported"))["backbone"]["a"].tolist() == [1, 1]
    assert (tmp_path / "best/manifest.json").exists() and (tmp_path / "usb/demo/run.json").exists()
    [doctor] = [block for block in page if block.language == "console"]
    command, *shown = doctor.text.removeprefix("$ ").splitlines()
    seen = reader.run(["bash", "-c", command]).splitlines()
    rows = iter(line[:24].rstrip() for line in seen)
    assert all(line[:24].rstrip() in rows for line in shown if line != "..."), "doctor asks something else"


def test_the_page_on_the_file_store_shows_what_doctor_asks(tmp_path: pathlib.Path) -> None:
    """The answers are those of this machine."""
    [block] = [block for block in blocks("docs/how-to/stores/file.md") if block.language == "console"]
    reader = Reader(tmp_path)
    reader.run(
        [reader.python, "-c", "import pawl\nwith pawl.CheckpointManager('runs/demo') as m: m.save(1, {'step': 1})"]
    )
    command, _, shown = block.text.removeprefix("$ ").partition("\n")
    seen = reader.run(["bash", "-c", command])
    assert [line[:29] for line in shown.splitlines()] == [line[:29] for line in seen.splitlines()]


def test_the_script_of_the_page_on_resuming_queues_the_job_again_after_status_75(tmp_path: pathlib.Path) -> None:
    [script] = [block.text for block in blocks("docs/how-to/resume.md") if block.language == "sh"]
    [other] = [block.text for block in blocks("docs/reference/train.md") if block.text.startswith("#!/bin/sh")]
    (tmp_path / "srun").write_text('#!/bin/sh\n[ "${1#--}" = "$1" ] || shift\nexec "$@"\n')
    (tmp_path / "scontrol").write_text('#!/bin/sh\necho "$@"\n')
    for name in ("srun", "scontrol"):
        (tmp_path / name).chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    reader = Reader(tmp_path, environment={"PATH": path, "SLURM_JOB_ID": "17"})
    for text in (script, other):
        for status, answer in ((75, "requeue 17\n"), (0, ""), (1, "")):
            (tmp_path / "train.py").write_text(f"raise SystemExit({status})")
            assert reader.run(["sh", "-c", text], fails=True) == answer


@pytest.mark.framework
def test_the_job_of_the_page_on_resuming_is_one_that_kubernetes_takes(tmp_path: pathlib.Path) -> None:
    [job] = [block.text for block in blocks("docs/how-to/resume.md") if block.language == "yaml"]
    (tmp_path / "job.yaml").write_text(job)
    check = "import yaml, kubernetes_validate as k; k.validate(yaml.safe_load(open('job.yaml')), '1.37', strict=True)"
    reader = Reader(tmp_path, environment=environment(), python=str(python_of("kubernetes")))
    reader.run([reader.python, "-c", check])
    (tmp_path / "job.yaml").write_text(job.replace("backoffLimit", "backofLimit"))
    assert "backofLimit" in reader.run([reader.python, "-c", check], fails=True)


def test_the_commands_and_documents_of_the_page_on_searches_run(tmp_path: pathlib.Path) -> None:
    page = runnable("docs/reference/tune.md")
    commands, script = (block.text for block in page if block.language == "sh")
    sweep, sync = (block.text for block in page if block.language == "yaml")
    for name, text in (
        ("train.sh", script),
        ("train-one-epoch", '#!/bin/sh\ntouch "$5"\necho "$2"\n'),
        ("sweep.yaml", f"{sweep}\n{sync.replace('s3://bucket', 'elsewhere')}"),
    ):
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    reader = Reader(tmp_path)
    for command in commands.splitlines():
        stop = "tune stop" in command  # the search has ended before
        assert ("no process runs this search" in reader.run(["bash", "-c", command], fails=stop)) == stop
    assert "16 trials: 16 finished" in reader.run(["bash", "-c", "pawl tune sweep.yaml --resume"])
    assert (tmp_path / "elsewhere/searches/sweep/journal").exists()


def test_the_trial_in_c_of_the_page_on_searches_ends_when_it_must(tmp_path: pathlib.Path) -> None:
    [code] = [block.text for block in runnable("docs/reference/tune.md") if block.language == "c"]
    headers = "".join(f"#include <{name}.h>\n" for name in ("stdio", "stdlib", "string"))
    loop = f"int main(void)\n{{\n\tfor (;;) {{\n{code}\n\t}}\n}}\n"
    (tmp_path / "trial.c").write_text(f"#define _GNU_SOURCE\n{headers}{loop}")
    (tmp_path / "sweep.yaml").write_text(
        "run: [./trial]\nlocal_dir: runs\nstop: {training_iteration: 3}\nmetric: loss\n"
    )
    reader = Reader(tmp_path)
    reader.run(["cc", "trial.c", "-o", "trial"])
    assert "1 trial: 1 finished" in reader.run(["pawl", "tune", "sweep.yaml"])


def test_the_search_of_the_page_on_searches_in_python_runs(tmp_path: pathlib.Path) -> None:
    [program] = [block.text for block in runnable("docs/reference/tune-python.md") if block.language == "python"]
    stand_ins = (
        "loss = 0.5\ndef load(folder):\n    return int(open(f'{folder}/step').read())\n"
        "def save(folder):\n    open(f'{folder}/step', 'w').write('100')\n"
    )
    assert program.count("        ...\n") == 1
    (tmp_path / "search.py").write_text(stand_ins + program.replace("        ...\n", "        step += 50\n"))
    assert "{'lr': " in Reader(tmp_path).run(["python", "search.py"])


def test_the_lines_that_build_a_program_with_the_installed_library_build_it(
    tmp_path: pathlib.Path, prefix: dict[str, str]
) -> None:
    [program] = [block.text for block in blocks("docs/tutorials/c.md") if block.language == "c"]
    root = next(pathlib.Path(prefix["PKG_CONFIG_SYSROOT_DIR"]).rglob("include/pawl.h")).parent.parent
    for name in ("program.c", "train.c"):
        (tmp_path / name).write_text(program)
    build = [block.text for block in runnable("docs/how-to/installing.md") if block.language in ("sh", "cmake")]
    (tmp_path / "CMakeLists.txt").write_text(
        f"cmake_minimum_required(VERSION 3.18)\nproject(program C)\nadd_executable(program program.c)\n{build[1]}"
    )
    cmake = f"cmake -S . -B build -DCMAKE_PREFIX_PATH={root} && cmake --build build && ./build/program 3"
    own = next(root.rglob("pawl.pc"))  # as with PREFIX=
    own.write_text(own.read_text().replace("prefix=/usr/local\n", f"prefix={root}\n"))
    for line in (f"{build[0]}./a.out 3", cmake, f"export PREFIX={root}\n{c_lines()}./train 3"):
        found = {"LD_LIBRARY_PATH": prefix["LD_LIBRARY_PATH"], "PKG_CONFIG_PATH": str(own.parent)}
        seen = Reader(tmp_path, environment=found).run(["bash", "-e", "-c", f"rm -rf runs; {line}"])
        assert seen.endswith("first step: 1\nweights: 3 6 9\n"), seen


def c_lines() -> str:
    """With a prefix of the reader's own."""
    return next(
        block.text for block in blocks("docs/reference/c.md") if block.first.startswith("export PKG_CONFIG_PATH")
    )


@pytest.mark.launcher
def test_the_pieces_of_the_page_on_many_ranks_run(tmp_path: pathlib.Path) -> None:
    """What follows its first program, which test_ranks.py runs."""
    programs = [block.text for block in blocks("docs/explanation/multi-rank.md") if block.language == "python"][1:]
    broadcast, nodes, who = (program.replace("/shared/", "shared/").replace("/mnt/", "mnt/") for program in programs)
    group = (
        "torch.distributed.init_process_group('gloo')\n"
        "with pawl.CheckpointManager('runs/demo', num_to_keep=3) as manager:\n    manager.save(1, state)\n"
    )
    assert "{node_rank}" in nodes
    nodes = f"os.environ['GROUP_RANK'] = os.environ['RANK']\n{nodes}manager.save(1, state).wait()\nmanager.close()\n"
    reader = Reader(tmp_path)
    for name, program in (
        ("broadcast.py", f"{group}{broadcast}\ntorch.distributed.destroy_process_group()\n"),
        ("nodes.py", nodes.replace("pawl.Ranks(", "pawl.Ranks(n_nodes=2, ")),
        ("who.py", who),
    ):
        (tmp_path / name).write_text(MODEL + program)
        reader.run(["torchrun", "--nproc-per-node", "2", name])
    assert len(list(tmp_path.glob("mnt/node*/run/packs/*/*/rank0000*"))) == 4  # each pack on two nodes


TRAIN = """
import os
from pawl import train

def train_func(config):
    train.report({"world": train.get_context().get_world_size()})

result = train.TorchTrainer(train_func, run_config=train.RunConfig("run", "runs")).fit()
os.write(1, f"ended {result.metrics}\\n".encode())  # at once: the ranks share this pipe
"""


@pytest.mark.launcher
def test_the_lines_of_the_page_on_training_start_its_launchers(tmp_path: pathlib.Path) -> None:
    """Both hosts are this machine, which has fewer processors than the lines have processes."""
    [text] = [block.text for block in blocks("docs/reference/train.md") if block.first.startswith("mpirun")]
    crowded = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "SLURM_OVERCOMMIT": "1",
    }
    (tmp_path / "train.py").write_text(TRAIN)
    mpirun, torchrun, both_hosts, srun = text.splitlines()
    both_hosts = both_hosts.partition("#")[0].replace("host1", f"127.0.0.1:{free_port()}")
    with slurm() as found:
        reader = Reader(tmp_path, environment=crowded | found)
        for line, world in ((mpirun, 4), (torchrun, 4), (f"{both_hosts} & {both_hosts}\nwait", 8), (srun, 8)):
            shutil.rmtree(tmp_path / "runs", ignore_errors=True)
            seen = reader.run(["bash", "-e", "-c", line])
            assert seen.count(f"ended {{'world': {world}}}") == world, seen


@pytest.mark.server
def test_the_program_of_the_page_on_ssh_runs(tmp_path: pathlib.Path, host: Host) -> None:
    places = {"ssh://me@node7/data/runs/demo": host.url("/data/runs/demo")}
    Reader(tmp_path, MODEL, places, host.env).follow(runnable("docs/how-to/stores/ssh.md"))
    assert (host.home / "data/runs/demo/run.json").exists()


def test_the_class_of_the_page_on_extending_describes_a_scheduler(tmp_path: pathlib.Path) -> None:
    [program] = [block.text for block in runnable("docs/how-to/extending.md") if block.language == "python"]
    uses = "TopScheduler('loss', 'min', keep=2)\nassert scheduler.type == 'top'\n"
    (tmp_path / "top.py").write_text(f"from pawl.tune.schedulers import TrialScheduler\n{program}scheduler = {uses}")
    Reader(tmp_path).run(["python", "top.py"])


@pytest.mark.launcher
def test_the_commands_of_the_page_on_c_resume_the_example_of_mpi(
    tmp_path: pathlib.Path, prefix: dict[str, str]
) -> None:
    [text] = [block.text for block in blocks("docs/reference/c.md") if block.first.startswith("mpicc")]
    os.symlink(ROOT / "examples", tmp_path / "examples")
    allowed = {
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
    }
    reader = Reader(tmp_path, environment=prefix | allowed)
    build, killed, resumed, undisturbed = text.splitlines()
    reader.run(["bash", "-e", "-c", build])
    reader.run(["bash", "-c", f"! {killed.partition('#')[0]}"])
    seen, other = (reader.run(["bash", "-e", "-c", line]) for line in (resumed, undisturbed))
    assert "resumed after step" in seen
    assert plate_of(seen) == plate_of(other)


def plate_of(printed: str) -> str:
    """The line that rank 0 prints at the end; the ranks' lines come in any order."""
    [line] = [line for line in printed.splitlines() if line.startswith("plate ")]
    return line


def test_what_the_page_on_moving_names_exists() -> None:
    """The modules for frameworks are read, not imported."""
    page = (ROOT / "docs/how-to/moving.md").read_text()
    imported = {
        f"{module}.{name}"
        for module, names in re.findall(r"`from (pawl[\w.]*) import ([\w, ]+)`", page)
        for name in names.split(", ")
    }
    named = set(re.findall(r"\bpawl(?:\.\w+)+(?=[(`])", page))
    assert len(imported) >= 7 and len(named) >= 15
    for name in imported | named:
        module, _, attribute = name.rpartition(".")
        file = ROOT / f"python/{module.replace('.', '/')}.py"
        known = file.read_text() if file.exists() else ""
        if re.search(rf"^(?:class|def) {attribute}\b|^from \.\w+ import .*\b{attribute}\b", known, re.MULTILINE):
            continue
        exists = hasattr(importlib.import_module(module), attribute) or importlib.util.find_spec(name)
        assert exists, f"{name}: pawl has no such thing"
