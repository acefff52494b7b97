"""The numbers of the wire. They are frozen, so they stand here once more and are not taken from what is under test."""

from __future__ import annotations

from enum import IntEnum


class State(IntEnum):
    """How a sandbox is."""

    PENDING = 1
    READY = 2
    FAILED = 3
    STOPPED = 4
    DELETING = 5
    DELETED = 6


class Kind(IntEnum):
    """What happened."""

    ACCEPTED = 1
    PREPARING = 2
    READY = 3
    FAILED = 4
    STOP_REQUESTED = 5
    STOPPED = 6
    DELETE_REQUESTED = 7
    DELETED = 8
    EXEC_STARTED = 9
    EXEC_FINISHED = 10
    EXEC_FAILED = 11
    EXEC_CANCELLED = 12
    SERVICE_READY = 13
    SERVICE_FAILED = 14


class Exec(IntEnum):
    """How an exec is."""

    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
