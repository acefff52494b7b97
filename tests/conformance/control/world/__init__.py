"""What is outside the API: the daemon, its processes, and pipes by which commands inside speak to a test."""
