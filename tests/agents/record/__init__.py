"""Records the output of the published agents: the fixtures of the converter tests."""
