//! The output of a job: kept byte by byte up to a limit, with markers where output was dropped.

use std::time::Duration;

use carrel_shim_client::FollowEvent;
use carrel_shim_client::messages::{OutcomeKind, StreamName};
use carrel_tests::{
    TestSandbox, follow_all, follow_to_end, full, outcome_of, run, run_within, script, script_with_stdin,
};

/// How much of the end of an output is kept in addition to the limit.
const TAIL_BYTES: u64 = 128 * 1024;

//= promises.jobs.kept-output
#[test]
fn a_job_with_unlimited_output_exits_normally_and_its_log_is_bounded() {
    run_within(Duration::from_secs(300), async {
        let keep = 8 << 20;
        let sandbox = TestSandbox::with(|create| create.keep.stream_bytes = keep).await;
        // Ten bytes per line, so that the offset determines the content.
        let lines = (if full() { 1 << 30 } else { 256 << 20 }) / 10;
        let bytes = 10 * lines;
        let command = script(&format!("seq 100000000 {}; exit 9", 100_000_000 + lines - 1));
        let expected = |offset: u64, length: u64| -> Vec<u8> {
            let numbers = offset / 10..(offset + length) / 10 + 1;
            let text: String = numbers.map(|number| format!("{}\n", 100_000_000 + number)).collect();
            let skip = usize::try_from(offset % 10).unwrap();
            text.as_bytes()[skip..skip + usize::try_from(length).unwrap()].to_vec()
        };
        let mut shim = sandbox.shim().await;
        shim.start("endless", &command).await.unwrap();
        let info = shim.wait("endless").await.unwrap();
        assert_eq!(outcome_of(&info), (OutcomeKind::Exited, Some(9), None));
        assert_eq!(info.stdout.length, bytes);
        assert_eq!((info.stdout.cut_from, info.stdout.cut_to), (Some(keep), Some(bytes - TAIL_BYTES)));
        assert_eq!((info.stderr.length, info.stderr.cut_from), (0, None));
        assert!(sandbox.footprint().peak < 32 << 20, "{:?}", sandbox.footprint());

        let file = std::fs::read(&info.stdout.path.as_ref().unwrap().0).unwrap();
        let tail_start = bytes - TAIL_BYTES;
        let marker = format!(
            "\n[carrel: cut here: byte {keep} and what follows is not kept]\n[carrel: output continues at byte {tail_start}]\n"
        );
        let (head, rest) = file.split_at(usize::try_from(keep).unwrap());
        let (markers, tail) = rest.split_at(marker.len());
        assert!(head == expected(0, keep) && markers == marker.as_bytes() && tail == expected(tail_start, TAIL_BYTES));

        // Reads at the beginning, at and in the gap, at the end, and after the end.
        let mut read = async |offset, limit| shim.read("endless", StreamName::Stdout, offset, limit).await.unwrap();
        let begin = read(0, 1000).await;
        assert_eq!((begin.offset, begin.data, begin.end), (0, expected(0, 1000), false));
        let before_gap = read(keep - 10, 1000).await;
        assert_eq!((before_gap.offset, before_gap.data, before_gap.end), (keep - 10, expected(keep - 10, 10), false));
        let gap = read(keep + 12_345, 1000).await;
        assert_eq!((gap.offset, gap.data, gap.end), (tail_start, expected(tail_start, 1000), false));
        let end = read(bytes - 100, 1000).await;
        assert_eq!((end.offset, end.data, end.end), (bytes - 100, expected(bytes - 100, 100), true));
        let after_end = read(bytes, 1000).await;
        assert_eq!((after_end.offset, after_end.data.len(), after_end.end), (bytes, 0, true));
        let far = read(u64::MAX, u32::MAX).await;
        assert_eq!((far.data.len(), far.end), (0, true));

        let transcript = follow_to_end(sandbox.shim().await.follow(&follow_all("endless")).await.unwrap()).await;
        let [gap] = transcript.gaps[..] else { panic!("{:?}", transcript.gaps) };
        assert_eq!((gap.from, gap.to), (keep, tail_start));
        assert!(transcript.stdout == [head, tail].concat());
    });
}

//= promises.jobs.bytes-output
#[test]
fn both_output_streams_keep_every_byte() {
    run(async {
        let sandbox = TestSandbox::start().await;
        // Every pair of bytes, so not only text.
        let bytes: Vec<u8> = (0..=u8::MAX).flat_map(|one| (0..=u8::MAX).flat_map(move |other| [one, other])).collect();
        let follow = sandbox.follow("bytes", &script_with_stdin("tee /dev/stderr")).await;
        let control = follow.control();
        let write = async {
            control.write(&bytes).await.unwrap();
            control.close().await.unwrap();
        };
        let (transcript, ()) = tokio::join!(follow_to_end(follow), write);
        assert!(transcript.stdout == bytes && transcript.stderr == bytes);
        for stream in [&transcript.info.stdout, &transcript.info.stderr] {
            assert!(std::fs::read(&stream.path.as_ref().unwrap().0).unwrap() == bytes);
            assert_eq!(stream.cut_from, None);
        }
        let mut shim = sandbox.shim().await;
        for stream in [StreamName::Stdout, StreamName::Stderr] {
            for offset in [0_usize, 1, 255, 65_535, bytes.len() - 1] {
                let chunk = shim.read("bytes", stream, offset as u64, 300).await.unwrap();
                let end = (offset + 300).min(bytes.len());
                assert_eq!((chunk.offset, &chunk.data[..]), (offset as u64, &bytes[offset..end]));
                assert_eq!(chunk.end, end == bytes.len());
            }
        }
    });
}

//= promises.jobs.bytes-output
#[test]
fn a_follower_receives_both_streams_in_the_order_of_writing_also_after_the_end() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let command = script_with_stdin(
            "while read place word; do if [ $place = out ]; then echo $word; else echo $word >&2; fi; done",
        );
        let mut follow = sandbox.follow("turns", &command).await;
        let control = follow.control();
        let streams = [StreamName::Stdout, StreamName::Stderr];
        let mut written = [0, 0];
        for number in 0..200_usize {
            // Changes between the streams irregularly.
            let index = (number * number / 3) % 2;
            let line = format!("{} word-{number}\n", ["out", "err"][index]);
            let mut echoed = Vec::new();
            let read_echo = async {
                while !echoed.ends_with(b"\n") {
                    match follow.next().await.unwrap() {
                        Some(FollowEvent::Output { stream, offset, data }) => {
                            assert_eq!((stream, offset), (streams[index], written[index]));
                            written[index] += data.len() as u64;
                            echoed.extend_from_slice(&data);
                        }
                        other => panic!("{other:?}"),
                    }
                }
            };
            let (wrote, ()) = tokio::join!(control.write(line.as_bytes()), read_echo);
            wrote.unwrap();
            assert_eq!(String::from_utf8(echoed).unwrap(), format!("word-{number}\n"));
        }
        // A later follower receives the same order.
        let turns: Vec<_> = (0..200_usize).map(|number| streams[(number * number / 3) % 2]).collect();
        let mut expected = turns.clone();
        expected.dedup();
        let later = sandbox.shim().await.follow(&follow_all("turns")).await.unwrap();
        let (closed, transcript, _) = tokio::join!(control.close(), follow_to_end(later), async {
            while follow.next().await.unwrap().is_some() {}
        });
        closed.unwrap();
        assert_eq!(transcript.stream_order, expected);
        let again = follow_to_end(sandbox.shim().await.follow(&follow_all("turns")).await.unwrap()).await;
        assert_eq!(
            (again.stream_order, again.stdout, again.stderr),
            (transcript.stream_order, transcript.stdout, transcript.stderr)
        );
    });
}

//= promises.jobs.kept-output
#[test]
fn the_output_of_all_jobs_has_a_limit_and_the_oldest_jobs_are_pruned() {
    run(async {
        let sandbox = TestSandbox::with(|create| create.keep.total_bytes = 4 << 20).await;
        for number in 0..8 {
            let transcript = sandbox.job(&format!("job-{number}"), &script("head -c 1500000 /dev/zero; exit 3")).await;
            // Only what the gaps report is missing.
            let missing: u64 = transcript.gaps.iter().map(|gap| gap.to - gap.from).sum();
            assert_eq!(
                (transcript.stdout.len() as u64 + missing, outcome_of(&transcript.info).1),
                (1_500_000, Some(3))
            );
        }
        let mut shim = sandbox.shim().await;
        let kept: Vec<String> = shim.jobs().await.unwrap().into_iter().map(|info| info.job).collect();
        let newest: Vec<String> = (8 - kept.len()..8).map(|number| format!("job-{number}")).collect();
        assert!((1..=4).contains(&kept.len()) && kept == newest, "{kept:?}");
        let directory = std::fs::read_dir(sandbox.create.directory.0.join("jobs")).unwrap();
        let bytes: u64 = directory.map(|entry| entry.unwrap().metadata().unwrap().len()).sum();
        // The tail of each output is kept in addition.
        assert!(bytes <= (4 << 20) + 4 * (TAIL_BYTES + 1000), "{bytes}");
    });
}
