//! A sandbox in the network namespace of another, with a shim of its own.

use carrel_shim_client::messages::{Create, FailureCode, OutcomeKind, SharedNetwork};
use carrel_shim_client::{OwnedSandbox, OwnerError, process_start_time};
use carrel_tests::{TestSandbox, create, home, outcome_of, programs, read_until, run, script, traces};

const SERVE: &str = "exec python3 -c 'import socket
server = socket.create_server((\"127.0.0.1\", 80))
print(\"up\", flush=True)
while True:
    with server.accept()[0] as caller: caller.sendall(b\"it is me\")'";

const QUERY: &str = "python3 -c 'import socket
try: print(socket.create_connection((\"127.0.0.1\", 80)).recv(100).decode())
except OSError as error: print(error.errno)'";

/// Leaves 400 MiB of netlink responses unread.
const UNREAD: &str = "exec python3 -c 'import signal, socket, sys
kept, taken, question = [], 0, (16000).to_bytes(4, sys.byteorder) + b\"\\xda\\0\\5\\0\" + bytes(15992)
while taken < 400 << 20:
    kept.append(socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0))
    kept[-1].setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    room = kept[-1].getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF)
    for _ in range(room // 16000): kept[-1].sendto(question, (0, 0))
    taken += room
signal.pause()'";

/// The network of the sandbox with this init process.
fn network_of(pid: u32) -> SharedNetwork {
    SharedNetwork { pid, began: process_start_time(pid).unwrap() }
}

/// Starts a sandbox in the network of another.
async fn start_in(other: SharedNetwork) -> Result<TestSandbox, OwnerError> {
    TestSandbox::try_with(|create| create.network_of = Some(other)).await
}

/// The message with which a start in a network is refused. Nothing is left of the attempt.
async fn refusal(other: SharedNetwork) -> String {
    let home = home();
    let create = Create { network_of: Some(other), ..create(home.path(), "test") };
    let Err(OwnerError::Failed(failed)) = OwnedSandbox::start(&programs(), &create).await else {
        panic!("{other:?} was accepted");
    };
    assert_eq!(failed.code, FailureCode::InvalidRequest, "{failed:?}");
    assert_eq!(traces(&create), Vec::<String>::new());
    failed.message
}

#[test]
fn jobs_of_two_sandboxes_communicate_in_the_network_of_one() {
    run(async {
        let one = TestSandbox::start().await;
        let service = start_in(network_of(one.owned.pid())).await.unwrap();
        let mut server = service.follow("server", &script(SERVE)).await;
        read_until(&mut server, "up\n").await;
        let query = |sandbox: TestSandbox| async move {
            let transcript = sandbox.job("query", &script(QUERY)).await;
            (sandbox, String::from_utf8(transcript.stdout).unwrap())
        };
        let (one, response) = query(one).await;
        assert_eq!(response, "it is me\n");
        let (third, response) = query(TestSandbox::start().await).await;
        assert_eq!(response, format!("{}\n", libc::ECONNREFUSED), "the control: other sandboxes cannot connect");
        // No shim holds the network namespace open.
        for sandbox in [&one, &service, &third] {
            let open = std::fs::read_dir(format!("/proc/{}/fd", sandbox.owned.shim_pid())).unwrap();
            let open = open.filter_map(|entry| std::fs::read_link(entry.unwrap().path()).ok());
            assert!(open.into_iter().all(|file| !file.starts_with("net:")));
        }
        // The network outlives the sandbox that created it.
        drop((one, third));
        assert_eq!(query(service).await.1, "it is me\n");
    });
}

/// The sandbox that owns the network is idle, so its own shim has nothing to check.
#[test]
fn a_job_that_exhausts_kernel_memory_in_a_shared_network_is_killed() {
    run(async {
        let one = TestSandbox::start().await;
        let service = start_in(network_of(one.owned.pid())).await.unwrap();
        let info = service.job("take", &script(UNREAD)).await.info;
        assert_eq!(outcome_of(&info), (OutcomeKind::OutOfMemory, None, Some(libc::SIGKILL)), "{info:?}");
        let message = info.outcome.unwrap().message.unwrap();
        assert!(message.ends_with("more than 256 MiB of kernel memory for unread netlink messages"), "{message}");
    });
}

#[test]
fn only_the_network_of_a_running_sandbox_can_be_shared() {
    run(async {
        let one = TestSandbox::start().await;
        let other = network_of(one.owned.pid());
        start_in(other).await.expect("the control");
        let later = SharedNetwork { began: other.began + 1, ..other };
        assert!(refusal(later).await.contains("has ended"));
        for foreign in [one.owned.shim_pid(), std::process::id()] {
            assert!(refusal(network_of(foreign)).await.contains("it is not the network of a sandbox"), "{foreign}");
        }
        // When this returns, its init process has exited and its shim has reaped it.
        drop(one);
        assert!(refusal(other).await.contains("has ended"));
    });
}
