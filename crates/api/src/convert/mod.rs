//! Converts between messages of the API and types of the control plane.

mod draft;
mod event;
mod exec;
mod handle;

use std::time::Duration;

use carrel_store::Timestamp;

pub(crate) use self::draft::{draft, restart_policy};
pub(crate) use self::event::{event, pause, running};
pub(crate) use self::exec::{options, record, size, status};
pub(crate) use self::handle::{create_spec, desired, handle, limits, restart};

const NANOS: i64 = 1_000_000_000;

fn timestamp(Timestamp(nanos): Timestamp) -> prost_types::Timestamp {
    // The remainder fits.
    let rest = i32::try_from(nanos.rem_euclid(NANOS)).unwrap_or_default();
    prost_types::Timestamp { seconds: nanos.div_euclid(NANOS), nanos: rest }
}

pub(crate) fn timestamp_of(at: Timestamp) -> Option<prost_types::Timestamp> {
    Some(timestamp(at))
}

pub(crate) fn duration(duration: Duration) -> prost_types::Duration {
    prost_types::Duration {
        seconds: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
        nanos: i32::try_from(duration.subsec_nanos()).unwrap_or_default(),
    }
}

/// Converts a duration; `None` if it is negative.
pub(crate) fn duration_of(duration: &prost_types::Duration) -> Option<Duration> {
    let (seconds, nanos) = (u64::try_from(duration.seconds).ok()?, u32::try_from(duration.nanos).ok()?);
    Duration::from_secs(seconds).checked_add(Duration::from_nanos(u64::from(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_moment_before_1970_has_nanoseconds_that_count_forwards() {
        let at = |nanos| (timestamp(Timestamp(nanos)).seconds, timestamp(Timestamp(nanos)).nanos);
        assert_eq!(at(1_700_000_000_123_456_789), (1_700_000_000, 123_456_789));
        assert_eq!(at(-1), (-1, 999_999_999));
    }

    #[test]
    fn a_duration_that_is_not_negative_round_trips() {
        for length_of in [Duration::ZERO, Duration::from_millis(2500), Duration::from_secs(1 << 40)] {
            assert_eq!(duration_of(&duration(length_of)), Some(length_of));
        }
        assert_eq!(duration_of(&prost_types::Duration { seconds: -1, nanos: 0 }), None);
        assert_eq!(duration_of(&prost_types::Duration { seconds: 0, nanos: -1 }), None);
    }
}
