"""The published client, unchanged."""

from __future__ import annotations

import os
from typing import Any
from unittest import mock

import agents_sandbox
from agents_sandbox import errors as errors

from world.daemon import Daemon


class Client(agents_sandbox.AgentsSandboxClient):
    """It, with the names of its package at hand."""

    errors = errors
    types = agents_sandbox


def connect(daemon: Daemon, **patience: float) -> Any:
    """The client takes no path: it looks into its environment, once."""
    with mock.patch.dict(os.environ, XDG_RUNTIME_DIR=str(daemon.runtime)):
        return Client(**patience)
