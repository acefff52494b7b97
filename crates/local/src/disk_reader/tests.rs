use super::*;

#[test]
fn a_reader_is_idle_when_nobody_used_it_between_two_looks() {
    let mut check = IdleCheck::default();
    assert!(!check.is_idle(0, 1), "it was opened since");
    assert!(!check.is_idle(1, 1), "it has a client");
    assert!(!check.is_idle(0, 2), "it was shared since");
    assert!(check.is_idle(0, 2));
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
