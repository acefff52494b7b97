//! Extended attributes of open files.

use std::ffi::CString;
use std::io;
use std::os::fd::AsFd;

use rustix::io::Errno;

/// The kernel's limit for a list of names, and for one value.
const MOST: usize = 64 << 10;

/// All extended attributes of an open file, sorted.
pub(crate) fn all(file: impl AsFd) -> io::Result<Vec<(CString, Vec<u8>)>> {
    let mut names = vec![0; 1024];
    let length = match rustix::fs::flistxattr(&file, &mut names) {
        Err(Errno::RANGE) => {
            names.resize(MOST, 0);
            rustix::fs::flistxattr(&file, &mut names)?
        }
        // The file system has no extended attributes.
        Err(Errno::OPNOTSUPP) => 0,
        outcome => outcome?,
    };
    names.truncate(length);
    let mut found = Vec::new();
    for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let name = CString::new(name).map_err(io::Error::other)?;
        if let Some(value) = one(&file, &name)? {
            found.push((name, value));
        }
    }
    found.sort();
    Ok(found)
}

/// One extended attribute; `None` if it is not set.
pub(crate) fn one(file: impl AsFd, name: &CString) -> io::Result<Option<Vec<u8>>> {
    let mut value = vec![0; 256];
    loop {
        match rustix::fs::fgetxattr(&file, &**name, &mut value) {
            Ok(length) => {
                value.truncate(length);
                return Ok(Some(value));
            }
            Err(Errno::RANGE) if value.len() < MOST => value.resize(MOST, 0),
            Err(Errno::NODATA | Errno::OPNOTSUPP) => return Ok(None),
            Err(errno) => return Err(errno.into()),
        }
    }
}
