"""Compares `docs/reference`, and the table of programs in README.md, with the code: the pages list everything, and nothing that does not exist."""

from __future__ import annotations

import json
import re
import tomllib
from http import HTTPStatus
from pathlib import Path

import programs

_PAGES = Path("docs/reference")
_CODES = Path("crates/control/src/codes.rs")
_SERVE_ERRORS = Path("crates/daemon/src/error.rs")
_SHIM_FAILURES = Path("crates/shim-client/src/messages.rs")
_ROUTES = Path("crates/agents/src/http/routes.rs")
_PROBLEMS = Path("crates/agents/src/http/problem.rs")
_SETTINGS = Path("crates/daemon/src/config/everything.toml")
_SHIM_SCHEMA = Path("crates/shim-client/schema/version-1.json")
_AGENT_SCHEMAS = Path("crates/protocol/schema")


def problems(root: Path) -> list[str]:
    """Entries that are missing in the pages, and entries that do not exist in the code."""
    checks = (_errors, _command_errors, _exit_codes, _settings, _messages, _routes, _agent_errors, _programs)
    return [problem for check in checks for problem in check(root)]


def _compared(page: str, known: set[str], listed: set[str]) -> list[str]:
    """Entries that only the code has, and entries that only the page has."""
    return _differences(page, {f"`{name}`" for name in known}, {f"`{name}`" for name in listed})


def _differences(page: str, known: set[str], listed: set[str]) -> list[str]:
    missing = [f"{page}: {name} is missing" for name in sorted(known - listed)]
    return missing + [f"{page}: there is no {name}" for name in sorted(listed - known)]


def _rows(text: str) -> list[list[str]]:
    """The cells of the tables, without the lines below their heads."""
    rows = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in text.splitlines() if line.startswith("|")]
    return [cells for cells in rows if not all(re.fullmatch(r"-*", cell) for cell in cells)]


def _section(text: str, heading: str) -> str:
    """What is below a heading, up to the next one of its level."""
    found = re.search(rf"^{heading}$(.*?)(?=^{heading.split()[0]} |\Z)", text, re.MULTILINE | re.DOTALL)
    return found[1] if found else ""


def _library(path: Path) -> str:
    """The code of a file without its tests."""
    return path.read_text().split("#[cfg(test)]")[0]


def _cli(root: Path) -> str:
    """The code of the command line without its tests."""
    return "\n".join(_library(path) for path in sorted((root / "crates/cli/src").rglob("*.rs")) if path.stem != "tests")


def _errors(root: Path) -> list[str]:
    """Compares reasons, error codes and stop reasons with `errors.md`."""
    page = (root / _PAGES / "errors.md").read_text()
    codes = re.findall(r'const \w+: &str = "(\w+)";', (root / _CODES).read_text())
    missing = [f"errors.md: `{code}` is missing" for code in codes if f"`{code}`" not in page and "_" in code]
    sources = "\n".join(path.read_text() for path in sorted((root / "crates").glob("*/src/**/*.rs")))
    rows = [row.split("|")[1] for row in page.splitlines() if row.startswith("| `")]
    named = [name for row in rows for name in re.findall(r"`([A-Za-z]\w+)`", row)]
    return missing + [f"errors.md: no source has `{name}`" for name in named if f'"{name}"' not in sources]


def _command_errors(root: Path) -> list[str]:
    """Every code of an error of a command is in the table of codes, and no other one."""
    cli, serve = _cli(root), _library(root / _SERVE_ERRORS)
    known = set(re.findall(r'\b(?:Failure|Self)::(?:new|lines)\(\s*"(\w+)"', cli)) | set(re.findall(r'\bcode: "(\w+)"', cli))
    for constant in set(re.findall(r"\bFailure::new\(\s*(?:\w+::)*([A-Z_]+),", cli)):
        known |= set(re.findall(rf'const {constant}: &str = "(\w+)";', cli))
    # Those that are chosen before the failure is made.
    chosen = re.findall(r"let (?:\(?code\b|word\b)[^;]*;", cli)
    chosen += re.findall(r"fn code\((?:&self|error: &\w+)\).*?\n\s*\}\n\s*\}\n", cli + serve, re.DOTALL)
    known |= {code for text in chosen for code in re.findall(r'"([a-z_]+)"', text)}
    shim = re.search(r"pub enum FailureCode \{(.*?)\n\}", (root / _SHIM_FAILURES).read_text(), re.DOTALL)
    known |= set(re.findall(r'= "(\w+)"', shim[1] if shim else ""))
    page = _section((root / _PAGES / "errors.md").read_text(), "## Errors of commands")
    listed = {code for cells in _rows(page)[1:] for code in re.findall(r"`(\w+)`", cells[0])}
    return _compared("errors.md", known, listed)


def _exit_codes(root: Path) -> list[str]:
    """Every exit code that a command chooses is in a table of the page, and no other one."""
    cli = _cli(root)
    known = set(re.findall(r"\.exit\((\d+)\)", cli))
    for name in set(re.findall(r"\.exit\(([A-Z_]+)\)", cli)):
        known |= set(re.findall(rf"const {name}: u8 = (\d+);", cli))
    rows = _rows((root / _PAGES / "exit-codes.md").read_text())
    listed = {code for cells in rows for code in re.findall(r"(?<!\+ )(?<!to )\b\d+\b(?! \+)", " ".join(cells))}
    return _compared("exit-codes.md", known | {"0"}, listed)


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


def _routes(root: Path) -> list[str]:
    """Every route of the agents server is in its page, and no other one."""
    routes = re.findall(r'route\((GET|POST|PATCH|DELETE), "([^"]+)"', _library(root / _ROUTES))
    known = {f"{method} {re.sub(r'{[^}]*}', '{id}', path)}" for method, path in routes}
    page = _section((root / _PAGES / "agents-api.md").read_text(), "## Routes")
    cells = [cells[0].replace("…", "/v1/sessions/{id}") for cells in _rows(page)[1:]]
    listed = {re.sub(r"{[^}]*}", "{id}", route) for cell in cells for route in re.findall(r"`([^`]+)`", cell)}
    return _compared("agents-api.md", known, listed)


def _agent_errors(root: Path) -> list[str]:
    """Every error code of the agents server is in its page with its status, and no other one."""
    source = _library(root / _PROBLEMS)
    names = dict(re.findall(r'Self::(\w+) => "(\w+)"', source))
    known = set()
    for kinds, status in re.findall(r"((?:Self::\w+[\s|]*)+)=> StatusCode::(\w+)", source):
        number = 413 if status == "PAYLOAD_TOO_LARGE" else HTTPStatus[status].value
        known |= {f"`{names.get(kind, kind)}` {number}" for kind in re.findall(r"Self::(\w+)", kinds)}
    page = _section((root / _PAGES / "agents-api.md").read_text(), "## Errors")
    rows = [cells for cells in _rows(page) if cells[0].startswith("`")]
    listed = {f"`{code}` {cells[1]}" for cells in rows for code in re.findall(r"`(\w+)`", cells[0])}
    return _differences("agents-api.md", known, listed)


def _programs(root: Path) -> list[str]:
    """Every program that is shipped is in the README's table of programs, and no other one."""
    rows = _rows(_section((root / "README.md").read_text(), "## Install"))
    listed = {name for cells in rows for name in re.findall(r"^`([\w-]+)`$", cells[0])}
    return _compared("README.md", set(programs.names()), listed)
