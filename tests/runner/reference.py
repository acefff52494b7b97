"""Compares `docs/reference` with the code: the pages list everything, and nothing that does not exist."""

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
    """Entries that are missing in the pages, and entries that do not exist in the code."""
    return [*_errors(root), *_settings(root), *_messages(root)]


def _errors(root: Path) -> list[str]:
    """Compares reasons, error codes and stop reasons with `errors.md`."""
    page = (root / _PAGES / "errors.md").read_text()
    codes = re.findall(r'const \w+: &str = "(\w+)";', (root / _CODES).read_text())
    missing = [f"errors.md: `{code}` is missing" for code in codes if f"`{code}`" not in page and "_" in code]
    sources = "\n".join(path.read_text() for path in sorted((root / "crates").glob("*/src/**/*.rs")))
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([A-Za-z]\w+)`", row)]
    return missing + [f"errors.md: no source has `{name}`" for name in named if f'"{name}"' not in sources]


def _settings(root: Path) -> list[str]:
    """Compares the configuration keys with the tables of `configuration.md`."""
    page = (root / _PAGES / "configuration.md").read_text()
    sections = dict(re.findall(r"^## (\w+)$(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL))
    wrong = []
    for section, keys in tomllib.loads((root / _SETTINGS).read_text()).items():
        tables = keys if isinstance(keys, list) else list(keys.values()) if section == "registries" else [keys]
        known = {key for table in tables for key in table}
        # A key without a type is an alias for an old name.
        cells = re.findall(r"^\| (`[^|]+) \| (?!–)", sections.get(section, ""), re.MULTILINE)
        listed = {key for cell in cells for key in re.findall(r"`(\w+)`", cell)}
        wrong += [f"configuration.md: `{section}.{key}` is missing" for key in sorted(known - listed)]
        wrong += [f"configuration.md: there is no `{section}.{key}`" for key in sorted(listed - known)]
    return wrong


def _messages(root: Path) -> list[str]:
    """Checks that the page of a protocol lists all its message types."""
    newest = max((root / _AGENT_SCHEMAS).glob("gen-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    wrong = []
    for page, schema in (("shim-protocol.md", root / _SHIM_SCHEMA), ("protocol.md", newest)):
        text = (root / _PAGES / page).read_text()
        types = [message["type"] for message in json.loads(schema.read_text())["messages"]]
        wrong += [f"{page}: `{name}` is missing" for name in types if f"`{name}`" not in text]
    return wrong
