//! A scripted HTTP server on loopback that plays a registry.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use carrel_layers::{Descriptor, Digest, SourceError, media};
use carrel_registry::{ImageName, RegistriesConfig, Registry, RegistryConfig, RegistryCredentials, RegistryError};
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

/// A request that the server received.
#[derive(Clone, Debug)]
pub(crate) struct ReceivedRequest {
    pub(crate) method: String,
    /// With the query.
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
    pub(crate) body: Vec<u8>,
}

/// The response to send.
#[derive(Clone, Debug, Default)]
pub(crate) struct ScriptedReply {
    pub(crate) status: u16,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Vec<u8>,
    /// Close the connection after this many bytes of the body.
    pub(crate) cut: Option<usize>,
}

/// A server that stops when it is dropped.
pub(crate) struct RegistryServer {
    pub(crate) address: SocketAddr,
    received: Arc<Mutex<Vec<ReceivedRequest>>>,
    stopping: Arc<AtomicBool>,
    unread: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

/// A certificate authority.
pub(crate) struct TestAuthority {
    certificate: CertificateDer<'static>,
    key: PrivateKeyDer<'static>,
    pub(crate) file: tempfile::NamedTempFile,
}

/// An image of one layer.
pub(crate) struct TestImage {
    pub(crate) manifest: Vec<u8>,
    pub(crate) config: Vec<u8>,
    pub(crate) layer: Vec<u8>,
}

/// A configuration that names these servers.
pub(crate) fn config_of(servers: &[&RegistryServer]) -> RegistriesConfig {
    RegistriesConfig::new(servers.iter().map(|server| (server.address.to_string(), server.settings())))
}

/// The registry error inside a source error.
pub(crate) fn registry_error(error: SourceError) -> RegistryError {
    match error {
        SourceError::Other(error) => *error.downcast().unwrap(),
        other => panic!("{other}"),
    }
}

// === impl ReceivedRequest ===

impl ReceivedRequest {
    pub(crate) fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", String::as_str)
    }

    /// The start of the requested range.
    pub(crate) fn from(&self) -> Option<usize> {
        self.header("range").strip_prefix("bytes=")?.strip_suffix('-')?.parse().ok()
    }

    fn read(stream: &mut impl BufRead) -> Option<Self> {
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

// === impl ScriptedReply ===

impl ScriptedReply {
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

    /// The requested range of a content.
    pub(crate) fn part(content: &[u8], request: &ReceivedRequest) -> Self {
        match request.from() {
            Some(from) => Self { status: 206, ..Self::of(&content[from..]) },
            None => Self::of(content),
        }
    }

    pub(crate) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn write(&self, stream: &mut impl Write, without_body: bool) -> std::io::Result<()> {
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

// === impl RegistryServer ===

impl RegistryServer {
    pub(crate) fn start(answer: impl Fn(&ReceivedRequest) -> ScriptedReply + Send + Sync + 'static) -> Self {
        Self::listen(None, answer)
    }

    /// The same with TLS.
    pub(crate) fn start_with(
        authority: &TestAuthority,
        answer: impl Fn(&ReceivedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> Self {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let config =
            rustls::ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions().unwrap();
        let chain = vec![authority.certificate.clone()];
        let config = config.with_no_client_auth().with_single_cert(chain, authority.key.clone_key()).unwrap();
        Self::listen(Some(Arc::new(config)), answer)
    }

    fn listen(
        tls: Option<Arc<rustls::ServerConfig>>,
        answer: impl Fn(&ReceivedRequest) -> ScriptedReply + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (received, stopping, unread) =
            <(Arc<Mutex<Vec<ReceivedRequest>>>, Arc<AtomicBool>, Arc<AtomicUsize>)>::default();
        let (recorder, ends, broken, answer) =
            (Arc::clone(&received), Arc::clone(&stopping), Arc::clone(&unread), Arc::new(answer));
        let thread = std::thread::spawn(move || {
            let mut served = Vec::new();
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    break;
                }
                let (recorder, broken, answer) = (Arc::clone(&recorder), Arc::clone(&broken), Arc::clone(&answer));
                let tls = tls.clone();
                served.push(std::thread::spawn(move || {
                    let plain = stream.try_clone().unwrap();
                    let written = match tls {
                        None => serve(stream, &*answer, &recorder),
                        Some(config) => {
                            let tls = rustls::ServerConnection::new(config).unwrap();
                            serve(rustls::StreamOwned::new(tls, stream), &*answer, &recorder)
                        }
                    };
                    // The client may close early.
                    broken.fetch_add(written.is_err().into(), Ordering::SeqCst);
                    let _closed = plain.shutdown(Shutdown::Write);
                }));
            }
            served.into_iter().for_each(|thread| thread.join().unwrap());
        });
        Self { address, received, stopping, unread, thread: Some(thread) }
    }

    /// Stops the server; returns how many responses were not read to their end.
    pub(crate) fn unread(mut self) -> usize {
        self.end();
        self.unread.load(Ordering::SeqCst)
    }

    fn end(&mut self) {
        let Some(thread) = self.thread.take() else { return };
        self.stopping.store(true, Ordering::SeqCst);
        // It waits in `accept`.
        let _woken = TcpStream::connect(self.address);
        let ended = thread.join();
        assert!(std::thread::panicking() || ended.is_ok());
    }

    /// The requests as method and path, without probes of `/v2/`.
    pub(crate) fn received(&self) -> Vec<String> {
        let received = self.requests();
        let received = received.into_iter().filter(|request| request.path != "/v2/");
        received.map(|request| format!("{} {}", request.method, request.path)).collect()
    }

    pub(crate) fn requests(&self) -> Vec<ReceivedRequest> {
        self.received.lock().unwrap().clone()
    }

    /// The configuration of this server.
    pub(crate) fn settings(&self) -> RegistryConfig {
        RegistryConfig { insecure: Some(true), ..RegistryConfig::default() }
    }

    /// The image `it` of this server, anonymous.
    pub(crate) fn registry(&self) -> Registry {
        self.registry_as(&RegistryCredentials::none())
    }

    pub(crate) fn registry_as(&self, credentials: &RegistryCredentials) -> Registry {
        Registry::new(self.name(), &config_of(&[self]), credentials).unwrap()
    }

    /// The image's name.
    pub(crate) fn name(&self) -> ImageName {
        format!("{}/it:1", self.address).parse().unwrap()
    }
}

impl Drop for RegistryServer {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers one request.
fn serve(
    stream: impl Read + Write,
    answer: impl Fn(&ReceivedRequest) -> ScriptedReply,
    received: &Mutex<Vec<ReceivedRequest>>,
) -> std::io::Result<()> {
    let mut stream = BufReader::new(stream);
    let Some(request) = ReceivedRequest::read(&mut stream) else { return Ok(()) };
    let reply = answer(&request);
    let without_body = request.method == "HEAD";
    received.lock().unwrap().push(request);
    reply.write(stream.get_mut(), without_body)?;
    stream.get_mut().flush()
}

// === impl TestAuthority ===

impl TestAuthority {
    pub(crate) fn new() -> Self {
        let made = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).unwrap();
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(made.cert.pem().as_bytes()).unwrap();
        let key = PrivateKeyDer::try_from(made.signing_key.serialize_der()).unwrap();
        Self { certificate: made.cert.der().clone(), key, file }
    }
}

// === impl TestImage ===

impl TestImage {
    /// An image whose layer is this many arbitrary bytes: these tests do not unpack it.
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

    /// The path of its layer.
    pub(crate) fn layer_path(&self) -> String {
        format!("/v2/it/blobs/{}", Digest::of(&self.layer))
    }

    /// The response of a correct registry.
    pub(crate) fn answer(&self, request: &ReceivedRequest) -> ScriptedReply {
        let digest = |content: &[u8]| Digest::of(content).to_string();
        match request.path.rsplit('/').next().unwrap_or_default() {
            "" => ScriptedReply::of(b"{}"),
            which if which == "1" || which == digest(&self.manifest) => {
                ScriptedReply::manifest(media::MANIFEST, &self.manifest)
            }
            which if which == digest(&self.config) => ScriptedReply::part(&self.config, request),
            which if which == digest(&self.layer) => ScriptedReply::part(&self.layer, request),
            _ => ScriptedReply::status(404),
        }
    }
}
