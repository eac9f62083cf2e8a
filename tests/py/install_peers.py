# SPDX-License-Identifier: Apache-2.0
"""Installs the servers and frameworks of the tests, each in an environment of its own, so that no test has to wait for it."""

from __future__ import annotations

import concurrent.futures
import sys

from azurite import azurite_program
from composer_venv import composer_python
from frameworks import PACKAGES, python_of
from s3_servers import moto_python


def main() -> int:
    calls = [azurite_program, composer_python, moto_python, *(lambda name=name: python_of(name) for name in PACKAGES)]
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()
    return 0


if __name__ == "__main__":
    sys.exit(main())
