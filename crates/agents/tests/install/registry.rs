//! A registry on loopback with scripted responses, valid or not.

use std::{
    collections::{BTreeMap, VecDeque},
    io::{BufRead, BufReader, Write},
    net::{Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex},
};

/// A request of a client.
#[derive(Clone, Debug)]
pub(crate) struct RecordedRequest {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

/// A fault of the next request for a file.
#[derive(Clone, Copy, Debug)]
pub(crate) enum RegistryFault {
    /// Respond with this status.
    Status(u16),
    /// Announce this length.
    Length(u64),
    /// Close the connection after this many bytes.
    Cut(usize),
    /// Stall after this many bytes, until it is released.
    Hold(usize),
}

#[derive(Default)]
struct RegistryState {
    files: BTreeMap<String, Vec<u8>>,
    faults: BTreeMap<String, VecDeque<RegistryFault>>,
    requests: Vec<RecordedRequest>,
    tag: Option<&'static str>,
    no_ranges: bool,
    is_released: bool,
    is_cut: bool,
    is_over: bool,
}

/// The registry. It stops when it is dropped.
pub(crate) struct TestRegistry {
    pub(crate) address: SocketAddr,
    shared: Arc<(Mutex<RegistryState>, Condvar)>,
}

// === impl TestRegistry ===

impl TestRegistry {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new((Mutex::new(RegistryState::default()), Condvar::new()));
        let of_all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_all.0.lock().unwrap().is_over {
                    return;
                }
                let of_one = Arc::clone(&of_all);
                // The client may disconnect.
                std::thread::spawn(move || stream.and_then(|stream| answer(&stream, &of_one)));
            }
        });
        Self { address, shared }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}/", self.address)
    }

    pub(crate) fn put(&self, path: &str, content: impl Into<Vec<u8>>) {
        self.change(|state| drop(state.files.insert(path.to_owned(), content.into())));
    }

    /// Faults of the next requests for this path.
    pub(crate) fn fail(&self, path: &str, faults: &[RegistryFault]) {
        self.change(|state| state.faults.entry(path.to_owned()).or_default().extend(faults));
    }

    pub(crate) fn tag(&self, tag: &'static str) {
        self.change(|state| state.tag = Some(tag));
    }

    pub(crate) fn without_ranges(&self) {
        self.change(|state| state.no_ranges = true);
    }

    /// Releases stalled responses.
    pub(crate) fn release(&self) {
        self.change(|state| state.is_released = true);
    }

    /// Closes stalled connections.
    pub(crate) fn cut(&self) {
        self.change(|state| state.is_cut = true);
    }

    /// The requests whose path has this suffix.
    pub(crate) fn requests(&self, end: &str) -> Vec<RecordedRequest> {
        let state = self.shared.0.lock().unwrap();
        state.requests.iter().filter(|request| request.path.ends_with(end)).cloned().collect()
    }

    fn change(&self, change: impl FnOnce(&mut RegistryState)) {
        change(&mut self.shared.0.lock().unwrap());
        self.shared.1.notify_all();
    }
}

impl Drop for TestRegistry {
    fn drop(&mut self) {
        self.change(|state| state.is_over = true);
        let _wakes_it = TcpStream::connect(self.address);
    }
}

impl RecordedRequest {
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).map(String::as_str)
    }
}

fn answer(mut stream: &TcpStream, shared: &(Mutex<RegistryState>, Condvar)) -> std::io::Result<()> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let request = RecordedRequest { path, headers };
    let (file, fault, tag, no_ranges) = {
        let mut state = shared.0.lock().unwrap();
        state.requests.push(request.clone());
        let fault = state.faults.get_mut(&request.path).and_then(VecDeque::pop_front);
        (state.files.get(&request.path).cloned(), fault, state.tag, state.no_ranges)
    };
    let begin = request.header("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok());
    let begin: Option<usize> = begin.filter(|_| !no_ranges);
    let (status, body) = match (&file, fault, begin) {
        (_, Some(RegistryFault::Status(status)), _) => (status, &b"as configured"[..]),
        (None, ..) => (404, &b"{}"[..]),
        (Some(file), _, Some(begin)) => (206, &file[begin..]),
        (Some(file), _, None) => (200, &file[..]),
    };
    let length = if let Some(RegistryFault::Length(length)) = fault { length } else { body.len() as u64 };
    let mut head = format!("HTTP/1.1 {status} X\r\nContent-Length: {length}\r\nConnection: close\r\n");
    if let (206, Some(begin), Some(file)) = (status, begin, &file) {
        head += &format!("Content-Range: bytes {begin}-{}/{}\r\n", file.len() - 1, file.len());
    }
    if let Some(tag) = tag {
        head += &format!("ETag: \"{tag}\"\r\n");
    }
    stream.write_all((head + "\r\n").as_bytes())?;
    match fault {
        Some(RegistryFault::Cut(at)) => stream.write_all(&body[..at])?,
        Some(RegistryFault::Hold(at)) => {
            stream.write_all(&body[..at])?;
            let state = shared.0.lock().unwrap();
            let held = |state: &mut RegistryState| !state.is_released && !state.is_cut && !state.is_over;
            if shared.1.wait_while(state, held).unwrap().is_released {
                stream.write_all(&body[at..])?;
            }
        }
        _ => stream.write_all(body)?,
    }
    stream.shutdown(Shutdown::Write)
}
