//! A server that gives tokens for a registry to those who log in, as the larger registries have one.

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

/// The server. It ends when it is dropped.
pub struct Tokens {
    address: SocketAddr,
    certificate: String,
    given: Arc<AtomicUsize>,
    ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// What tokens are signed with.
struct Signer {
    key: EcdsaKeyPair,
    /// The certificate of the key, as a token shows it.
    shown: String,
}

// === impl Tokens ===

impl Tokens {
    pub fn start() -> Self {
        let key = KeyPair::generate().unwrap();
        let certificate = CertificateParams::default().self_signed(&key).unwrap();
        let pair =
            EcdsaKeyPair::from_pkcs8(&ECDSA_P256_SHA256_FIXED_SIGNING, key.serialized_der(), &SystemRandom::new());
        let signer = Signer { key: pair.unwrap(), shown: STANDARD.encode(certificate.der()) };
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (given, ending) = (Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
        let (counted, ends) = (Arc::clone(&given), Arc::clone(&ending));
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                if ends.load(Ordering::SeqCst) {
                    break;
                }
                // Who leaves early gets no token.
                counted.fetch_add(usize::from(serve(stream, &signer).unwrap_or(false)), Ordering::SeqCst);
            }
        });
        Self { address, certificate: certificate.pem(), given, ending, thread: Some(thread) }
    }

    /// How many were given.
    pub fn given(&self) -> usize {
        self.given.load(Ordering::SeqCst)
    }

    /// What a registry has to know.
    pub(super) fn described(&self, dir: &Path) -> serde_json::Value {
        let bundle = dir.join("tokens.pem");
        std::fs::write(&bundle, &self.certificate).unwrap();
        let realm = format!("http://{}/token", self.address);
        serde_json::json!({"realm": realm, "service": SERVICE, "issuer": ISSUER, "rootcertbundle": bundle})
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        self.ending.store(true, Ordering::SeqCst);
        // It waits for somebody to come.
        let _woken = TcpStream::connect(self.address);
        let _ended = self.thread.take().map(JoinHandle::join);
    }
}

/// Answers one request; whether with a token.
fn serve(mut stream: TcpStream, signer: &Signer) -> std::io::Result<bool> {
    let lines = BufReader::new(stream.try_clone()?).lines();
    let head: Vec<_> = lines.map_while(Result::ok).take_while(|line| !line.is_empty()).collect();
    let path = head.first().and_then(|line| line.split(' ').nth(1)).unwrap_or_default();
    let login = format!("authorization: Basic {}", STANDARD.encode(format!("{USER}:{PASSWORD}")));
    let known = head.iter().any(|line| line.eq_ignore_ascii_case(&login));
    let scope = path.split(['?', '&']).find_map(|pair| pair.strip_prefix("scope=")).unwrap_or_default();
    let scope = scope.replace("%3A", ":").replace("%2F", "/").replace("%2C", ",");
    let (status, body) = match (known, scope.split(':').collect::<Vec<_>>().as_slice()) {
        (true, ["repository", name, actions]) => ("200 OK", signer.token(name, actions)),
        _ => ("401 Unauthorized", r#"{"details":"who are you?"}"#.to_owned()),
    };
    write!(stream, "HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}", body.len())?;
    Ok(status.starts_with("200"))
}

// === impl Signer ===

impl Signer {
    /// A token for some actions on a repository, as the answer to who asked for it.
    fn token(&self, repository: &str, actions: &str) -> String {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs();
        let header = serde_json::json!({"typ": "JWT", "alg": "ES256", "x5c": [self.shown]});
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
