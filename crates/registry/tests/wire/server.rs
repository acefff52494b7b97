//! A server on loopback that answers as a test says: what a registry may do, and what it should not.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use carrel_layers::{Descriptor, Digest, SourceError, media};
use carrel_registry::{Credentials, Registry, RegistryError, RegistrySettings, Settings};

/// What a client asked.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// With what stands behind the question mark.
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// What it is told.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// After so much of the body the connection ends.
    pub(crate) cut: Option<usize>,
}

/// A server. It ends when it is dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    asked: Arc<Mutex<Vec<Request>>>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// An image of one layer.
pub(crate) struct Image {
    pub(crate) manifest: Vec<u8>,
    pub(crate) config: Vec<u8>,
    pub(crate) layer: Vec<u8>,
}

/// What the registry is said to have said.
pub(crate) fn said(error: SourceError) -> RegistryError {
    match error {
        SourceError::Other(error) => *error.downcast().unwrap(),
        other => panic!("{other}"),
    }
}

// === impl Request ===

impl Request {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// Where the range that is asked for begins.
    pub(crate) fn from(&self) -> Option<usize> {
        self.header("range").strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }

    fn read(stream: &mut BufReader<TcpStream>) -> Option<Self> {
        let mut line = String::new();
        stream.read_line(&mut line).ok().filter(|length| *length > 0)?;
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next()?, words.next()?);
        let mut headers = BTreeMap::new();
        loop {
            line.clear();
            stream.read_line(&mut line).ok().filter(|length| *length > 0)?;
            let Some((name, value)) = line.trim().split_once(':') else { break };
            headers.insert(name.to_lowercase(), value.trim().to_owned());
        }
        let length = headers.get("content-length").and_then(|length| length.parse().ok()).unwrap_or(0);
        let mut body = vec![0; length];
        stream.read_exact(&mut body).ok()?;
        Some(Self { method, path, headers, body })
    }
}

// === impl Reply ===

impl Reply {
    pub(crate) fn status(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(crate) fn of(body: &[u8]) -> Self {
        Self { body: body.to_vec(), ..Self::status(200) }
    }

    /// A manifest or an index.
    pub(crate) fn manifest(media_type: &str, body: &[u8]) -> Self {
        Self::of(body).with("content-type", media_type)
    }

    /// The part of a content that is asked for.
    pub(crate) fn part(content: &[u8], request: &Request) -> Self {
        match request.from() {
            Some(from) => Self { status: 206, ..Self::of(&content[from..]) },
            None => Self::of(content),
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn write(&self, stream: &mut TcpStream, without_body: bool) -> std::io::Result<()> {
        let mut head =
            format!("HTTP/1.1 {} -\r\nconnection: close\r\ncontent-length: {}\r\n", self.status, self.body.len());
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        stream.write_all(head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        let body = &self.body[..self.cut.unwrap_or(self.body.len())];
        if without_body { Ok(()) } else { stream.write_all(body) }
    }
}

// === impl Server ===

impl Server {
    pub(crate) fn start(answer: impl Fn(&Request) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (asked, ending) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicBool::new(false)));
        let (seen, ends, answer) = (Arc::clone(&asked), Arc::clone(&ending), Arc::new(answer));
        let thread = std::thread::spawn(move || {
            let mut served = Vec::new();
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    break;
                }
                let (seen, answer) = (Arc::clone(&seen), Arc::clone(&answer));
                served.push(std::thread::spawn(move || {
                    let mut reader = BufReader::new(stream.try_clone().unwrap());
                    let Some(request) = Request::read(&mut reader) else { return };
                    let reply = answer(&request);
                    let without_body = request.method == "HEAD";
                    seen.lock().unwrap().push(request);
                    let mut stream = stream;
                    // A client may have heard enough.
                    let _written = reply.write(&mut stream, without_body);
                    let _closed = stream.shutdown(Shutdown::Write);
                }));
            }
            served.into_iter().for_each(|thread| thread.join().unwrap());
        });
        Self { address, asked, ending, thread: Some(thread) }
    }

    /// What was asked: method and path, but for the question who is there.
    pub(crate) fn asked(&self) -> Vec<String> {
        let asked = self.requests();
        let asked = asked.into_iter().filter(|request| request.path != "/v2/");
        asked.map(|request| format!("{} {}", request.method, request.path)).collect()
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.asked.lock().unwrap().clone()
    }

    /// Settings that say how this one is spoken to.
    pub(crate) fn settings(&self) -> RegistrySettings {
        RegistrySettings { insecure: Some(true), ..RegistrySettings::default() }
    }

    /// The image `it` of this server, asked for by nobody in particular.
    pub(crate) fn registry(&self) -> Registry {
        self.registry_as(&Credentials::none())
    }

    pub(crate) fn registry_as(&self, credentials: &Credentials) -> Registry {
        let settings = Settings::new([(self.address.to_string(), self.settings())]);
        Registry::new(format!("{}/it:1", self.address).parse().unwrap(), &settings, credentials).unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        // It waits for somebody to come.
        let _woken = TcpStream::connect(self.address);
        let ended = self.thread.take().map(JoinHandle::join);
        assert!(std::thread::panicking() || ended.is_some_and(|ended| ended.is_ok()));
    }
}

// === impl Image ===

impl Image {
    /// With a layer of so many bytes, which are no layer at all: nobody here unpacks it.
    pub(crate) fn new(length: usize) -> Self {
        let config = br#"{"architecture":"amd64","os":"linux"}"#.to_vec();
        let layer: Vec<u8> = (0..length).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let describe =
            |media_type: &str, content: &[u8]| Descriptor::new(media_type, Digest::of(content), content.len() as u64);
        let manifest = serde_json::json!({
            "schemaVersion": 2,
            "mediaType": media::MANIFEST,
            "config": describe(media::CONFIG, &config),
            "layers": [describe(media::LAYER, &layer)],
        });
        Self { manifest: serde_json::to_vec(&manifest).unwrap(), config, layer }
    }

    pub(crate) fn descriptor(&self) -> Descriptor {
        Descriptor::new(media::LAYER, Digest::of(&self.layer), self.layer.len() as u64)
    }

    /// Where its layer is.
    pub(crate) fn layer_path(&self) -> String {
        format!("/v2/it/blobs/{}", Digest::of(&self.layer))
    }

    /// What an honest registry says.
    pub(crate) fn answer(&self, request: &Request) -> Reply {
        let digest = |content: &[u8]| Digest::of(content).to_string();
        match request.path.rsplit('/').next().unwrap_or_default() {
            "" => Reply::of(b"{}"),
            which if which == "1" || which == digest(&self.manifest) => {
                Reply::manifest(media::MANIFEST, &self.manifest)
            }
            which if which == digest(&self.config) => Reply::part(&self.config, request),
            which if which == digest(&self.layer) => Reply::part(&self.layer, request),
            _ => Reply::status(404),
        }
    }
}
