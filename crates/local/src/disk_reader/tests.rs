use super::*;

#[test]
fn a_reader_is_idle_when_no_client_used_it_between_two_checks() {
    let mut check = IdleCheck::default();
    assert!(!check.is_idle(1, 0, 0), "it was opened since");
    assert!(!check.is_idle(1, 1, 5), "it has a client");
    assert!(!check.is_idle(2, 0, 5), "it was shared since");
    assert!(check.is_idle(2, 0, 5));
}

#[test]
fn a_reader_whose_client_makes_no_progress_becomes_idle() {
    let mut check = IdleCheck::default();
    assert!(!check.is_idle(1, 1, 5));
    assert!((1..QUIET).all(|_| !check.is_idle(1, 1, 5)));
    assert!(!check.is_idle(1, 1, 6), "it has read something");
    assert!((1..QUIET).all(|_| !check.is_idle(1, 1, 6)));
    assert!(check.is_idle(1, 1, 6));
}

#[test]
fn the_name_of_a_reader_is_no_sandbox_id_and_no_service_name() {
    assert_eq!(reader_name("demo"), "demo..read");
    let [one, other] = ["x", "y"].map(|letter| reader_name(&letter.repeat(128)));
    assert!(one.len() <= MAX_NAME && one.starts_with("..") && one != other);
}

#[test]
fn a_client_without_progress_loses_its_reader_after_a_minute() {
    assert_eq!(LOOK * QUIET, Duration::from_secs(60));
}

//= promises.control-plane.disk-readers
#[test]
fn one_user_cannot_use_all_readers_and_a_reader_above_the_limit_is_refused() {
    let readers = DiskReaders::default();
    let taken = |holder: ShareHolder| -> Vec<_> { std::iter::from_fn(|| readers.permit(holder).ok()).collect() };
    let [first, second, third] = [1, 2, 3].map(|user| taken(ShareHolder::user(user)));
    assert_eq!([first.len(), second.len(), third.len()], [4, 2, 0]);
    let refused = readers.permit(ShareHolder::user(1)).unwrap_err();
    assert_eq!(refused.code, Some(ProviderError::LIMIT_REACHED));
    assert!(refused.message.contains("4 is the limit of one user"), "{refused}");
    assert_eq!(taken(ShareHolder::OWNER).len(), 2);
    drop(first);
    assert!(readers.permit(ShareHolder::user(3)).is_ok());
}
