"""What the tests need to drive a published client: its release, an agentd to talk to, and the messages in between."""
