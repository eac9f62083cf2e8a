# SPDX-License-Identifier: Apache-2.0
"""Ray's cluster of several nodes on this machine. Ray gives a node 30 s to join it; here it takes what it takes."""

from __future__ import annotations

from ray.cluster_utils import Cluster
from waiting import HANG_SECONDS

Cluster._wait_for_node.__defaults__ = (float(HANG_SECONDS),)

__all__ = ["Cluster"]
