# SPDX-License-Identifier: Apache-2.0
"""Each program of examples/, with the real framework: killed after a save, started again, it ends as one that never was."""

from __future__ import annotations

import pathlib
import shutil
import subprocess
import sys

import pytest
from composer_venv import composer_python
from frameworks import environment, python_of
from slurm import Hasten, slurm
from waiting import HANG_SECONDS, wait_until

EXAMPLES = pathlib.Path(__file__).resolve().parent.parent.parent / "examples"
RUNNER = str(EXAMPLES.parent / "tests" / "py" / "example_runner.py")


def last_line(program: list[str], **more: str) -> str:
    """What it prints last, and first whether it resumed."""
    done = subprocess.run(
        program, env=environment(**more), capture_output=True, text=True, timeout=HANG_SECONDS, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    lines = [line for line in done.stdout.splitlines() if line.startswith(("resumed", "step ", "epoch "))]
    return f"{lines[0].partition(' ')[0]} {lines[-1]}"


def check(launcher: list[str], name: str, folder: pathlib.Path, kill: str, needs: str = "") -> None:
    """needs: a path below its folder, without which it would not resume. It may appear later than the line."""
    program = str(EXAMPLES / name / "train.py")
    first = last_line([*launcher, RUNNER, "", program, str(folder / "straight")])
    assert not first.startswith("resumed")
    killed = [*launcher, RUNNER, kill, program, str(folder / "killed")]
    env = environment(NEEDS=str(folder / "killed" / needs))
    done = subprocess.run(killed, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode != 0 and kill in done.stdout, done.stderr[-4000:]
    again = last_line([*launcher, RUNNER, "", program, str(folder / "killed")])
    assert again.startswith("resumed")
    assert again.partition(" ")[2] == first.partition(" ")[2]


def test_the_program_for_torch_resumes_after_a_kill(tmp_path: pathlib.Path) -> None:
    check([sys.executable], "torch", tmp_path, "step 100")


@pytest.mark.launcher
def test_the_program_for_fsdp2_resumes_after_a_kill(tmp_path: pathlib.Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    check(torchrun, "fsdp2", tmp_path, "step 60")


@pytest.mark.framework
@pytest.mark.parametrize(("name", "kill"), [("lightning", "epoch 4"), ("huggingface", "step 20"), ("jax", "step 60")])
def test_the_program_for_a_framework_resumes_after_a_kill(tmp_path: pathlib.Path, name: str, kill: str) -> None:
    check([str(python_of(name))], name, tmp_path, kill)


@pytest.mark.framework
def test_the_program_for_composer_resumes_after_a_kill(tmp_path: pathlib.Path) -> None:
    check([str(composer_python())], "composer", tmp_path, "epoch 4", needs="latest-rank0.pt")


@pytest.mark.framework
def test_the_program_for_ray_continues_a_training_that_has_ended(tmp_path: pathlib.Path) -> None:
    """What a kill of its workers and of its driver does, test_ray.py shows."""
    program = [str(python_of("ray")), str(EXAMPLES / "ray" / "train.py")]
    straight = last_line([*program, str(tmp_path / "straight"), "6"])
    last_line([*program, str(tmp_path / "stopped"), "3"])
    assert last_line([*program, str(tmp_path / "stopped"), "6"]) == straight.replace("epoch", "resumed", 1)


@pytest.mark.launcher
def test_R41_the_script_for_slurm_resumes_after_the_signal(tmp_path: pathlib.Path) -> None:
    out, program = tmp_path / "out", tmp_path / "train.py"
    # at step 100, and at no other, it gets the signal, which the test sends through Slurm
    text = (EXAMPLES / "torch" / "train.py").read_text()
    wait = """            if step == 100 and not restored:
                print("waiting", flush=True)
                while not manager.preempted:
                    pass
"""
    program.write_text(
        text.replace("            stop = manager.preempted\n", wait + "            stop = manager.preempted\n")
    )
    assert program.read_text() != text
    script = shutil.copy(EXAMPLES / "slurm" / "train.sbatch", tmp_path)
    straight = last_line([sys.executable, str(EXAMPLES / "torch" / "train.py"), str(tmp_path / "straight")])

    def said(line: str) -> bool:
        return out.exists() and line in out.read_text().splitlines()

    with slurm() as found:
        env = environment(PYTHON=sys.executable) | found
        command = ["sbatch", "-o", str(out), script, str(program), str(tmp_path / "run")]
        subprocess.run(command, env=env, check=True, capture_output=True, cwd=tmp_path)
        wait_until(lambda: said("waiting"), "step 100")
        subprocess.run(["scancel", "-s", "USR1", "-n", "train"], env=env, check=True)
        hasten = Hasten("train", env)

        def ended() -> bool:
            hasten()
            return said(straight.partition(" ")[2])

        wait_until(ended, "the end of the job that was queued again")
    lines = out.read_text().splitlines()
    assert "resumed at step 100" in lines
    assert lines[-1] == straight.partition(" ")[2]


@pytest.mark.framework
def test_the_job_for_kubernetes_is_valid(tmp_path: pathlib.Path) -> None:
    code = """
import sys, yaml, kubernetes_validate
text = open(sys.argv[1]).read()
kinds = []
for document in yaml.safe_load_all(text):
    kubernetes_validate.validate(document, sys.argv[2], strict=True)
    kinds.append(document["kind"])
assert kinds == ["PersistentVolumeClaim", "Job"], kinds
document["spec"]["backofLimit"] = 1
try:
    kubernetes_validate.validate(document, sys.argv[2], strict=True)
except kubernetes_validate.ValidationError:
    sys.exit(0)
sys.exit("a field that does not exist was taken")
"""
    program = [str(python_of("kubernetes")), "-c", code, str(EXAMPLES / "kubernetes" / "job.yaml"), "1.37"]
    done = subprocess.run(program, env=environment(), capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
