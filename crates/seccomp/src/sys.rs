//! The system call that installs a filter: `rustix` has no safe function for it.
#![allow(unsafe_code)]

use rustix::io::Errno;

/// Installs a filter for this thread and its children. Allocates nothing.
pub(crate) fn install_filter(program: &[libc::sock_filter]) -> Result<(), Errno> {
    let length = libc::c_ushort::try_from(program.len()).map_err(|_| Errno::INVAL)?;
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel copies `length` instructions from a live slice and writes nothing.
    match unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const program) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)),
    }
}
