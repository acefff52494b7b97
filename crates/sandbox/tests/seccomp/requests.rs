//! Requests of `ioctl`: an allow-list; everything else is unknown.

use crate::probe::FilterSide;
use crate::{NO_DESCRIPTOR, assert_refused, attempts, outcomes};

fn requests(list: &[(&'static str, u64)]) -> Vec<crate::probe::CallAttempt> {
    list.iter().flat_map(|(name, request)| attempts(&[(*name, libc::SYS_ioctl, &[NO_DESCRIPTOR, *request])])).collect()
}

#[test]
fn file_system_requests_are_unknown() {
    assert_refused(
        &requests(&[
            ("FS_IOC_GETFSMAP", 0xc0c0_583b),
            ("FS_IOC_GETFSMAP, high bits", 0xc0c0_583b | 1 << 32),
            ("FS_IOC_FIEMAP", 0xc020_660b),
            ("FIBMAP", 1),
            ("FS_IOC_GETVERSION", 0x8008_7601),
            ("FS_IOC_SETVERSION", 0x4008_7602),
            ("FS_IOC_SETFLAGS", 0x4008_6602),
            ("FS_IOC_FSGETXATTR", 0x801c_581f),
            ("FS_IOC_FSSETXATTR", 0x401c_5820),
            ("FS_IOC_GETFSUUID", 0x8011_1500),
            ("FS_IOC_GETFSSYSFSPATH", 0x8081_1501),
            ("FIFREEZE", 0xc004_5877),
            ("FITHAW", 0xc004_5878),
            ("FITRIM", 0xc018_5879),
            ("FIDEDUPERANGE", 0xc018_9436),
            ("EXT4_IOC_RESIZE_FS", 0x4008_6610),
            ("EXT4_IOC_MOVE_EXT", 0xc028_660f),
            ("EXT4_IOC_SHUTDOWN", 0x8004_587d),
            ("FS_IOC_SET_ENCRYPTION_POLICY", 0x800c_6613),
            ("FS_IOC_ENABLE_VERITY", 0x4080_6685),
            ("BTRFS_IOC_SNAP_CREATE", 0x5000_9401),
            ("BTRFS_IOC_DEFRAG", 0x5000_9402),
            ("BLKGETSIZE64", 0x8008_1272),
            ("BLKDISCARD", 0x1277),
            ("LOOP_CTL_GET_FREE", 0x4c82),
            ("NS_GET_PARENT", 0xb702),
            ("NS_GET_USERNS", 0xb701),
            ("PIDFD_GET_INFO", 0xc040_ff0b),
            ("EPIOCSPARAMS", 0x4008_8a01),
            ("TUNSETIFF", 0x4004_54ca),
            ("SIOCETHTOOL", 0x8946),
            ("SIOCSIFFLAGS", 0x8914),
            ("SIOCSIFADDR", 0x8916),
            ("SIOCUNIXFILE", 0x89e0),
            ("RNDADDENTROPY", 0x4008_5203),
            ("VT_ACTIVATE", 0x5606),
            ("TIOCVHANGUP", 0x5437),
            ("none", 0),
            ("all bits", 0xffff_ffff),
        ]),
        libc::ENOTTY,
    );
}

#[test]
fn requests_of_terminals_files_and_sockets_are_allowed() {
    let known = requests(&[
        ("TCGETS", libc::TCGETS),
        ("TCSETS", libc::TCSETS),
        ("TCSETSW", libc::TCSETSW),
        ("TCSETSF", libc::TCSETSF),
        ("TCGETS2", 0x802c_542a),
        ("TCSETS2", 0x402c_542b),
        ("TIOCGWINSZ", libc::TIOCGWINSZ),
        ("TIOCSWINSZ", libc::TIOCSWINSZ),
        ("TIOCSCTTY", libc::TIOCSCTTY),
        ("TIOCNOTTY", libc::TIOCNOTTY),
        ("TIOCGPGRP", libc::TIOCGPGRP),
        ("TIOCSPGRP", libc::TIOCSPGRP),
        ("TIOCGSID", libc::TIOCGSID),
        ("TIOCGPTN", libc::TIOCGPTN),
        ("TIOCSPTLCK", libc::TIOCSPTLCK),
        ("TIOCGPTPEER", libc::TIOCGPTPEER),
        ("TIOCPKT", libc::TIOCPKT),
        ("TIOCEXCL", libc::TIOCEXCL),
        ("TIOCOUTQ", libc::TIOCOUTQ),
        ("TCFLSH", libc::TCFLSH),
        ("FIONREAD", libc::FIONREAD),
        ("FIONREAD, high bits", libc::FIONREAD | 1 << 32),
        ("FIONBIO", libc::FIONBIO),
        ("FIOCLEX", libc::FIOCLEX),
        ("FIONCLEX", libc::FIONCLEX),
        ("FIOASYNC", 0x5452),
        ("FS_IOC_GETFLAGS", 0x8008_6601),
        ("FICLONE", libc::FICLONE),
        ("FICLONERANGE", libc::FICLONERANGE),
        ("SIOCATMARK", 0x8905),
        ("SIOCGIFCONF", 0x8912),
        ("SIOCGIFADDR", 0x8915),
        ("SIOCGIFINDEX", 0x8933),
        ("SIOCGIFHWADDR", 0x8927),
        ("RNDGETENTCNT", 0x8004_5200),
    ]);
    let filtered = outcomes(FilterSide::Filtered, &known);
    assert!(filtered.values().all(|outcome| *outcome == libc::EBADF), "{filtered:?}");
    assert_eq!(outcomes(FilterSide::Bare, &known), filtered);
}
