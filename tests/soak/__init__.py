"""A random workload under faults: daemons, supervisors and agents are killed and frozen, disks filled, stores restored."""
