//! What a job writes: kept as it is, up to a limit, with marks where something is missing.

use std::time::Duration;

use carrel_shim_client::FollowEvent;
use carrel_shim_client::messages::{OutcomeKind, StreamName};
use carrel_tests::{Sandbox, all_of, ending, fed, full, run, run_within, script, watch};

/// How much of the end is kept besides the limit.
const END: u64 = 128 * 1024;

//= promises.jobs.kept-output
#[test]
fn a_job_that_writes_without_measure_ends_with_its_code_and_its_log_is_bounded() {
    run_within(Duration::from_secs(300), async {
        let keep = 8 << 20;
        let sandbox = Sandbox::with(|create| create.keep.stream_bytes = keep).await;
        // Ten bytes a line: a place tells what has to be there.
        let lines = (if full() { 1 << 30 } else { 256 << 20 }) / 10;
        let bytes = 10 * lines;
        let command = script(&format!("seq 100000000 {}; exit 9", 100_000_000 + lines - 1));
        let at = |offset: u64, length: u64| -> Vec<u8> {
            let numbers = offset / 10..(offset + length) / 10 + 1;
            let text: String = numbers.map(|number| format!("{}\n", 100_000_000 + number)).collect();
            let skip = usize::try_from(offset % 10).unwrap();
            text.as_bytes()[skip..skip + usize::try_from(length).unwrap()].to_vec()
        };
        let mut shim = sandbox.shim().await;
        shim.start("endless", &command).await.unwrap();
        let info = shim.wait("endless").await.unwrap();
        assert_eq!(ending(&info), (OutcomeKind::Exited, Some(9), None));
        assert_eq!(info.stdout.length, bytes);
        assert_eq!((info.stdout.cut_from, info.stdout.cut_to), (Some(keep), Some(bytes - END)));
        assert_eq!((info.stderr.length, info.stderr.cut_from), (0, None));
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());

        let file = std::fs::read(&info.stdout.path.as_ref().unwrap().0).unwrap();
        let goes_on = bytes - END;
        let mark = format!(
            "\n[carrel: cut here: byte {keep} and what follows is not kept]\n[carrel: it goes on at byte {goes_on}]\n"
        );
        let (head, rest) = file.split_at(usize::try_from(keep).unwrap());
        let (marks, tail) = rest.split_at(mark.len());
        assert!(head == at(0, keep) && marks == mark.as_bytes() && tail == at(goes_on, END));

        // From its beginning, from what is missing, from its end, and behind that.
        let mut read = async |offset, limit| shim.read("endless", StreamName::Stdout, offset, limit).await.unwrap();
        let begin = read(0, 1000).await;
        assert_eq!((begin.offset, begin.data, begin.end), (0, at(0, 1000), false));
        let seam = read(keep - 10, 1000).await;
        assert_eq!((seam.offset, seam.data, seam.end), (keep - 10, at(keep - 10, 10), false));
        let gap = read(keep + 12_345, 1000).await;
        assert_eq!((gap.offset, gap.data, gap.end), (goes_on, at(goes_on, 1000), false));
        let end = read(bytes - 100, 1000).await;
        assert_eq!((end.offset, end.data, end.end), (bytes - 100, at(bytes - 100, 100), true));
        let behind = read(bytes, 1000).await;
        assert_eq!((behind.offset, behind.data.len(), behind.end), (bytes, 0, true));
        let far = read(u64::MAX, u32::MAX).await;
        assert_eq!((far.data.len(), far.end), (0, true));

        let seen = watch(sandbox.shim().await.follow(&all_of("endless")).await.unwrap()).await;
        let [cut] = seen.cuts[..] else { panic!("{:?}", seen.cuts) };
        assert_eq!((cut.from, cut.to), (keep, goes_on));
        assert!(seen.stdout == [head, tail].concat());
    });
}

//= promises.jobs.bytes-output
#[test]
fn every_byte_is_kept_as_it_is_on_both_outputs() {
    run(async {
        let sandbox = Sandbox::start().await;
        // No text: every byte, alone and beside every other.
        let bytes: Vec<u8> = (0..=u8::MAX).flat_map(|one| (0..=u8::MAX).flat_map(move |other| [one, other])).collect();
        let follow = sandbox.follow("bytes", &fed("tee /dev/stderr")).await;
        let control = follow.control();
        let write = async {
            control.write(&bytes).await.unwrap();
            control.close().await.unwrap();
        };
        let (seen, ()) = tokio::join!(watch(follow), write);
        assert!(seen.stdout == bytes && seen.stderr == bytes);
        for stream in [&seen.info.stdout, &seen.info.stderr] {
            assert!(std::fs::read(&stream.path.as_ref().unwrap().0).unwrap() == bytes);
            assert_eq!(stream.cut_from, None);
        }
        let mut shim = sandbox.shim().await;
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            for offset in [0_usize, 1, 255, 65_535, bytes.len() - 1] {
                let chunk = shim.read("bytes", stream, offset as u64, 300).await.unwrap();
                let until = (offset + 300).min(bytes.len());
                assert_eq!((chunk.offset, &chunk.data[..]), (offset as u64, &bytes[offset..until]));
                assert_eq!(chunk.end, until == bytes.len());
            }
        }
    });
}

//= promises.jobs.bytes-output
#[test]
fn what_was_written_in_turn_is_told_in_turn_and_again_later() {
    run(async {
        let sandbox = Sandbox::start().await;
        let command =
            fed("while read place word; do if [ $place = out ]; then echo $word; else echo $word >&2; fi; done");
        let mut follow = sandbox.follow("turns", &command).await;
        let control = follow.control();
        let places = [StreamName::Stdout, StreamName::Stderr];
        let mut written = [0, 0];
        for number in 0..200_usize {
            // Now this one, now that one, now the same again.
            let index = (number * number / 3) % 2;
            let line = format!("{} word-{number}\n", ["out", "err"][index]);
            let mut said = Vec::new();
            let answer = async {
                while !said.ends_with(b"\n") {
                    match follow.next().await.unwrap() {
                        Some(FollowEvent::Output { stream, offset, data }) => {
                            assert_eq!((stream, offset), (places[index], written[index]));
                            written[index] += data.len() as u64;
                            said.extend_from_slice(&data);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            };
            let (wrote, ()) = tokio::join!(control.write(line.as_bytes()), answer);
            wrote.unwrap();
            assert_eq!(String::from_utf8(said).unwrap(), format!("word-{number}\n"));
        }
        // Whoever comes later is told in the same order.
        let turns: Vec<_> = (0..200_usize).map(|number| places[(number * number / 3) % 2]).collect();
        let mut expected = turns.clone();
        expected.dedup();
        let later = sandbox.shim().await.follow(&all_of("turns")).await.unwrap();
        let (closed, seen, _) =
            tokio::join!(control.close(), watch(later), async { while follow.next().await.unwrap().is_some() {} });
        closed.unwrap();
        assert_eq!(seen.turns, expected);
        let again = watch(sandbox.shim().await.follow(&all_of("turns")).await.unwrap()).await;
        assert_eq!((again.turns, again.stdout, again.stderr), (seen.turns, seen.stdout, seen.stderr));
    });
}

//= promises.jobs.kept-output
#[test]
fn all_outputs_together_have_a_bound_and_the_oldest_make_room() {
    run(async {
        let sandbox = Sandbox::with(|create| create.keep.total_bytes = 4 << 20).await;
        for number in 0..8 {
            let seen = sandbox.job(&format!("job-{number}"), &script("head -c 1500000 /dev/zero; exit 3")).await;
            // What is not kept is told, and nothing else is missing.
            let missing: u64 = seen.cuts.iter().map(|cut| cut.to - cut.from).sum();
            assert_eq!((seen.stdout.len() as u64 + missing, ending(&seen.info).1), (1_500_000, Some(3)));
        }
        let mut shim = sandbox.shim().await;
        let kept: Vec<String> = shim.jobs().await.unwrap().into_iter().map(|info| info.job).collect();
        let newest: Vec<String> = (8 - kept.len()..8).map(|number| format!("job-{number}")).collect();
        assert!((1..=4).contains(&kept.len()) && kept == newest, "{kept:?}");
        let directory = std::fs::read_dir(sandbox.create.directory.0.join("jobs")).unwrap();
        let bytes: u64 = directory.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        // The end of each is kept besides.
        assert!(bytes <= (4 << 20) + 4 * (END + 1000), "{bytes}");
    });
}
