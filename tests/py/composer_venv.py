# SPDX-License-Identifier: Apache-2.0
"""The real Composer for the tests, in a virtual environment of its own (.venv/servers/composer, or
PAWL_TEST_SERVERS), made on first use.

mosaicml 0.32.1, the last release, asks for torch below 2.7.1; it is installed with the torch of the tests. All that is
used here works with it, so that no second torch has to be fetched.
"""

from __future__ import annotations

import contextlib
import pathlib
import shutil
import subprocess
import sys
import tempfile

from frameworks import lend_packages
from needs import need
from s3_servers import SERVERS
from waiting import HANG_SECONDS

NAME = "composer-0.32.1-with-parent"
ALONE = ["mosaicml==0.32.1", "torchvision==0.28.*", "torchmetrics<1.7.5", "torch_optimizer<0.4"]
WITH_THEIRS = [
    *("pyyaml<7", "tqdm<5", "coolname<3", "tabulate==0.9.0", "py-cpuinfo<10", "packaging<25.1", "pytorch-ranger"),
    *("importlib-metadata<9", "psutil<8", "requests<3", "mosaicml-cli<0.8", "pillow<12", "lightning-utilities"),
    "boto3<2",  # for its uploaders
]


def composer_python() -> pathlib.Path:
    need("framework")
    folder = SERVERS / NAME
    if not (folder / "done").exists():
        SERVERS.mkdir(parents=True, exist_ok=True)
        part = pathlib.Path(tempfile.mkdtemp(prefix=f"{NAME}.", dir=SERVERS))
        subprocess.run([sys.executable, "-m", "venv", str(part)], check=True, capture_output=True, timeout=HANG_SECONDS)
        theirs = next((part / "lib").glob("python3.*")) / "site-packages"
        env = lend_packages(theirs)
        pip = [str(part / "bin" / "python"), "-m", "pip", "install", "--quiet", "--no-input"]
        # pytorch-ranger asks for torch, which the interpreter finds where the tests have it
        for words in (WITH_THEIRS, ["--no-deps", *ALONE]):
            subprocess.run([*pip, *words], env=env, check=True, capture_output=True, timeout=HANG_SECONDS)
        (part / "done").touch()
        with contextlib.suppress(OSError):  # another process may have been faster
            part.rename(folder)
        shutil.rmtree(part, ignore_errors=True)
    return folder / "bin" / "python"
