"""Attacks pid 1 from inside its namespaces and prints, as JSON, which attempts succeeded."""

import ctypes
import json
import os

libc = ctypes.CDLL(None, use_errno=True)
PIDFD_OPEN, PIDFD_GETFD = 434, 438
PTRACE_SEIZE, PTRACE_DETACH = 0x4206, 17


def write_memory():
    os.close(os.open("/proc/1/mem", os.O_RDWR))


def list_descriptors():
    if not [os.readlink(f"/proc/1/fd/{fd}") for fd in os.listdir("/proc/1/fd")]:
        raise OSError


def take_descriptor():
    pidfd = checked(libc.syscall(PIDFD_OPEN, 1, 0))
    for fd in range(1024):
        taken = libc.syscall(PIDFD_GETFD, pidfd, fd, 0)
        if taken >= 0:
            return
        if ctypes.get_errno() != 9:
            raise OSError(ctypes.get_errno(), "pidfd_getfd")
    raise OSError


def trace():
    checked(libc.ptrace(PTRACE_SEIZE, 1, 0, 0))


def checked(outcome):
    if outcome < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return outcome


def succeeds(attempt):
    try:
        attempt()
        return True
    except OSError:
        return False


attempts = [write_memory, list_descriptors, take_descriptor, trace]
print(json.dumps({attempt.__name__: succeeds(attempt) for attempt in attempts}))
