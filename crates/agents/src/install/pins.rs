//! Pinned packages: the default versions, with the hashes that they must have.
//!
//! The hash of a package holds for every registry; the hashes of its files also hold for other sources.

use super::platform::{AgentPlatform, CpuArch, Libc};
use crate::agent::AgentId;

/// A reviewed package.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackagePin {
    pub agent: AgentId,
    /// The architecture.
    pub machine: CpuArch,
    /// The C library; any if it is statically linked.
    pub libc: Option<Libc>,
    pub version: String,
    /// SHA-256 of the package.
    pub package: String,
    /// SHA-256 of its files, by their paths in the install.
    pub files: Vec<(String, String)>,
}

type PinRow = (AgentId, CpuArch, Option<Libc>, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const CLAUDE: &str = "2.1.325";
const CODEX: &str = "0.166.0";

const TABLE: [PinRow; 6] = [
    (
        AgentId::Claude,
        CpuArch::X64,
        Some(Libc::Glibc),
        CLAUDE,
        "e8735d37521f49c31d65c3dcd8c0c8babe6d1f5f72c2066346b3ae88d32ac31d",
        &[("claude", "0dc4f4a9a165fc60746d7ae8489712e5fc352f1e7ad4eb22e7141bd0812eb0cf")],
    ),
    (
        AgentId::Claude,
        CpuArch::X64,
        Some(Libc::Musl),
        CLAUDE,
        "6ccbf87cb5ca169ea6cb683f3c3a1e6ad346536394ee1548b732b745964e9697",
        &[("claude", "a5e3bd36dce97db0429705aa5c3573eea346a77938a89104b9c28fce409b20cd")],
    ),
    (
        AgentId::Claude,
        CpuArch::Arm64,
        Some(Libc::Glibc),
        CLAUDE,
        "f50a204ede2553b62a801bacab66d6812f4c82adf27b5fadf589ec7219459cef",
        &[("claude", "7b6e484b1989a5a14a4b354709ccc8672518a3ec5b9ccd7981fc6254327fde67")],
    ),
    (
        AgentId::Claude,
        CpuArch::Arm64,
        Some(Libc::Musl),
        CLAUDE,
        "972c30c7587d8bc93f7a88c4adaf04170933ab67824e306e8f524d5637d410bd",
        &[("claude", "14dc17cd958f62d82fb2ff6276368fc611a88be303e0ae1a8cca580495964efe")],
    ),
    (
        AgentId::Codex,
        CpuArch::X64,
        None,
        CODEX,
        "cbc00a26d3d0e2ceefc4be8891f8a81ef1e349b3b175bc0ae308762bc001fd93",
        &[
            ("bin/codex", "b8a11fedf24b2dfb59a70c9e52b030f9a508dcd49cd2dd0d41956f4c785156b8"),
            ("bin/codex-code-mode-host", "657f4e902726e05867c937b583049d5997e057f8cd0ab40450633c9c9ef8d630"),
            ("codex-package.json", "a734b829e73b56b59a1ed45e8669785c8e3d23290e60f40f4b5174f68e8ea7cd"),
            ("codex-path/rg", "e62198eb19b136b88c330af83647b5a962cb99b6b1f066758568f12de1974849"),
            ("codex-resources/bwrap", "77360cb751ccedc5971391444ac86a8a33c15b04d6b4a6fe45f5d25496e62c4c"),
        ],
    ),
    (
        AgentId::Codex,
        CpuArch::Arm64,
        None,
        CODEX,
        "9044e840397864fc6c539d13719b25fb26abb35d5353366cbabf7b4555406acd",
        &[
            ("bin/codex", "f2e6c980c937e734644bed1b4a9a018d3e63a0ccbe71aafc85c86a8c6e4b462a"),
            ("bin/codex-code-mode-host", "587436a943a59c18cabdbe83f07800d237b60ddd2e0f54d05b23d8b37a0b36f4"),
            ("codex-package.json", "3dd9299b5782eac97b6dd2d570a33478f9473fe890622e0728a947a0f9955b08"),
            ("codex-path/rg", "e36d0eb52e70696bdf1781392722e05a21bb91d3b7b762ef5ec20e5df2ec687b"),
            ("codex-resources/bwrap", "c547cbdc762a70ed216789ffaa4c6c0e7d2beabe32245a498f8e365a9fc8dab4"),
        ],
    ),
];

// === impl PackagePin ===

impl PackagePin {
    /// All pinned packages.
    pub fn all() -> Vec<Self> {
        let pin = |(agent, machine, libc, version, package, files): PinRow| Self {
            agent,
            machine,
            libc,
            version: version.to_owned(),
            package: package.to_owned(),
            files: files.iter().map(|(path, hash)| ((*path).to_owned(), (*hash).to_owned())).collect(),
        };
        TABLE.into_iter().map(pin).collect()
    }

    /// Whether it is for an agent on a platform.
    pub(super) fn is_for(&self, agent: AgentId, platform: AgentPlatform) -> bool {
        self.agent == agent && self.machine == platform.machine && self.libc.is_none_or(|libc| libc == platform.libc)
    }

    /// The pinned hash of a file.
    pub(super) fn file(&self, path: &str) -> Option<&str> {
        self.files.iter().find(|(known, _)| known == path).map(|(_, hash)| hash.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_agent_has_one_pin_per_platform() {
        let pins = PackagePin::all();
        for agent in [AgentId::Claude, AgentId::Codex] {
            for platform in AgentPlatform::ALL {
                let of: Vec<_> = pins.iter().filter(|pin| pin.is_for(agent, platform)).collect();
                assert_eq!(of.len(), 1, "{agent} on {platform}");
                assert!(of[0].file(super::super::layout::program(agent)).is_some());
            }
        }
        assert!(!pins.iter().any(|pin| AgentPlatform::ALL.iter().any(|platform| pin.is_for(AgentId::Mock, *platform))));
    }

    #[test]
    fn every_pinned_hash_is_valid_and_unique() {
        let pins = PackagePin::all();
        let files = pins.iter().flat_map(|pin| pin.files.iter().map(|(_, hash)| hash));
        let mut hashes: Vec<_> = pins.iter().map(|pin| &pin.package).chain(files).collect();
        let is_hash = |text: &str| text.len() == 64 && text.chars().all(|c| matches!(c, '0'..='9' | 'a'..='f'));
        assert!(hashes.iter().all(|hash| is_hash(hash)));
        let count = hashes.len();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }
}
