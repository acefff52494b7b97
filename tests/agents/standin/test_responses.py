import json
import unittest
from typing import Any

from . import responses
from .answer import Text, ToolCall

TOOLS = [{"type": "function", "name": "exec_command"}, {"type": "custom", "name": "apply_patch"}]
CODE_MODE = {"type": "additional_tools", "tools": [{"type": "namespace", "name": "n", "tools": [{"name": "exec"}]}]}


def _user(*texts: str) -> dict[str, Any]:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text} for text in texts]}


def _called() -> list[dict[str, Any]]:
    called = {"type": "function_call", "call_id": "c", "name": "exec_command", "arguments": "{}"}
    return [called, {"type": "function_call_output", "call_id": "c", "output": "ok"}]


def _played(*items: dict[str, Any], tools: list[dict[str, Any]] = TOOLS) -> Any:
    return responses.answer({"model": "m", "tools": tools, "input": list(items)}).blocks[-1]


class TheNextStep(unittest.TestCase):
    def test_is_counted_from_the_last_prompt(self) -> None:
        said = [_user("<environment_context>x"), _user("[[bash:one]][[text:done]]")]
        self.assertEqual(_played(*said), ToolCall("exec_command", {"cmd": "one"}))
        self.assertEqual(_played(*said, *_called()), Text("done"))
        again = [*said, *_called(), _user("<turn_aborted>"), _user("Still there?")]
        self.assertEqual(_played(*again), Text("You said: Still there?"))


class TheTool(unittest.TestCase):
    def test_patches_a_file_where_it_can(self) -> None:
        script = _user("[[write:a.txt|one\ntwo]]")
        patch = "*** Begin Patch\n*** Add File: a.txt\n+one\n+two\n*** End Patch\n"
        self.assertEqual(_played(script), ToolCall("apply_patch", patch))
        by_shell = ToolCall("exec_command", {"cmd": "printf %s 'one\ntwo' > a.txt"})
        self.assertEqual(_played(script, tools=TOOLS[:1]), by_shell)

    def test_is_a_script_for_newer_models(self) -> None:
        ran = _played(CODE_MODE, _user("[[bash:ls 'a b']]"), tools=[])
        self.assertEqual(ran.name, "exec")
        self.assertIn(json.dumps({"cmd": "ls 'a b'"}), ran.arguments)

    def test_that_is_not_listed_is_not_called(self) -> None:
        self.assertEqual(_played(_user("[[ask:Q?|A]]")), Text("No tool of this request can do: ask"))
        offered = [*TOOLS, {"type": "function", "name": "request_user_input"}]
        self.assertEqual(_played(_user("[[ask:Q?|A]]"), tools=offered).name, "request_user_input")

    def test_of_a_plan_is_a_text(self) -> None:
        self.assertEqual(_played(_user("[[plan:P]]")), Text("<proposed_plan>\nP\n</proposed_plan>"))


class TheWire(unittest.TestCase):
    def test_streams_the_same_as_the_complete_response(self) -> None:
        body = {"model": "m", "tools": TOOLS, "input": [_user("[[think:Let me see.]][[text:I look]][[bash:ls]]")]}
        said = responses.answer(body)
        sent = [event.data for event in responses.events(body, said)]
        self.assertEqual(sent[0]["type"], "response.created")
        done = [event["item"]["type"] for event in sent if event["type"] == "response.output_item.done"]
        self.assertEqual(done, ["reasoning", "message", "function_call"])
        text = "".join(event["delta"] for event in sent if event["type"] == "response.output_text.delta")
        self.assertEqual(text, "I look")
        last = sent[-1]
        self.assertEqual((last["type"], last["response"]["id"]), ("response.completed", sent[0]["response"]["id"]))
        self.assertEqual([item["type"] for item in last["response"]["output"]], done)

    def test_an_error_is_reported_by_its_status(self) -> None:
        body = {"tools": TOOLS, "input": [_user("[[error:429]]")]}
        self.assertEqual(responses.answer(body).status, 429)


if __name__ == "__main__":
    unittest.main()
