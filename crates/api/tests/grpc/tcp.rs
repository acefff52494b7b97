//! Remote clients: with a key, with a certificate, and without either.

use std::net::SocketAddr;

use carrel_api::agbox::v1::PingRequest;
use carrel_api::agbox::v1::sandbox_service_client::SandboxServiceClient;
use carrel_api::{ApiError, ApiKey, Listener, ListenerCredentials, TlsConfig};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Identity};
use tonic::{Code, Request};

use crate::server::{GrpcTestServer, create, error_info, is_refused};

const KEY: &str = "a-key-of-sixteen-or-more";

/// Certificates of a CA, a server and a client.
struct TestCertificates {
    authority: CertifiedIssuer<'static, KeyPair>,
    server: (String, String),
    client: (String, String),
}

impl TestCertificates {
    fn new() -> Self {
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
        let issue = |name: &str| {
            let key = KeyPair::generate().unwrap();
            let params = CertificateParams::new([name.to_owned()]).unwrap();
            (params.signed_by(&key, &authority).unwrap().pem(), key.serialize_pem())
        };
        let (server, client) = (issue("localhost"), issue("client"));
        Self { authority, server, client }
    }

    fn tls(&self, ask_clients: bool) -> TlsConfig {
        let authority = ask_clients.then(|| self.authority.pem());
        TlsConfig::new(self.server.0.as_bytes(), self.server.1.as_bytes(), authority.as_ref().map(String::as_bytes))
            .unwrap()
    }

    fn client(&self, with_certificate: bool) -> ClientTlsConfig {
        let config = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(self.authority.pem()));
        let config = config.domain_name("localhost");
        if with_certificate { config.identity(Identity::from_pem(&self.client.0, &self.client.1)) } else { config }
    }
}

/// Adds a listener to a daemon.
async fn listen(
    server: &GrpcTestServer,
    tls: Option<TlsConfig>,
    key: Option<&str>,
) -> (SocketAddr, watch::Sender<bool>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let key = key.map(|key| ApiKey::new(key).unwrap());
    let credentials = ListenerCredentials::new(tls, key);
    let (closing, closed) = watch::channel(false);
    tokio::spawn(carrel_api::serve(server.control.clone(), vec![Listener::Tcp { listener, credentials }], closed));
    (address, closing)
}

async fn ping(channel: Channel, key: Option<&str>) -> Result<String, tonic::Status> {
    let mut request = Request::new(PingRequest {});
    if let Some(key) = key {
        request.metadata_mut().insert("authorization", format!("Bearer {key}").parse().unwrap());
    }
    Ok(SandboxServiceClient::new(channel).ping(request).await?.into_inner().daemon)
}

#[tokio::test]
async fn a_new_key_applies_to_new_connections() {
    let server = GrpcTestServer::new().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = Endpoint::from_shared(format!("http://{}", listener.local_addr().unwrap())).unwrap();
    let credentials = ListenerCredentials::new(None, Some(ApiKey::new(KEY).unwrap()));
    let (_closing, closed) = watch::channel(false);
    let listeners = vec![Listener::Tcp { listener, credentials: credentials.clone() }];
    tokio::spawn(carrel_api::serve(server.control.clone(), listeners, closed));
    let former = endpoint.connect().await.unwrap();
    ping(former.clone(), Some(KEY)).await.unwrap();
    let new = "another-key-of-that-sort";
    credentials.replace(None, Some(ApiKey::new(new).unwrap()));
    assert!(ping(former, Some(KEY)).await.is_ok(), "a connection keeps what it began with");
    let next = endpoint.connect().await.unwrap();
    is_refused(ping(next.clone(), Some(KEY)).await, Code::Unauthenticated, "UNAUTHENTICATED", &[]);
    ping(next, Some(new)).await.unwrap();
}

#[tokio::test]
async fn requests_without_the_key_are_refused() {
    let server = GrpcTestServer::new().await;
    let (address, _closing) = listen(&server, None, Some(KEY)).await;
    let channel = Endpoint::from_shared(format!("http://{address}")).unwrap().connect().await.unwrap();
    assert_eq!(ping(channel.clone(), Some(KEY)).await.unwrap(), "agboxd");
    for wrong in [None, Some("another-key-of-that-sort"), Some("")] {
        is_refused(ping(channel.clone(), wrong).await, Code::Unauthenticated, "UNAUTHENTICATED", &[]);
    }
    let mut health = tonic_health::pb::health_client::HealthClient::new(channel.clone());
    let unknown = health.check(tonic_health::pb::HealthCheckRequest::default()).await;
    is_refused(unknown, Code::Unauthenticated, "UNAUTHENTICATED", &[]);

    // A client with the key is still no user of this host.
    let mut request = Request::new(create("demo"));
    request.metadata_mut().insert("authorization", format!("Bearer {KEY}").parse().unwrap());
    let (code, reason, _) = error_info(&SandboxServiceClient::new(channel).create_sandbox(request).await.unwrap_err());
    assert_eq!((code, reason.as_str()), (Code::PermissionDenied, "HOST_PATH_FORBIDDEN"));
}

#[tokio::test]
async fn a_client_certificate_is_required() {
    let server = GrpcTestServer::new().await;
    let certificates = TestCertificates::new();
    let (address, _closing) = listen(&server, Some(certificates.tls(true)), None).await;
    let connect = |config: ClientTlsConfig| {
        let endpoint = Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(config).unwrap();
        async move { endpoint.connect().await }
    };
    let channel = connect(certificates.client(true)).await.unwrap();
    assert_eq!(ping(channel, None).await.unwrap(), "agboxd");
    // In TLS 1.3 a client receives its rejection with the first read.
    let refused = async { ping(connect(certificates.client(false)).await?, None).await.map_err(Into::into) };
    let refused: Result<String, Box<dyn std::error::Error>> = refused.await;
    assert!(refused.is_err(), "{refused:?}");
    let other = TestCertificates::new();
    let config = certificates.client(false).identity(Identity::from_pem(&other.client.0, &other.client.1));
    let refused = async { ping(connect(config).await?, None).await.map_err(Into::into) };
    let refused: Result<String, Box<dyn std::error::Error>> = refused.await;
    assert!(refused.is_err(), "{refused:?}");
}

#[tokio::test]
async fn a_key_and_tls_can_be_combined() {
    let server = GrpcTestServer::new().await;
    let certificates = TestCertificates::new();
    let (address, _closing) = listen(&server, Some(certificates.tls(false)), Some(KEY)).await;
    let endpoint =
        Endpoint::from_shared(format!("https://{address}")).unwrap().tls_config(certificates.client(false)).unwrap();
    let channel = endpoint.connect().await.unwrap();
    assert_eq!(ping(channel.clone(), Some(KEY)).await.unwrap(), "agboxd");
    is_refused(ping(channel, None).await, Code::Unauthenticated, "UNAUTHENTICATED", &[]);
}

#[tokio::test]
async fn a_listener_without_authentication_is_refused() {
    let server = GrpcTestServer::new().await;
    let certificates = TestCertificates::new();
    for tls in [None, Some(certificates.tls(false))] {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_closing, closed) = watch::channel(false);
        let listeners = vec![Listener::Tcp { listener, credentials: ListenerCredentials::new(tls, None) }];
        let served = carrel_api::serve(server.control.clone(), listeners, closed).await;
        assert!(matches!(served, Err(ApiError::Unauthenticated)), "{served:?}");
    }
}
