//! A TCP proxy in front of a registry: records requests, counts bytes of responses, and injects faults.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// A fault in the response data of a connection.
#[derive(Clone, Copy, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// The connection is closed after so many bytes.
    Cut(u64),
    /// A bit of the byte at this offset is flipped.
    Flip(u64),
}

/// A proxy. When dropped, it shuts down and closes all connections.
pub struct Proxy {
    /// The address it listens on.
    pub address: SocketAddr,
    state: Arc<ProxyState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct ProxyState {
    requests: Mutex<Vec<String>>,
    streams: Mutex<Vec<TcpStream>>,
    response_bytes: AtomicU64,
    shutting_down: AtomicBool,
}

// === impl Proxy ===

impl Proxy {
    /// Starts a proxy for the server at `upstream`. `fault` chooses the fault by the number of the connection.
    pub fn start(upstream: &str, fault: impl Fn(usize) -> Fault + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(ProxyState::default());
        let (shared, upstream) = (Arc::clone(&state), upstream.to_owned());
        let thread = std::thread::spawn(move || {
            let mut threads = Vec::new();
            for (number, client) in listener.incoming().flatten().enumerate() {
                if shared.shutting_down.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(server) = TcpStream::connect(&upstream) else { continue };
                shared.register(&client, &server);
                let (to, from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let (state, fault) = (Arc::clone(&shared), fault(number));
                threads.push(std::thread::spawn(move || state.forward_requests(from, to)));
                let state = Arc::clone(&shared);
                threads.push(std::thread::spawn(move || state.forward_responses(server, client, fault)));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        Self { address, state, thread: Some(thread) }
    }

    /// The name of an image that is pulled through the proxy.
    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    /// All requests so far: method and path.
    pub fn requests(&self) -> Vec<String> {
        self.state.requests.lock().unwrap().clone()
    }

    /// The requested blobs, with the number of requests for each.
    pub fn blob_requests(&self) -> std::collections::BTreeMap<String, usize> {
        let mut blobs = std::collections::BTreeMap::new();
        for request in self.requests() {
            if let (true, Some((_, blob))) = (request.starts_with("GET "), request.split_once("/blobs/")) {
                *blobs.entry(blob.to_owned()).or_default() += 1;
            }
        }
        blobs
    }

    /// The bytes of all responses so far.
    pub fn response_bytes(&self) -> u64 {
        self.state.response_bytes.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.shutting_down.store(true, Ordering::SeqCst);
        // A connection wakes the thread from `accept`.
        let _woken = TcpStream::connect(self.address);
        for stream in self.state.streams.lock().unwrap().iter() {
            let _closed = stream.shutdown(Shutdown::Both);
        }
        let _joined = self.thread.take().map(JoinHandle::join);
    }
}

// === impl ProxyState ===

impl ProxyState {
    /// Remembers a connection, so that it can be closed.
    fn register(&self, client: &TcpStream, server: &TcpStream) {
        let mut streams = self.streams.lock().unwrap();
        streams.extend([client, server].map(|stream| stream.try_clone().unwrap()));
    }

    /// Forwards requests. A request is recorded before the server can respond to it.
    fn forward_requests(&self, mut from: TcpStream, mut to: TcpStream) {
        let (mut buffer, mut head) = ([0; 16 << 10], Vec::new());
        while let Ok(length) = from.read(&mut buffer) {
            for byte in &buffer[..length] {
                head.push(*byte);
                if *byte == b'\n' {
                    let line = String::from_utf8_lossy(&head).into_owned();
                    if let Some(request) = line.trim_end().strip_suffix(" HTTP/1.1") {
                        self.requests.lock().unwrap().push(request.to_owned());
                    }
                    head.clear();
                }
            }
            if length == 0 || to.write_all(&buffer[..length]).is_err() {
                break;
            }
        }
        let _closed = to.shutdown(Shutdown::Write);
    }

    /// Forwards responses, with the fault of the connection.
    fn forward_responses(&self, mut from: TcpStream, mut to: TcpStream, fault: Fault) {
        let (mut buffer, mut at) = ([0; 16 << 10], 0_u64);
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let mut piece = &mut buffer[..length];
            match fault {
                Fault::Cut(offset) if at + length as u64 >= offset => {
                    piece = &mut piece[..usize::try_from(offset - at).unwrap()];
                }
                Fault::Flip(offset) if (at..at + length as u64).contains(&offset) => {
                    piece[usize::try_from(offset - at).unwrap()] ^= 1;
                }
                _ => {}
            }
            at += length as u64;
            self.response_bytes.fetch_add(piece.len() as u64, Ordering::SeqCst);
            if to.write_all(piece).is_err() || piece.len() < length {
                break;
            }
        }
        let _closed = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    }
}
