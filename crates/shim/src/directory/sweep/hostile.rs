//! Attacks of a compromised shim on sweeps.

use std::os::unix::fs::{MetadataExt, chown, symlink};
use std::process::{Command, Stdio};

use carrel_shim_client::layout::{INCARNATION, JOURNAL, process_start_time};
use carrel_shim_client::{Journal, Liveness, find};

use super::tests::{CgroupProcess, dead_persistent, incarnation};
use super::*;
use crate::directory::RunDirectory;
use crate::directory::tests::{OTHER_USER, eventually, home, record};

#[test]
fn a_shim_that_released_its_lock_and_still_runs_is_killed() {
    for (another, stays) in [(false, true), (false, false), (true, false)] {
        let (_home, path) = home();
        let mut shim = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let held = RunDirectory::claim(&path, &incarnation("lives-on")).unwrap();
        let mut made = record(&path, &incarnation("lives-on"), stays);
        (made.shim_pid, made.shim_began) = (shim.id(), process_start_time(shim.id()).unwrap());
        if another {
            // As if another sandbox's record had been obtained.
            made.supervisor_user += 1;
        }
        held.record(&made).unwrap();
        held.chown(OTHER_USER).unwrap();
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 0);
        assert!(shim.try_wait().unwrap().is_none(), "it holds its lock");
        drop(held);
        assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
        assert_eq!(path.exists(), stays);
        assert_eq!(shim.try_wait().unwrap().is_none(), another);
        let _ended = (shim.kill(), shim.wait());
    }
}

#[test]
fn a_shim_that_exits_by_itself_is_not_killed() {
    let (_home, path) = home();
    let mut shim = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let held = RunDirectory::claim(&path, &incarnation("last-words")).unwrap();
    let mut made = record(&path, &incarnation("last-words"), false);
    (made.shim_pid, made.shim_began) = (shim.id(), process_start_time(shim.id()).unwrap());
    held.record(&made).unwrap();
    drop((held, shim.stdin.take()));
    assert_eq!(sweep(path.parent().unwrap()).unwrap(), 1);
    assert!(shim.wait().unwrap().success());
}

#[test]
fn a_journal_that_is_too_large_does_not_prevent_the_sweep() {
    let (home, path) = home();
    let name = incarnation("large");
    dead_persistent(&path, &name);
    let grouped = CgroupProcess::start(&name, Some(OTHER_USER));
    let size = Journal::LARGEST + 1;
    File::options().write(true).open(path.join(JOURNAL)).unwrap().set_len(size).unwrap();
    let swept = sweep(path.parent().unwrap());
    assert!(
        matches!(&swept, Err(DirectoryError::Large { path: of, bytes }) if *of == path && *bytes == size),
        "{swept:?}"
    );
    assert!(!grouped.is_there() && !path.join(SHIM_SOCKET).exists());
    assert_eq!(std::fs::metadata(&path).unwrap().uid(), rustix::process::geteuid().as_raw());
    assert_eq!(std::fs::metadata(path.join(JOURNAL)).unwrap().len(), size, "nothing is appended");
    assert!(matches!(find(home.path(), "name").unwrap().unwrap().life, Liveness::Dead { .. }));
    assert!(eventually(|| collect(&path).unwrap()));
}

#[test]
fn directories_under_constant_inspection_do_not_delay_the_sweep_of_others() {
    let (_home, path) = home();
    let sandboxes = path.parent().unwrap();
    drop(RunDirectory::claim(&path, &incarnation("beside")).unwrap());
    let looked = |number: u32| {
        let decoy = sandboxes.join(number.to_string());
        std::fs::create_dir(&decoy).unwrap();
        chown(&decoy, Some(OTHER_USER), None).unwrap();
        let lock = File::create(decoy.join(LOCK)).unwrap();
        rustix::fs::flock(&lock, FlockOperation::NonBlockingLockShared).unwrap();
        lock
    };
    let decoys: Vec<File> = (0..200).map(looked).collect();
    let start = Instant::now();
    assert_eq!(sweep(sandboxes).unwrap(), 1);
    assert!(!path.exists());
    // Each of them alone used to take a fifth of a second.
    assert!(start.elapsed() < Duration::from_secs(10), "{:?}", start.elapsed());
    assert!(!collect(&sandboxes.join("0")).unwrap());
    let claimed = RunDirectory::claim(&sandboxes.join("0"), "i");
    assert!(matches!(claimed, Err(DirectoryError::Taken)));
    assert!(start.elapsed() < Duration::from_secs(15), "{:?}", start.elapsed());
    drop(decoys);
    // The time budget of a sweep; the rest is left to the next one.
    assert!(eventually(|| {
        sweep(sandboxes).unwrap();
        std::fs::read_dir(sandboxes).unwrap().count() == 0
    }));
}

#[test]
fn only_files_that_a_shim_put_beside_the_directories_are_removed() {
    let (home, path) = home();
    let sandboxes = path.parent().unwrap();
    drop(RunDirectory::claim(&path, &incarnation("stray")).unwrap());
    let outside = home.path().join("outside");
    std::fs::write(&outside, "precious").unwrap();
    for (owner, stays) in [(OTHER_USER, false), (rustix::process::geteuid().as_raw(), true), (1000, true)] {
        let (file, link) = (sandboxes.join("file"), sandboxes.join("link"));
        std::fs::write(&file, "").unwrap();
        symlink(&outside, &link).unwrap();
        for stray in [&file, &link] {
            std::os::unix::fs::lchown(stray, Some(owner), None).unwrap();
        }
        sweep(sandboxes).unwrap();
        for stray in [&file, &link] {
            assert_eq!(std::fs::symlink_metadata(stray).is_ok(), stays, "{owner}");
            let _next = std::fs::remove_file(stray);
        }
    }
    assert_eq!(std::fs::read_to_string(&outside).unwrap(), "precious");
}

#[test]
fn a_later_incarnation_is_not_collected_for_an_earlier_one() {
    let (_home, path) = home();
    dead_persistent(&path, "incarnation-2");
    assert!(eventually(|| collect_incarnation(&path, "incarnation-1").unwrap()), "nothing of that one is left");
    assert_eq!(std::fs::read_to_string(path.join(INCARNATION)).unwrap(), "incarnation-2");
    // Files that a shim wrote are irrelevant.
    std::fs::write(path.join(INCARNATION), "another").unwrap();
    chown(path.join(INCARNATION), Some(OTHER_USER), None).unwrap();
    assert!(eventually(|| collect_incarnation(&path, "incarnation-2").unwrap()));
    assert!(!path.exists());
    dead_persistent(&path, "incarnation-2");
    assert!(eventually(|| collect_incarnation(&path, "incarnation-2").unwrap()));
    assert!(!path.exists());
}

#[test]
fn a_directory_removed_concurrently_counts_as_removed() {
    let (_home, path) = home();
    for all in [true, false] {
        drop(RunDirectory::claim(&path, &incarnation("meanwhile")).unwrap());
        let parent = open_parent(path.parent().unwrap()).unwrap().unwrap();
        let name = path.file_name().unwrap();
        let SweepAttempt::Dead(dead) = try_name(&parent, name, 1).unwrap() else { panic!("it is dead") };
        std::fs::remove_file(path.join(LOCK)).unwrap();
        if all {
            std::fs::remove_dir_all(&path).unwrap();
        }
        dead.remove().unwrap();
        assert!(!path.exists());
    }
}

//= promises.control-plane.copy-home
#[test]
fn a_copy_of_a_directory_is_removed_and_the_original_survives() {
    for stays in [true, false] {
        let (home, path) = home();
        let name = incarnation(if stays { "copied-stays" } else { "copied" });
        let mut grouped = CgroupProcess::start(&name, Some(OTHER_USER));
        let mut shim = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        let held = RunDirectory::claim(&path, &name).unwrap();
        let mut made = record(&path, &name, stays);
        (made.shim_pid, made.shim_began) = (shim.id(), process_start_time(shim.id()).unwrap());
        held.record(&made).unwrap();
        held.chown(OTHER_USER).unwrap();
        // The lock of the copy is another file, which is free.
        let (original, copy) = (path.parent().unwrap(), home.path().join("copy"));
        assert!(Command::new("cp").arg("-a").arg(original).arg(&copy).status().unwrap().success());
        assert!(matches!(find(home.path(), "name").unwrap().unwrap().life, Liveness::Running | Liveness::Starting));
        sweep(&copy).unwrap();
        assert_eq!(std::fs::read_dir(&copy).unwrap().count(), 0);
        assert!(grouped.lives() && grouped.is_there(), "{stays}");
        assert!(shim.try_wait().unwrap().is_none(), "{stays}");
        // Without the original's shim, the same sweep removes both.
        drop(held);
        assert_eq!(sweep(original).unwrap(), 1);
        assert!(!grouped.is_there() && shim.wait().is_ok_and(|ended| !ended.success()));
    }
}
