"""What no kernel at hand can show: the programs on Debian's kernels, in machines without acceleration."""
