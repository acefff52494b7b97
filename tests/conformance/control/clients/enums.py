"""The numbers on the wire. They are frozen, so they are repeated here instead of imported from the code under test."""

from __future__ import annotations

from enum import IntEnum


class SandboxState(IntEnum):
    """The state of a sandbox."""

    PENDING = 1
    READY = 2
    FAILED = 3
    STOPPED = 4
    DELETING = 5
    DELETED = 6


class EventType(IntEnum):
    """The type of an event."""

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


class ExecState(IntEnum):
    """The state of an exec."""

    RUNNING = 1
    FINISHED = 2
    FAILED = 3
    CANCELLED = 4
