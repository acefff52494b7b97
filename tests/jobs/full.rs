//! A disk without room: what cannot be recorded is not begun, and what ended meanwhile is recorded when there is room.

use std::io::Write;
use std::path::PathBuf;
use std::process::Command;

use carrel_shim_client::messages::{Fact, FactKind, FailureCode, OutcomeKind};
use carrel_tests::{Sandbox, all_of, ending, fed, home, run, script, watch};
use tempfile::TempDir;

/// A small file system of its own; gone when dropped.
pub struct Tiny(pub TempDir);

impl Tiny {
    pub fn mount() -> Self {
        let directory = home();
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", "size=256k,mode=0755", "carrel-tiny"]).arg(directory.path());
        assert!(mount.status().unwrap().success());
        Self(directory)
    }

    fn ballast(&self) -> PathBuf {
        self.0.path().join("ballast")
    }

    /// Takes all the room that is left.
    fn fill(&self) {
        let mut file = std::fs::File::options().append(true).create(true).open(self.ballast()).unwrap();
        while file.write_all(&[0; 4096]).is_ok() {}
    }
}

impl Drop for Tiny {
    fn drop(&mut self) {
        let _unmounted = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

/// A sandbox whose own directory is on that file system.
async fn sandbox_on(tiny: &Tiny) -> Sandbox {
    Sandbox::with(|create| {
        let directory = carrel_agent_client::sandbox_directory(tiny.0.path(), &create.name).unwrap();
        create.directory = directory.into();
    })
    .await
}

//= promises.jobs.disk-without-room
#[test]
fn without_room_no_job_is_begun_and_what_ends_meanwhile_is_recorded_later() {
    run(async {
        let tiny = Tiny::mount();
        let sandbox = sandbox_on(&tiny).await;
        let mut shim = sandbox.shim().await;
        let mut subscription = sandbox.shim().await.subscribe(1).await.unwrap();
        for number in 0..5 {
            let command = fed(&format!("echo written; read code; echo late; exit {number}"));
            shim.start(&format!("running-{number}"), &command).await.unwrap();
        }
        tiny.fill();
        // A page that is there already may have room for a few more.
        let mut begun = 0;
        let refused = loop {
            tiny.fill();
            match shim.start(&format!("more-{begun}"), &script("exit 9")).await {
                Ok(started) => assert!(started.created),
                Err(refused) => break refused,
            }
            begun += 1;
            assert!(begun < 500, "there is no end to the room");
        };
        assert!(matches!(refused.code(), Some(FailureCode::JournalFailed | FailureCode::HostUnfit)), "{refused}");
        let unknown = shim.job(&format!("more-{begun}")).await.unwrap_err();
        assert_eq!(unknown.code(), Some(FailureCode::JobUnknown), "it was not begun");
        // The sandbox lives, and so do its jobs.
        for number in 0..5 {
            let job = format!("running-{number}");
            shim.write(&job, b"go\n", None).await.unwrap();
            let info = shim.wait(&job).await.unwrap();
            assert_eq!(ending(&info), (OutcomeKind::Exited, Some(number), None));
        }
        shim.pause().await.unwrap();
        shim.resume().await.unwrap();
        let recorded = shim.journal(1).await.unwrap();
        let again = shim.start(&format!("more-{begun}"), &script("exit 9")).await.unwrap_err();
        assert_eq!(again.code(), refused.code());

        // There is room again: nothing has to happen for it to be told.
        std::fs::remove_file(tiny.ballast()).unwrap();
        let count = |told: &[Fact], kind| told.iter().filter(|fact| fact.kind == kind).count();
        let mut told = Vec::new();
        while count(&told, FactKind::Resumed) < 1 || count(&told, FactKind::JobEnded) < 5 + begun {
            told.extend(subscription.next().await.unwrap().unwrap());
        }
        assert!(told.starts_with(&recorded), "what was told does not change");
        assert!(told.iter().zip(1..).all(|(fact, sequence)| fact.sequence == sequence));
        for number in 0..5 {
            let job = Some(format!("running-{number}"));
            let facts: Vec<_> = told.iter().filter(|fact| fact.job == job).collect();
            let codes: Vec<_> =
                facts.iter().map(|fact| fact.outcome.as_ref().and_then(|outcome| outcome.code)).collect();
            assert_eq!(codes, [None, Some(number)]);
        }
        assert_eq!(count(&told, FactKind::JobEnded), 5 + begun, "each of them once");
        assert!(shim.start(&format!("more-{begun}"), &script("exit 9")).await.unwrap().created);
        assert_eq!(ending(&shim.wait(&format!("more-{begun}")).await.unwrap()).1, Some(9));
        assert_eq!(shim.journal(1).await.unwrap().len(), told.len() + 2);
    });
}

//= promises.jobs.disk-without-room
#[test]
fn without_room_output_is_cut_with_a_word_and_the_job_goes_on() {
    run(async {
        let tiny = Tiny::mount();
        let sandbox = sandbox_on(&tiny).await;
        let seen = sandbox.job("large", &script("head -c 3000000 /dev/zero; exit 4")).await;
        assert_eq!(ending(&seen.info), (OutcomeKind::Exited, Some(4), None));
        assert_eq!(seen.info.stdout.length, 3_000_000);
        // There was no room for the end of it either, or just so; and all of that is told.
        let late = watch(sandbox.shim().await.follow(&all_of("large")).await.unwrap()).await;
        assert_eq!(late.cuts.len(), 1, "{:?}", late.cuts);
        let missing: u64 = late.cuts.iter().map(|cut| cut.to - cut.from).sum();
        assert_eq!(late.stdout.len() as u64 + missing, 3_000_000);
        assert!(late.info.stdout.cut_from.is_some_and(|from| from < 256 * 1024));
    });
}
