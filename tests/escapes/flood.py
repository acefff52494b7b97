"""Fills the signal queue of this user, and then sends pid 1 a signal. If the queue has no space for the details of a
signal, the kernel delivers it as if it came from outside the namespace."""

import ctypes
import os
import platform
import signal

libc = ctypes.CDLL(None, use_errno=True)
RT_SIGQUEUEINFO = {"x86_64": 129, "aarch64": 138}[platform.machine()]
PIDFD_OPEN, PIDFD_SEND_SIGNAL = 434, 424
# The number, the error, the code of a queued signal.
info = (ctypes.c_int * 32)()
info[0], info[2] = signal.SIGTERM, -1


def outcome(name, returned):
    print(name, "sent" if returned == 0 else ctypes.get_errno(), flush=True)


# Real-time signals to pid 1 first: they must not stay pending there.
for _ in range(100):
    os.kill(1, signal.SIGRTMAX)
signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGRTMAX])
own = (ctypes.c_int * 32)()
own[0], own[2] = signal.SIGRTMAX, -1
sent = 0
while libc.syscall(RT_SIGQUEUEINFO, os.getpid(), int(signal.SIGRTMAX), ctypes.byref(own)) == 0:
    sent += 1
print("queued", sent > 1000, ctypes.get_errno(), flush=True)
outcome("rt_sigqueueinfo", libc.syscall(RT_SIGQUEUEINFO, 1, int(signal.SIGTERM), ctypes.byref(info)))
pidfd = libc.syscall(PIDFD_OPEN, 1, 0)
outcome("pidfd_send_signal", libc.syscall(PIDFD_SEND_SIGNAL, pidfd, int(signal.SIGTERM), ctypes.byref(info), 0))
# The details of these are dropped as well.
TKILL, TGKILL = {"x86_64": (200, 234), "aarch64": (130, 131)}[platform.machine()]
outcome("tkill", libc.syscall(TKILL, 1, int(signal.SIGTERM)))
outcome("tgkill", libc.syscall(TGKILL, 1, 1, int(signal.SIGINT)))
outcome("kill", libc.syscall({"x86_64": 62, "aarch64": 129}[platform.machine()], 1, int(signal.SIGTERM)))
