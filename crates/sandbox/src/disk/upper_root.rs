//! The upper directory over the layers of an image. The sandbox sees it as its root, so it has the attributes of the root of
//! the uppermost layer.

use std::os::fd::{AsFd, OwnedFd};

use carrel_image::accounts::MAX_ID;
use rustix::fs::{Mode, OFlags, XattrFlags};
use rustix::io::Errno;

use super::make;

/// The overflow id, for owners that are not mapped.
const OVERFLOW_ID: u32 = 65_534;
/// Attributes that every owner of a file may set, and among them those of the overlay itself.
const USER: &str = "user.";
const OVERLAY: &str = "user.overlay.";
/// The kernel's limit for a list of attributes, and for a value.
const MAX_LENGTH: usize = 64 << 10;

/// Creates a directory of a disk with the owner, mode and attributes of another, whose ids are those inside the sandbox. An
/// existing one is unchanged.
pub(super) fn create_like(disk: &OwnedFd, name: &str, other: &OwnedFd, first: u32) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(disk, name, flags, Mode::empty()) {
        Err(Errno::NOENT) => {}
        existing => return existing.map(drop),
    }
    let stat = rustix::fs::fstat(other)?;
    let id = |id: u32| first + if id <= MAX_ID { id } else { OVERFLOW_ID };
    // Root sets the attributes whatever the mode is.
    make(disk, name, (id(stat.st_uid), id(stat.st_gid)), stat.st_mode & 0o7777)?;
    copy_attributes(other, rustix::fs::openat(disk, name, flags, Mode::empty())?)
}

/// Copies the attributes that a program in the sandbox could set itself. Those of the system contain ids or privileges.
fn copy_attributes(from: &OwnedFd, to: impl AsFd) -> Result<(), Errno> {
    let (mut names, mut value) = (vec![0; MAX_LENGTH], vec![0; MAX_LENGTH]);
    let length = match rustix::fs::flistxattr(from, &mut names) {
        Ok(length) => length,
        // The file system has no attributes.
        Err(Errno::OPNOTSUPP) => return Ok(()),
        Err(errno) => return Err(errno),
    };
    let names = names.get(..length).unwrap_or_default().split(|byte| *byte == 0);
    let is_copied = |name: &&str| name.starts_with(USER) && !name.starts_with(OVERLAY);
    for name in names.filter_map(|name| std::str::from_utf8(name).ok()).filter(is_copied) {
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
    fn a_new_root_has_the_attributes_of_the_image_and_an_existing_one_is_unchanged() {
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
        create_like(&disk, "new", &other, 1000).unwrap();
        assert_eq!(is("new"), (0o1770, 1012, 1007));
        let mut value = [0; 8];
        assert_eq!(rustix::fs::getxattr(dir.path().join("new"), "user.kept", &mut value), Ok(3));
        for name in ["user.overlay.opaque", "trusted.other"] {
            assert_eq!(rustix::fs::getxattr(dir.path().join("new"), name, &mut value), Err(Errno::NODATA), "{name}");
        }
        set(0o755, 70_000);
        create_like(&disk, "new", &other, 1000).unwrap();
        assert_eq!(is("new"), (0o1770, 1012, 1007));
        create_like(&disk, "odd", &other, 0).unwrap();
        assert_eq!(is("odd"), (0o755, OVERFLOW_ID, 7));
    }
}
