//! A rogue agent: the first program of a sandbox, which misbehaves as the host name of the sandbox says.

mod jobs;

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use carrel_protocol::payload::{CarrelHello, CarrelReady, CarrelWelcome, Pong, Ready};
use carrel_protocol::{Envelope, Flags, Frame, Generation, MessageType, PrologueFormat, codec};

struct RogueAgent {
    channel: UnixStream,
    buffer: Vec<u8>,
}

impl RogueAgent {
    fn send(&mut self, bytes: &[u8]) {
        if self.channel.write_all(bytes).is_err() {
            std::process::exit(0);
        }
    }

    /// Completes the handshake as an honest agent does.
    fn handshake(&mut self, behaviour: &str) {
        let mut bytes = Vec::new();
        let ready = Ready {
            boot_time_ns: 1,
            init_time_ns: 1,
            ready_time_ns: 1,
            agent_version: "liar".to_owned(),
            exec_limits: Some(jobs::limits(behaviour)),
            carrel: Some(CarrelReady { generation: 11 }),
            ..Ready::default()
        };
        codec::encode(&mut bytes, Generation::PUBLISHED, 0, &ready).unwrap();
        self.send(&bytes);
        let (id, hello) = self.next();
        assert_eq!(hello, MessageType::CarrelHello);
        let _: Option<CarrelHello> = None;
        let mut bytes = Vec::new();
        codec::encode(&mut bytes, Generation::CURRENT, id, &CarrelWelcome { generation: 11 }).unwrap();
        self.send(&bytes);
    }

    /// The next valid message.
    fn next(&mut self) -> (u32, MessageType) {
        loop {
            if let Some((frame, rest)) = Frame::split(&self.buffer).unwrap() {
                let (id, taken) = (frame.id, self.buffer.len() - rest.len());
                let message = Envelope::parse(frame.body).ok().and_then(|envelope| envelope.message_type());
                self.buffer.drain(..taken);
                match message {
                    Some(message) => return (id, message),
                    None => continue,
                }
            }
            let mut bytes = [0; 4096];
            match self.channel.read(&mut bytes) {
                Ok(0) | Err(_) => std::process::exit(0),
                Ok(count) => self.buffer.extend_from_slice(&bytes[..count]),
            }
        }
    }

    /// Answers pings, and nothing else, forever.
    fn answer_pings(&mut self) -> ! {
        loop {
            let (id, message) = self.next();
            if message == MessageType::Ping {
                let mut bytes = Vec::new();
                codec::encode(&mut bytes, Generation::PUBLISHED, id, &Pong {}).unwrap();
                self.send(&bytes);
            }
        }
    }
}

fn frame(id: u32, flags: Flags, length: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::encode_raw(&mut bytes, id, flags, &vec![0xff; length]).unwrap();
    bytes
}

fn main() {
    let stdin = rustix::io::dup(rustix::stdio::stdin()).unwrap();
    let mut agent = RogueAgent { channel: stdin.into(), buffer: Vec::new() };
    let behaviour = rustix::system::uname().nodename().to_string_lossy().into_owned();
    match behaviour.as_str() {
        // Before the handshake.
        "dies" => std::process::exit(3),
        "noise" => agent.send(&[0xff; 4096]),
        "chatter" => loop {
            agent.send(&frame(0, Flags::NONE, 60_000));
        },
        "silent" => loop {
            std::thread::park();
        },
        "closes" => drop(agent.channel.shutdown(std::net::Shutdown::Both)),
        _ => agent.handshake(&behaviour),
    }
    jobs::run(&mut agent, &behaviour);
    let client = |slot| PrologueFormat::Current.range(slot).unwrap().start();
    match behaviour.as_str() {
        "honest" => agent.answer_pings(),
        "broken" => agent.send(&u32::MAX.to_be_bytes().repeat(4)),
        // Ids without a client: of free slots, between slots, of the half of the host, of the other direction.
        "strays" => loop {
            for id in [client(7), PrologueFormat::Current.step(), u32::MAX, 0] {
                agent.send(&frame(id, Flags::NONE, 10));
            }
        },
        "few-strays" => {
            for _ in 0..10 {
                agent.send(&frame(client(9), Flags::NONE, 10));
                agent.send(&frame(client(0), Flags::SHUTDOWN, 10));
            }
            agent.answer_pings();
        }
        // Endless unrequested data for the first client.
        "floods" => {
            let (_, _) = agent.next();
            let bytes = frame(client(0), Flags::NONE, 1 << 20);
            loop {
                agent.send(&bytes);
            }
        }
        "credit" => {
            let grant = |id_start, limit| {
                let mut bytes = Vec::new();
                let credit = carrel_protocol::payload::CarrelCredit { id_start, limit };
                codec::encode(&mut bytes, Generation::CURRENT, 0, &credit).unwrap();
                bytes
            };
            let (_, _) = agent.next();
            agent.send(&grant(client(0), u64::MAX));
            agent.answer_pings();
        }
        // Takes all memory, so that the kernel has no other process to kill.
        "eats" => {
            let mut eaten: Vec<Vec<u8>> = Vec::new();
            loop {
                eaten.push(vec![1; 1 << 20]);
            }
        }
        // Closes the channel and keeps running.
        "hangs-up" => drop(agent.channel.shutdown(std::net::Shutdown::Both)),
        // Never reads and never sends.
        "deaf" => {}
        _ => {}
    }
    loop {
        std::thread::park();
    }
}
