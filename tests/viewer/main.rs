//! A client that follows a job in a process of its own: it writes the output from an offset on, and exits with its code.

use std::io::Write;
use std::path::Path;

use carrel_shim_client::messages::{InputWish, JobFollow};
use carrel_shim_client::{FollowEvent, ShimClient};

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [socket, job, from] = words.as_slice() else { panic!("carrel-viewer SOCKET JOB OFFSET") };
    let from = from.parse().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let code = runtime.block_on(async {
        let shim = ShimClient::connect(Path::new(socket)).await.unwrap();
        let follow =
            JobFollow { job: job.clone(), stdout: Some(from), stderr: None, input: InputWish::None, hold: false };
        let mut follow = shim.follow(&follow).await.unwrap();
        loop {
            match follow.next().await.unwrap() {
                Some(FollowEvent::Output { data, .. }) => std::io::stdout().write_all(&data).unwrap(),
                Some(FollowEvent::Ended(info)) => break info.outcome.and_then(|outcome| outcome.code).unwrap_or(255),
                other => panic!("{other:?}"),
            }
        }
    });
    std::io::stdout().flush().unwrap();
    std::process::exit(code);
}
