//! Whether this host has gVisor, for `--isolation gvisor`.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use super::{CheckStatus, HostCheck, probe};
use crate::run::isolation::{INSTALL, runsc};

const NAME: &str = "gvisor";

pub(super) fn check() -> HostCheck {
    let Some(runsc) = runsc() else {
        return HostCheck::optional(NAME, "runsc is not installed; only --isolation gvisor needs it", INSTALL);
    };
    let (about, options) = (output_of(&runsc, "--version"), output_of(&runsc, "flags"));
    let what = format!("runsc {}, platform {}: a command ran", version(&about), platform(&options));
    let flags = ["--isolation", "gvisor"].map(OsStr::new);
    let check = probe::probe(NAME, &flags, &["true"], &what);
    match check.status {
        CheckStatus::Ok => check,
        // Other sandboxes run without it.
        CheckStatus::Warn | CheckStatus::Fail => HostCheck { status: CheckStatus::Warn, ..check },
    }
}

/// The output of `runsc` with one argument.
fn output_of(runsc: &Path, word: &str) -> String {
    let output = Command::new(runsc).arg(word).stdin(Stdio::null()).output();
    let bytes = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last word of the first line.
fn version(text: &str) -> &str {
    text.lines().next().and_then(|line| line.split_whitespace().last()).unwrap_or("of an unknown version")
}

/// The default platform, which sandboxes use.
fn platform(text: &str) -> &str {
    let line = text.lines().find(|line| line.contains("which platform to use"));
    let default = line.and_then(|line| line.rsplit_once("(default \"")?.1.split('"').next());
    default.unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_and_platform_are_parsed_from_the_output_of_runsc() {
        assert_eq!(version("runsc version 0.0~20221219.0\nspec: 1.0.2-dev\n"), "0.0~20221219.0");
        assert_eq!(version(""), "of an unknown version");
        let flags =
            "  -platform string\n    \tspecifies which platform to use: ptrace (default), kvm. (default \"ptrace\")\n";
        assert_eq!(platform(flags), "ptrace");
        assert_eq!(platform("  -root string\n"), "unknown");
    }
}
