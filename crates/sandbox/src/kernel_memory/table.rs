//! A table of sockets below `/proc/PID/net`, which the kernel generates for each read.

use std::fs::File;
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::time::Instant;

/// The read size: the kernel returns at most a page.
const READ: usize = 8192;

/// A table of sockets, and how far it was read.
#[derive(Debug)]
pub(super) struct KernelTable {
    file: File,
    format: TableFormat,
    /// The beginning of an incomplete line.
    rest: Vec<u8>,
    sum: u64,
}

/// The columns of a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TableFormat {
    Netlink,
    Datagrams,
}

/// How far a table was read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadProgress {
    /// To its end.
    Whole(u64),
    /// Until the time limit; the next call continues.
    Part(u64),
}

// === impl KernelTable ===

impl KernelTable {
    pub(super) fn new(file: File, format: TableFormat) -> Self {
        Self { file, format, rest: Vec::new(), sum: 0 }
    }

    pub(super) fn format(&self) -> TableFormat {
        self.format
    }

    /// Sums the buffers of its sockets, until the sum exceeds `enough` or the time is up: for every page, the kernel walks
    /// the table from its beginning.
    pub(super) fn sum(&mut self, enough: u64, until: Instant) -> ReadProgress {
        let mut buffer = [0; READ];
        loop {
            let count = match self.file.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                // An unreadable table counts as empty.
                Err(_) => break,
            };
            self.take(buffer.get(..count).unwrap_or_default());
            if self.sum > enough || Instant::now() >= until {
                return ReadProgress::Part(self.sum);
            }
        }
        let sum = self.sum;
        self.restart();
        ReadProgress::Whole(sum)
    }

    /// The next call starts over.
    pub(super) fn restart(&mut self) {
        self.rest.clear();
        self.sum = 0;
        let _began = self.file.seek(SeekFrom::Start(0));
    }

    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        let format = self.format;
        let sums =
            lines.split(|byte| *byte == b'\n').filter_map(|line| bytes_of(std::str::from_utf8(line).ok()?, format));
        self.sum = sums.fold(self.sum, u64::saturating_add);
    }
}

/// The receive and send buffers in a line; none for other lines.
fn bytes_of(line: &str, format: TableFormat) -> Option<u64> {
    let mut fields = line.split_ascii_whitespace().skip(4);
    let field = fields.next()?;
    let (one, other, radix) = match format {
        TableFormat::Netlink => (field, fields.next()?, 10),
        // Bytes that are not transmitted yet, and bytes received, including unread errors.
        TableFormat::Datagrams => {
            let (sent, received) = field.split_once(':')?;
            (sent, received, 16)
        }
    };
    let number = |text| u64::from_str_radix(text, radix).ok();
    number(one)?.checked_add(number(other)?)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::time::Duration;

    use super::*;

    const NETLINK: &str = "\
sk               Eth Pid        Groups   Rmem     Wmem     Dump  FileLocks    Drops    Inode
000000003684dfa9 0   0          00000000 0        0        0     2        0        4       
00000000376ef7e3 0   3312218496 00000000 332800   512      0     2        0        29926878
";
    const UDP: &str = "\
   sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode ref pointer drops
  221: 00000000:0035 00000000:0000 07 00000000:00000100 00:00000000 00000000     0        0 300 2 000000000bfad61f 0
  222: 00000000:0036 00000000:0000 07 0000FF00:00000000 00:00000000 00000000     0        0 301 2 000000000bfad61e 0
";

    fn table(text: &str, format: TableFormat) -> KernelTable {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        file.rewind().unwrap();
        KernelTable::new(file, format)
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(1000)
    }

    #[test]
    fn socket_buffers_are_summed_every_time() {
        for (text, format, sum) in
            [(NETLINK, TableFormat::Netlink, 333_312), (UDP, TableFormat::Datagrams, 0xff00 + 0x100)]
        {
            let mut table = table(text, format);
            for _ in 0..2 {
                assert_eq!(table.sum(u64::MAX, later()), ReadProgress::Whole(sum));
            }
        }
    }

    #[test]
    fn a_long_table_is_read_in_parts() {
        let line = UDP.lines().nth(2).unwrap();
        let lines = 1000;
        let mut table = table(&format!("{line}\n").repeat(lines), TableFormat::Datagrams);
        let mut parts = 0;
        let whole = loop {
            match table.sum(u64::MAX, Instant::now()) {
                ReadProgress::Part(_) => parts += 1,
                ReadProgress::Whole(sum) => break sum,
            }
        };
        assert_eq!(whole, 0xff00 * lines as u64);
        assert!(parts > 10, "{parts}");
        // It stops at the limit.
        let ReadProgress::Part(sum) = table.sum(0xff00, later()) else { panic!("it was read to its end") };
        assert!(sum > 0xff00 && sum < whole, "{sum}");
        table.restart();
        assert_eq!(table.sum(u64::MAX, later()), ReadProgress::Whole(whole));
    }

    #[test]
    fn lines_that_are_no_sockets_count_nothing() {
        for line in ["", "1 2 3 4", "1 2 3 4 5", "1 2 3 4 -5 6", "sl a b st tx_queue rx_queue"] {
            assert_eq!(bytes_of(line, TableFormat::Netlink), None, "{line}");
            assert_eq!(bytes_of(line, TableFormat::Datagrams), None, "{line}");
        }
    }

    /// The kernel of this host has the expected format.
    #[test]
    fn the_tables_of_this_host_are_parsed() {
        for (name, format) in [("netlink", TableFormat::Netlink), ("udp", TableFormat::Datagrams)] {
            let text = std::fs::read_to_string(format!("/proc/self/net/{name}")).unwrap();
            let heading = text.lines().next().unwrap();
            let names: Vec<_> = heading.split_ascii_whitespace().collect();
            let expected: &[_] =
                if format == TableFormat::Netlink { &["Rmem", "Wmem"] } else { &["tx_queue", "rx_queue"] };
            assert_eq!(&names[4..6], expected);
            assert!(text.lines().skip(1).all(|line| bytes_of(line, format).is_some()), "{text}");
        }
    }
}
