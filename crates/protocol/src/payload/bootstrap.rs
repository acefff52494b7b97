//! The configuration of a guest.

use super::{ExecLimits, ResourceLimit};

record! {
    /// Configure the guest. Everything is optional.
    #[derive(Default)]
    pub struct Bootstrap {
        /// The host wants to acknowledge a failed start.
        init_failure_ack: bool => omitted since 7,
        /// How to assemble the root file system from disks.
        block_root: Option<BlockRoot> => omitted since 7,
        /// Shared directories to mount.
        dir_mounts: Vec<DirMount> => omitted since 7,
        /// Shared files to mount.
        file_mounts: Vec<FileMount> => omitted since 7,
        /// Disks to mount.
        disk_mounts: Vec<DiskMount> => omitted since 7,
        /// Memory file systems to mount.
        tmpfs_mounts: Vec<TmpfsMount> => omitted since 7,
        /// The host name of the guest.
        hostname: Option<String> => omitted since 7,
        /// A name for the host.
        host_alias: Option<String> => omitted since 7,
        /// The network interface.
        network: Option<Network> => omitted since 7,
        /// Resource limits of every command.
        rlimits: Vec<ResourceLimit> => omitted since 7,
        /// The user of commands that name none.
        user: Option<String> => omitted since 7,
        /// The working directory of commands that name none.
        default_cwd: Option<String> => omitted since 7,
        /// The environment below every command's own.
        default_env: Vec<EnvironmentVariable> => omitted since 7,
        /// How much commands may do.
        security_profile: SecurityProfile => default since 7,
        /// Another init to start.
        handoff_init: Option<HandoffInit> => omitted since 7,
        /// The execution limits.
        exec_limits: Option<ExecLimits> => omitted since 10,
    }

    /// How to assemble the root file system from disks. Which keys it has depends on `kind`.
    pub struct BlockRoot {
        /// One disk, or layers.
        kind: BlockRootKind => required,
        /// The device of one disk.
        device: Option<String> => omitted,
        /// Its file system.
        fstype: Option<String> => omitted,
        /// The device of the lower layer.
        lower: Option<String> => omitted,
        /// The upper layer.
        upper: Option<BlockRootUpper> => omitted,
    }

    /// The upper layer. Which keys it has depends on `kind`.
    pub struct BlockRootUpper {
        /// A device, or memory.
        kind: BlockRootUpperKind => required,
        /// The device.
        device: Option<String> => omitted,
        /// Its file system.
        fstype: Option<String> => omitted,
        /// How much memory.
        size_mib: Option<u32> => omitted,
    }

    /// What a mount may not do.
    #[derive(Copy, Default)]
    pub struct MountFlags {
        /// Be written.
        readonly: bool => default,
        /// Hold programs.
        noexec: bool => default,
        /// Raise privileges.
        nosuid: bool => default,
        /// Hold devices.
        nodev: bool => default,
    }

    /// A shared directory to mount.
    pub struct DirMount {
        /// The share.
        tag: String => required,
        /// Where.
        guest_path: String => required,
        /// What it may not do.
        flags: MountFlags => default,
    }

    /// A shared file to mount.
    pub struct FileMount {
        /// The share.
        tag: String => required,
        /// The file in it.
        filename: String => required,
        /// Where.
        guest_path: String => required,
        /// What it may not do.
        flags: MountFlags => default,
    }

    /// A disk to mount.
    pub struct DiskMount {
        /// The disk.
        id: String => required,
        /// Where.
        guest_path: String => required,
        /// Its file system.
        fstype: Option<String> => omitted,
        /// What it may not do.
        flags: MountFlags => default,
    }

    /// A memory file system to mount.
    pub struct TmpfsMount {
        /// Where.
        path: String => required,
        /// How large.
        size_mib: Option<u32> => omitted,
        /// The mode of its root.
        mode: Option<u32> => omitted,
        /// What it may not do.
        flags: MountFlags => default,
    }

    /// A network interface.
    pub struct Network {
        /// Its name.
        interface: String => required,
        /// Its hardware address.
        mac: [u8; 6] => required,
        /// The largest packet.
        mtu: u16 => required,
        /// The addresses of version 4.
        ipv4: Option<Ipv4> => omitted,
        /// The addresses of version 6.
        ipv6: Option<Ipv6> => omitted,
    }

    /// Addresses of version 4.
    pub struct Ipv4 {
        /// The guest's own.
        address: [u8; 4] => required,
        /// The length of the network prefix.
        prefix_len: u8 => required,
        /// The way out.
        gateway: [u8; 4] => required,
        /// The resolver.
        dns: Option<[u8; 4]> => omitted,
    }

    /// Addresses of version 6.
    pub struct Ipv6 {
        /// The guest's own.
        address: [u8; 16] => required,
        /// The length of the network prefix.
        prefix_len: u8 => required,
        /// The way out.
        gateway: [u8; 16] => required,
        /// The resolver.
        dns: Option<[u8; 16]> => omitted,
    }

    /// A variable of the environment.
    pub struct EnvironmentVariable {
        /// Its name.
        key: String => required,
        /// Its value.
        value: String => required,
    }

    /// Another init to start.
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
    /// One disk, or layers.
    pub enum BlockRootKind {
        /// One disk.
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
    /// How much commands may do.
    #[derive(Default)]
    pub enum SecurityProfile {
        /// What the root of a sandbox may.
        #[default]
        Default = "default",
        /// Less.
        Restricted = "restricted",
    }
}

payloads! { Bootstrap, }
