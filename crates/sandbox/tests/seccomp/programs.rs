//! Ordinary programs under the filter.

use crate::probe::{Side, run};

fn runs(command: &[&str]) -> String {
    let output = run(Side::Filtered, command);
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{command:?}\n{text}\n{}", String::from_utf8_lossy(&output.stderr));
    text
}

#[test]
fn a_shell_runs_with_its_pipes_and_jobs() {
    let text = runs(&["sh", "-c", "set -e; (sleep 0 & wait); printf 'b\\na\\n' | sort | tr '\\n' ' '; uname -m"]);
    assert!(text.contains("a b "), "{text}");
}

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

#[test]
fn a_compiler_compiles_and_its_program_runs() {
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("hello.c");
    std::fs::write(&source, "#include <stdio.h>\nint main(void) { puts(\"hello from c\"); }\n").unwrap();
    let program = dir.path().join("hello");
    let build = format!("cc -o {0} {1} && {0}", program.display(), source.display());
    assert!(runs(&["sh", "-c", &build]).contains("hello from c"));
}

/// What it sees of others by `ptrace` it sees under the filter, too.
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
