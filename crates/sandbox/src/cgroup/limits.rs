//! The limits of one sandbox, validated so that the kernel accepts them.

use std::fmt;
use std::str::FromStr;

use carrel_units::ByteSize;

/// The resource limits of one sandbox. Absent ones are unlimited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CgroupLimits {
    memory: Option<u64>,
    pids: Option<u32>,
    cpus: Option<CpuShare>,
}

/// A CPU limit in thousandths of a core; `1.5` is one and a half cores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuShare(u32);

/// An invalid limit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// Too little or too much memory.
    #[error(
        "a memory limit of {} is not between {} and {}",
        ByteSize(*.0),
        ByteSize(CgroupLimits::MIN_MEMORY),
        ByteSize(CgroupLimits::MAX_MEMORY)
    )]
    Memory(u64),
    /// Too few or too many processes.
    #[error("a limit of {0} processes is not between {least} and {most}", least = CgroupLimits::MIN_PIDS, most = CgroupLimits::MAX_PIDS)]
    Pids(u32),
    /// Too small or too large a CPU limit.
    #[error("a share of {0} cores is not between {least} and {most}", least = CpuShare::LEAST, most = CpuShare::MOST)]
    Cpus(CpuShare),
    /// Not a number of cores.
    #[error("{0:?} is not a number of cores with at most three decimals, such as 2 or 1.5")]
    CpuText(String),
}

// === impl CgroupLimits ===

impl CgroupLimits {
    /// The minimum of memory: the agent and one command need it to start.
    pub const MIN_MEMORY: u64 = 16 << 20;
    /// The maximum of memory: above it, the kernel's counters mean "no limit".
    pub const MAX_MEMORY: u64 = 1 << 50;
    /// The minimum of processes: the agent, the process that starts it, and a small pipeline.
    pub const MIN_PIDS: u32 = 8;
    /// The maximum of processes: the kernel's own limit for process ids.
    pub const MAX_PIDS: u32 = 1 << 22;

    /// Validates limits.
    pub fn new(memory: Option<u64>, pids: Option<u32>, cpus: Option<CpuShare>) -> Result<Self, LimitError> {
        if let Some(bytes) = memory.filter(|bytes| !(Self::MIN_MEMORY..=Self::MAX_MEMORY).contains(bytes)) {
            return Err(LimitError::Memory(bytes));
        }
        if let Some(count) = pids.filter(|count| !(Self::MIN_PIDS..=Self::MAX_PIDS).contains(count)) {
            return Err(LimitError::Pids(count));
        }
        Ok(Self { memory, pids, cpus })
    }

    /// The memory limit in bytes; swap does not extend it.
    pub fn memory(&self) -> Option<u64> {
        self.memory
    }

    /// The limit of processes and threads.
    pub fn pids(&self) -> Option<u32> {
        self.pids
    }

    pub fn cpus(&self) -> Option<CpuShare> {
        self.cpus
    }
}

// === impl CpuShare ===

impl CpuShare {
    /// The minimum: with the period below, the kernel's minimum quota of one millisecond.
    pub const LEAST: Self = Self(10);
    /// The maximum.
    pub const MOST: Self = Self(1_024_000);
    /// The CFS period in microseconds.
    pub const PERIOD_MICROS: u64 = 100_000;

    /// A limit in thousandths of a core.
    pub fn from_thousandths(thousandths: u32) -> Result<Self, LimitError> {
        let share = Self(thousandths);
        if (Self::LEAST..=Self::MOST).contains(&share) { Ok(share) } else { Err(LimitError::Cpus(share)) }
    }

    /// Thousandths of a core.
    pub fn thousandths(self) -> u32 {
        self.0
    }

    /// The CFS quota: microseconds of CPU time in each period.
    pub fn quota_micros(self) -> u64 {
        u64::from(self.0) * (Self::PERIOD_MICROS / 1000)
    }
}

impl fmt::Display for CpuShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, rest) = (self.0 / 1000, self.0 % 1000);
        let text = format!("{whole}.{rest:03}");
        f.write_str(text.trim_end_matches('0').trim_end_matches('.'))
    }
}

impl FromStr for CpuShare {
    type Err = LimitError;

    fn from_str(text: &str) -> Result<Self, LimitError> {
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
        let (whole, rest) = text.split_once('.').unwrap_or((text, "0"));
        let wrong = || LimitError::CpuText(text.to_owned());
        if !digits(whole) || !digits(rest) || rest.len() > 3 {
            return Err(wrong());
        }
        let whole: u32 = whole.parse().map_err(|_| wrong())?;
        let rest: u32 = format!("{rest:0<3}").parse().map_err(|_| wrong())?;
        Self::from_thousandths(whole.saturating_mul(1000).saturating_add(rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    //= promises.cgroups.share-processors
    #[test]
    fn a_share_is_read_exactly_and_printed_as_it_was_read() {
        for (text, thousandths, quota) in
            [("1.5", 1500, 150_000), ("2", 2000, 200_000), ("0.01", 10, 1000), ("0.125", 125, 12_500)]
        {
            let share: CpuShare = text.parse().unwrap();
            assert_eq!((share.thousandths(), share.quota_micros()), (thousandths, quota));
            assert_eq!(share.to_string(), text);
        }
        assert_eq!("1.50".parse::<CpuShare>().unwrap().to_string(), "1.5");
        assert_eq!(CpuShare::MOST.to_string(), "1024");
    }

    //= promises.cgroups.share-processors
    #[test]
    fn an_invalid_cpu_share_is_refused() {
        for text in ["", ".", "1.", ".5", "-1", "+1", "1e3", " 1", "1.5.1", "1,5", "0x1", "1.2345", "99999999999", "٣"]
        {
            assert_eq!(text.parse::<CpuShare>(), Err(LimitError::CpuText(text.to_owned())), "{text}");
        }
        for text in ["0", "0.009", "1024.001", "4294967295"] {
            assert!(matches!(text.parse::<CpuShare>(), Err(LimitError::Cpus(_))), "{text}");
        }
    }

    //= promises.cgroups.memory
    //= promises.cgroups.processes
    #[test]
    fn limits_out_of_bounds_are_refused_with_the_bounds() {
        assert!(CgroupLimits::new(Some(CgroupLimits::MIN_MEMORY), Some(CgroupLimits::MIN_PIDS), None).is_ok());
        assert!(CgroupLimits::new(Some(CgroupLimits::MAX_MEMORY), Some(CgroupLimits::MAX_PIDS), None).is_ok());
        assert_eq!(CgroupLimits::new(None, None, None), Ok(CgroupLimits::default()));
        for memory in [0, CgroupLimits::MIN_MEMORY - 1, CgroupLimits::MAX_MEMORY + 1, u64::MAX] {
            assert_eq!(CgroupLimits::new(Some(memory), None, None), Err(LimitError::Memory(memory)));
        }
        for pids in [0, CgroupLimits::MIN_PIDS - 1, CgroupLimits::MAX_PIDS + 1] {
            assert_eq!(CgroupLimits::new(None, Some(pids), None), Err(LimitError::Pids(pids)));
        }
        let words = CgroupLimits::new(Some(1), None, None).unwrap_err().to_string();
        assert_eq!(words, "a memory limit of 1 byte is not between 16 MiB and 1 PiB");
        let words = "0".parse::<CpuShare>().unwrap_err().to_string();
        assert_eq!(words, "a share of 0 cores is not between 0.01 and 1024");
    }
}
