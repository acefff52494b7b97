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
    let (about, options) = (said(&runsc, "--version"), said(&runsc, "flags"));
    let what = format!("runsc {}, platform {}: a command ran", version(&about), platform(&options));
    let flags = ["--isolation", "gvisor"].map(OsStr::new);
    let check = probe::probe(NAME, &flags, &["true"], &what);
    match check.status {
        CheckStatus::Ok => check,
        // Sandboxes without it run all the same.
        CheckStatus::Warn | CheckStatus::Fail => HostCheck { status: CheckStatus::Warn, ..check },
    }
}

/// What `runsc` prints when it is started with one word.
fn said(runsc: &Path, word: &str) -> String {
    let output = Command::new(runsc).arg(word).stdin(Stdio::null()).output();
    let bytes = output.map(|output| [output.stdout, output.stderr].concat()).unwrap_or_default();
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The last word of the first line.
fn version(text: &str) -> &str {
    text.lines().next().and_then(|line| line.split_whitespace().last()).unwrap_or("of an unknown version")
}

/// The platform that is used if none is asked for, which is how sandboxes use it.
fn platform(text: &str) -> &str {
    let line = text.lines().find(|line| line.contains("which platform to use"));
    let default = line.and_then(|line| line.rsplit_once("(default \"")?.1.split('"').next());
    default.unwrap_or("unknown")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_version_and_the_platform_are_read_from_what_runsc_says() {
        assert_eq!(version("runsc version 0.0~20221219.0\nspec: 1.0.2-dev\n"), "0.0~20221219.0");
        assert_eq!(version(""), "of an unknown version");
        let flags =
            "  -platform string\n    \tspecifies which platform to use: ptrace (default), kvm. (default \"ptrace\")\n";
        assert_eq!(platform(flags), "ptrace");
        assert_eq!(platform("  -root string\n"), "unknown");
    }
}
