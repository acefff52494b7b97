"""`python3 -m standin`: prints its port as a line of JSON, and exits when its standard input closes."""

import json
import sys

from .server import Standin


def main() -> None:
    with Standin() as standin:
        print(json.dumps({"port": standin.port}), flush=True)
        sys.stdin.buffer.read()


if __name__ == "__main__":
    main()
