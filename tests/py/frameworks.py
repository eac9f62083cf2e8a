# SPDX-License-Identifier: Apache-2.0
"""Environments of the frameworks for the tests, each of its own, installed on first use into .venv/frameworks
(or PAWL_TEST_FRAMEWORKS). They see the packages of this one (torch is not installed again) and this pawl.
"""

from __future__ import annotations

import fcntl
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import sysconfig

from needs import need
from waiting import HANG_SECONDS

import pawl

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PLACE = pathlib.Path(os.environ.get("PAWL_TEST_FRAMEWORKS", ROOT / ".venv" / "frameworks"))
# Ray runs its workers at a low priority: other work on the machine may stop them for minutes. On a slow machine it takes
# its own processes for dead.
RAY = {
    "RAY_worker_niceness": "0",
    "RAY_gcs_server_port_wait_time_s": "600",
    "RAY_health_check_timeout_ms": "600000",
    "RAY_worker_register_timeout_seconds": "600",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(HANG_SECONDS),
}
PACKAGES = {
    "lightning": ["lightning==2.6.*"],
    "huggingface": ["transformers==5.*", "accelerate==1.*"],
    "ray": ["ray[train]==2.*"],
    "jax": ["optax==0.*", "flax==0.*", "equinox==0.*", "attrs"],
    "orbax": ["orbax-checkpoint==0.*"],
    "optuna": ["optuna==4.*", "pandas==2.*"],
    "wandb": ["wandb==0.*"],
    "loggers": ["tensorboard==2.*", "mlflow-skinny==3.*", "prometheus_client"],
    "macos": ["ziglang==0.17.1"],
    "kubernetes": ["kubernetes-validate==1.*"],
}
OURS = sysconfig.get_path("purelib")
PARENT = "import os, sys; sys.path += filter(None, [os.environ.get('PAWL_TEST_PARENT')])\n"


def lend_packages(packages: pathlib.Path) -> dict[str, str]:
    """Our packages come after those of an environment. Clones that share it find their own pawl, by this variable."""
    (packages / "zz_parent.pth").write_text(PARENT)
    return os.environ | {"PAWL_TEST_PARENT": OURS}


def let_ray_start(packages: pathlib.Path) -> None:
    """Ray gives a node 30 s to start, and has no option for that."""
    file = packages / "ray" / "_private" / "node.py"
    text, found = re.subn(r"(?<=raylet_start_wait_time_s = )\d+", str(HANG_SECONDS), file.read_text())
    assert found == 1, f"{file}: no such limit any more"
    file.write_text(text)


def python_of(name: str) -> pathlib.Path:
    """The interpreter of an environment. Two processes that want it at once make it once."""
    need("framework")
    folder = PLACE / name
    program = folder / "bin" / "python"
    theirs = folder / pathlib.Path(OURS).relative_to(sys.prefix)
    wanted = "\n".join([PARENT, *PACKAGES[name]])
    stamp = folder / ".installed"
    PLACE.mkdir(parents=True, exist_ok=True)
    with (PLACE / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if stamp.exists() and stamp.read_text() == wanted:
            return program
        shutil.rmtree(folder, ignore_errors=True)
        subprocess.run(
            [sys.executable, "-m", "venv", str(folder)], check=True, capture_output=True, timeout=HANG_SECONDS
        )
        env = lend_packages(theirs)
        pip = [str(program), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
        pip += PACKAGES[name]
        done = subprocess.run(pip, env=env, capture_output=True, text=True, timeout=HANG_SECONDS, check=False)
        assert done.returncode == 0, f"{name} cannot be installed: {done.stderr[-2000:]}"
        if name == "ray":
            let_ray_start(theirs)
        stamp.write_text(wanted)
    return program


def environment(**more: str) -> dict[str, str]:
    """Ours, with this pawl first, and one thread: the processes of a test share few processors."""
    place = pathlib.Path(pawl.__file__).parent.parent
    path = [str(pathlib.Path(__file__).parent)]
    if str(place) != OURS:
        path.insert(0, str(place))
    quiet = {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore", "HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": ""}
    paths = {"PYTHONPATH": os.pathsep.join(path), "PAWL_TEST_PARENT": OURS}
    return os.environ | paths | quiet | RAY | more


def run(name: str, worker: str, *words: object, expect: int = 0, seconds: float = 1800, **more: str) -> str:
    """What a worker program of this folder prints, in an environment. One that hangs says where, too."""
    program = [str(python_of(name)), str(pathlib.Path(__file__).with_name(worker)), *map(str, words)]
    env = environment(**more) | {"PYTHONFAULTHANDLER": "1"}
    with subprocess.Popen(program, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        late = ""
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            late = f"not over after {seconds:.0f} s, "
            process.send_signal(signal.SIGABRT)
            out, err = process.communicate(timeout=60)
    assert process.returncode == expect, f"{late}status {process.returncode}\n{out[-3000:]}\n{err[-6000:]}"
    return out
