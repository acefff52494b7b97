"""Records what the published agents write: the fixtures of the converters' tests."""
