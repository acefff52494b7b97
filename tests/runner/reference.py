"""Holds `docs/reference` to the code: what the code has is in the page, and what a page names is in the code."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path

_PAGES = Path("docs/reference")
_CODES = Path("crates/control/src/codes.rs")
_SETTINGS = Path("crates/daemon/src/config/everything.toml")
_SHIM_SCHEMA = Path("crates/shim-client/schema/version-1.json")
_AGENT_SCHEMAS = Path("crates/protocol/schema")


def problems(root: Path) -> list[str]:
    """What is missing in the pages, and what they name in vain."""
    return [*_errors(root), *_settings(root), *_messages(root)]


def _errors(root: Path) -> list[str]:
    """Every reason, error code and stop reason is listed, and every listed one is in the sources."""
    page = (root / _PAGES / "errors.md").read_text()
    codes = re.findall(r'const \w+: &str = "(\w+)";', (root / _CODES).read_text())
    missing = [f"errors.md: `{code}` is missing" for code in codes if f"`{code}`" not in page and "_" in code]
    sources = "\n".join(path.read_text() for path in sorted((root / "crates").glob("*/src/**/*.rs")))
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([A-Za-z]\w+)`", row)]
    return missing + [f"errors.md: no source has `{name}`" for name in named if f'"{name}"' not in sources]


def _settings(root: Path) -> list[str]:
    """Every key of the configuration is in the table of its section, and no other one."""
    page = (root / _PAGES / "configuration.md").read_text()
    sections = dict(re.findall(r"^## (\w+)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    wrong = []
    for section, keys in tomllib.loads((root / _SETTINGS).read_text()).items():
        tables = keys if isinstance(keys, list) else list(keys.values()) if section == "registries" else [keys]
        known = {key for table in tables for key in table}
        # A key without a type is a former name.
        cells = re.findall(r"^\| (`[^|]+) \| (?!–)", sections.get(section, ""), re.MULTILINE)
        listed = {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}
        wrong += [f"configuration.md: `{section}.{key}` is missing" for key in sorted(known - listed)]
        wrong += [f"configuration.md: there is no `{section}.{key}`" for key in sorted(listed - known)]
    return wrong


def _messages(root: Path) -> list[str]:
    """Every message type of a protocol is in its page."""
    newest = max((root / _AGENT_SCHEMAS).glob("gen-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    wrong = []
    for page, schema in (("shim-protocol.md", root / _SHIM_SCHEMA), ("protocol.md", newest)):
        text = (root / _PAGES / page).read_text()
        types = [message["type"] for message in json.loads(schema.read_text())["messages"]]
        wrong += [f"{page}: `{name}` is missing" for name in types if f"`{name}`" not in text]
    return wrong
