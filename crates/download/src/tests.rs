//! Downloads from a server that breaks off, changes its mind and falsifies.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpListener;

use super::*;

const CONTENT: &[u8] = b"0123456789abcdef";

/// A reader of the content, which sends requests to a server of the test.
struct Reader {
    client: reqwest::Client,
    url: String,
    content: Vec<u8>,
    stops_after: usize,
}

impl Transfer for Reader {
    type Error = reqwest::Error;

    async fn open(&mut self, rest: &ResumePoint) -> Result<Response, OpenError<reqwest::Error>> {
        self.client.get(&self.url).headers(rest.headers()).send().await.map_err(OpenError::Retryable)
    }

    async fn write(&mut self, chunk: Bytes, point: &ResumePoint) -> Result<(), ReaderGone> {
        self.content.extend_from_slice(&chunk);
        assert!(point.received() >= self.content.len() as u64);
        if self.content.len() < self.stops_after { Ok(()) } else { Err(ReaderGone) }
    }
}

fn policy() -> DownloadPolicy {
    DownloadPolicy {
        max_size: 1 << 20,
        minimum: MinThroughput::default(),
        backoff: RetryBackoff::attempts(3).first_delay(std::time::Duration::ZERO),
        progress: 1,
        max_interruptions: 100,
    }
}

/// Serves one response for each connection, then refuses. Returns what was read, the outcome and the requests.
async fn exchange(
    answers: &[String],
    mut point: ResumePoint,
    policy: DownloadPolicy,
) -> (Vec<u8>, Result<(), DownloadError<reqwest::Error>>, Vec<String>) {
    exchange_until(usize::MAX, answers, &mut point, policy).await
}

/// Like `exchange`, with a reader that stops after some bytes.
async fn exchange_until(
    stops_after: usize,
    answers: &[String],
    point: &mut ResumePoint,
    policy: DownloadPolicy,
) -> (Vec<u8>, Result<(), DownloadError<reqwest::Error>>, Vec<String>) {
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let client = reqwest::Client::builder().no_proxy().tls_certs_only([]).build().unwrap();
    let mut reader = Reader { client, url, content: Vec::new(), stops_after };
    let serve = async {
        let mut requests = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 4096];
            let length = stream.read(&mut request).await.unwrap();
            requests.push(String::from_utf8_lossy(&request[..length]).to_lowercase());
            stream.write_all(answer.as_bytes()).await.unwrap();
        }
        drop(listener);
        requests
    };
    let (requests, outcome) = tokio::join!(serve, download(&mut reader, point, None, &policy));
    (reader.content, outcome, requests)
}

fn answer(status: &str, headers: &str, length: usize, body: &[u8]) -> String {
    let body = String::from_utf8_lossy(body);
    format!("HTTP/1.1 {status}\r\ncontent-length: {length}\r\nconnection: close\r\n{headers}\r\n{body}")
}

fn rest(from: usize, until: usize, headers: &str) -> String {
    let range = format!("content-range: bytes {from}-15/16\r\n{headers}");
    answer("206 Partial Content", &range, 16 - from, &CONTENT[from..until])
}

#[tokio::test]
async fn a_download_continues_where_the_connection_broke() {
    let answers =
        [answer("200 OK", "etag: \"a\"\r\n", 16, &CONTENT[..5]), rest(5, 9, "etag: \"a\"\r\n"), rest(9, 16, "")];
    let (content, outcome, requests) = exchange(&answers, ResumePoint::default(), policy()).await;
    outcome.unwrap();
    assert_eq!(content, CONTENT);
    assert!(!requests[0].contains("range:"), "{requests:?}");
    assert!(requests[1].contains("\r\nrange: bytes=5-\r\n") && requests[1].contains("if-range: \"a\""), "{requests:?}");
    assert!(requests[2].contains("\r\nrange: bytes=9-\r\n"), "{requests:?}");
}

#[tokio::test]
async fn a_server_without_ranges_starts_over_and_the_known_part_is_skipped() {
    let answers = [answer("200 OK", "", 16, &CONTENT[..5]), answer("200 OK", "", 16, CONTENT)];
    let (content, outcome, _) = exchange(&answers, ResumePoint::default(), policy()).await;
    outcome.unwrap();
    assert_eq!(content, CONTENT);
}

#[tokio::test]
async fn a_content_that_changed_is_not_mixed() {
    let answers =
        [answer("200 OK", "etag: \"a\"\r\n", 16, &CONTENT[..5]), answer("200 OK", "etag: \"b\"\r\n", 16, CONTENT)];
    let (_, outcome, _) = exchange(&answers, ResumePoint::default(), policy()).await;
    assert!(matches!(outcome, Err(DownloadError::Resume(ResumeError::Changed))), "{outcome:?}");
}

#[tokio::test]
async fn mirrors_of_an_immutable_content_may_have_other_tags() {
    let answers = [answer("200 OK", "etag: \"a\"\r\n", 16, &CONTENT[..5]), rest(5, 16, "etag: \"b\"\r\n")];
    let (content, outcome, requests) = exchange(&answers, ResumePoint::immutable(0, 16), policy()).await;
    outcome.unwrap();
    assert_eq!(content, CONTENT);
    assert!(!requests[1].contains("if-range"), "{requests:?}");
}

#[tokio::test]
async fn the_range_of_an_immutable_content_may_be_left_out_but_not_wrong() {
    let answers =
        |headers| [answer("200 OK", "", 16, &CONTENT[..5]), answer("206 Partial Content", headers, 11, &CONTENT[5..])];
    let (content, outcome, _) = exchange(&answers(""), ResumePoint::immutable(0, 16), policy()).await;
    outcome.unwrap();
    assert_eq!(content, CONTENT);
    let wrong = answers("content-range: bytes 4-14/16\r\n");
    let (_, outcome, _) = exchange(&wrong, ResumePoint::immutable(0, 16), policy()).await;
    assert!(matches!(outcome, Err(DownloadError::Resume(ResumeError::Range))), "{outcome:?}");
}

#[tokio::test]
async fn another_range_than_requested_is_refused() {
    for range in ["bytes 4-15/16", "bytes 6-15/16", ""] {
        let other = answer("206 Partial Content", &format!("content-range: {range}\r\n"), 11, &CONTENT[5..]);
        let (_, outcome, _) =
            exchange(&[answer("200 OK", "", 16, &CONTENT[..5]), other], ResumePoint::default(), policy()).await;
        assert!(matches!(outcome, Err(DownloadError::Resume(ResumeError::Range))), "{range}: {outcome:?}");
    }
}

#[tokio::test]
async fn attempts_without_progress_are_counted_and_those_with_progress_are_not() {
    let cut: Vec<_> = (0..16).map(|from| rest(from, from + 1, "")).collect();
    let mut answers = cut.clone();
    answers[0] = answer("200 OK", "", 16, &CONTENT[..1]);
    let (content, outcome, _) = exchange(&answers, ResumePoint::default(), policy()).await;
    outcome.unwrap();
    assert_eq!(content, CONTENT);

    let stuck = [answers[0].clone(), rest(1, 1, ""), rest(1, 1, "")];
    let (_, outcome, requests) = exchange(&stuck, ResumePoint::default(), policy()).await;
    assert!(matches!(outcome, Err(DownloadError::Connection(_) | DownloadError::Truncated)), "{outcome:?}");
    assert_eq!(requests.len(), 3);

    let few = DownloadPolicy { max_interruptions: 4, ..policy() };
    let (content, outcome, _) = exchange(&answers[..4], ResumePoint::default(), few).await;
    assert!(outcome.is_err());
    assert_eq!(content, &CONTENT[..4]);
}

#[tokio::test]
async fn a_content_that_is_too_large_is_refused_by_its_length_and_by_its_bytes() {
    let small = DownloadPolicy { max_size: 15, ..policy() };
    let (content, outcome, _) = exchange(&[answer("200 OK", "", 16, CONTENT)], ResumePoint::default(), small).await;
    assert!(matches!(outcome, Err(DownloadError::TooLarge)) && content.is_empty(), "{outcome:?}");

    let unsized_body = format!("HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n{}", String::from_utf8_lossy(CONTENT));
    let (_, outcome, _) = exchange(&[unsized_body], ResumePoint::default(), small).await;
    assert!(matches!(outcome, Err(DownloadError::TooLarge)), "{outcome:?}");

    let (_, outcome, _) = exchange(&[answer("200 OK", "", 16, CONTENT)], ResumePoint::immutable(0, 15), policy()).await;
    assert!(matches!(outcome, Err(DownloadError::TooLarge)), "{outcome:?}");
}

#[tokio::test]
async fn a_server_that_starts_over_is_not_slow_about_it() {
    let slow =
        |bytes| DownloadPolicy { minimum: MinThroughput { bytes, within: std::time::Duration::ZERO }, ..policy() };
    // What was received before arrives in a chunk of its own, which is shorter than the minimum.
    let again = "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n2\r\n01\r\ne\r\n23456789abcdef\r\n0\r\n\r\n";
    for (bytes, aborted) in [(3, true), (1, false)] {
        let answers = [answer("200 OK", "", 16, &CONTENT[..4]), again.to_owned()];
        let (_, outcome, _) = exchange(&answers, ResumePoint::default(), slow(bytes)).await;
        assert_eq!(matches!(outcome, Err(DownloadError::TooSlow(_))), aborted, "{outcome:?}");
        assert_eq!(outcome.is_ok(), !aborted, "{outcome:?}");
    }
}

#[tokio::test]
async fn a_slow_download_is_aborted() {
    let slow = DownloadPolicy { minimum: MinThroughput { bytes: 1000, within: std::time::Duration::ZERO }, ..policy() };
    let (_, outcome, _) = exchange(&[answer("200 OK", "", 16, CONTENT)], ResumePoint::default(), slow).await;
    let Err(DownloadError::TooSlow(slow)) = outcome else { panic!("{outcome:?}") };
    assert_eq!(slow.to_string(), "less than 1000 bytes in 0 seconds");
}

#[tokio::test]
async fn nothing_is_requested_for_a_reader_that_is_gone() {
    let mut point = ResumePoint::default();
    let answers = [answer("200 OK", "", 16, &CONTENT[..5])];
    let (content, outcome, requests) = exchange_until(3, &answers, &mut point, policy()).await;
    assert!(matches!(outcome, Err(DownloadError::ReaderGone)), "{outcome:?}");
    assert_eq!((content.as_slice(), requests.len()), (&CONTENT[..5], 1));
}
