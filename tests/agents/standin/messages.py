"""The Anthropic Messages API: next step, tool, and events of the response."""

from __future__ import annotations

import itertools
import json
import re
import uuid
from collections.abc import Iterator
from typing import Any

from .answer import Answer, Block, Event, Text, Thought, ToolCall, deltas, slow_text
from .script import Call, Step, call_at, calls, is_prompt

# The plan file of a client in plan mode, which it names in its messages.
PLAN_FILE = re.compile(r"/[^\s\"'`\\]+/\.claude/plans/[\w.-]+\.md")
# Tools that a client can run although it does not list them.
DEFERRED = {"AskUserQuestion", "ExitPlanMode"}


def answer(body: dict[str, Any]) -> Answer:
    """The response to this request."""
    if not body.get("tools"):
        return _side_call(body)
    prompt, done = _position(body)
    script = [part for call in calls(prompt) for part in _spread(call, body)]
    return _play(call_at(script, done), body)


def _position(body: dict[str, Any]) -> tuple[str, int]:
    """The last prompt of the user, and the number of responses since."""
    prompt, done = "", 0
    # A response may be echoed as several messages.
    for role, messages in itertools.groupby(body.get("messages", []), lambda message: message.get("role")):
        blocks = [block for message in messages for block in _blocks(message)]
        if role == "assistant":
            done += sum(block.get("type") == "tool_use" for block in blocks) or 1
        elif role == "user":
            for block in blocks:
                if block.get("type") == "text" and is_prompt(block["text"]):
                    prompt, done = block["text"], 0
    return prompt, done


def _blocks(message: dict[str, Any]) -> list[dict[str, Any]]:
    content = message.get("content", [])
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def _side_call(body: dict[str, Any]) -> Answer:
    """Requests without tools are side calls, such as a safety check or a title. They run no script."""
    if "</block>" in body.get("stop_sequences", []):
        return Answer((Text("<block>no"),), stop_sequence="</block>")
    if "title" in json.dumps(body.get("output_config", body.get("output_format", ""))):
        return Answer((Text(json.dumps({"title": "A title of the stand-in"})),))
    return Answer((Text("A side call of the client."),))


def _spread(call: Call, body: dict[str, Any]) -> list[Call]:
    """A plan is written to its file first, if the client names one."""
    if call.act and call.act.kind == "plan" and (path := PLAN_FILE.search(json.dumps(body))):
        return [Call(call.said, Step("write", f"{path[0]}|{call.act.text}")), Call((), call.act)]
    return [call]


def _play(call: Call, body: dict[str, Any]) -> Answer:
    blocks: list[Block] = [Thought(step.text) if step.kind == "think" else Text(step.text) for step in call.said]
    step = call.act
    if step is None:
        return Answer(tuple(blocks))
    if step.kind == "error":
        return Answer(status=int(step.text or 500))
    if step.kind == "slow":
        return Answer((*blocks, slow_text(step.text)))
    offered = {tool.get("name") for tool in body["tools"]} | DEFERRED
    tool = _tool(step, body)
    if tool is None or tool.name not in offered:
        return Answer((*blocks, Text(f"No tool of this request can do: {step.kind}")))
    return Answer((*blocks, tool))


def _tool(step: Step, body: dict[str, Any]) -> ToolCall | None:
    if step.kind == "bash":
        return ToolCall("Bash", {"command": step.text, "description": "Run a command"})
    if step.kind == "background":
        return ToolCall("Bash", {"command": step.text, "description": "Run a command", "run_in_background": True})
    if step.kind == "write":
        path, text = step.fields(2)
        return ToolCall("Write", {"file_path": path, "content": text})
    if step.kind == "read":
        return ToolCall("Read", {"file_path": step.text})
    if step.kind == "ask":
        question, *options = step.text.split("|")
        choices = [{"label": option, "description": f"Choose {option}"} for option in options]
        asked = {"question": question, "header": "Choice", "options": choices, "multiSelect": False}
        return ToolCall("AskUserQuestion", {"questions": [asked]})
    if step.kind == "plan":
        return ToolCall("ExitPlanMode", {} if PLAN_FILE.search(json.dumps(body)) else {"plan": step.text})
    if step.kind == "agent":
        task = {"description": "A task", "prompt": step.text, "subagent_type": "general-purpose"}
        return ToolCall("Agent", {**task, "run_in_background": False})
    if step.kind == "tool":
        name, arguments = step.fields(2)
        return ToolCall(name, json.loads(arguments or "{}"))
    return None


# === the wire ===


def error(status: int) -> dict[str, Any]:
    kinds = {
        400: "invalid_request_error",
        401: "authentication_error",
        429: "rate_limit_error",
        529: "overloaded_error",
    }
    kind = kinds.get(status, "api_error")
    return {"type": "error", "error": {"type": kind, "message": f"the stand-in is set to answer {status}"}}


def whole(body: dict[str, Any], said: Answer) -> dict[str, Any]:
    """The response to a request without streaming."""
    return {**_message(body, said), "content": [_block(block) for block in said.blocks], **_stop(said)}


def events(body: dict[str, Any], said: Answer) -> Iterator[Event]:
    """The response as a stream."""
    start = {**_message(body, said), "content": [], "stop_reason": None, "stop_sequence": None}
    yield Event({"type": "message_start", "message": start})
    for index, block in enumerate(said.blocks):
        place = {"index": index}
        yield Event({"type": "content_block_start", **place, "content_block": _empty(block)})
        for delta, pause in _deltas(block):
            yield Event({"type": "content_block_delta", **place, "delta": delta}, pause)
        yield Event({"type": "content_block_stop", **place})
    yield Event({"type": "message_delta", "delta": _stop(said), "usage": {"output_tokens": said.usage["output"]}})
    yield Event({"type": "message_stop"})


def _message(body: dict[str, Any], said: Answer) -> dict[str, Any]:
    usage = {"input_tokens": said.usage["input"], "output_tokens": said.usage["output"]}
    usage |= {"cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    model = body.get("model", "stand-in")
    return {"id": _id("msg"), "type": "message", "role": "assistant", "model": model, "usage": usage}


def _stop(said: Answer) -> dict[str, Any]:
    if said.stop_sequence:
        return {"stop_reason": "stop_sequence", "stop_sequence": said.stop_sequence}
    tool = any(isinstance(block, ToolCall) for block in said.blocks)
    return {"stop_reason": "tool_use" if tool else "end_turn", "stop_sequence": None}


def _block(block: Block) -> dict[str, Any]:
    if isinstance(block, Thought):
        return {"type": "thinking", "thinking": block.text, "signature": "c2lnbmVk"}
    if isinstance(block, Text):
        return {"type": "text", "text": block.text}
    return {"type": "tool_use", "id": _id("toolu"), "name": block.name, "input": block.arguments}


def _empty(block: Block) -> dict[str, Any]:
    emptied: dict[str, Any] = {"thinking": "", "signature": "", "text": "", "input": {}}
    return {key: emptied.get(key, value) for key, value in _block(block).items()}


def _deltas(block: Block) -> Iterator[tuple[dict[str, Any], float]]:
    if isinstance(block, Thought):
        for part in deltas(block.text):
            yield {"type": "thinking_delta", "thinking": part}, 0.0
        yield {"type": "signature_delta", "signature": "c2lnbmVk"}, 0.0
    elif isinstance(block, Text):
        for part in deltas(block.text):
            yield {"type": "text_delta", "text": part}, block.pace
    else:
        # Split in two, so that the client has to join the deltas.
        text = json.dumps(block.arguments)
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            yield {"type": "input_json_delta", "partial_json": part}, 0.0


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"
