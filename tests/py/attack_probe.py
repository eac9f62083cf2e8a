# SPDX-License-Identifier: Apache-2.0
"""Programs of test_attack_corpus.py, in processes of their own. `load`: opens one path after the other with the package.
`command`: runs one command line after the other. One line of JSON in, one out: what came of it, how much processor time
it took and how far memory grew (bytes)."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from typing import Any

from waiting import HANG_SECONDS


def described(value: Any) -> Any:
    """A value as plain JSON, tensors with their bytes."""
    if hasattr(value, "detach"):
        flat = value.detach().contiguous().reshape(-1)
        return ["tensor", str(value.dtype), list(value.shape), flat.view(flat.dtype).numpy().tobytes().hex()]
    if isinstance(value, dict):
        return {key: described(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [type(value).__name__, [described(inner) for inner in value]]
    return repr(value)


def peak() -> int:
    with open("/proc/self/status") as file:
        fields = dict(line.split(":", 1) for line in file)
    return int(fields["VmHWM"].split()[0]) * 1024


def load_one(kind: str, path: str) -> dict[str, Any]:
    import pawl

    try:
        if kind == "run":
            pawl.CheckpointManager(path).close()
            return {"value": None}
        if kind == "train":
            with pawl.CheckpointManager(path, num_to_keep=1) as manager:
                manager.save(9, {"w": 1}, wait=True)
            return {"value": None}
        return {"value": described(pawl.load(path))}
    except Exception as error:  # whatever it is, the test judges it
        code = getattr(error, "code_name", None)
        return {"error": type(error).__name__, "code": code, "message": str(error)}


def loads() -> None:
    import torch  # so that its memory is not counted

    import pawl

    assert torch.empty(0).numel() == 0 and pawl.__version__
    for line in sys.stdin:
        kind, path = json.loads(line)
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")  # the peak begins again
        before, start = peak(), time.process_time()
        result = load_one(kind, path)
        result |= {"seconds": time.process_time() - start, "grown": peak() - before}
        print(json.dumps(result), flush=True)


def commands() -> None:
    most = 0
    for line in sys.stdin:
        argv = json.loads(line)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        try:
            done = subprocess.run(argv, capture_output=True, timeout=HANG_SECONDS, stdin=subprocess.DEVNULL)
            result: dict[str, Any] = {"status": done.returncode}
            result["out"], result["err"] = (os.fsdecode(text) for text in (done.stdout, done.stderr))
        except subprocess.TimeoutExpired:
            result = {"status": None, "out": "", "err": ""}
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        grown = after.ru_maxrss * 1024 if after.ru_maxrss > most else 0
        most = max(most, after.ru_maxrss)
        seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(json.dumps(result | {"seconds": seconds, "grown": grown}), flush=True)


if __name__ == "__main__":
    {"load": loads, "command": commands}[sys.argv[1]]()
