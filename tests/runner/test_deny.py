"""The checks of `deny.toml`, each with a case that fails."""

import unittest
from pathlib import Path
from typing import Any

import deny

ALLOWED = {"MIT", "Apache-2.0", "Apache-2.0 WITH LLVM-exception", "Unicode-3.0"}


def package(name: str, version: str = "1.0.0", **more: Any) -> dict[str, Any]:
    usual = {
        "id": f"{name}@{version}",
        "name": name,
        "version": version,
        "license": "MIT",
        "source": "registry+x/index",
        "manifest_path": "/registry/Cargo.toml",
        "dependencies": [],
    }
    return {**usual, **more}


def resolved(packages: list[dict[str, Any]], edges: list[tuple[str, str]]) -> dict[str, Any]:
    ids = [entry["id"] for entry in packages]
    nodes = [{"id": user, "deps": [{"pkg": used} for by, used in edges if by == user]} for user in ids]
    return {"packages": packages, "resolve": {"nodes": nodes}, "workspace_members": ids[:1]}


class Licences(unittest.TestCase):
    def test_expressions_are_weighed_as_spdx_says(self) -> None:
        for expression, allowed in {
            "MIT": True,
            "MIT/GPL-3.0": True,
            "GPL-3.0": False,
            "(MIT OR GPL-3.0) AND Unicode-3.0": True,
            "MIT OR GPL-3.0 AND Proprietary": True,
            "(MIT OR GPL-3.0) AND Proprietary": False,
            "Apache-2.0 WITH LLVM-exception OR GPL-3.0": True,
            "MIT WITH LLVM-exception": False,
        }.items():
            self.assertEqual(deny.licence_allowed(expression, ALLOWED), allowed, expression)

    def test_what_is_no_expression_is_refused(self) -> None:
        for expression in ("(MIT", "MIT MIT", "MIT AND"):
            with self.assertRaises(ValueError, msg=expression):
                deny.licence_allowed(expression, ALLOWED)

    def test_a_crate_without_a_licence_is_refused(self) -> None:
        wrong = deny.licences({"allow": list(ALLOWED)}, [package("a", license=None), package("b")])
        self.assertEqual(wrong, ["a 1.0.0: licence unknown is not allowed"])


class Bans(unittest.TestCase):
    TABLE = {"deny": [{"crate": "ciborium", "wrappers": ["peer"], "reason": "one CBOR"}], "wildcards": "deny"}

    def test_a_banned_crate_passes_only_below_its_wrapper(self) -> None:
        packages = [package("us"), package("peer"), package("ciborium")]
        below = [("us@1.0.0", "peer@1.0.0"), ("peer@1.0.0", "ciborium@1.0.0")]
        self.assertEqual(deny.bans(self.TABLE, resolved(packages, below), self.fail), [])
        beside = [*below, ("us@1.0.0", "ciborium@1.0.0")]
        wrong = deny.bans(self.TABLE, resolved(packages, beside), self.fail)
        self.assertEqual(wrong, ["ciborium is banned (one CBOR), and used by us"])

    def test_a_dependency_names_a_version_or_a_path(self) -> None:
        wild = {"name": "a", "req": "*", "path": None}
        packages = [package("us", dependencies=[wild, {"name": "b", "req": "*", "path": "/r/b"}])]
        wrong = deny.bans(self.TABLE, resolved(packages, []), self.fail)
        self.assertEqual(wrong, ["us: a has a wildcard version; specify one"])

    def test_two_versions_of_a_crate_are_noted(self) -> None:
        notes: list[str] = []
        packages = [package("us"), package("a"), package("a", "2.0.0")]
        self.assertEqual(deny.bans(self.TABLE, resolved(packages, []), notes.append), [])
        self.assertEqual(notes, ["a is present in 2 versions: 1.0.0, 2.0.0"])


class Sources(unittest.TestCase):
    def test_only_the_registry_and_the_repository_are_sources(self) -> None:
        packages = [
            package("a"),
            package("f"),
            package("b", source=None, manifest_path="/r/crates/b/Cargo.toml"),
            package("c", source=None, manifest_path="/elsewhere/Cargo.toml"),
            package("d", source="git+x"),
            package("e", source="registry+other"),
        ]
        wrong = deny.sources({"unknown-git": "deny", "unknown-registry": "deny"}, packages, Path("/r"))
        self.assertEqual([text.split(" ")[0] for text in wrong], ["c", "d", "e"])

    def test_a_key_that_nothing_obeys_is_refused(self) -> None:
        self.assertEqual(len(deny.unknown_keys({"bans": {"deny": [], "workspace-dependencies": {}}})), 1)
