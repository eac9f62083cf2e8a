# SPDX-License-Identifier: Apache-2.0
"""A cluster of Slurm with this machine as its only node, started and stopped by the tests, as the user who runs them. It
comes from Debian's packages, which are installed where they are missing (tools/install-deps.sh slurm)."""

from __future__ import annotations

import contextlib
import getpass
import os
import pathlib
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator

from needs import need
from ports import free_port
from s3_servers import ROOT, installing, stop
from waiting import wait_until

CONF = """ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/none
CredType=cred/none
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
MpiDefault=none
SwitchType=switch/none
JobAcctGatherType=jobacct_gather/none
KillWait=300
MessageTimeout=100
BatchStartTimeout=300
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=test Nodes={host} Default=YES OverSubscribe=FORCE:4 State=UP
"""


@contextlib.contextmanager
def slurm() -> Iterator[dict[str, str]]:
    """The variables with which srun finds it."""
    need("launcher")
    with installing("slurm"):
        if not shutil.which("slurmd") or not shutil.which("slurmctld"):
            done = subprocess.run([str(ROOT / "tools" / "install-deps.sh"), "slurm"], capture_output=True, check=False)
            assert done.returncode == 0, done.stderr.decode()[-500:]
    folder = pathlib.Path(tempfile.mkdtemp(prefix="pawl-slurm-"))
    for name in ("state", "spool"):
        (folder / name).mkdir()
    conf = folder / "slurm.conf"
    host = socket.gethostname().partition(".")[0]
    ports = (free_port(), free_port())
    cores = os.cpu_count() or 1
    conf.write_text(CONF.format(host=host, user=getpass.getuser(), ports=ports, folder=folder, cores=cores))
    env = os.environ | {"SLURM_CONF": str(conf)}
    log = (folder / "log").open("w")
    daemons = []
    try:
        for name in ("slurmctld", "slurmd"):
            program = shutil.which(name)
            assert program is not None
            daemons.append(subprocess.Popen([program, "-D"], env=env, stdout=log, stderr=log, start_new_session=True))

        def idle() -> bool:
            done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=env, capture_output=True, text=True, check=False)
            return done.stdout.strip() == "idle"

        wait_until(idle, "Slurm")
        yield {"SLURM_CONF": str(conf)}
        # Steps that are still ending would outlive the daemons.
        wait_until(idle, "the end of Slurm's jobs")
    finally:
        for daemon in reversed(daemons):
            stop(daemon)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


class Hasten:
    """Slurm keeps a job that was queued again waiting for two minutes. Each call looks whether the job waits; the first
    that sees it so lets it start in five seconds. Not at once: what is sent in the second in which its first start was
    killed counts as sent to that start."""

    def __init__(self, job: str, env: dict[str, str]) -> None:
        self.job = job
        self.env = env
        self.is_done = False

    def __call__(self) -> None:
        if self.is_done:
            return
        done = subprocess.run(["squeue", "-h", "-o", "%t"], env=self.env, capture_output=True, text=True, check=False)
        if done.stdout.strip() == "PD":
            self.is_done = True
            update = ["scontrol", "update", f"JobName={self.job}", "StartTime=now+5"]
            subprocess.run(update, env=self.env, check=False)  # it may have begun meanwhile
