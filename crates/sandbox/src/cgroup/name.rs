//! Names of groups: single directory names only.

use super::error::CgroupError;

/// The longest name.
pub(super) const LONGEST: usize = 64;

/// Accepts a plain directory name: without dots, so neither `..` nor one of the kernel's files (all but `tasks` and
/// `notify_on_release` contain one), and without slashes.
pub(super) fn check(name: &str) -> Result<(), CgroupError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    let kernels = name == "tasks";
    if name.is_empty() || name.len() > LONGEST || name.starts_with('-') || kernels || !name.bytes().all(plain) {
        return Err(CgroupError::Name(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_cannot_escape_its_parent() {
        for name in ["0", "9f3a", "A-b-1", &"x".repeat(LONGEST)] {
            assert!(check(name).is_ok(), "{name}");
        }
        let long = "x".repeat(LONGEST + 1);
        for name in ["", ".", "..", "a/b", "/", "a.b", "a b", "a\0", "ä", "-a", "a\n", "tasks", "cgroup.procs", &long]
        {
            assert!(matches!(check(name), Err(CgroupError::Name(_))), "{name:?}");
        }
    }
}
