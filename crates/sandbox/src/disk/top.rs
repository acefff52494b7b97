//! The root of what is written over layers, which is the root that a sandbox sees: as that of the uppermost layer is.

use std::os::fd::{AsFd, OwnedFd};

use carrel_image::accounts::MAX_ID;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::make;

/// Whoever a sandbox does not know.
const NOBODY: u32 = 65_534;
/// Attributes that anybody may give to what is theirs, and among them those of the overlay itself.
const OWN: &str = "user.";
const OVERLAY: &str = "user.overlay.";
/// No list of attributes, and no attribute, is longer.
const LONGEST: usize = 64 << 10;

/// Makes a directory of a disk like another, whose ids are those inside; one that is there stays as it is.
pub(super) fn make_like(disk: &OwnedFd, name: &str, other: &OwnedFd, first: u32) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(disk, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        there => return there.map(drop),
    }
    let stat = rustix::fs::fstat(other)?;
    let id = |id: u32| first + if id <= MAX_ID { id } else { NOBODY };
    // What its mode forbids is nothing to its attributes.
    make(disk, name, (id(stat.st_uid), id(stat.st_gid)), stat.st_mode & 0o7777)?;
    copy_attributes(other, rustix::fs::openat(disk, name, flags, Mode::empty())?)
}

/// Copies what a program inside could have given it itself. Attributes of the system have ids or rights in them.
fn copy_attributes(from: &OwnedFd, to: impl AsFd) -> Result<(), Errno> {
    let (mut names, mut value) = (vec![0; LONGEST], vec![0; LONGEST]);
    let length = match rustix::fs::flistxattr(from, &mut names) {
        Ok(length) => length,
        // A file system that has none.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let names = names.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    let wanted = |name: &&str| name.starts_with(OWN) && !name.starts_with(OVERLAY);
    for name in names.filter_map(|name| std::str::from_utf8(name).ok()).filter(wanted) {
        let length = rustix::fs::fgetxattr(from, name, &mut value)?;
        match rustix::fs::fsetxattr(&to, name, value.get(..length).unwrap_or_default(), XattrFlags::empty()) {
            Ok(()) | Err(Errno::OPNOTSUPP) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{MetadataExt, PermissionsExt};

    use super::*;

    #[test]
    fn a_new_root_is_like_that_of_the_image_and_one_that_is_there_is_not_touched() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        let image = dir.path().join("image");
        let set = |mode, owner| {
            std::fs::set_permissions(&image, std::fs::Permissions::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&image, Some(owner), Some(7)).unwrap();
        };
        let is = |name: &str| {
            let stat = dir.path().join(name).metadata().unwrap();
            (stat.mode() & 0o7777, stat.uid(), stat.gid())
        };
        std::fs::create_dir(&image).unwrap();
        set(0o1770, 12);
        for (name, value) in [("user.kept", "yes"), ("user.overlay.opaque", "y"), ("trusted.other", "no")] {
            rustix::fs::setxattr(&image, name, value.as_bytes(), XattrFlags::empty()).unwrap();
        }
        let open = |path| OwnedFd::from(std::fs::File::open(path).unwrap());
        let (disk, other) = (open(dir.path()), open(&image));
        make_like(&disk, "new", &other, 1000).unwrap();
        assert_eq!(is("new"), (0o1770, 1012, 1007));
        let mut value = [0; 8];
        assert_eq!(rustix::fs::getxattr(dir.path().join("new"), "user.kept", &mut value), Ok(3));
        for name in ["user.overlay.opaque", "trusted.other"] {
            assert_eq!(rustix::fs::getxattr(dir.path().join("new"), name, &mut value), Err(Errno::NODATA), "{name}");
        }
        set(0o755, 70_000);
        make_like(&disk, "new", &other, 1000).unwrap();
        assert_eq!(is("new"), (0o1770, 1012, 1007));
        make_like(&disk, "odd", &other, 0).unwrap();
        assert_eq!(is("odd"), (0o755, NOBODY, 7));
    }
}
