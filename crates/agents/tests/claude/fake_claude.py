#!/usr/bin/env python3
"""A scripted Claude Code: each prompt names its actions, and it reports what it receives."""

import json
import os
import signal
import sys

SESSION = "-"
# Whether it starts a turn of its own before it answers the next request.
BUSY = False
ARGUMENTS = dict(argument.partition("=")[::2] for argument in sys.argv[1:])


def say(message):
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


def heard(message):
    """An unknown kind of message, which is passed on unchanged."""
    say({"type": "heard", "message": message})


def said(text):
    say({"type": "assistant", "message": {"id": "m", "content": [{"type": "text", "text": text}]}})


def use(tool, tool_input, **more):
    """Uses a tool that needs a permission; returns the answer."""
    block = {"type": "tool_use", "id": "t", "name": tool, "input": tool_input}
    say({"type": "assistant", "message": {"id": "m", "content": [block]}})
    request = {"subtype": "can_use_tool", "tool_name": tool, "input": tool_input, "tool_use_id": "t", **more}
    say({"type": "control_request", "request_id": "asked", "request": request})
    return listen("control_response")


def listen(kind):
    """Answers requests until a message of this kind arrives."""
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "control_request":
            answer(message["request_id"], message["request"])
            if kind == message["request"]["subtype"]:
                return message["request"]
        if message["type"] == kind:
            return message
    sys.exit(0)


def by_itself():
    """A turn without a prompt."""
    say({"type": "system", "subtype": "init", "session_id": SESSION})
    said("by myself")
    result(origin={"kind": "task-notification"})


def answer(request_id, request):
    global BUSY
    if BUSY:
        BUSY = False
        by_itself()
    say({"type": "system", "subtype": "status", "about": request["subtype"]})
    response = {"subtype": "success", "request_id": request_id, "response": {}}
    if request["subtype"] == "initialize":
        response["response"] = {"models": [{"value": "default"}, {"value": "small"}]}
    if request.get("model") == "flood":
        while True:
            said("x" * 1024 * 1024)
    if request.get("model") == "silent":
        while True:
            signal.pause()
    if request.get("model") == "no-such-model":
        response = {"subtype": "error", "request_id": request_id, "error": "there is no such model"}
    if request["subtype"] != "initialize":
        heard(request)
    say({"type": "control_response", "response": response})


def result(**more):
    say({"type": "result", "subtype": "success", "is_error": False, "terminal_reason": "completed", **more})


def turn(word):
    global BUSY
    if word == "permission":
        rule = {"type": "addRules", "rules": [{"toolName": "Bash", "ruleContent": "touch *"}], "behavior": "allow"}
        heard(use("Bash", {"command": "touch a"}, permission_suggestions=[{**rule, "destination": "localSettings"}]))
    elif word == "half":
        # As JavaScript writes a text that was cut within a character.
        heard(use("Bash", {"command": "echo \ud83d"}))
    elif word == "silence":
        os.dup2(os.open("/dev/null", os.O_WRONLY), 1)
        while True:
            signal.pause()
    elif word == "question":
        options = [{"label": "red"}, {"label": "blue"}]
        heard(use("AskUserQuestion", {"questions": [{"question": "Which?", "options": options, "multiSelect": True}]}))
    elif word == "plan":
        heard(use("ExitPlanMode", {"planFilePath": os.environ.get("FAKE_PLAN", "/nowhere")}))
    elif word == "wait":
        request = {"subtype": "can_use_tool", "tool_name": "Bash", "input": {"command": "sleep"}}
        say({"type": "control_request", "request_id": "asked", "request": request})
        listen("interrupt")
        say({"type": "control_cancel_request", "request_id": "asked"})
        result(subtype="error_during_execution", is_error=True, terminal_reason="aborted_tools")
        return
    elif word == "elicit":
        request = {"subtype": "elicitation", "mcp_server_name": "s", "message": "?"}
        say({"type": "control_request", "request_id": "elicited", "request": request})
        heard(listen("control_response"))
    elif word == "background":
        result()
        by_itself()
        return
    elif word == "busy":
        BUSY = True
    elif word == "die":
        block = {"type": "tool_use", "id": "t", "name": "Bash", "input": {}}
        say({"type": "assistant", "message": {"id": "m", "content": [block]}})
        sys.stderr.write("out of credits\n")
        sys.stderr.flush()
        sys.stdout.write('{"type":"assis')
        sys.stdout.flush()
        os._exit(3)
    elif word == "self":
        heard({"pid": os.getpid(), "arguments": sys.argv[1:]})
    else:
        said(word)
    result()


def main():
    global SESSION
    if starts := os.environ.get("FAKE_STARTS"):
        with open(starts, "a") as file:
            file.write("started\n")
    SESSION = ARGUMENTS.get("--session-id") or ARGUMENTS.get("--resume", "-")
    if "--resume" in ARGUMENTS and SESSION == "unknown":
        result(subtype="error_during_execution", is_error=True, errors=["No conversation found with session ID: unknown"])
        sys.exit(1)
    while True:
        prompt = listen("user")
        say({"type": "system", "subtype": "init", "session_id": SESSION, "user_message_uuids": [prompt["uuid"]]})
        turn(prompt["message"]["content"][0]["text"])


main()
