//! A process that no signal kills: it is blocked in a request to a FUSE file system that never replies.

use std::ffi::CString;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::process::{Child, Command, Stdio};

use rustix::mount::{MountFlags, UnmountFlags};
use tempfile::TempDir;

/// The opcode of the first request of the kernel.
const FUSE_INIT: u32 = 26;
/// The protocol version of the reply: the oldest one with a reply of this length.
const VERSION: (u32, u32) = (7, 23);
/// The length of a reply to `FUSE_INIT`, with its header.
const INIT_REPLY: usize = 16 + 64;

/// A process that no signal kills until this is dropped.
pub struct UnkillableProcess {
    directory: TempDir,
    child: Child,
    /// The kernel aborts all requests to the file system when this is closed.
    device: Option<File>,
}

// === impl UnkillableProcess ===

impl UnkillableProcess {
    /// Starts the process, and returns when signals no longer kill it.
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
        // The process waits for the reply to a request that was read from the device, uninterruptibly.
        loop {
            let length = device.read(&mut request).unwrap();
            let field = |at: usize| u32::from_ne_bytes(request[at..at + 4].try_into().unwrap());
            assert!(length >= 40);
            if field(4) != FUSE_INIT {
                break;
            }
            let mut reply = vec![0; INIT_REPLY];
            reply[..4].copy_from_slice(&u32::try_from(INIT_REPLY).unwrap().to_ne_bytes());
            reply[8..16].copy_from_slice(&request[8..16]);
            reply[16..20].copy_from_slice(&VERSION.0.to_ne_bytes());
            reply[20..24].copy_from_slice(&VERSION.1.to_ne_bytes());
            device.write_all(&reply).unwrap();
        }
        Self { directory, child, device: Some(device) }
    }

    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it still exists.
    pub fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for UnkillableProcess {
    fn drop(&mut self) {
        self.device = None;
        let _unmounted = rustix::mount::unmount(self.directory.path(), UnmountFlags::DETACH);
        let _reaped = (self.child.kill(), self.child.wait());
    }
}
