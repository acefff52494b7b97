"""The published coding agents behind our server, with a stand-in for the model."""
