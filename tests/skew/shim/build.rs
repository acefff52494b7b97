//! Tells the tests whether the history of the project is at hand, from which earlier releases are built.

use std::path::Path;
use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=skew/shim/build.rs");
    println!("cargo::rustc-check-cfg=cfg(history)");
    let manifest = std::env::var("CARGO_MANIFEST_DIR").expect("cargo says where it is");
    let root = Path::new(&manifest).join("..");
    let ask = |question: &[&str]| {
        let output = Command::new("git").arg("-C").arg(&root).arg("rev-parse").args(question).output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    // An archive of the sources may lie below a repository of somebody else.
    let ours = ask(&["--show-prefix"]).is_some_and(|prefix| prefix.is_empty());
    if ours && ask(&["--is-shallow-repository"]).as_deref() == Some("false") {
        println!("cargo::rustc-cfg=history");
    } else if let Some(shallow) = ask(&["--git-path", "shallow"]).filter(|_| ours) {
        // It is gone once the rest has been fetched.
        println!("cargo::rerun-if-changed={}", root.join(shallow).display());
    }
}
