"""The published client, unchanged."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import agents_sandbox
from agents_sandbox import errors as errors

from harness.daemon import Daemon


class Client(agents_sandbox.AgentsSandboxClient):
    """The published client, with the names of its package as attributes."""

    errors = errors
    types = agents_sandbox


def connect(daemon: Daemon, **timeouts: float) -> Any:
    """The client has no argument for the path of the socket: it reads its environment, once."""
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(daemon.runtime)):
        return Client(**timeouts)
