//! An owner that does nothing but own: makes a sandbox that lasts, says so, and stays until it is killed.

use std::path::Path;

use carrel_shim_client::OwnedSandbox;
use carrel_tests::{create, programs};

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, name] = arguments.as_slice() else { panic!("usage: carrel-owner HOME NAME") };
    let mut create = create(Path::new(home), name);
    create.lasting = true;
    let mut owned = OwnedSandbox::start(&programs(), &create).await.unwrap();
    println!("running");
    // It does not leave: it is killed, or sees the end.
    let ended = owned.ended().await.unwrap();
    println!("{}", ended.message);
}
