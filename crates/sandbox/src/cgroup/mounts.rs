//! Parses `/proc/self/mountinfo` and `/proc/cgroups` for cgroups.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount of one hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct CgroupMount {
    pub(super) point: PathBuf,
    /// Whether the mount and its file system are writable.
    pub(super) writable: bool,
    /// The options of a v1 hierarchy, including its controllers; none for v2.
    pub(super) controllers: Option<Vec<String>>,
}

/// A line of `/proc/cgroups`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CgroupSubsystem {
    pub(super) enabled: bool,
}

/// The cgroup mounts that no later mount on the same point hides.
pub(super) fn mounts(mountinfo: &str) -> Vec<CgroupMount> {
    let mut found: Vec<(PathBuf, Option<CgroupMount>)> = Vec::new();
    for (point, mount) in mountinfo.lines().filter_map(line) {
        found.retain(|(earlier, _)| *earlier != point);
        found.push((point, mount));
    }
    found.into_iter().filter_map(|(_, mount)| mount).collect()
}

/// `36 35 98:0 /root /point rw,noatime master:1 - type source rw,option`: the fields before the dash vary in number.
fn line(line: &str) -> Option<(PathBuf, Option<CgroupMount>)> {
    let (before, after) = line.split_once(" - ")?;
    let mut before = before.split(' ').skip(4);
    let point = unescape(before.next()?);
    let options = before.next()?;
    let mut after = after.split(' ');
    let kind = after.next()?;
    let super_options = after.nth(1).unwrap_or("");
    let read_only = |options: &str| options.split(',').any(|option| option == "ro");
    let controllers = match kind {
        "cgroup" => Some(super_options.split(',').map(str::to_owned).collect()),
        "cgroup2" => None,
        _ => return Some((point, None)),
    };
    let writable = !read_only(options) && !read_only(super_options);
    Some((point.clone(), Some(CgroupMount { point, writable, controllers })))
}

/// Unescapes a path: the kernel writes space, tab, newline and backslash as a backslash and three octal digits.
pub(crate) fn unescape(path: &str) -> PathBuf {
    let bytes = path.as_bytes();
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(&byte) = bytes.get(at) {
        let octal = bytes.get(at + 1..at + 4).filter(|_| byte == b'\\').and_then(|digits| {
            let digits = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(digits, 8).ok()
        });
        plain.push(octal.unwrap_or(byte));
        at += if octal.is_some() { 4 } else { 1 };
    }
    PathBuf::from(OsString::from_vec(plain))
}

/// The line of one controller in `/proc/cgroups`. Recent kernels list only v1 controllers.
pub(super) fn subsystem(cgroups: &str, controller: &str) -> Option<CgroupSubsystem> {
    cgroups.lines().filter(|line| !line.starts_with('#')).find_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        (fields.next()? == controller).then_some(())?;
        Some(CgroupSubsystem { enabled: fields.nth(2)? == "1" })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_later_mount_hides_an_earlier_one_on_the_same_point() {
        let text = "\
30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
31 23 0:27 / /sys/fs/cgroup ro,nosuid - tmpfs tmpfs ro,mode=755
32 31 0:28 / /sys/fs/cgroup/pids rw,nosuid shared:9 master:2 - cgroup cgroup rw,pids
";
        let pids = CgroupMount {
            point: "/sys/fs/cgroup/pids".into(),
            writable: true,
            controllers: Some(vec!["rw".into(), "pids".into()]),
        };
        assert_eq!(mounts(text), [pids]);
    }

    #[test]
    fn a_mount_is_writable_only_if_it_and_its_file_system_are() {
        let writable = |options: &str, super_options: &str| {
            mounts(&format!("32 31 0:28 / /c {options} - cgroup2 cgroup2 {super_options}\n"))[0].writable
        };
        assert!(writable("rw,relatime", "rw"));
        assert!(!writable("ro,relatime", "rw"));
        assert!(!writable("rw,relatime", "ro"));
    }

    #[test]
    fn a_mount_point_with_a_space_is_unescaped() {
        assert_eq!(unescape(r"/a\040b\134c\0"), PathBuf::from(r"/a b\c\0"));
        assert_eq!(unescape(r"/trailing\"), PathBuf::from(r"/trailing\"));
    }

    #[test]
    fn malformed_lines_are_ignored() {
        for text in ["", "\n\n", "x", "1 2 3 - cgroup2", "1 2 3 4 /p - cgroup2 a b", " - ", "1 2 3:4 / /p rw -"] {
            assert_eq!(mounts(text), [], "{text:?}");
        }
    }

    #[test]
    fn a_subsystem_is_found_by_its_full_name() {
        let text = "#subsys_name\thierarchy\tnum_cgroups\tenabled\ncpuset\t3\t1\t1\ncpu\t0\t1\t1\nmemory\t0\t15\t0\n";
        assert_eq!(subsystem(text, "cpu"), Some(CgroupSubsystem { enabled: true }));
        assert_eq!(subsystem(text, "memory"), Some(CgroupSubsystem { enabled: false }));
        assert_eq!(subsystem(text, "cpus"), None);
        assert_eq!(subsystem(text, "#subsys_name"), None);
        assert_eq!(subsystem("memory 1", "memory"), None);
    }
}
