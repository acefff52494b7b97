//! Something between a client and a registry that sees what is asked, counts what comes back, and can spoil it.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

/// What happens to what comes back on a connection.
#[derive(Clone, Copy, Debug, Default)]
pub enum Fault {
    #[default]
    None,
    /// After so many bytes the connection ends.
    Cut(u64),
    /// The byte at this place is another one.
    Flip(u64),
}

/// A proxy for connections. It ends when it is dropped, and they with it.
pub struct Proxy {
    /// Where it listens.
    pub address: SocketAddr,
    seen: Arc<Seen>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Default)]
struct Seen {
    asked: Mutex<Vec<String>>,
    streams: Mutex<Vec<TcpStream>>,
    came_back: AtomicU64,
    ending: AtomicBool,
}

// === impl Proxy ===

impl Proxy {
    /// Between its clients and an address. The faults are chosen by the number of the connection.
    pub fn start(behind: &str, fault: impl Fn(usize) -> Fault + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Seen::default());
        let (own, behind) = (Arc::clone(&seen), behind.to_owned());
        let thread = std::thread::spawn(move || {
            let mut threads = Vec::new();
            for (number, client) in listener.incoming().flatten().enumerate() {
                if own.ending.load(Ordering::SeqCst) {
                    break;
                }
                let Ok(server) = TcpStream::connect(&behind) else { continue };
                own.keep(&client, &server);
                let (to, from) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let (seen, fault) = (Arc::clone(&own), fault(number));
                threads.push(std::thread::spawn(move || seen.forward(from, to)));
                let seen = Arc::clone(&own);
                threads.push(std::thread::spawn(move || seen.bring_back(server, client, fault)));
            }
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
        Self { address, seen, thread: Some(thread) }
    }

    /// The name of an image through it.
    pub fn name(&self, image: &str) -> String {
        format!("{}/{image}", self.address)
    }

    /// What was asked so far: method and path.
    pub fn asked(&self) -> Vec<String> {
        self.seen.asked.lock().unwrap().clone()
    }

    /// The blobs that were asked for, with how often.
    pub fn blobs(&self) -> std::collections::BTreeMap<String, usize> {
        let mut blobs = std::collections::BTreeMap::new();
        for asked in self.asked() {
            if let (true, Some((_, blob))) = (asked.starts_with("GET "), asked.split_once("/blobs/")) {
                *blobs.entry(blob.to_owned()).or_default() += 1;
            }
        }
        blobs
    }

    /// How much has come back.
    pub fn came_back(&self) -> u64 {
        self.seen.came_back.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.seen.ending.store(true, Ordering::SeqCst);
        // It waits for somebody to come.
        let _woken = TcpStream::connect(self.address);
        for stream in self.seen.streams.lock().unwrap().iter() {
            let _closed = stream.shutdown(Shutdown::Both);
        }
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

// === impl Seen ===

impl Seen {
    fn keep(&self, client: &TcpStream, server: &TcpStream) {
        let mut streams = self.streams.lock().unwrap();
        streams.extend([client, server].map(|stream| stream.try_clone().unwrap()));
    }

    /// Passes on what is asked. A request is written down before anybody can answer it.
    fn forward(&self, mut from: TcpStream, mut to: TcpStream) {
        let (mut buffer, mut head) = ([0; 16 << 10], Vec::new());
        while let Ok(length) = from.read(&mut buffer) {
            for byte in &buffer[..length] {
                head.push(*byte);
                if *byte == b'\n' {
                    let line = String::from_utf8_lossy(&head).into_owned();
                    if let Some(asked) = line.trim_end().strip_suffix(" HTTP/1.1") {
                        self.asked.lock().unwrap().push(asked.to_owned());
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

    /// Brings back what is answered, or some of it.
    fn bring_back(&self, mut from: TcpStream, mut to: TcpStream, fault: Fault) {
        let (mut buffer, mut at) = ([0; 16 << 10], 0_u64);
        while let Ok(length @ 1..) = from.read(&mut buffer) {
            let mut piece = &mut buffer[..length];
            match fault {
                Fault::Cut(place) if at + length as u64 >= place => {
                    piece = &mut piece[..usize::try_from(place - at).unwrap()];
                }
                Fault::Flip(place) if (at..at + length as u64).contains(&place) => {
                    piece[usize::try_from(place - at).unwrap()] ^= 1;
                }
                _ => {}
            }
            at += length as u64;
            self.came_back.fetch_add(piece.len() as u64, Ordering::SeqCst);
            if to.write_all(piece).is_err() || piece.len() < length {
                break;
            }
        }
        let _closed = (to.shutdown(Shutdown::Both), from.shutdown(Shutdown::Both));
    }
}
