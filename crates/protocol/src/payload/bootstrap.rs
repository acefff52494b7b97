//! The configuration of a guest.

use super::{ExecLimits, ResourceLimit};

record! {
    /// Configure the guest. Everything is optional.
    #[derive(Default)]
    pub struct Bootstrap {
        /// Whether the host acknowledges a failed start.
        init_failure_ack: bool => omitted since 7,
        /// How to assemble the root file system from disks.
        block_root: Option<BlockRoot> => omitted since 7,
        /// Shared directories to mount.
        dir_mounts: Vec<DirMount> => omitted since 7,
        /// Shared files to mount.
        file_mounts: Vec<FileMount> => omitted since 7,
        /// Disks to mount.
        disk_mounts: Vec<DiskMount> => omitted since 7,
        /// Tmpfs to mount.
        tmpfs_mounts: Vec<TmpfsMount> => omitted since 7,
        /// The host name of the guest.
        hostname: Option<String> => omitted since 7,
        /// The name of the host, as the guest resolves it.
        host_alias: Option<String> => omitted since 7,
        /// The network interface.
        network: Option<Network> => omitted since 7,
        /// Resource limits of every command.
        rlimits: Vec<ResourceLimit> => omitted since 7,
        /// The default user of commands.
        user: Option<String> => omitted since 7,
        /// The default working directory of commands.
        default_cwd: Option<String> => omitted since 7,
        /// The environment that every command inherits.
        default_env: Vec<EnvironmentVariable> => omitted since 7,
        /// The privileges of commands.
        security_profile: SecurityProfile => default since 7,
        /// An init program to hand over to.
        handoff_init: Option<HandoffInit> => omitted since 7,
        /// The execution limits.
        exec_limits: Option<ExecLimits> => omitted since 10,
    }

    /// How to assemble the root file system from disks. The keys depend on `kind`.
    pub struct BlockRoot {
        /// A single disk, or overlay layers.
        kind: BlockRootKind => required,
        /// The device of a single disk.
        device: Option<String> => omitted,
        /// Its file system.
        fstype: Option<String> => omitted,
        /// The device of the lower layer.
        lower: Option<String> => omitted,
        /// The upper layer.
        upper: Option<BlockRootUpper> => omitted,
    }

    /// The upper layer. The keys depend on `kind`.
    pub struct BlockRootUpper {
        /// A device, or memory.
        kind: BlockRootUpperKind => required,
        /// The device.
        device: Option<String> => omitted,
        /// Its file system.
        fstype: Option<String> => omitted,
        /// The size of the memory.
        size_mib: Option<u32> => omitted,
    }

    /// Restrictions of a mount.
    #[derive(Copy, Default)]
    pub struct MountFlags {
        /// Read-only.
        readonly: bool => default,
        /// No execution of programs.
        noexec: bool => default,
        /// No set-id bits.
        nosuid: bool => default,
        /// No device files.
        nodev: bool => default,
    }

    /// A shared directory to mount.
    pub struct DirMount {
        /// The tag of the share.
        tag: String => required,
        /// The mount point.
        guest_path: String => required,
        /// Restrictions.
        flags: MountFlags => default,
    }

    /// A shared file to mount.
    pub struct FileMount {
        /// The tag of the share.
        tag: String => required,
        /// The name of the file in the share.
        filename: String => required,
        /// The mount point.
        guest_path: String => required,
        /// Restrictions.
        flags: MountFlags => default,
    }

    /// A disk to mount.
    pub struct DiskMount {
        /// The device.
        id: String => required,
        /// The mount point.
        guest_path: String => required,
        /// Its file system.
        fstype: Option<String> => omitted,
        /// Restrictions.
        flags: MountFlags => default,
    }

    /// A tmpfs to mount.
    pub struct TmpfsMount {
        /// The mount point.
        path: String => required,
        /// Its size.
        size_mib: Option<u32> => omitted,
        /// The mode of its root.
        mode: Option<u32> => omitted,
        /// Restrictions.
        flags: MountFlags => default,
    }

    /// A network interface.
    pub struct Network {
        /// Its name.
        interface: String => required,
        /// Its hardware address.
        mac: [u8; 6] => required,
        /// The MTU.
        mtu: u16 => required,
        /// IPv4 addresses.
        ipv4: Option<Ipv4> => omitted,
        /// IPv6 addresses.
        ipv6: Option<Ipv6> => omitted,
    }

    /// The IPv4 configuration of an interface.
    pub struct Ipv4 {
        /// The guest's address.
        address: [u8; 4] => required,
        /// The length of the network prefix.
        prefix_len: u8 => required,
        /// The default gateway.
        gateway: [u8; 4] => required,
        /// The DNS server.
        dns: Option<[u8; 4]> => omitted,
    }

    /// The IPv6 configuration of an interface.
    pub struct Ipv6 {
        /// The guest's address.
        address: [u8; 16] => required,
        /// The length of the network prefix.
        prefix_len: u8 => required,
        /// The default gateway.
        gateway: [u8; 16] => required,
        /// The DNS server.
        dns: Option<[u8; 16]> => omitted,
    }

    /// An environment variable.
    pub struct EnvironmentVariable {
        /// Its name.
        key: String => required,
        /// Its value.
        value: String => required,
    }

    /// An init program to hand over to.
    pub struct HandoffInit {
        /// The program.
        cmd: String => required,
        /// Its arguments.
        args: Vec<String> => omitted,
        /// Its working directory.
        cwd: Option<String> => omitted,
        /// Its environment.
        env: Vec<EnvironmentVariable> => omitted,
    }
}

text_enum! {
    /// A single disk, or overlay layers.
    pub enum BlockRootKind {
        /// A single disk.
        DiskImage = "disk-image",
        /// A read-only layer below a writable one.
        OciErofs = "oci-erofs",
    }
}

text_enum! {
    /// Where the writable layer is.
    pub enum BlockRootUpperKind {
        /// On a device.
        Device = "device",
        /// In memory.
        Tmpfs = "tmpfs",
    }
}

text_enum! {
    /// The privileges of commands.
    #[derive(Default)]
    pub enum SecurityProfile {
        /// The full privileges of root in the sandbox.
        #[default]
        Default = "default",
        /// Reduced privileges.
        Restricted = "restricted",
    }
}

payloads! { Bootstrap, }
