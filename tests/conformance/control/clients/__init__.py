"""The clients of the control API: the published one, and a plain gRPC client that waits in the same way."""

from __future__ import annotations

import os
from typing import Any

from harness.daemon import Daemon

# The client under test.
NAME = os.environ.get("CARREL_CLIENT", "plain")


def connect(daemon: Daemon, **timeouts: float) -> Any:
    """A client of a daemon, with its default timeouts if no others are given; to be used with `async with`."""
    if NAME == "sdk":
        from .published import connect as connect_published

        return connect_published(daemon, **timeouts)
    from .plain import Client

    return Client(daemon.socket, **timeouts)
