//! A sandbox beside another: it has a supervisor of its own, and the network of the other.

use carrel_shim_client::messages::{Create, FailureCode, OutcomeKind, SharedNetwork};
use carrel_shim_client::{OwnedSandbox, OwnerError, began};
use carrel_tests::{Sandbox, create, ending, home, programs, run, script, traces, until};

const SERVE: &str = "exec python3 -c 'import socket
server = socket.create_server((\"127.0.0.1\", 80))
print(\"up\", flush=True)
while True:
    with server.accept()[0] as caller: caller.sendall(b\"it is me\")'";

const ASK: &str = "python3 -c 'import socket
try: print(socket.create_connection((\"127.0.0.1\", 80)).recv(100).decode())
except OSError as error: print(error.errno)'";

/// Leaves answers of netlink unread, 400 MiB of them.
const UNREAD: &str = "exec python3 -c 'import signal, socket, sys
kept, taken, question = [], 0, (16000).to_bytes(4, sys.byteorder) + b\"\\xda\\0\\5\\0\" + bytes(15992)
while taken < 400 << 20:
    kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    room = kept[-1].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    for _ in range(room // 16000): kept[-1].sendto(question, (0, 0))
    taken += room
signal.pause()'";

/// How the sandbox of a process is named to those who are to stand beside it.
fn of(pid: u32) -> SharedNetwork {
    SharedNetwork { pid, began: began(pid).unwrap() }
}

async fn beside(other: SharedNetwork) -> Result<Sandbox, OwnerError> {
    Sandbox::try_with(|create| create.network_of = Some(other)).await
}

/// Why nobody can stand beside that. Nothing is left of the attempt.
async fn refusal(other: SharedNetwork) -> String {
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

/// The other does nothing, and its supervisor has nothing to look at.
#[test]
fn who_takes_memory_of_the_kernel_in_the_network_of_another_is_ended() {
    run(async {
        let one = Sandbox::start().await;
        let service = beside(of(one.owned.pid())).await.unwrap();
        let info = service.job("take", &script(UNREAD)).await.info;
        assert_eq!(ending(&info), (OutcomeKind::OutOfMemory, None, Some(libc::SIGKILL)), "{info:?}");
        let message = info.outcome.unwrap().message.unwrap();
        assert!(message.ends_with("more than 256 MiB of kernel memory for unread netlink messages"), "{message}");
    });
}

#[test]
fn nobody_stands_beside_what_is_no_sandbox_or_no_longer_there() {
    run(async {
        let one = Sandbox::start().await;
        let other = of(one.owned.pid());
        beside(other).await.expect("the control");
        let later = SharedNetwork { began: other.began + 1, ..other };
        assert!(refusal(later).await.contains("has ended"));
        for foreign in [one.owned.shim_pid(), std::process::id()] {
            assert!(refusal(of(foreign)).await.contains("it is not the network of a sandbox"), "{foreign}");
        }
        // Ended, and buried by its supervisor, when this returns.
        drop(one);
        assert!(refusal(other).await.contains("has ended"));
    });
}
