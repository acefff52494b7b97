use super::*;

#[test]
fn a_reader_is_idle_when_nobody_used_it_between_two_looks() {
    let mut check = IdleCheck::default();
    assert!(!check.is_idle(1, 0, 0), "it was opened since");
    assert!(!check.is_idle(1, 1, 5), "it has a client");
    assert!(!check.is_idle(2, 0, 5), "it was shared since");
    assert!(check.is_idle(2, 0, 5));
}

#[test]
fn a_reader_whose_client_reads_nothing_for_long_is_idle() {
    let mut check = IdleCheck::default();
    assert!(!check.is_idle(1, 1, 5));
    assert!((1..QUIET).all(|_| !check.is_idle(1, 1, 5)));
    assert!(!check.is_idle(1, 1, 6), "it has read something");
    assert!((1..QUIET).all(|_| !check.is_idle(1, 1, 6)));
    assert!(check.is_idle(1, 1, 6));
}

#[test]
fn the_name_of_a_reader_is_that_of_no_sandbox_and_of_no_service() {
    assert_eq!(reader_name("demo"), "demo..read");
    let [one, other] = ["x", "y"].map(|letter| reader_name(&letter.repeat(128)));
    assert!(one.len() <= LONGEST_NAME && one.starts_with("..") && one != other);
}

#[test]
fn a_reader_beyond_the_limit_is_refused_until_one_is_done() {
    let readers = DiskReaders::default();
    let mut taken: Vec<_> = (0..MOST).map(|_| readers.room().unwrap()).collect();
    assert_eq!(readers.room().unwrap_err().code, Some(ProviderError::LIMIT_REACHED));
    drop(taken.pop());
    assert!(readers.room().is_ok());
}
