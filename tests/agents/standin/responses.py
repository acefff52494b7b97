"""The OpenAI Responses API: next step, tool, and events of the response."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator
from typing import Any

from .answer import Answer, Block, Event, Text, Thought, ToolCall, deltas, slow_text
from .script import Call, Step, call_at, calls, is_prompt

CALLED = ("function_call", "custom_tool_call")


def answer(body: dict[str, Any]) -> Answer:
    """The response to this request."""
    prompt, done = _position(body)
    return _play(call_at(calls(prompt), done), offered(body))


def offered(body: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The tools of a request by name. For newer models they are in the input, and in namespaces."""
    found: dict[str, dict[str, Any]] = {}
    lists = [body.get("tools") or []]
    lists += [item.get("tools") or [] for item in body.get("input", []) if item.get("type") == "additional_tools"]
    for tool in (tool for tools in lists for tool in tools):
        if tool.get("type") == "namespace":
            for inner in tool.get("tools") or []:
                found.setdefault(inner.get("name", ""), {**inner, "namespace": tool.get("name")})
        else:
            found[tool.get("name") or tool.get("type", "")] = tool
    return found


def _position(body: dict[str, Any]) -> tuple[str, int]:
    """The last prompt of the user, and the number of tool calls since."""
    prompt, done = "", 0
    for item in body.get("input", []):
        if item.get("type") in CALLED:
            done += 1
        elif item.get("role") == "user":
            content = item.get("content", [])
            parts = [content] if isinstance(content, str) else [part.get("text", "") for part in content]
            for text in filter(is_prompt, parts):
                prompt, done = text, 0
    return prompt, done


def _play(call: Call, tools: dict[str, dict[str, Any]]) -> Answer:
    blocks: list[Block] = [Thought(step.text) if step.kind == "think" else Text(step.text) for step in call.said]
    step = call.act
    if step is None:
        return Answer(tuple(blocks))
    if step.kind == "error":
        return Answer(status=int(step.text or 500))
    if step.kind == "slow":
        return Answer((*blocks, slow_text(step.text)))
    if step.kind == "plan":
        # A plan is not a tool here, but a text that the client extracts from the response.
        return Answer((*blocks, Text(f"<proposed_plan>\n{step.text}\n</proposed_plan>")))
    tool = _tool(step, tools)
    if tool is None:
        return Answer((*blocks, Text(f"No tool of this request can do: {step.kind}")))
    return Answer((*blocks, tool))


def _tool(step: Step, tools: dict[str, dict[str, Any]]) -> ToolCall | None:
    if step.kind == "ask":
        return _call("request_user_input", _question(step), tools)
    if step.kind == "tool":
        name, arguments = step.fields(2)
        return _call(name, json.loads(arguments or "{}"), tools)
    if step.kind == "write" and ("apply_patch" in tools or "exec" in tools):
        path, text = step.fields(2)
        return _patch(path, text, tools)
    if (command := _command(step)) is None:
        return None
    if "exec" in tools:
        script = f"const done = await tools.exec_command({json.dumps({'cmd': command})}); text(JSON.stringify(done));"
        return ToolCall("exec", script)
    return _call("exec_command", {"cmd": command}, tools)


def _command(step: Step) -> str | None:
    """The step as a shell command, if it is one."""
    if step.kind == "bash":
        return step.text
    if step.kind == "read":
        return f"cat {shlex.quote(step.text)}"
    if step.kind == "write":
        path, text = step.fields(2)
        return f"printf %s {shlex.quote(text)} > {shlex.quote(path)}"
    return None


def _patch(path: str, text: str, tools: dict[str, dict[str, Any]]) -> ToolCall:
    lines = "".join(f"+{line}\n" for line in text.split("\n"))
    patch = f"*** Begin Patch\n*** Add File: {path}\n{lines}*** End Patch\n"
    if "exec" in tools:
        return ToolCall(
            "exec", f"const done = await tools.apply_patch({json.dumps(patch)}); text(JSON.stringify(done));"
        )
    return ToolCall("apply_patch", patch)


def _question(step: Step) -> dict[str, Any]:
    question, *options = step.text.split("|")
    choices = [{"label": option, "description": f"Choose {option}"} for option in options]
    return {"questions": [{"id": "choice", "header": "Choice", "question": question, "options": choices}]}


def _call(name: str, arguments: dict[str, Any], tools: dict[str, dict[str, Any]]) -> ToolCall | None:
    if name not in tools:
        return None
    return ToolCall(name, arguments, tools[name].get("namespace"))


# === the wire ===


def error(status: int) -> dict[str, Any]:
    message = f"the stand-in is set to answer {status}"
    return {"error": {"message": message, "type": "stand_in_error", "code": None, "param": None}}


def whole(body: dict[str, Any], said: Answer) -> dict[str, Any]:
    """The response to a request without streaming."""
    return _response(body, said, "completed", [_item(block) for block in said.blocks])


def events(body: dict[str, Any], said: Answer) -> Iterator[Event]:
    """The response as a stream."""
    empty = _response(body, said, "in_progress", [])
    yield Event({"type": "response.created", "response": empty})
    output = []
    for index, block in enumerate(said.blocks):
        item = _item(block)
        place = {"item_id": item["id"], "output_index": index}
        yield Event({"type": "response.output_item.added", "output_index": index, "item": _emptied(item)})
        for event in _deltas(block):
            yield Event({**event.data, **place}, event.pause)
        yield Event({"type": "response.output_item.done", "output_index": index, "item": item})
        output.append(item)
    yield Event(
        {"type": "response.completed", "response": {**_response(body, said, "completed", output), "id": empty["id"]}}
    )


def _response(body: dict[str, Any], said: Answer, status: str, output: list[dict[str, Any]]) -> dict[str, Any]:
    usage: dict[str, Any] | None = None
    if status == "completed":
        usage = {"input_tokens": said.usage["input"], "output_tokens": said.usage["output"]}
        usage |= {"total_tokens": said.usage["input"] + said.usage["output"]}
        usage |= {"input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    model = body.get("model", "stand-in")
    return {
        "id": _id("resp"), "object": "response", "created_at": 0, "status": status, "model": model,
        "output": output, "usage": usage, "error": None, "incomplete_details": None,
    }  # fmt: skip


def _item(block: Block) -> dict[str, Any]:
    if isinstance(block, Thought):
        summary = [{"type": "summary_text", "text": block.text}]
        return {"type": "reasoning", "id": _id("rs"), "summary": summary, "content": None, "encrypted_content": None}
    if isinstance(block, Text):
        content = [{"type": "output_text", "text": block.text, "annotations": []}]
        return {"type": "message", "id": _id("msg"), "role": "assistant", "status": "completed", "content": content}
    place = {"call_id": _id("call"), "name": block.name, "status": "completed"}
    if block.namespace:
        place["namespace"] = block.namespace
    if isinstance(block.arguments, str):
        return {"type": "custom_tool_call", "id": _id("ctc"), **place, "input": block.arguments}
    return {"type": "function_call", "id": _id("fc"), **place, "arguments": json.dumps(block.arguments)}


def _emptied(item: dict[str, Any]) -> dict[str, Any]:
    """The item as it is announced, without content."""
    emptied = {"summary": [], "content": [], "input": "", "arguments": ""}
    started = {key: emptied.get(key, value) for key, value in item.items()}
    return started | ({"status": "in_progress"} if "status" in item else {})


def _deltas(block: Block) -> Iterator[Event]:
    if isinstance(block, Thought):
        yield Event({"type": "response.reasoning_summary_part.added", "summary_index": 0})
        for part in deltas(block.text):
            yield Event({"type": "response.reasoning_summary_text.delta", "summary_index": 0, "delta": part})
    elif isinstance(block, Text):
        for part in deltas(block.text):
            yield Event({"type": "response.output_text.delta", "content_index": 0, "delta": part}, block.pace)
    elif isinstance(block.arguments, str):
        yield Event({"type": "response.custom_tool_call_input.delta", "delta": block.arguments})
    else:
        yield Event({"type": "response.function_call_arguments.delta", "delta": json.dumps(block.arguments)})


def _id(kind: str) -> str:
    return f"{kind}_{uuid.uuid4().hex[:24]}"
