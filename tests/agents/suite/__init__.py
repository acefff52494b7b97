"""Sessions of the published agents, over HTTP, on the real server."""
