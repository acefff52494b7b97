//! Sets the cfg `history` if the repository has the commits from which earlier releases are built.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=skew/shim/build.rs");
    println!("cargo::rustc-check-cfg=cfg(history)");
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo sets it");
    let root = Path::new(&manifest).join("..");
    let rev_parse = |options: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).arg("rev-parse").args(options).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // A source archive may be unpacked inside another repository.
    let ours = rev_parse(&["--show-prefix"]).is_some_and(|prefix| prefix.is_empty());
    if ours && rev_parse(&["--is-shallow-repository"]).as_deref() == Some("false") {
        println!("cargo::rustc-cfg=history");
    } else if let Some(shallow) = rev_parse(&["--git-path", "shallow"]).filter(|_| ours) {
        // The file is removed when the full history is fetched.
        println!("cargo::rerun-if-changed={}", root.join(shallow).display());
    }
}
