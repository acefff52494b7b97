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
            for part in ("docs/reference", "crates"):
                (root / part).parent.mkdir(parents=True, exist_ok=True)
                (root / part).symlink_to(self.ROOT / part)
            (root / "docs/reference").unlink()
            shutil.copytree(self.ROOT / "docs/reference", root / "docs/reference")
            path = root / "docs/reference" / page
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
