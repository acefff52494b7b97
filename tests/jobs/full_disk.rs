//! A full disk: a job that cannot be recorded is not started, and exits are recorded as soon as there is space.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use carrel_shim_client::messages::{Fact, FactKind, FailureCode, OutcomeKind};
use carrel_tests::{TestSandbox, follow_all, follow_to_end, home, outcome_of, run, script, script_with_stdin};
use tempfile::TempDir;

/// A tmpfs of 256 KiB. Unmounted when dropped.
pub struct SmallFilesystem(pub TempDir);

impl SmallFilesystem {
    pub fn mount() -> Self {
        let directory = home();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=0755", "carrel-small"]).arg(directory.path());
        assert!(mount.status().unwrap().success());
        Self(directory)
    }

    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }

    /// Writes until no space is left.
    fn fill(&self) {
        let mut file = std::fs::File::options().append(true).create(true).open(self.ballast()).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for SmallFilesystem {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// A sandbox whose directory is on that file system.
async fn sandbox_on(filesystem: &SmallFilesystem) -> TestSandbox {
    TestSandbox::with(|create| {
        let directory = carrel_agent_client::sandbox_directory(filesystem.0.path(), &create.name).unwrap();
        create.directory = directory.into();
    })
    .await
}

//= promises.jobs.disk-without-room
#[test]
fn on_a_full_disk_no_job_starts_and_exits_are_recorded_later() {
    run(async {
        let filesystem = SmallFilesystem::mount();
        let sandbox = sandbox_on(&filesystem).await;
        let mut shim = sandbox.shim().await;
        let mut subscription = sandbox.shim().await.subscribe(1).await.unwrap();
        for number in 0..5 {
            let command = script_with_stdin(&format!("echo written; read code; echo late; exit {number}"));
            shim.start(&format!("running-{number}"), &command).await.unwrap();
        }
        filesystem.fill();
        // The last page of a file may have space for a few more records.
        let mut started = 0;
        let refused = loop {
            filesystem.fill();
            match shim.start(&format!("more-{started}"), &script("exit 9")).await {
                Ok(response) => assert!(response.created),
                Err(refused) => break refused,
            }
            started += 1;
            assert!(started < 500, "the disk is never full");
        };
        assert!(matches!(refused.code(), Some(FailureCode::JournalFailed | FailureCode::HostUnfit)), "{refused}");
        let unknown = shim.job(&format!("more-{started}")).await.unwrap_err();
        assert_eq!(unknown.code(), Some(FailureCode::JobUnknown), "the job was not started");
        // The sandbox and its jobs keep running.
        for number in 0..5 {
            let job = format!("running-{number}");
            shim.write(&job, b"go\n", None).await.unwrap();
            let info = shim.wait(&job).await.unwrap();
            assert_eq!(outcome_of(&info), (OutcomeKind::Exited, Some(number), None));
        }
        shim.pause().await.unwrap();
        shim.resume().await.unwrap();
        let recorded = shim.journal(1).await.unwrap();
        let again = shim.start(&format!("more-{started}"), &script("exit 9")).await.unwrap_err();
        assert_eq!(again.code(), refused.code());

        // As soon as there is space, the pending facts are delivered without further events.
        std::fs::remove_file(filesystem.ballast()).unwrap();
        let count = |facts: &[Fact], kind| facts.iter().filter(|fact| fact.kind == kind).count();
        let mut received = Vec::new();
        while count(&received, FactKind::Resumed) < 1 || count(&received, FactKind::JobEnded) < 5 + started {
            received.extend(subscription.next().await.unwrap().unwrap());
        }
        assert!(received.starts_with(&recorded), "recorded facts do not change");
        assert!(received.iter().zip(1..).all(|(fact, sequence)| fact.sequence == sequence));
        for number in 0..5 {
            let job = Some(format!("running-{number}"));
            let facts: Vec<_> = received.iter().filter(|fact| fact.job == job).collect();
            let codes: Vec<_> =
                facts.iter().map(|fact| fact.outcome.as_ref().and_then(|outcome| outcome.code)).collect();
            assert_eq!(codes, [None, Some(number)]);
        }
        assert_eq!(count(&received, FactKind::JobEnded), 5 + started, "each exit is recorded once");
        assert!(shim.start(&format!("more-{started}"), &script("exit 9")).await.unwrap().created);
        assert_eq!(outcome_of(&shim.wait(&format!("more-{started}")).await.unwrap()).1, Some(9));
        assert_eq!(shim.journal(1).await.unwrap().len(), received.len() + 2);
    });
}

//= promises.jobs.disk-without-room
#[test]
fn on_a_full_disk_output_is_dropped_with_a_reported_gap_and_the_job_continues() {
    run(async {
        let filesystem = SmallFilesystem::mount();
        let sandbox = sandbox_on(&filesystem).await;
        let transcript = sandbox.job("large", &script("head -c 3000000 /dev/zero; exit 4")).await;
        assert_eq!(outcome_of(&transcript.info), (OutcomeKind::Exited, Some(4), None));
        assert_eq!(transcript.info.stdout.length, 3_000_000);
        // Its tail may not fit either. The gap reports everything that is missing.
        let late = follow_to_end(sandbox.shim().await.follow(&follow_all("large")).await.unwrap()).await;
        assert_eq!(late.gaps.len(), 1, "{:?}", late.gaps);
        let missing: u64 = late.gaps.iter().map(|gap| gap.to - gap.from).sum();
        assert_eq!(late.stdout.len() as u64 + missing, 3_000_000);
        assert!(late.info.stdout.cut_from.is_some_and(|from| from < 256 * 1024));
    });
}
