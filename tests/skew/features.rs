//! Every feature of the client, with an agent of any generation.

use carrel_agent_client::protocol::payload::{TreeGlob, TreeMatch};
use carrel_agent_client::{AgentClient, AgentClientError, ExecEvent, Generation, MessageType};
use carrel_tests::{command, shell};

/// Prints its port, and answers a client in capital letters. Perl is on every Debian.
const LISTENER: &str = r#"
use IO::Socket::INET;
my $server = IO::Socket::INET->new(LocalAddr => "127.0.0.1", Listen => 1) or die;
$| = 1;
print $server->sockport, "\n";
my $connection = $server->accept;
$/ = undef;
print $connection uc <$connection>;
"#;

/// Checks that a feature works from its generation on, and is refused with its name below.
fn expect<T>(outcome: Result<T, AgentClientError>, feature: MessageType, agreed: Generation) -> Option<T> {
    let required = feature.min_protocol_version();
    match outcome {
        Ok(value) => {
            assert!(agreed >= required, "{feature} worked at {agreed}, but needs {required}");
            Some(value)
        }
        Err(AgentClientError::Unsupported(refused)) => {
            assert!(agreed < required, "{feature} was refused at {agreed}: {refused}");
            assert_eq!((refused.feature, refused.required, refused.negotiated), (feature, required, agreed));
            assert!(refused.to_string().contains("restart the sandbox"), "{refused}");
            None
        }
        Err(error) => panic!("{feature} at {agreed}: {error}"),
    }
}

/// Uses every feature; those that are newer than `agreed` fail, and no other. `directory` is writable for the agent.
pub async fn all_features(client: &AgentClient, directory: &str, agreed: Generation) {
    for feature in MessageType::ALL {
        assert_eq!(client.supports(feature), feature.is_available_at(agreed), "{feature} at {agreed}");
        assert_eq!(client.ensure_version_compat(feature).is_ok(), client.supports(feature));
    }
    let output = client.run(shell("cat; echo err >&2; exit 3"), "in").await.unwrap();
    assert_eq!((&output.stdout[..], &output.stderr[..], output.code), (&b"in"[..], &b"err\n"[..], 3));

    expect(client.ping().await, MessageType::Ping, agreed);
    expect(client.touch().await, MessageType::Touch, agreed);

    let directory = directory.trim_end_matches('/');
    let path = format!("{directory}/file");
    let content: Vec<u8> = (0..1_000_000u32).map(|n| n.to_le_bytes()[1]).collect();
    let written = expect(client.files().write_all(&path, content.clone()).await, MessageType::FsRequest, agreed);
    if written.is_some() {
        assert_eq!(client.files().read_to_end(&path).await.unwrap(), content);
    }

    if client.supports(MessageType::TcpConnect) {
        echo(client).await;
    } else {
        expect(client.tcp("127.0.0.1", 1).await, MessageType::TcpConnect, agreed);
    }

    let glob = TreeGlob { root: directory.into(), pattern: "fil*".into(), hidden: false, limit: 0 };
    if let Some(mut found) = expect(client.tree().glob(glob).await, MessageType::CarrelFsRequest, agreed) {
        let TreeMatch { path: first, .. } = found.next().await.unwrap().unwrap();
        assert_eq!(first, path);
        assert_eq!(found.next().await.unwrap().map(|more| more.path), None);
    }

    // After every refusal the connection still works.
    assert_eq!(client.run(shell("echo on"), "").await.unwrap().stdout, b"on\n");
}

/// Connects to a listener beside the agent, and receives what it answers.
async fn echo(client: &AgentClient) {
    let mut listener = client.exec(command("/usr/bin/perl", &["-e", LISTENER])).await.unwrap();
    let mut port = Vec::new();
    while !port.ends_with(b"\n") {
        match listener.next().await.unwrap() {
            Some(ExecEvent::Stdout(data)) => port.extend_from_slice(&data),
            other => panic!("{other:?}"),
        }
    }
    let port = String::from_utf8(port).unwrap().trim().parse().unwrap();
    let mut tcp = client.tcp("127.0.0.1", port).await.unwrap();
    tcp.write("over and out").await.unwrap();
    tcp.shutdown().await.unwrap();
    let mut answer = Vec::new();
    while let Some(piece) = tcp.read().await.unwrap() {
        answer.extend_from_slice(&piece);
    }
    assert_eq!(answer, b"OVER AND OUT");
    assert_eq!(listener.collect().await.unwrap().code, 0);
}
