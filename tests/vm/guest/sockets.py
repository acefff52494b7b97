"""Queues so many MiB in sockets that are never read, prints `ready`, and waits for a line."""

import socket
import sys

pairs, held = [], 0
while held < int(sys.argv[1]) << 20:
    server = socket.create_server(("127.0.0.1", 0))
    writer = socket.create_connection(server.getsockname())
    pairs += [writer, server.accept()[0]]
    writer.setblocking(False)
    try:
        while True:
            held += writer.send(bytes(1 << 15))
    except BlockingIOError:
        pass
print("ready", flush=True)
input()
