"""The clients of the control API: the published one, and a plain one that waits as the published one does."""

from __future__ import annotations

import os
from typing import Any

from world.daemon import Daemon

# Which of them this run is about.
NAME = os.environ.get("CARREL_CLIENT", "plain")


def connect(daemon: Daemon, **patience: float) -> Any:
    """A client of a daemon, with the patience that it has by default; to be used with `async with`."""
    if NAME == "sdk":
        from .published import connect as connect_published

        return connect_published(daemon, **patience)
    from .plain import Client

    return Client(daemon.socket, **patience)
