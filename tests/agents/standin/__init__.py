"""A stand-in for the model APIs: the user's prompt is the script that it plays."""

from .server import Request, Standin

__all__ = ["Request", "Standin"]
