import json
import unittest
from typing import Any

from . import messages
from .answer import Text, Thought, ToolCall

TOOLS = [{"name": name} for name in ("Bash", "Write", "Read")]


def _user(*texts: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": text} for text in texts]}


def _called(name: str) -> dict[str, Any]:
    return {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": name, "input": {}}]}


def _result(*after: str) -> dict[str, Any]:
    blocks = [{"type": "text", "text": text} for text in after]
    return {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "ok"}, *blocks]}


def _body(*said: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"model": "m", "tools": TOOLS, "messages": list(said), **more}


class TheNextStep(unittest.TestCase):
    def test_is_counted_from_the_last_prompt(self) -> None:
        script = _user("<system-reminder>ours</system-reminder>", "[[bash:one]][[bash:two]][[text:done]]")
        said = [script, _called("Bash"), _result(), _called("Bash"), _result("<system-reminder>x")]
        played = [messages.answer(_body(*said[:count])).blocks[0] for count in (1, 3, 5)]
        self.assertEqual([getattr(block, "arguments", {}).get("command") for block in played], ["one", "two", None])
        self.assertEqual(played[2], Text("done"))

    def test_restarts_with_another_prompt_even_in_the_same_message(self) -> None:
        said = [_user("[[bash:one]]"), _called("Bash"), _result("[Request interrupted by user]", "Still there?")]
        self.assertEqual(messages.answer(_body(*said)).blocks, (Text("You said: Still there?"),))

    def test_counts_a_response_in_several_messages_once(self) -> None:
        text = {"role": "assistant", "content": [{"type": "text", "text": "I look"}]}
        said = [_user("[[text:I look]][[bash:one]][[text:done]]"), text, _called("Bash"), _result()]
        self.assertEqual(messages.answer(_body(*said)).blocks, (Text("done"),))

    def test_of_a_turn_without_a_prompt_is_empty(self) -> None:
        text = {"role": "assistant", "content": "done"}
        said = [_user("[[text:done]]"), text, _user("<task-notification>over</task-notification>")]
        self.assertEqual(messages.answer(_body(*said)).blocks, (Text("Nothing is left to do."),))


class TheTool(unittest.TestCase):
    def _played(self, script: str, **more: Any) -> Any:
        return messages.answer(_body(_user(script), **more)).blocks[-1]

    def test_is_one_of_the_request(self) -> None:
        self.assertEqual(self._played("[[write:/a|b]]"), ToolCall("Write", {"file_path": "/a", "content": "b"}))
        refused = self._played("[[write:/a|b]]", tools=[{"name": "Bash"}])
        self.assertEqual(refused, Text("No tool of this request can do: write"))

    def test_may_be_one_that_the_client_does_not_list(self) -> None:
        asked = self._played("[[ask:Which?|A|B]]")
        self.assertEqual(asked.name, "AskUserQuestion")
        self.assertEqual([option["label"] for option in asked.arguments["questions"][0]["options"]], ["A", "B"])

    def test_writes_a_plan_to_the_file_that_the_client_names(self) -> None:
        self.assertEqual(self._played("[[plan:P]]"), ToolCall("ExitPlanMode", {"plan": "P"}))
        system = "Write the plan to /home/a/.claude/plans/a-b.md first."
        written = self._played("[[plan:P]]", system=system)
        self.assertEqual(written.arguments, {"file_path": "/home/a/.claude/plans/a-b.md", "content": "P"})
        said = [_user("[[plan:P]]"), _called("Write"), _result()]
        self.assertEqual(messages.answer(_body(*said, system=system)).blocks, (ToolCall("ExitPlanMode", {}),))


class SideCalls(unittest.TestCase):
    def test_never_run_a_script(self) -> None:
        asked = _body(_user("[[bash:rm]]"), tools=[])
        self.assertIsInstance(messages.answer(asked).blocks[0], Text)

    def test_of_the_safety_check_are_allowed(self) -> None:
        said = messages.answer(_body(_user("x"), tools=[], stop_sequences=["</block>"]))
        self.assertEqual(said.blocks, (Text("<block>no"),))
        self.assertEqual(messages.whole({}, said)["stop_sequence"], "</block>")


class TheWire(unittest.TestCase):
    def test_streams_the_same_as_the_complete_response(self) -> None:
        body = _body(_user("[[think:Let me see.]][[text:I look]][[bash:ls -l]]"))
        said = messages.answer(body)
        self.assertEqual([type(block) for block in said.blocks], [Thought, Text, ToolCall])
        streamed: dict[int, str] = {}
        for event in messages.events(body, said):
            if event.data["type"] == "content_block_delta":
                delta = event.data["delta"]
                piece = delta.get("text") or delta.get("thinking") or delta.get("partial_json") or ""
                streamed[event.data["index"]] = streamed.get(event.data["index"], "") + piece
        whole = messages.whole(body, said)
        self.assertEqual(whole["stop_reason"], "tool_use")
        thought, text, tool = whole["content"]
        self.assertEqual([streamed[0], streamed[1]], [thought["thinking"], text["text"]])
        self.assertEqual(json.loads(streamed[2]), tool["input"])

    def test_an_error_is_reported_by_its_status(self) -> None:
        self.assertEqual(messages.answer(_body(_user("[[error:529]]"))).status, 529)
        self.assertEqual(messages.error(529)["error"]["type"], "overloaded_error")

    def test_a_slow_text_waits_before_every_word(self) -> None:
        body = _body(_user("[[slow:1]]"))
        pauses = [event.pause for event in messages.events(body, messages.answer(body)) if event.pause]
        self.assertEqual(pauses, [0.05] * 20)


if __name__ == "__main__":
    unittest.main()
