"""Sends pid 1 a signal that claims to come from outside its namespace; only a queued signal can carry a false sender."""

import ctypes
import signal

RT_SIGQUEUEINFO = {"x86_64": 129, "aarch64": 138}
libc = ctypes.CDLL(None, use_errno=True)
info = (ctypes.c_int * 32)()
# The number, the error, the code of a queued signal, and after the padding a sender that does not exist.
info[0], info[1], info[2], info[4] = signal.SIGTERM, 0, -1, 0
number = RT_SIGQUEUEINFO[__import__("platform").machine()]
outcome = libc.syscall(number, 1, int(signal.SIGTERM), ctypes.byref(info))
print("sent" if outcome == 0 else f"refused {ctypes.get_errno()}")
