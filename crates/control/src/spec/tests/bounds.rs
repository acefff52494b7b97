//! How much may be asked for, and what strangers may not.

use super::{OPERATOR, OTHER};
use crate::spec::{Draft, DraftMount, DraftPort, DraftService, Host};
use crate::{Code, Refusal};

fn checked(trusted: bool, change: impl FnOnce(&mut Draft)) -> Result<(), Refusal> {
    let allowed = vec!["/".into()];
    let mut draft = Draft { image: "host".to_owned(), ..Draft::default() };
    change(&mut draft);
    draft.check(&Host { allowed, ..Host::default() }, if trusted { &OPERATOR } else { &OTHER }).map(drop)
}

fn port(host_port: u32) -> DraftPort {
    DraftPort { container_port: 80, host_port, protocol: 0 }
}

#[test]
fn a_stranger_writes_to_no_tree_of_the_host_and_takes_no_port_of_its_services() {
    let mount = |writable| DraftMount { source: "/usr".to_owned(), target: "/given".to_owned(), writable };
    for (writable, trusted, right) in [(true, false, false), (true, true, true), (false, false, true)] {
        let said = checked(trusted, |draft| draft.mounts = vec![mount(writable)]);
        assert_eq!(said.is_ok(), right, "{said:?}");
    }
    let refused = checked(false, |draft| draft.mounts = vec![mount(true)]).unwrap_err();
    assert_eq!((refused.code, refused.reason), (Code::PermissionDenied, "HOST_PATH_FORBIDDEN"));
    for (number, trusted, right) in [(80, false, false), (80, true, true), (1024, false, true)] {
        let said = checked(trusted, |draft| draft.ports = vec![port(number)]);
        assert_eq!(said.is_ok(), right, "{said:?}");
    }
}

#[test]
fn a_sandbox_has_so_many_ports_and_services_and_no_more() {
    for (count, right) in [(64, true), (65, false)] {
        let said = checked(true, |draft| draft.ports = (0..count).map(|number| port(2000 + number)).collect());
        assert_eq!(said.is_ok(), right, "{said:?}");
    }
    for (count, right) in [(16, true), (17, false)] {
        let service = |number| DraftService { name: format!("s{number}"), image: "host".into(), ..Default::default() };
        let said = checked(true, |draft| draft.services = (0..count).map(service).collect());
        assert_eq!(said.is_ok(), right, "{said:?}");
    }
}
