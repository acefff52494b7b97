//! A sandbox beside another: it has a supervisor of its own, and the network of the other.

use carrel_shim_client::messages::{Create, FailureCode, NetworkOf};
use carrel_shim_client::{OwnedSandbox, OwnerError, began};
use carrel_tests::{Sandbox, create, home, programs, run, script, traces, until};

const SERVE: &str = "exec python3 -c 'import socket
server = socket.create_server((\"127.0.0.1\", 80))
print(\"up\", flush=True)
while True:
    with server.accept()[0] as caller: caller.sendall(b\"it is me\")'";

const ASK: &str = "python3 -c 'import socket
try: print(socket.create_connection((\"127.0.0.1\", 80)).recv(100).decode())
except OSError as error: print(error.errno)'";

/// How the sandbox of a process is named to those who are to stand beside it.
fn of(pid: u32) -> NetworkOf {
    NetworkOf { pid, began: began(pid).unwrap() }
}

async fn beside(other: NetworkOf) -> Result<Sandbox, OwnerError> {
    Sandbox::try_with(|create| create.network_of = Some(other)).await
}

/// Why nobody can stand beside that. Nothing is left of the attempt.
async fn refusal(other: NetworkOf) -> String {
    let home = home();
    let create = Create { network_of: Some(other), ..create(home.path(), "test") };
    let Err(OwnerError::Failed(failed)) = OwnedSandbox::start(&programs(), &create).await else {
        panic!("{other:?} was taken");
    };
    assert_eq!(failed.code, FailureCode::InvalidRequest, "{failed:?}");
    assert_eq!(traces(&create), Vec::<String>::new());
    failed.message
}

#[test]
fn jobs_of_two_sandboxes_meet_in_the_network_of_one() {
    run(async {
        let one = Sandbox::start().await;
        let service = beside(of(one.owned.pid())).await.unwrap();
        let mut server = service.follow("server", &script(SERVE)).await;
        until(&mut server, "up\n").await;
        let asked = |sandbox: Sandbox| async move {
            let seen = sandbox.job("ask", &script(ASK)).await;
            (sandbox, String::from_utf8(seen.stdout).unwrap())
        };
        let (one, said) = asked(one).await;
        assert_eq!(said, "it is me\n");
        let (third, said) = asked(Sandbox::start().await).await;
        assert_eq!(said, format!("{}\n", libc::ECONNREFUSED), "the control: nobody else finds it");
        // Nobody holds the network but who is in it.
        for sandbox in [&one, &service, &third] {
            let open = std::fs::read_dir(format!("/proc/{}/fd", sandbox.owned.shim_pid())).unwrap();
            let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
            assert!(open.into_iter().all(|file| !file.starts_with("net:")));
        }
        // It outlives the one that it stands beside.
        drop((one, third));
        assert_eq!(asked(service).await.1, "it is me\n");
    });
}

#[test]
fn nobody_stands_beside_what_is_no_sandbox_or_no_longer_there() {
    run(async {
        let one = Sandbox::start().await;
        let other = of(one.owned.pid());
        beside(other).await.expect("the control");
        let later = NetworkOf { began: other.began + 1, ..other };
        assert!(refusal(later).await.contains("has ended"));
        for foreign in [one.owned.shim_pid(), std::process::id()] {
            assert!(refusal(of(foreign)).await.contains("it is not the network of a sandbox"), "{foreign}");
        }
        // Ended, and buried by its supervisor, when this returns.
        drop(one);
        assert!(refusal(other).await.contains("has ended"));
    });
}
