"""The programs on other kernels than that of the host: those of Debian, in emulated machines."""
