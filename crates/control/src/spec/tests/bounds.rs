//! Limits of a spec, and what untrusted callers may not request.

use super::{OPERATOR, OTHER};
use crate::spec::{DraftMount, DraftPort, DraftService, Host, SpecDraft};
use crate::{Code, Refusal};

fn checked(trusted: bool, change: impl FnOnce(&mut SpecDraft)) -> Result<(), Refusal> {
    let paths = vec!["/".into()];
    let mut draft = SpecDraft { image: "host".to_owned(), ..SpecDraft::default() };
    change(&mut draft);
    draft.check(&Host { allowed: paths, ..Host::default() }, if trusted { &OPERATOR } else { &OTHER }).map(drop)
}

fn port(host_port: u32) -> DraftPort {
    DraftPort { container_port: 80, host_port, protocol: 0 }
}

#[test]
fn an_untrusted_caller_gets_no_writable_mount_and_no_privileged_port() {
    let mount = |writable| DraftMount { source: "/usr".to_owned(), target: "/given".to_owned(), writable };
    for (writable, trusted, allowed) in [(true, false, false), (true, true, true), (false, false, true)] {
        let checked_spec = checked(trusted, |draft| draft.mounts = vec![mount(writable)]);
        assert_eq!(checked_spec.is_ok(), allowed, "{checked_spec:?}");
    }
    let refused = checked(false, |draft| draft.mounts = vec![mount(true)]).unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::PermissionDenied, "HOST_PATH_FORBIDDEN"));
    for (number, trusted, allowed) in [(80, false, false), (80, true, true), (1024, false, true)] {
        let checked_spec = checked(trusted, |draft| draft.ports = vec![port(number)]);
        assert_eq!(checked_spec.is_ok(), allowed, "{checked_spec:?}");
    }
}

#[test]
fn the_number_of_ports_and_services_is_limited() {
    for (count, allowed) in [(64, true), (65, false)] {
        let checked_spec = checked(true, |draft| draft.ports = (0..count).map(|number| port(2000 + number)).collect());
        assert_eq!(checked_spec.is_ok(), allowed, "{checked_spec:?}");
    }
    for (count, allowed) in [(16, true), (17, false)] {
        let service = |number| DraftService { name: format!("s{number}"), image: "host".into(), ..Default::default() };
        let checked_spec = checked(true, |draft| draft.services = (0..count).map(service).collect());
        assert_eq!(checked_spec.is_ok(), allowed, "{checked_spec:?}");
    }
}
