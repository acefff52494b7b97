//! The requests of `ioctl` that terminals, files and sockets need. The numbers are the same on both architectures.
//!
//! Not there, among others: the physical layout of a file system (`FS_IOC_GETFSMAP`, `FS_IOC_FIEMAP`, `FIBMAP`), the
//! project that a quota counts a file for (`FS_IOC_FSSETXATTR`), its flags and generation, what freezes, trims, resizes
//! or defragments, what loop and block devices, tunnels and namespaces offer, and every change of an interface.

/// What is let through.
#[rustfmt::skip]
pub(super) const KNOWN: &[u32] = &[
    // The modes of a terminal: TCGETS, TCSETS, TCSETSW, TCSETSF, the same with the A of System V, and with the 2 of
    // arbitrary speeds.
    0x5401, 0x5402, 0x5403, 0x5404, 0x5405, 0x5406, 0x5407, 0x5408, 0x802c_542a, 0x402c_542b, 0x402c_542c,
    0x402c_542d,
    // TCSBRK, TCXONC, TCFLSH, TCSBRKP, TIOCSBRK, TIOCCBRK: breaks, flow and flushing.
    0x5409, 0x540a, 0x540b, 0x5425, 0x5427, 0x5428,
    // TIOCEXCL, TIOCNXCL, TIOCGEXCL; TIOCSCTTY, TIOCNOTTY, TIOCGPGRP, TIOCSPGRP, TIOCGSID: whose terminal it is.
    0x540c, 0x540d, 0x8004_5440, 0x540e, 0x5422, 0x540f, 0x5410, 0x5429,
    // TIOCOUTQ, TIOCGWINSZ, TIOCSWINSZ, TIOCMGET, TIOCGSOFTCAR, TIOCGETD, TIOCGDEV: its state.
    0x5411, 0x5413, 0x5414, 0x5415, 0x5419, 0x5424, 0x8004_5432,
    // TIOCPKT, TIOCGPKT, TIOCGPTN, TIOCSPTLCK, TIOCGPTLCK, TIOCGPTPEER, TIOCSIG: the other end of a terminal.
    0x5420, 0x8004_5438, 0x8004_5430, 0x4004_5431, 0x8004_5439, 0x5441, 0x4004_5436,
    // FIONREAD, FIONBIO, FIONCLEX, FIOCLEX, FIOASYNC, FIOQSIZE: every descriptor.
    0x541b, 0x5421, 0x5450, 0x5451, 0x5452, 0x5460,
    // FS_IOC_GETFLAGS, FICLONE, FICLONERANGE: files.
    0x8008_6601, 0x4004_9409, 0x4020_940d,
    // FIOSETOWN, SIOCSPGRP, FIOGETOWN, SIOCGPGRP, SIOCATMARK, SIOCGSTAMP and SIOCGSTAMPNS old and new, SIOCOUTQNSD:
    // sockets.
    0x8901, 0x8902, 0x8903, 0x8904, 0x8905, 0x8906, 0x8907, 0x8010_8906, 0x8010_8907, 0x894b,
    // SIOCGIFNAME, -CONF, -FLAGS, -ADDR, -DSTADDR, -BRDADDR, -NETMASK, -METRIC, -MTU, -HWADDR, -INDEX, -TXQLEN, -MAP:
    // questions about interfaces.
    0x8910, 0x8912, 0x8913, 0x8915, 0x8917, 0x8919, 0x891b, 0x891d, 0x8921, 0x8927, 0x8933, 0x8942, 0x8970,
    // RNDGETENTCNT: random numbers.
    0x8004_5200,
];

/// What is refused explicitly: `TIOCSTI` types into a terminal in the name of its user, `TIOCLINUX` pastes into it,
/// `TIOCCONS` redirects the console's output, `TIOCSETD` has the kernel load a driver.
pub(super) const DANGEROUS: &[u32] = &[0x5412, 0x541c, 0x541d, 0x5423];
