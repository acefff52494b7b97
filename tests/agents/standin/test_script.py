import unittest

from .script import Call, Step, call_at, calls, is_prompt


class TheScript(unittest.TestCase):
    def test_a_prompt_without_a_script_is_echoed(self) -> None:
        self.assertEqual(calls("Hello"), [Call((Step("text", "You said: Hello"),))])

    def test_each_tool_ends_a_response_and_text_precedes_the_next(self) -> None:
        self.assertEqual(
            calls("[[think:hm]][[text:I look]][[bash:ls]][[write:a|b]][[text:done]]"),
            [
                Call((Step("think", "hm"), Step("text", "I look")), Step("bash", "ls")),
                Call((), Step("write", "a|b")),
                Call((Step("text", "done"),)),
            ],
        )

    def test_a_step_may_have_no_text_and_many_lines(self) -> None:
        self.assertEqual(calls("[[slow]]")[0].act, Step("slow"))
        self.assertEqual(calls("[[plan:# A\n\nb]]")[0].act, Step("plan", "# A\n\nb"))

    def test_after_the_last_response_nothing_is_left(self) -> None:
        self.assertEqual(call_at(calls("[[text:done]]"), 1).said[0].text, "Nothing is left to do.")

    def test_fields_are_split_at_bars_and_may_be_missing(self) -> None:
        self.assertEqual(Step("write", "a|b|c").fields(2), ["a", "b|c"])
        self.assertEqual(Step("write", "a").fields(2), ["a", ""])

    def test_text_that_a_client_adds_is_not_a_prompt(self) -> None:
        for text in (
            "<system-reminder>x",
            "<environment_context>\n",
            "<turn_aborted>",
            "[Request interrupted by user]",
            " ",
        ):
            self.assertFalse(is_prompt(text), text)
        for text in ("Hello", "[[bash:ls]]", "< 5 lines, please"):
            self.assertTrue(is_prompt(text), text)


if __name__ == "__main__":
    unittest.main()
