"""The published releases, one for each generation of interest, and their features."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

REQUIREMENTS = Path(__file__).resolve().parent.parent / "requirements"

# The highest generation that agentd announces to a published client.
NEWEST = 10


@dataclass(frozen=True)
class Server:
    """A server for the tests of a release: an agentd of a generation, alone or behind the relay of its sandbox."""

    generation: int
    relay: bool = False

    def __str__(self) -> str:
        return f"{'relay' if self.relay else 'agentd'}-{self.generation}"


@dataclass(frozen=True)
class Release:
    """One release of the package, installed in the environment that runs these tests."""

    name: str
    generation: int
    # The generations of agentd that it is tested with: the newest, as for a user who has not upgraded the client, and
    # older ones, as for a user who has not restarted the sandbox.
    agentd: tuple[int, ...]
    # Whether it can connect to a relay, which has only the current prologue.
    relay: bool = True
    # `microsandbox.agent.AgentClient` came with 0.5.0; before it only the sandbox objects can reach an agent.
    agent_client: bool = True
    # `AgentClient.socket_path` came after 0.5.5, and with it the path by which a sandbox is found by name.
    socket_path: bool = True
    # `ExecHandle.resize`, `ping` and `touch` of the sandbox objects came with 0.6.
    sandbox_resize: bool = True
    # Files by handle came with 0.5.0. Before, a request had a path, which no generation of the protocol describes.
    files: bool = True
    # The SSH and SFTP client inside the package came with 0.5.0.
    ssh: bool = True
    # The command line inside the package; before 0.6 it asks for a newer C library than Debian 12 has.
    command_line: bool = True
    # 0.4 takes no `args` beside other options, and stores an image as text.
    keyword_options: bool = True

    @property
    def version(self) -> str:
        """The version that the requirements pin."""
        text = (REQUIREMENTS / f"{self.name}.txt").read_text()
        found = re.search(r"^microsandbox==(\S+)$", text, re.MULTILINE)
        assert found, f"requirements/{self.name}.txt pins no microsandbox"
        return found.group(1)

    @property
    def servers(self) -> tuple[Server, ...]:
        """All servers that it is tested with. A sandbox runs the newest agentd, so there is one relay."""
        alone = tuple(Server(generation) for generation in self.agentd)
        return (*alone, Server(NEWEST, relay=True)) if self.relay else alone

    def negotiated(self, agentd: int) -> int:
        """The generation that this release and an agentd agree on."""
        return min(self.generation, agentd)


RELEASES = {
    release.name: release
    for release in (
        # 8 has bulk records and no acknowledgements, 7 has neither: three ways to move data with the same client.
        Release("current", 10, agentd=(NEWEST, 8, 7)),
        Release("gen7", 7, agentd=(NEWEST, 7)),
        Release("gen4", 4, agentd=(NEWEST, 4), socket_path=False, sandbox_resize=False, command_line=False),
        Release(
            "legacy",
            1,
            # It reads only the legacy prologue, which agentd sends at generation 1, and a relay never.
            agentd=(1,),
            relay=False,
            agent_client=False,
            socket_path=False,
            sandbox_resize=False,
            files=False,
            ssh=False,
            command_line=False,
            keyword_options=False,
        ),
    )
}

CLIENT = RELEASES[os.environ.get("CARREL_CLIENT", "current")]
