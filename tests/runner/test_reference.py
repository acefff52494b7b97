"""The comparison of `docs/reference` with the code."""

import shutil
import tempfile
import unittest
from pathlib import Path

from . import reference


class Pages(unittest.TestCase):
    ROOT = Path(__file__).parents[2]

    def changed(self, page: str, old: str, new: str) -> list[str]:
        """The problems of this repository after a change of a page."""
        with tempfile.TemporaryDirectory() as name:
            root = Path(name)
            (root / "crates").symlink_to(self.ROOT / "crates")
            shutil.copytree(self.ROOT / "docs/reference", root / "docs/reference")
            shutil.copy(self.ROOT / "README.md", root)
            path = root / page if page == "README.md" else root / "docs/reference" / page
            text = path.read_text()
            self.assertIn(old, text)
            path.write_text(text.replace(old, new))
            return reference.problems(root)

    def test_the_pages_are_complete(self) -> None:
        self.assertEqual(reference.problems(self.ROOT), [])

    def test_a_missing_or_invented_error_is_found(self) -> None:
        wrong = self.changed("errors.md", "`STORE_FAILED`", "`STORE_BROKE`")
        self.assertEqual(wrong, ["errors.md: `STORE_FAILED` is missing", "errors.md: no source has `STORE_BROKE`"])

    def test_a_missing_or_invented_setting_is_found(self) -> None:
        wrong = self.changed("configuration.md", "| `grace` |", "| `mercy` |")
        missing, invented = "`runtime.grace` is missing", "there is no `runtime.mercy`"
        self.assertEqual(wrong, [f"configuration.md: {missing}", f"configuration.md: {invented}"])

    def test_a_missing_message_is_found(self) -> None:
        self.assertEqual(self.changed("protocol.md", "`core.pong`", "pong"), ["protocol.md: `core.pong` is missing"])
        self.assertEqual(self.changed("shim-protocol.md", "`shim.hello`", "hello"), ["shim-protocol.md: `shim.hello` is missing"])

    def test_a_missing_or_invented_code_of_a_command_is_found(self) -> None:
        for code in ("apply_refused", "helper_missing", "home_copied", "link_not_followed", "name_taken", "project_replaced"):
            wrong = self.changed("errors.md", f"`{code}`", "`broken_pencil`")
            self.assertIn(f"errors.md: `{code}` is missing", wrong)
            self.assertIn("errors.md: there is no `broken_pencil`", wrong)

    def test_a_missing_or_invented_exit_code_is_found(self) -> None:
        wrong = self.changed("exit-codes.md", "| 124 |", "| 123 |")
        self.assertEqual(wrong, ["exit-codes.md: `124` is missing", "exit-codes.md: there is no `123`"])
        self.assertEqual(self.changed("exit-codes.md", "| 3 if ", "| if "), ["exit-codes.md: `3` is missing"])

    def test_a_missing_or_invented_route_is_found(self) -> None:
        wrong = self.changed("agents-api.md", "| `POST …/abort` |", "| `PUT …/abort` |")
        abort = "/v1/sessions/{id}/abort"
        self.assertEqual(wrong, [f"agents-api.md: `POST {abort}` is missing", f"agents-api.md: there is no `PUT {abort}`"])

    def test_a_missing_error_of_the_agents_server_or_another_status_is_found(self) -> None:
        wrong = self.changed("agents-api.md", "| `timeout` | 504 |", "| `timeout` | 502 |")
        self.assertEqual(wrong, ["agents-api.md: `timeout` 504 is missing", "agents-api.md: there is no `timeout` 502"])
        wrong = self.changed("agents-api.md", ", `mode_not_supported` |", " |")
        self.assertEqual(wrong, ["agents-api.md: `mode_not_supported` 400 is missing"])

    def test_a_missing_or_invented_program_is_found(self) -> None:
        wrong = self.changed("README.md", "| `carrel-unpack` |", "| `carrel-pack` |")
        self.assertEqual(wrong, ["README.md: `carrel-unpack` is missing", "README.md: there is no `carrel-pack`"])
