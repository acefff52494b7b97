//! Reading and writing lines.

use carrel_agents::child::{Child, ChildError, OutputLine};

use crate::support::{line, on_one_thread, python, shell, start};

//= agents.architecture-components.daemon-manages-agent-processes
//= agents.event-streaming.agent-runs-subprocess-output
#[test]
fn lines_are_written_and_read() {
    on_one_thread(async {
        let mut child = start(&shell("while read -r line; do echo \"<$line>\"; done"));
        child.send(b"one").unwrap();
        assert_eq!(line(&mut child).await, "<one>");
        child.send(b"two").unwrap();
        child.send(b"").unwrap();
        child.close_input();
        assert_eq!(line(&mut child).await, "<two>");
        assert_eq!(line(&mut child).await, "<>");
        assert_eq!(child.line().await, None);
        assert_eq!(child.line().await, None);
        assert_eq!(child.exit().await.code, Some(0));
        assert!(matches!(child.send(b"three"), Err(ChildError::Closed)));
    });
}

//= agents.event-streaming.agent-runs-subprocess-output
#[test]
fn an_unterminated_line_before_a_kill_is_returned() {
    on_one_thread(async {
        let mut child = start(&shell("printf 'whole\\nhalf'; kill -9 $$"));
        assert_eq!(line(&mut child).await, "whole");
        assert_eq!(child.line().await, Some(OutputLine::Unterminated("half".into())));
        assert_eq!(child.line().await, None);
        assert_eq!(child.exit().await.signal, Some(9));
    });
}

//= agents.event-streaming.agent-runs-subprocess-output
#[test]
fn invalid_utf_8_is_returned_unchanged() {
    on_one_thread(async {
        let mut child = start(&shell("printf '\\377\\000\\300\\n'; printf 'a\\377b' >&2"));
        assert_eq!(child.line().await, Some(OutputLine::Complete(b"\xff\0\xc0"[..].into())));
        assert_eq!(child.exit().await.stderr, "a\u{fffd}b");
    });
}

//= promises.agents-server.longest-line-agent
#[test]
fn a_line_over_the_limit_is_truncated_and_the_next_one_is_complete() {
    assert_eq!(Child::MAX_LINE, 32 << 20);
    on_one_thread(async {
        let script = format!(
            "import sys; w = sys.stdout.write; m = {}; w('a' * m + '\\n' + 'b' * (m + 1) + '\\nnext\\n' + 'c' * (m + 9))",
            Child::MAX_LINE
        );
        let mut child = start(&python(&script));
        assert_eq!(child.line().await, Some(OutputLine::Complete(vec![b'a'; Child::MAX_LINE].into())));
        assert_eq!(child.line().await, Some(OutputLine::Truncated(vec![b'b'; Child::MAX_LINE].into())));
        assert_eq!(line(&mut child).await, "next");
        assert_eq!(child.line().await, Some(OutputLine::Truncated(vec![b'c'; Child::MAX_LINE].into())));
        assert_eq!(child.line().await, None);
    });
}
