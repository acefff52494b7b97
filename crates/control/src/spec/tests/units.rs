//! Tests of durations, sizes and numbers of processors.

use super::super::units::{duration, processors, size};
use super::*;

#[test]
fn durations_are_numbers_with_units() {
    let known = [
        ("0", 0, 0),
        ("-0", 0, 0),
        ("1h30m", 5400, 0),
        ("1.5s", 1, 500_000_000),
        (".5s", 0, 500_000_000),
        ("5.s", 5, 0),
        ("+5s", 5, 0),
        ("-1m0.25s", -60, -250_000_000),
        ("2562047h47m16.854775807s", 9_223_372_036, 854_775_807),
        ("3ns", 0, 3),
        ("1us2µs3μs", 0, 6_000),
        ("1ms", 0, 1_000_000),
        ("0.3333333333333333333333h", 1199, 999_999_999),
        ("1s1h", 3601, 0),
    ];
    for (text, seconds, nanos) in known {
        assert_eq!(duration(text), Ok(DraftDuration { seconds, nanos }), "{text}");
    }
    for bad in
        ["", "-", "5", "s", ".s", "1h30", "1 h", "1d", "1H", "--1s", "9223372037s", "99999999999999999999s", "1é"]
    {
        assert!(duration(bad).is_err(), "{bad}");
    }
    let words = duration("1 day").unwrap_err().to_string();
    assert_eq!(words, r#""1 day" is not a duration; use numbers with units, such as "1h30m", "1.5s" or "0""#);
}

#[test]
fn sizes_are_in_powers_of_1024() {
    let known = [
        ("1", 1),
        ("1b", 1),
        ("32k", 32 << 10),
        ("512m", 512 << 20),
        ("512MB", 512 << 20),
        ("4g", 4 << 30),
        ("1.5GiB", 3 << 29),
        ("1.5 GiB", 3 << 29),
        ("2t", 2 << 40),
        ("1P", 1 << 50),
        ("1e3", 1000),
        ("1.9", 1),
    ];
    for (text, bytes) in known {
        assert_eq!(size(text), Ok(bytes), "{text}");
    }
    let unknown =
        ["", "0", "0.5", "-1", "g", "1x", "1ib", "1kk", "1kbb", "1  g", "1 g ", "9000p", "inf g", "nan g", "1gé"];
    for bad in unknown {
        assert!(size(bad).is_err(), "{bad}");
    }
}

#[test]
fn processors_are_counted_in_thousandths() {
    for (text, millis) in [("2", 2000), ("0.5", 500), (".5", 500), ("0.001", 1), ("0.0019", 1), ("1e2", 100_000)] {
        assert_eq!(processors(text), Ok(millis), "{text}");
    }
    for bad in ["", "0", "-1", "0.0009", "inf", "NaN", "1 ", "two", "1e300", "4294968"] {
        assert!(processors(bad).is_err(), "{bad}");
    }
}

#[test]
fn no_text_makes_the_parsers_panic() {
    bolero::check!().with_type::<Vec<u8>>().for_each(|bytes| {
        let text = String::from_utf8_lossy(bytes);
        let _ = (duration(&text), size(&text), processors(&text));
    });
}

#[test]
fn durations_in_nanoseconds_round_trip() {
    bolero::check!().with_type::<i64>().for_each(|nanos| {
        let read = duration(&format!("{nanos}ns"));
        if *nanos > i64::MIN {
            let expected =
                DraftDuration { seconds: nanos / 1_000_000_000, nanos: i32::try_from(nanos % 1_000_000_000).unwrap() };
            assert_eq!(read, Ok(expected));
        }
    });
}
