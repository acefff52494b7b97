//! Standard input, on its way to a command.

use std::io::Read;

use bytes::Bytes;
use carrel_agent_client::ExecInput;
use tokio::sync::mpsc;

/// How much is read at once.
const PIECE: usize = 64 * 1024;
/// How many pieces are read ahead of what the command takes.
const AHEAD: usize = 2;

/// What ends the input of a terminal, at the start of a line.
const END_OF_TRANSMISSION: u8 = 4;

/// Passes standard input on, each piece as soon as it is there, and its end.
///
/// It is read by a thread, because it may be a file, and because a terminal that other programs share cannot be made
/// non-blocking for us alone. The thread ends with this program.
pub(crate) async fn feed(input: ExecInput, terminal: bool) {
    let (sender, mut pieces) = mpsc::channel::<Bytes>(AHEAD);
    let started = std::thread::Builder::new().name("stdin".to_owned()).spawn(move || read(&sender));
    let mut last = b'\n';
    if started.is_ok() {
        while let Some(piece) = pieces.recv().await {
            last = piece.last().copied().unwrap_or(last);
            // A command that takes no more input may still do what it is for.
            if input.write(piece).await.is_err() {
                return;
            }
        }
    }
    if terminal {
        // Within a line the first one only hands over what was written of it.
        let end: &[u8] = if last == b'\n' { &[END_OF_TRANSMISSION] } else { &[END_OF_TRANSMISSION; 2] };
        let _ended = input.write(end).await;
    } else {
        let _ended = input.close().await;
    }
}

fn read(sender: &mpsc::Sender<Bytes>) {
    let mut stdin = std::io::stdin().lock();
    let mut buffer = vec![0; PIECE];
    loop {
        match stdin.read(&mut buffer) {
            Ok(0) => return,
            Ok(len) => {
                let piece = Bytes::copy_from_slice(buffer.get(..len).unwrap_or_default());
                if sender.blocking_send(piece).is_err() {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => return,
        }
    }
}
