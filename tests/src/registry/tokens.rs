//! A token server: issues bearer tokens for a registry to clients that authenticate, as public registries do.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::SystemTime;

use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use rcgen::{CertificateParams, KeyPair};
use ring::rand::SystemRandom;
use ring::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair};

use super::{PASSWORD, USER};

const SERVICE: &str = "a registry of the tests";
const ISSUER: &str = "the tests";

/// A token server. It shuts down when dropped.
pub struct TokenServer {
    address: SocketAddr,
    certificate: String,
    issued: Arc<AtomicUsize>,
    shutting_down: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// Signs the tokens.
struct Signer {
    key: EcdsaKeyPair,
    /// The certificate of the key in the header of each token, base64-encoded DER.
    certificate: String,
}

// === impl TokenServer ===

impl TokenServer {
    pub fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der(), &SystemRandom::new());
        let signer = Signer { key: pair.unwrap(), certificate: STANDARD.encode(certificate.der()) };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (issued, shutting_down) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (count, stop) = (Arc::clone(&issued), Arc::clone(&shutting_down));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if stop.load(Ordering::SeqCst) {
                    break;
                }
                // A client that disconnects early gets no token.
                count.fetch_add(usize::from(serve(stream, &signer).unwrap_or(false)), Ordering::SeqCst);
            }
        });
        Self { address, certificate: certificate.pem(), issued, shutting_down, thread: Some(thread) }
    }

    /// How many tokens were issued.
    pub fn issued(&self) -> usize {
        self.issued.load(Ordering::SeqCst)
    }

    /// The section `auth.token` of a registry's configuration.
    pub(super) fn registry_config(&self, dir: &Path) -> serde_json::Value {
        let bundle = dir.join("tokens.pem");
        std::fs::write(&bundle, &self.certificate).unwrap();
        let realm = format!("http://{}/token", self.address);
        serde_json::json!({"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": bundle})
    }
}

impl Drop for TokenServer {
    fn drop(&mut self) {
        self.shutting_down.store(true, Ordering::SeqCst);
        // A connection wakes the thread from `accept`.
        let _woken = TcpStream::connect(self.address);
        let _joined = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers one request. Returns whether the response contains a token.
fn serve(mut stream: TcpStream, signer: &Signer) -> std::io::Result<bool> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let head: Vec<_> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let login = format!("authorization: Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    let authenticated = head.iter().any(|line| line.eq_ignore_ascii_case(&login));
    let scope = path.split(['?', '&']).find_map(|pair| pair.strip_prefix("scope=")).unwrap_or_default();
    let scope = scope.replace("%3A", ":").replace("%2F", "/").replace("%2C", ",");
    let (status, body) = match (authenticated, scope.split(':').collect::<Vec<_>>().as_slice()) {
        (true, ["repository", name, actions]) => ("200 OK", signer.token(name, actions)),
        _ => ("401 Unauthorized", r#"{"details":"authentication required"}"#.to_owned()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    Ok(status.starts_with("200"))
}

// === impl Signer ===

impl Signer {
    /// The body of a response with a token for some actions on a repository.
    fn token(&self, repository: &str, actions: &str) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let header = serde_json::json!({"typ": "JWT", "alg": "ES256", "x5c": [self.certificate]});
        let actions: Vec<_> = actions.split(',').collect();
        let claims = serde_json::json!({
            "iss": ISSUER, "aud": SERVICE, "sub": USER, "iat": now, "nbf": now - 10, "exp": now + 300,
            "access": [{"type": "repository", "name": repository, "actions": actions}],
        });
        let encode = |value: &serde_json::Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let signed = format!("{}.{}", encode(&header), encode(&claims));
        let signature = self.key.sign(&SystemRandom::new(), signed.as_bytes()).unwrap();
        let token = format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature));
        serde_json::json!({"token": token}).to_string()
    }
}
