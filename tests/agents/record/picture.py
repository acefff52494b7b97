"""A picture of one pixel, as base64."""

PICTURE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
# A step that writes it; agents read it in a later step.
WRITE = f"[[bash:echo {PICTURE} | base64 -d > picture.png]]"
