//! An owner without other work: starts a persistent sandbox, prints `running`, and waits until it is killed.

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
    // It never exits first: it is killed, or the sandbox ends.
    let ended = owned.ended().await.unwrap();
    println!("{}", ended.message);
}
