//! A client with low overhead: plain sockets, and only the parts of HTTP that the two servers use.

use std::io::{BufRead, BufReader, Error, ErrorKind, Read, Result as IoResult, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, Result, ensure};

/// How long a server may take to answer.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The size of a read: the buffer of a loopback socket.
const BLOCK: usize = 256 * 1024;

/// A connection for sequential requests.
pub(super) struct HttpConnection {
    stream: BufReader<TcpStream>,
}

/// A stream of server-sent events.
pub(super) struct EventStream {
    lines: BufReader<ChunkedBody>,
    line: Vec<u8>,
}

/// Decodes a chunked body.
struct ChunkedBody {
    stream: BufReader<TcpStream>,
    remaining: usize,
}

struct ResponseHead {
    status: u16,
    length: usize,
    chunked: bool,
}

// === impl HttpConnection ===

impl HttpConnection {
    pub(super) fn open(address: SocketAddr) -> IoResult<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Self { stream: BufReader::with_capacity(BLOCK, stream) })
    }

    /// Sends a request without waiting.
    pub(super) fn send(&mut self, method: &str, path: &str, body: &str) -> IoResult<()> {
        let length = body.len();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: application/json\r\n\
             content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes())
    }

    /// Receives the response.
    pub(super) fn response(&mut self) -> Result<String> {
        let head = ResponseHead::read(&mut self.stream)?;
        let mut body = vec![0; head.length];
        self.stream.read_exact(&mut body)?;
        let body = String::from_utf8(body)?;
        ensure!(matches!(head.status, 200 | 204), "answered with {}: {body}", head.status);
        Ok(body)
    }

    pub(super) fn request(&mut self, method: &str, path: &str, body: &str) -> Result<String> {
        self.send(method, path, body)?;
        self.response().with_context(|| format!("{method} {path}"))
    }

    /// Opens a stream of events; when this returns, it has every later event.
    pub(super) fn events(mut self, path: &str) -> Result<EventStream> {
        let request = format!("GET {path} HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: text/event-stream\r\n\r\n");
        self.stream.get_mut().write_all(request.as_bytes())?;
        let head = ResponseHead::read(&mut self.stream)?;
        ensure!(head.status == 200 && head.chunked, "GET {path}: answered with {}", head.status);
        let chunks = ChunkedBody { stream: self.stream, remaining: 0 };
        Ok(EventStream { lines: BufReader::with_capacity(BLOCK, chunks), line: Vec::new() })
    }
}

// === impl ResponseHead ===

impl ResponseHead {
    fn read(stream: &mut impl BufRead) -> Result<Self> {
        let mut line = line_of(stream)?;
        let status = line.split(' ').nth(1).and_then(|code| code.parse().ok()).with_context(|| line.clone())?;
        let mut head = Self { status, length: 0, chunked: false };
        loop {
            line = line_of(stream)?.to_ascii_lowercase();
            match line.split_once(':') {
                Some(("content-length", length)) => head.length = length.trim().parse()?,
                Some(("transfer-encoding", how)) => head.chunked = how.trim() == "chunked",
                Some(_) => {}
                None => return Ok(head),
            }
        }
    }
}

fn line_of(stream: &mut impl BufRead) -> IoResult<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

// === impl EventStream ===

impl EventStream {
    /// The data of the next event.
    pub(super) fn next(&mut self) -> Result<&str> {
        loop {
            self.line.clear();
            ensure!(self.lines.read_until(b'\n', &mut self.line)? > 0, "the stream of events ended");
            if self.line.starts_with(b"data:") {
                return Ok(std::str::from_utf8(&self.line)?);
            }
        }
    }
}

// === impl ChunkedBody ===

impl Read for ChunkedBody {
    fn read(&mut self, buffer: &mut [u8]) -> IoResult<usize> {
        if self.remaining == 0 {
            let mut line = line_of(&mut self.stream)?;
            // The end of the previous chunk.
            if line.is_empty() {
                line = line_of(&mut self.stream)?;
            }
            self.remaining = usize::from_str_radix(&line, 16).map_err(|_| Error::new(ErrorKind::InvalidData, line))?;
        }
        let length = self.remaining.min(buffer.len());
        let read = self.stream.read(buffer.get_mut(..length).unwrap_or_default())?;
        self.remaining -= read;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A server that sends this response to one client.
    fn respond_with(response: &'static [u8]) -> (SocketAddr, std::thread::JoinHandle<TcpStream>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let serve = move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(response).unwrap();
            stream
        };
        (address, std::thread::spawn(serve))
    }

    #[test]
    fn events_are_parsed_across_chunk_boundaries() {
        let response = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\
            12\r\nid: 1\ndata: one\n\nd\r\nb\r\nata: two\n\n:\n\r\n";
        let (address, server) = respond_with(response);
        let mut events = HttpConnection::open(address).unwrap().events("/").unwrap();
        assert_eq!(events.next().unwrap(), "data: one\n");
        assert_eq!(events.next().unwrap(), "data: two\n");
        drop(server.join().unwrap());
        assert!(events.next().is_err());
    }

    #[test]
    fn an_error_response_is_an_error_with_its_body() {
        let (address, server) = respond_with(b"HTTP/1.1 404 Not Found\r\ncontent-length: 4\r\n\r\nnone");
        let error = HttpConnection::open(address).unwrap().request("GET", "/", "").unwrap_err();
        assert!(format!("{error:#}").contains("404: none"), "{error:#}");
        drop(server.join().unwrap());
    }
}
