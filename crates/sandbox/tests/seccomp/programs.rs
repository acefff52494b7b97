//! Ordinary programs under the filter.

use crate::probe::{FilterSide, run};

fn runs(command: &[&str]) -> String {
    let output = run(FilterSide::Filtered, command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

//= promises.system-call-filter.shells-interpreters-compilers-tracers
#[test]
fn a_shell_runs_with_pipes_and_jobs() {
    let text = runs(&["sh", "-c", "set -e; (sleep 0 & wait); printf 'b\\na\\n' | sort | tr '\\n' ' '; uname -m"]);
    assert!(text.contains("a b "), "{text}");
}

//= promises.system-call-filter.shells-interpreters-compilers-tracers
#[test]
fn an_interpreter_runs_with_threads_sockets_terminals_and_children() {
    let script = r#"
import asyncio, ctypes, mmap, multiprocessing, os, pty, signal, socket, subprocess, sys, tempfile, threading

def served():
    server = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=lambda: server.accept()[0].sendall(b"hello"))
    thread.start()
    client = socket.create_connection(server.getsockname())
    assert client.recv(5) == b"hello"
    thread.join()

def terminal():
    leader, follower = pty.openpty()
    child = subprocess.Popen(["tty"], stdin=follower, stdout=follower, start_new_session=True)
    os.close(follower)
    assert os.read(leader, 100).startswith(b"/dev/pts/")
    assert child.wait() == 0

async def awaited():
    child = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert (await child.communicate(b"over"))[0] == b"over"
    await asyncio.to_thread(os.getpid)

def squared(x):
    return x * x

served()
terminal()
asyncio.run(awaited())
with multiprocessing.get_context("fork").Pool(2) as pool:
    assert pool.map(squared, range(4)) == [0, 1, 4, 9]
with tempfile.TemporaryFile() as file:
    file.truncate(4096)
    assert mmap.mmap(file.fileno(), 4096)[0] == 0
assert socket.getaddrinfo("localhost", 80)
assert ctypes.CFUNCTYPE(ctypes.c_int)(lambda: 7)() == 7
assert len(os.urandom(8)) == 8
signal.setitimer(signal.ITIMER_REAL, 0)
print("all done")
"#;
    assert!(runs(&["python3", "-c", script]).contains("all done"));
}

//= promises.system-call-filter.shells-interpreters-compilers-tracers
#[test]
fn a_compiler_compiles_and_its_program_runs() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("hello.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"hello from c\"); }\n").unwrap();
    let program = dir.path().join("hello");
    let build = format!("cc -o {0} {1} && {0}", program.display(), source.display());
    assert!(runs(&["sh", "-c", &build]).contains("hello from c"));
}

/// Common tools, if installed, each with its use of descriptors, files and processes.
#[test]
fn common_tools_run() {
    let tools = [
        ("git", "git init -q . && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git gc -q"),
        ("node", "node -e 'const {execSync} = require(\"child_process\"); execSync(\"true\"); process.stdout.isTTY'"),
        ("perl", "perl -MPOSIX -e 'ttyname(0); exit !(`echo x` eq \"x\\n\")'"),
        ("sqlite3", "sqlite3 db 'pragma journal_mode=wal; create table t(a); insert into t values(1); vacuum;'"),
        ("script", "script -qec 'stty -a; stty size; tty' /dev/null </dev/null"),
        ("tmux", "tmux -S ./s -f /dev/null new-session -d cat && tmux -S ./s kill-server"),
        ("strace", "strace -f -o trace true"),
        ("gdb", "gdb -nx -batch -ex run true"),
        ("ssh-keygen", "ssh-keygen -q -t ed25519 -N '' -f key"),
        ("tar", "echo a > a && tar cf x.tar a && tar xOf x.tar"),
        ("cp", "head -c 100000 /dev/zero > a && cp --reflink=auto a b && cp --sparse=always a c && cmp b c"),
        ("sync", "echo a > a && sync && sync a"),
        ("ip", "ip address"),
        ("nice", "nice -n 5 true && taskset 1 true && chrt --batch 0 true && prlimit --nofile=64 true"),
        ("busybox", "busybox ash -c 'busybox stty -a </dev/null; true'"),
    ];
    let installed = |tool: &str| {
        std::env::split_paths(&std::env::var_os("PATH").unwrap()).any(|directory| directory.join(tool).exists())
    };
    let mut tried = 0;
    for (tool, script) in tools.iter().filter(|(tool, _)| installed(tool)) {
        let dir = tempfile::tempdir().unwrap();
        let script =
            format!("set -e; cd {0}; export HOME={0} TERM=xterm; ({script}) 2>&1; echo done", dir.path().display());
        assert!(runs(&["sh", "-c", &script]).contains("done"), "{tool}");
        tried += 1;
    }
    assert!(tried >= 5);
}

//= promises.system-call-filter.shells-interpreters-compilers-tracers
/// Its tracees are under the filter, too.
#[test]
fn a_tracer_traces() {
    let script = r#"
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
child = os.fork()
if child == 0:
    libc.ptrace(0, 0, 0, 0)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(3)
assert os.WIFSTOPPED(os.waitpid(child, 0)[1])
assert libc.ptrace(7, child, 0, 0) == 0, ctypes.get_errno()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
print("traced")
"#;
    assert!(runs(&["python3", "-c", script]).contains("traced"));
}
