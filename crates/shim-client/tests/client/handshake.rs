//! The handshake of a connection.

use std::os::fd::AsFd;
use std::path::Path;

use carrel_protocol::Flags;
use carrel_shim_client::messages::{Done, FailureCode, GetStatus, JobFollow, Pause, Resume};
use carrel_shim_client::{ShimClient, ShimError, VERSION};
use tokio::net::UnixListener;

use crate::peer::{ScriptedShim, ShimListener, ended, failed, frame, hello, invented};

async fn greeted(bytes: &[u8]) -> Result<ShimClient, ShimError> {
    let listener = ShimListener::new();
    let saying = async { drop(listener.accept_and_send(bytes).await) };
    tokio::join!(listener.connect(), saying).0
}

/// Asserts that a request has the negotiated version, and answers it.
async fn works(client: &mut ShimClient, mut peer: ScriptedShim) {
    peer.version = client.version();
    let answering = async {
        let (id, Pause { .. }) = peer.expect().await;
        peer.send(id, &Done {}).await;
    };
    tokio::join!(client.pause(), answering).0.unwrap();
}

#[tokio::test]
async fn the_hello_identifies_the_shim_and_the_kernel_its_process() {
    let listener = ShimListener::new();
    let (client, peer) = tokio::join!(listener.connect(), listener.accept_with_hello(1));
    let mut client = client.unwrap();
    assert_eq!(*client.hello(), hello(1));
    assert_eq!(client.peer(), (std::process::id(), rustix::process::getuid().as_raw()));
    works(&mut client, peer).await;
}

#[tokio::test]
async fn the_lower_of_the_two_versions_is_negotiated() {
    for (highest, theirs) in [(1, 1), (1, 2), (1, 255), (2, 1), (200, 100), (100, 200)] {
        let listener = ShimListener::new();
        let socket = listener.socket();
        let (client, peer) =
            tokio::join!(ShimClient::connect_speaking(&socket, highest), listener.accept_with_hello(theirs));
        let mut client = client.unwrap();
        assert_eq!(client.version(), highest.min(theirs), "own {highest}, theirs {theirs}");
        assert!(client.supports::<Pause>() && client.supports::<JobFollow>());
        works(&mut client, peer).await;
    }
    assert_eq!(VERSION, 1);
}

#[tokio::test]
async fn an_unsupported_request_fails_locally_and_is_not_sent() {
    for (highest, theirs) in [(0, 1), (1, 0)] {
        let listener = ShimListener::new();
        let socket = listener.socket();
        let (client, mut peer) =
            tokio::join!(ShimClient::connect_speaking(&socket, highest), listener.accept_with_hello(theirs));
        let mut client = client.unwrap();
        assert!(!client.supports::<GetStatus>());
        let error = client.status().await.unwrap_err();
        let expected = matches!(error, ShimError::Unsupported { message: "shim.status.get", since: 1, spoken: 0 });
        assert!(expected, "{error}");
        let refused = client.subscribe(1).await.unwrap_err();
        assert!(matches!(refused, ShimError::Unsupported { message: "shim.journal.read", .. }), "{refused}");
        peer.expect_end().await;
    }
}

#[tokio::test]
async fn a_close_before_the_complete_hello_is_reported() {
    let whole = frame(0, &hello(1));
    for end in 0..whole.len() {
        assert!(matches!(greeted(&whole[..end]).await, Err(ShimError::Gone)), "after {end} bytes");
    }
    assert!(greeted(&whole).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn a_silent_peer_times_out() {
    let whole = frame(0, &hello(1));
    for sent in [&[][..], &whole[..5], &whole[..30]] {
        let listener = ShimListener::new();
        let (client, _peer) = tokio::join!(listener.connect(), listener.accept_and_send(sent));
        assert!(matches!(client, Err(ShimError::Silent(_))), "after {} bytes", sent.len());
    }
}

#[tokio::test]
async fn a_peer_that_is_not_a_shim_is_rejected() {
    let unreadable = [
        b"\0\0\0\x05\0\0\0\0\0".to_vec(),
        b"\0\0\0\x08\0\0\0\0\0abc".to_vec(),
        invented(0, Flags::NONE),
        frame(0, &Resume::default()),
    ];
    for bytes in unreadable {
        let error = greeted(&bytes).await.unwrap_err();
        assert!(matches!(error, ShimError::Unreadable(_)), "{error}");
    }
    for bytes in [&b"SSH-2.0-"[..], &[0xff; 16], &[0; 4]] {
        let error = greeted(bytes).await.unwrap_err();
        assert!(matches!(error, ShimError::Broken(_)), "{error}");
    }
}

#[tokio::test]
async fn a_shim_may_send_a_failure_or_the_end_instead_of_hello() {
    let error = greeted(&frame(0, &failed(FailureCode::TooMany))).await.unwrap_err();
    assert_eq!(error.code(), Some(FailureCode::TooMany), "{error}");
    let error = greeted(&frame(0, &ended())).await.unwrap_err();
    assert!(matches!(&error, ShimError::Ended(received) if *received == ended()), "{error}");
}

#[tokio::test]
async fn a_socket_with_a_path_of_any_length_is_reachable() {
    let directory = tempfile::tempdir().unwrap();
    let deep = (0..20).fold(directory.path().to_owned(), |path, _| path.join("a-directory-of-30-characters--"));
    std::fs::create_dir_all(&deep).unwrap();
    // Bound where the path is short, then moved.
    let bound = directory.path().join("s");
    let listener = UnixListener::bind(&bound).unwrap();
    let socket = deep.join("shim.sock");
    std::fs::rename(&bound, &socket).unwrap();
    assert!(socket.as_os_str().len() > 600);
    let listener = ShimListener { directory, listener };
    let (client, peer) = tokio::join!(ShimClient::connect(&socket), listener.accept_with_hello(1));
    works(&mut client.unwrap(), peer).await;

    let handle = std::fs::File::open(&deep).unwrap();
    std::fs::rename(&deep, listener.path().join("moved")).unwrap();
    let (client, peer) = tokio::join!(ShimClient::connect_within(handle.as_fd()), listener.accept_with_hello(1));
    works(&mut client.unwrap(), peer).await;
}

#[tokio::test]
async fn a_connect_error_names_the_path() {
    let listener = ShimListener::new();
    let socket = listener.socket();
    drop(listener.listener);
    let absent = listener.directory.path().join("absent").join("x".repeat(200)).join("shim.sock");
    for (socket, kind) in [(&*socket, std::io::ErrorKind::ConnectionRefused), (&absent, std::io::ErrorKind::NotFound)] {
        match ShimClient::connect(socket).await.unwrap_err() {
            ShimError::Connect { socket: received, source } => assert_eq!((&*received, source.kind()), (socket, kind)),
            other => panic!("{other}"),
        }
    }
    let long = Path::new("/").join("x".repeat(200));
    assert!(matches!(ShimClient::connect(&long).await, Err(ShimError::PathTooLong(path)) if path == long));
}

#[tokio::test]
async fn connecting_waits_for_a_shim_with_a_full_accept_queue() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("shim.sock");
    let address = rustix::net::SocketAddrUnix::new(&path).unwrap();
    let socket = rustix::net::socket_with(
        rustix::net::AddressFamily::UNIX,
        rustix::net::SocketType::STREAM,
        rustix::net::SocketFlags::NONBLOCK | rustix::net::SocketFlags::CLOEXEC,
        None,
    )
    .unwrap();
    rustix::net::bind(&socket, &address).unwrap();
    rustix::net::listen(&socket, 0).unwrap();
    let listener = UnixListener::from_std(socket.into()).unwrap();
    let first = tokio::net::UnixStream::connect(&path).await.unwrap();
    let full = tokio::net::UnixStream::connect(&path).await.unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::WouldBlock);
    let listener = ShimListener { directory, listener };
    let serving = async {
        // At this point the client has been rejected once.
        tokio::task::yield_now().await;
        drop((listener.accept_with_hello(1).await, first));
        listener.accept_with_hello(1).await
    };
    let (client, peer) = tokio::join!(ShimClient::connect(&path), serving);
    works(&mut client.unwrap(), peer).await;
}
