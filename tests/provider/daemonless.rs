//! A process that starts a sandbox as a daemon does, runs a command in it, prints `running`, and waits to be killed.

use std::path::Path;

use carrel_control::provider::{ExecOptions, ExecStart, Place, Provider};
use carrel_control::spec::Spec;
use carrel_local::{LocalProvider, LocalSettings, LogTemplate};
use carrel_store::{ExecId, SandboxId};
use carrel_tests::programs;

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, sandbox, incarnation, disk, script] = arguments.as_slice() else {
        panic!("usage: carrel-daemonless HOME SANDBOX INCARNATION DISK SCRIPT")
    };
    let home = Path::new(home);
    let settings = LocalSettings {
        home: home.to_owned(),
        logs: LogTemplate::new(home.join("logs"), LogTemplate::DEFAULT).unwrap(),
        default_memory: 256 << 20,
        pids: 512,
        host_free: 0,
        host_free_inodes: None,
        default_disk: 0,
        default_inodes: 0,
        orphans_kept: std::time::Duration::ZERO,
        output_quota: None,
        prestarted: 1,
        registries: carrel_registry::RegistriesConfig::default(),
    };
    let local = LocalProvider::new(settings, programs()).unwrap();
    let (incarnation, disk) = (incarnation.clone(), disk.clone());
    let instance = Place { sandbox: SandboxId::new(sandbox).unwrap(), incarnation, disk };
    let spec = Spec { image: "host".to_owned(), ..Spec::default() };
    local.start(&instance, &spec).await.unwrap();
    let exec = ExecStart {
        id: ExecId::new("counter").unwrap(),
        command: ["sh", "-c", script].map(str::to_owned).to_vec(),
        cwd: String::new(),
        env: [].into(),
        options: ExecOptions::default(),
    };
    local.exec(&instance, &spec, &exec).await.unwrap();
    println!("running");
    std::future::pending::<()>().await;
}
