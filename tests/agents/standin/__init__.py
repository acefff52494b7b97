"""A stand-in for the model APIs, scripted by the user's prompt."""

from .server import Request, Standin

__all__ = ["Request", "Standin"]
