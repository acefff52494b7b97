//! Resource limits: a fork bomb or a memory bomb hits its own sandbox, not the host and not the agent.

use carrel_tests::run;

use crate::LaunchedSandbox;

//= promises.sandbox.fork-bomb
#[test]
fn a_fork_bomb_stops_at_the_limit() {
    run(async {
        let sandbox = LaunchedSandbox::with("host", &[("CARREL_PIDS", 64)]).await;
        let bomb = "n=0; while [ $n -lt 200 ]; do sleep 1000 & n=$((n+1)); done 2>/dev/null; true";
        let _stopped = sandbox.client.run(carrel_tests::shell(bomb), "").await;
        sandbox.client.ping().await.unwrap();
        let free = LaunchedSandbox::start("host").await;
        assert_eq!(free.shell("n=0; while [ $n -lt 200 ]; do sleep 1000 & n=$((n+1)); done; echo $n").await, "200\n");
        let count = |sandbox: &LaunchedSandbox| {
            let mut found = vec![sandbox.init()];
            let mut visited = 0;
            while visited < found.len() {
                let children = carrel_tests::children_of(found[visited]);
                found.extend(children);
                visited += 1;
            }
            found.len()
        };
        assert!(count(&sandbox) <= 64 && count(&free) > 200, "{} and {}", count(&sandbox), count(&free));
    });
}

//= promises.sandbox.hierarchies-cgroup-first-process
#[test]
fn a_sandbox_sees_its_own_cgroup_as_the_root() {
    run(async {
        let sandbox = LaunchedSandbox::with("host", &[("CARREL_MEMORY", 64 << 20)]).await;
        let inside = sandbox.shell("cut -d: -f3 /proc/self/cgroup | sort -u").await;
        assert_eq!(inside, "/\n");
        let outside = std::fs::read_to_string(format!("/proc/{}/cgroup", sandbox.init())).unwrap();
        assert!(outside.contains("/carrel/example-"), "{outside}");
    });
}

//= promises.sandbox.hierarchies-cgroup-first-process
#[test]
fn the_first_process_is_in_every_hierarchy_of_its_cgroup() {
    run(async {
        let groups = |sandbox: &LaunchedSandbox| {
            let text = std::fs::read_to_string(format!("/proc/{}/cgroup", sandbox.init())).unwrap();
            let ours = text.lines().filter(|line| line.contains(":/carrel/example-"));
            ours.map(|line| line.split(':').nth(1).unwrap().to_owned()).collect::<Vec<_>>()
        };
        let limited = LaunchedSandbox::with("host", &[("CARREL_MEMORY", 64 << 20), ("CARREL_PIDS", 64)]).await;
        let found = groups(&limited);
        let name = |name: &str| name.to_owned();
        assert!(
            found.contains(&name("memory")) && found.contains(&name("pids")) && found.contains(&name("")),
            "{found:?}"
        );
        // With cgroup v2 alone, the process is created in its cgroup.
        let unified = LaunchedSandbox::with("host", &[("CARREL_UNIFIED", 1)]).await;
        assert_eq!(groups(&unified), [""]);
        assert_eq!(groups(&LaunchedSandbox::start("host").await), [""; 0], "the control");
    });
}

//= promises.sandbox.memory-bomb
#[test]
fn a_memory_bomb_is_oom_killed_and_the_agent_is_not() {
    run(async {
        let sandbox = LaunchedSandbox::with("host", &[("CARREL_MEMORY", 64 << 20)]).await;
        let bomb = "head -c 300m /dev/zero | tail";
        let outcome = sandbox.client.run(carrel_tests::shell(bomb), "").await.unwrap();
        assert_ne!(outcome.code, 0, "{outcome:?}");
        sandbox.client.ping().await.unwrap();
        assert_eq!(sandbox.shell("echo alive").await, "alive\n");
    });
}

//= promises.sandbox.write-root-project-together
#[test]
fn a_full_disk_affects_only_its_sandbox() {
    run(async {
        let sandbox = LaunchedSandbox::with("host", &[("CARREL_DISK", 8 << 20)]).await;
        let other = LaunchedSandbox::with("host", &[("CARREL_DISK", 8 << 20)]).await;
        let filled = sandbox.shell("head -c 100m /dev/zero > /tmp/fill 2>/dev/null || stat -c %s /tmp/fill").await;
        let size: u64 = filled.trim().parse().unwrap();
        assert!(size > 0 && size <= 8 << 20, "{size}");
        // While it is full, another sandbox can use all of its own.
        let write = "head -c 6m /dev/zero > /tmp/more 2>/dev/null && echo fits || echo full";
        assert_eq!(sandbox.shell(write).await, "full\n");
        assert_eq!(other.shell(write).await, "fits\n");
        assert_eq!(sandbox.shell("rm /tmp/fill; echo again > /tmp/x; cat /tmp/x").await, "again\n");
    });
}

//= promises.sandbox.write-root-project-together
#[test]
fn shared_memory_holds_as_much_as_the_disk_in_addition() {
    run(async {
        let disk = 8 << 20;
        let sandbox = LaunchedSandbox::with("host", &[("CARREL_DISK", disk)]).await;
        let fill = async |path: &str| {
            let script = format!("head -c 100m /dev/zero > {path} 2>/dev/null || stat -c %s {path}");
            sandbox.shell(&script).await.trim().parse::<u64>().unwrap()
        };
        for path in ["/tmp/fill", "/dev/shm/fill"] {
            let size = fill(path).await;
            assert!((disk * 3 / 4..=disk).contains(&size), "{path}: {size}");
        }
        // Neither takes space of the other.
        assert_eq!(fill("/tmp/more").await, 0);
        assert_eq!(fill("/dev/shm/more").await, 0);
    });
}

/// Sends 192 MiB through sockets that are not read, and prints how many MiB the kernel queued. A datagram that finds no
/// space is dropped silently.
const FILL: &str = r#"
import socket, sys
pairs, sent, held = [], 0, 0
while sent < 192 << 20 and len(pairs) < 1000:
    if sys.argv[1] == "tcp":
        server = socket.create_server(("127.0.0.1", 0))
        writer = socket.create_connection(server.getsockname())
        reader = server.accept()[0]
    else:
        reader, writer = (socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2))
        reader.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 << 20)
        reader.bind(("127.0.0.1", 0))
        writer.connect(reader.getsockname())
    pairs.append(reader)
    pairs.append(writer)
    writer.setblocking(False)
    try:
        for _ in range(256): sent += writer.send(bytes(1 << 15))
    except BlockingIOError: pass
for reader in pairs[::2] if sys.argv[1] == "udp" else []:
    reader.setblocking(False)
    try:
        while True: held += len(reader.recv(1 << 16))
    except BlockingIOError: pass
print((held if sys.argv[1] == "udp" else sent) >> 20)
"#;

//= promises.sandbox.waits-sockets
#[test]
fn data_queued_in_sockets_counts_against_the_memory_limit() {
    run(async {
        let limited = LaunchedSandbox::with("host", &[("CARREL_MEMORY", 64 << 20)]).await;
        let free = LaunchedSandbox::start("host").await;
        for kind in ["tcp", "udp"] {
            let script = format!("cat > /tmp/fill.py <<'END'{FILL}END\npython3 /tmp/fill.py {kind}");
            let queued = async |sandbox: &LaunchedSandbox| sandbox.shell(&script).await.trim().parse::<u32>().unwrap();
            let (limited, free) = (queued(&limited).await, queued(&free).await);
            assert!(limited < 48, "{limited} MiB of {kind} are queued");
            assert!(free > 80, "{kind} proves nothing: {free} MiB are queued");
        }
    });
}
