# SPDX-License-Identifier: Apache-2.0
"""What tests of several object stores have in common: the environment of a test is that of one server only."""

from __future__ import annotations

import os

import pytest
from s3_servers import environment

PREFIXES = (
    "AWS_",
    "GS_",
    "AZURE_",
    "STORAGE_EMULATOR",
    "GOOGLE_",
    "CLOUDSDK_",
    "NO_GCE",
    "PAWL_SSH",
    "PAWL_STALL",
    "PAWL_S3",
)


def take_environment(monkeypatch: pytest.MonkeyPatch, env: dict[str, str]) -> None:
    """Whatever of env belongs to object stores, and nothing else of them."""
    for name in [name for name in os.environ if name.startswith(PREFIXES)]:
        monkeypatch.delenv(name)
    for name, value in env.items():
        if name.startswith(PREFIXES):
            monkeypatch.setenv(name, value)


def keys_for(endpoint: str, secret: str = "s") -> dict[str, str]:
    """Of an S3 server that takes any keys."""
    return environment(
        AWS_ACCESS_KEY_ID="k", AWS_SECRET_ACCESS_KEY=secret, AWS_ENDPOINT_URL=endpoint, AWS_REGION="us-east-1"
    )
