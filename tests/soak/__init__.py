"""A random workload under faults: daemons, shims and agents are killed and frozen, disks filled, stores restored."""
