//! Backpressure in both directions.

use carrel_agents::child::{ChildError, OutputLine};
use futures_util::FutureExt;

use crate::support::{line, on_one_thread, python, shell, start};

/// Capacity of a pipe, and of one read.
const HELD: usize = 2 * 64 * 1024;

//= promises.agents-server.agent-floods-never-reads
#[test]
fn an_unread_program_is_blocked_by_backpressure() {
    on_one_thread(async {
        // Prints how much it wrote before the pipe was full.
        let mut child = start(&python(
            "import os, sys
os.write(1, b'first\\n')
sys.stdin.readline()
os.set_blocking(1, False)
count = 0
try:
    while count < 1 << 26:
        count += os.write(1, b'x' * 1023 + b'\\n')
except BlockingIOError:
    pass
os.write(2, b'%d' % count)",
        ));
        assert_eq!(line(&mut child).await, "first");
        child.send(b"go on").unwrap();
        let written: usize = child.exit().await.stderr.parse().unwrap();
        assert!((1..=HELD).contains(&written), "{written}");
        let mut read = 0;
        while let Some(OutputLine::Complete(line) | OutputLine::Unterminated(line)) = child.line().await {
            read += line.len() + 1;
        }
        assert_eq!(read, written);
    });
}

//= promises.agents-server.agent-floods-never-reads
#[test]
fn a_slow_reader_loses_no_lines() {
    on_one_thread(async {
        let mut child = start(&shell("seq 1 300000"));
        for expected in 1..=300_000 {
            if expected % 1000 == 0 {
                tokio::task::yield_now().await;
            }
            assert_eq!(line(&mut child).await.parse(), Ok(expected));
        }
        assert_eq!(child.line().await, None);
    });
}

#[test]
fn a_cancelled_read_loses_no_line() {
    on_one_thread(async {
        let mut child = start(&shell("printf one; read -r _; echo ' line'; seq 1 5000"));
        for _ in 0..100 {
            assert_eq!(child.line().now_or_never(), None);
            tokio::task::yield_now().await;
        }
        child.send(b"").unwrap();
        let mut lines = Vec::new();
        while lines.len() < 5001 {
            // The future is dropped each time it is not ready.
            match child.line().now_or_never() {
                Some(Some(OutputLine::Complete(line))) => lines.push(String::from_utf8(line.to_vec()).unwrap()),
                Some(other) => panic!("{other:?}"),
                None => tokio::task::yield_now().await,
            }
        }
        assert_eq!(lines[0], "one line");
        assert!(lines[1..].iter().zip(1..).all(|(line, number)| *line == number.to_string()));
    });
}

//= promises.agents-server.agent-dies
#[test]
fn the_end_of_a_long_standard_error_is_kept() {
    on_one_thread(async {
        let mut child = start(&shell("seq 1 1000000 >&2; echo done"));
        assert_eq!(line(&mut child).await, "done");
        let stderr = child.exit().await.stderr;
        assert!(stderr.ends_with("\n999999\n1000000\n"));
        assert_eq!(stderr.len(), 16 * 1024);
    });
}

//= promises.agents-server.agent-floods-never-reads
#[test]
fn the_input_of_a_program_that_never_reads_is_bounded() {
    on_one_thread(async {
        let mut child = start(&shell("exec sleep 1000"));
        let line = vec![b'x'; 1024 * 1024 - 1];
        let mut sent = 0;
        let waiting = loop {
            match child.send(&line) {
                Ok(()) => sent += 1,
                Err(ChildError::InputFull(waiting)) => break waiting,
                Err(error) => panic!("{error}"),
            }
        };
        assert_eq!((sent, waiting), (64, 64 * 1024 * 1024));
        assert!(matches!(child.send(&line), Err(ChildError::InputFull(_))));
        assert_eq!(child.terminate(std::time::Duration::from_secs(50)).await.signal, Some(15));
    });
}

#[test]
fn a_program_that_closed_its_input_takes_no_more_lines() {
    on_one_thread(async {
        let mut child = start(&shell("exec 0<&-; echo closed; exec sleep 1000"));
        assert_eq!(line(&mut child).await, "closed");
        while child.send(b"ignored line").is_ok() {
            tokio::task::yield_now().await;
        }
        assert!(matches!(child.send(b"hello?"), Err(ChildError::Closed)));
    });
}
