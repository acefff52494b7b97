"""Tests of the published agents with the real server, over HTTP."""
