//! Checks that the generated code matches `proto/`.

use std::fs;
use std::path::Path;

#[path = "../examples/generate.rs"]
#[allow(dead_code, reason = "the program is not run")]
mod program;

#[test]
fn the_generated_code_is_current() {
    let fresh = tempfile::tempdir().unwrap();
    program::generate(fresh.path()).unwrap();
    let committed = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/generated");
    let mut count = 0;
    for file in fs::read_dir(fresh.path()).unwrap() {
        let name = file.unwrap().file_name();
        let (due, found) = (fs::read(fresh.path().join(&name)).unwrap(), fs::read(committed.join(&name)).unwrap());
        assert!(due == found, "{} is not current: run scripts/generate.sh", name.display());
        count += 1;
    }
    assert_eq!(count, 3);
}
