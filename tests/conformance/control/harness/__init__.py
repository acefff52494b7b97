"""The environment outside the API: the daemon, its processes, and pipes between a test and commands in a sandbox."""
