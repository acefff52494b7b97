"""Helpers to drive a published client: its release, an agentd or relay to connect to, and their messages."""
