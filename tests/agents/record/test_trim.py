import json
import unittest
from pathlib import Path

from .trim import trim


class ARecording(unittest.TestCase):
    def test_without_removals_is_unchanged(self) -> None:
        line = '{"type" : "text",  "text":"é"}'
        self.assertEqual(trim([line], Path("/scratch")), [line])

    def test_loses_paths_of_the_machine(self) -> None:
        line = '{"cwd":"/s/a/project","kept":"/s/a/home/.x/-s-a-project","at":"http://127.0.0.1:9999"}'
        (trimmed,) = trim([line], Path("/s/a"))
        wanted = {
            "cwd": "/home/user/project",
            "kept": "/home/user/.x/-home-user-project",
            "at": "http://127.0.0.1:4000",
        }
        self.assertEqual(json.loads(trimmed), wanted)

    def test_loses_prose_and_long_lists_and_keeps_its_structure(self) -> None:
        line = json.dumps(
            {"tools": ["a", "b", "c", "d"], "text": "x" * 161, "description": "Does things", "input": {"n": 1}}
        )
        (trimmed,) = trim([line], Path("/scratch"))
        wanted = {"tools": ["a", "b", "c"], "text": "x" * 80 + "…", "description": "…", "input": {"n": 1}}
        self.assertEqual(json.loads(trimmed), wanted)


if __name__ == "__main__":
    unittest.main()
