//! A process that no signal ends: it waits for a file system that never answers.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// The request that begins a conversation with the kernel.
const INIT: u32 = 26;
/// The version that is answered: the oldest with an answer of this length.
const VERSION: (u32, u32) = (7, 23);
/// The length of an answer to the first request, with its header.
const INIT_ANSWER: usize = 16 + 64;

/// A process that no signal ends, until this is dropped.
pub struct Unkillable {
    directory: TempDir,
    child: Child,
    /// The kernel gives up on the file system when this is closed.
    device: Option<File>,
}

// === impl Unkillable ===

impl Unkillable {
    /// Returns when it cannot be killed any more.
    pub fn start() -> Self {
        let directory = tempfile::Builder::new().prefix("carrel-hung").tempdir_in("/var/tmp").unwrap();
        let mut device = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", device.as_raw_fd());
        let options = CString::new(options).unwrap();
        rustix::mount::mount(c"hung", directory.path(), c"fuse", MountFlags::empty(), Some(options.as_c_str()))
            .unwrap();
        let mut command = Command::new("stat");
        command.arg(directory.path().join("x")).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().unwrap();
        let mut request = vec![0; 1 << 20];
        // A request that was taken and not answered is waited for, whatever signal comes.
        loop {
            let length = device.read(&mut request).unwrap();
            let field = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
            assert!(length >= 40);
            if field(4) != INIT {
                break;
            }
            let mut answer = vec![0; INIT_ANSWER];
            answer[..4].copy_from_slice(&u32::try_from(INIT_ANSWER).unwrap().to_ne_bytes());
            answer[8..16].copy_from_slice(&request[8..16]);
            answer[16..20].copy_from_slice(&VERSION.0.to_ne_bytes());
            answer[20..24].copy_from_slice(&VERSION.1.to_ne_bytes());
            device.write_all(&answer).unwrap();
        }
        Self { directory, child, device: Some(device) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it is still there.
    pub fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Unkillable {
    fn drop(&mut self) {
        self.device = None;
        let _gone = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
        let _ended = (self.child.kill(), self.child.wait());
    }
}
