#!/usr/bin/env python3
"""An app-server that does what a prompt says, so that a test can have it misbehave."""

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading

LOCK = threading.Lock()
NUMBERS = itertools.count()
WAITING = {}
STOPPED = {}
FLOODED = threading.Event()
RELEASED = threading.Event()
RUNNING = [{"itemId": "of another turn", "processId": "6"}]


def write(text):
    with LOCK:
        sys.stdout.buffer.write(text if isinstance(text, bytes) else text.encode())
        sys.stdout.buffer.write(b"\n")
        sys.stdout.buffer.flush()


def send(**message):
    write(json.dumps(message))


def tell(method, **params):
    send(method=method, params=params)


class Turn:
    """What happens between a prompt and its end."""

    def __init__(self, request, params):
        self.request, self.params = request, params
        self.thread, self.id = params["threadId"], f"turn-{request}"
        self.text = params["input"][0]["text"]
        self.stopped = STOPPED[self.id] = threading.Event()

    def tell(self, method, **params):
        tell(method, threadId=self.thread, turnId=self.id, **params)

    def ask(self, method, **params):
        number, answers = next(NUMBERS), queue.Queue()
        WAITING[number] = answers
        send(id=number, method=method, params={"threadId": self.thread, "turnId": self.id, **params})
        answer = answers.get()
        self.tell("serverRequest/resolved", requestId=number)
        return answer

    def say(self, text):
        item = {"type": "agentMessage", "id": f"message-{self.id}", "text": text}
        self.tell("item/started", item={**item, "text": ""})
        self.tell("item/completed", item=item)

    def run(self):
        word, _, rest = self.text.partition(" ")
        if word == "hold":
            RELEASED.wait()
        if word == "refuse":
            return send(id=self.request, error={"code": -32600, "message": "not this one"})
        send(id=self.request, result={"turn": {"id": self.id}})
        tell("turn/started", threadId=self.thread, turn={"id": self.id})
        content = [{"type": "text", "text": self.text}]
        mine = {"type": "userMessage", "id": f"user-{self.id}", "clientId": self.params.get("clientUserMessageId")}
        self.tell("item/completed", item={**mine, "content": content})
        getattr(self, f"do_{word}", lambda rest: self.say(rest or word))(rest)
        status = "interrupted" if self.stopped.is_set() else "completed"
        tell("turn/completed", threadId=self.thread, turn={"id": self.id, "status": status})

    def do_command(self, command):
        item = {"type": "commandExecution", "id": f"command-{self.id}", "command": command, "cwd": "/"}
        self.tell("item/started", item={**item, "status": "inProgress"})
        answer = self.ask("item/commandExecution/requestApproval", itemId=item["id"], command=command)
        self.tell("item/completed", item={**item, "status": "completed", "aggregatedOutput": "", "exitCode": 0})
        self.say(json.dumps(answer))

    def do_patch(self, path):
        changes = [{"path": path, "kind": {"type": "add"}, "diff": "x\n"}]
        item = {"type": "fileChange", "id": f"patch-{self.id}", "changes": changes}
        self.tell("item/started", item={**item, "status": "inProgress"})
        answer = self.ask("item/fileChange/requestApproval", itemId=item["id"], grantRoot=None)
        self.tell("item/completed", item={**item, "status": "completed"})
        self.say(json.dumps(answer))

    def do_ask(self, question):
        options = [{"label": "Red", "description": "like this"}, {"label": "Blue"}]
        asked = [{"id": "q", "header": "One", "question": question, "isOther": True, "options": options}]
        self.say(json.dumps(self.ask("item/tool/requestUserInput", itemId="x", questions=asked)))

    def do_call(self, rest):
        self.say(json.dumps(self.ask("item/tool/call", tool=rest)))

    def do_hang(self, rest):
        self.stopped.wait()

    def do_work(self, rest):
        item = {"type": "commandExecution", "id": f"command-{self.id}", "command": rest, "cwd": "/"}
        RUNNING.append({"itemId": item["id"], "processId": "7"})
        self.tell("item/started", item={**item, "status": "inProgress"})
        self.stopped.wait()

    def do_leave(self, path):
        pipe = os.open(path, os.O_WRONLY)
        os.write(pipe, b"alive")
        mine = {**os.environ, "CODEX_THREAD_ID": self.thread}
        subprocess.Popen(["sleep", "1000"], env=mine, start_new_session=True, pass_fds=(pipe,))
        os.close(pipe)

    def do_detach(self, path):
        pipe = os.open(path, os.O_WRONLY)
        os.write(pipe, b"alive")
        # Its parent exits at once, and it has no marker of its session.
        shell = ["sh", "-c", f"sleep 1000 <&{pipe} &"]
        subprocess.run(shell, env={"PATH": os.environ["PATH"]}, start_new_session=True, pass_fds=(pipe,))
        os.close(pipe)

    def do_hold(self, rest):
        self.stopped.wait()

    def do_release(self, rest):
        RELEASED.set()

    def do_params(self, rest):
        self.say(json.dumps(self.params))

    def do_variable(self, name):
        self.say(os.environ.get(name, ""))

    def do_crash(self, rest):
        sys.stderr.write("out of luck\n")
        sys.stderr.flush()
        os._exit(3)

    def do_garbage(self, rest):
        for line in (b"not json", b"\xff\xfe", b"[]", b'{"id":77,"result":{}}', b""):
            write(line)

    def do_stray(self, length):
        write(f'{{"method":"x","params":{{"threadId":"{self.thread}","x":' + "x" * int(length))

    def do_nobodys(self, rest):
        number, answers = next(NUMBERS), queue.Queue()
        WAITING[number] = answers
        send(id=number, method="account/something", params={})
        self.say(json.dumps(answers.get()))

    def do_half(self, rest):
        self.say(json.dumps(self.ask("item/commandExecution/requestApproval", itemId="h", command="echo \ud83d")))

    def do_flood(self, count):
        for number in range(int(count)):
            self.tell("item/agentMessage/delta", itemId="flood", delta=str(number))
        FLOODED.set()

    def do_flooded(self, text):
        FLOODED.wait()
        self.say(text)

    def do_child(self, rest):
        tell("thread/started", thread={"id": "child", "parentThreadId": self.thread})
        mine, self.thread = self.thread, "child"
        answer = self.ask("item/commandExecution/requestApproval", itemId="c", command="of the child")
        tell("turn/completed", threadId="child", turn={"id": self.id, "status": "failed"})
        self.thread = mine
        self.say(json.dumps(answer))


def models(cursor):
    efforts = [{"reasoningEffort": "low"}, {"reasoningEffort": "high"}]
    one = {"id": "one", "displayName": "One", "supportedReasoningEfforts": efforts, "defaultReasoningEffort": "low"}
    two = {"id": "two", "isDefault": True}
    return {"data": [two], "nextCursor": None} if cursor else {"data": [one], "nextCursor": "more"}


def answer(request, method, params):
    if method == "thread/start":
        thread = f"thread-{os.getpid()}-{request}"
        # Some of what is said of a thread comes before the answer that names it.
        tell("thread/status/changed", threadId=thread, status={"type": "idle"})
        send(id=request, result={"thread": {"id": thread}, "model": "two", "reasoningEffort": "low", "asked": params})
        tell("thread/started", thread={"id": thread})
    elif method == "thread/resume" and params["threadId"] == "lost":
        send(id=request, error={"code": -32600, "message": "no rollout found"})
    elif method == "thread/resume":
        send(id=request, result={"thread": {"id": params["threadId"]}, "model": "two"})
    elif method == "turn/start":
        threading.Thread(target=Turn(request, params).run, daemon=True).start()
    elif method == "turn/interrupt":
        send(id=request, result={})
        STOPPED[params["turnId"]].set()
    elif method == "thread/backgroundTerminals/list":
        send(id=request, result={"data": RUNNING})
    elif method == "thread/backgroundTerminals/terminate":
        send(id=request, result={"terminated": True})
        tell("warning", threadId=params["threadId"], message=f"ended {params['processId']}")
    elif method == "turn/steer":
        content = params["input"]
        send(id=request, result={})
        item = {"type": "userMessage", "id": "steered", "clientId": None, "content": content}
        tell("item/completed", threadId=params["threadId"], item=item)
    elif method == "model/list":
        send(id=request, result=models(params.get("cursor")))
    elif method == "collaborationMode/list" and "NO_PLANS" not in os.environ:
        send(id=request, result={"data": [{"mode": "plan"}, {"mode": "default"}]})
    elif method == "initialize" and "MUTE" in os.environ:
        pass
    elif method in ("initialize", "thread/unsubscribe", "thread/backgroundTerminals/clean"):
        send(id=request, result={})
    elif method == "initialized":
        pass
    else:
        send(id=request, error={"code": -32600, "message": f"unknown: {method}"})


def main():
    with open(os.environ["STARTS"], "a") as starts:
        starts.write(f"{os.getpid()}\n")
    if "STUBBORN" in os.environ:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "ALIVE" in os.environ:
        os.write(os.open(os.environ["ALIVE"], os.O_WRONLY), b"alive")
    if os.environ.get("DIES") == "yes":
        sys.exit("cannot run here")
    for line in sys.stdin:
        message = json.loads(line)
        if "method" in message:
            with open(os.environ["STARTS"] + ".messages", "a") as messages:
                messages.write(f"{json.dumps([os.getpid(), 'id' in message, message['method']])}\n")
            answer(message.get("id"), message["method"], message.get("params", {}))
        else:
            # A second answer finds no request.
            WAITING.pop(message["id"]).put(message)
    while "STUBBORN" in os.environ:
        signal.pause()
    os._exit(0)


main()
