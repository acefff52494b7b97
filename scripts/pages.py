"""The documents that are installed: without pages about the sources and without links to files that are not installed."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

# Tables of tests, which are useful only in a clone.
NOT_INSTALLED = {Path("docs/reference/promises.md"), Path("docs/reference/traceability.md")}
AT_THE_ROOT = ("README.md", "SECURITY.md", "SPECIFICATION.md", "CHANGELOG.md", "LICENSE")

# Links in code blocks and code spans are text.
_CODE_OR_LINK = re.compile(
    r"(?P<code>^[ \t]*(?P<fence>```+|~~~+).*?^[ \t]*(?P=fence)[ \t]*$|`[^`\n]*`)"
    r"|!?\[(?P<text>[^\]]*)\]\((?P<target>[^)\s]+)\)",
    re.MULTILINE | re.DOTALL,
)


def installed(root: Path) -> dict[Path, bytes]:
    """The contents of all installed documents, by path below the root."""
    pages = [Path(name) for name in AT_THE_ROOT]
    pages += [page.relative_to(root) for directory in ("docs", "proto") for page in sorted((root / directory).rglob("*"))]
    pages = [page for page in pages if page.suffix in ("", ".md", ".proto", ".svg") and (root / page).is_file()]
    pages = [page for page in pages if page not in NOT_INSTALLED]
    contents = {page: (root / page).read_bytes() for page in pages}
    return {
        page: without_dead_links(content.decode(), page, pages).encode() if page.suffix == ".md" else content
        for page, content in contents.items()
    }


def without_dead_links(text: str, page: Path, pages: Iterable[Path]) -> str:
    """Replaces relative links to files that are not installed by their text."""
    there = {str(path) for file in pages for path in (file, *file.parents)}

    def kept_or_text(found: re.Match[str]) -> str:
        target = found["target"]
        if found["code"] or "://" in target or target.startswith(("#", "mailto:")):
            return found[0]
        path = os.path.normpath(page.parent / target.split("#")[0])
        return found[0] if path in there else found["text"]

    return _CODE_OR_LINK.sub(kept_or_text, text)
