//! The journal: facts are delivered in order, from any sequence on, and never change.

use carrel_shim_client::Subscription;
use carrel_shim_client::messages::{Fact, FactKind, JournalFacts, JournalRead};
use carrel_tests::{TestSandbox, run, script};

/// Reads exactly `count` facts of a subscription.
async fn collect(subscription: &mut Subscription, count: usize) -> Vec<Fact> {
    let mut facts = Vec::new();
    while facts.len() < count {
        facts.extend(subscription.next().await.unwrap().expect("the sandbox runs"));
    }
    assert_eq!(facts.len(), count);
    facts
}

async fn run_jobs(sandbox: &TestSandbox, jobs: std::ops::Range<usize>) {
    let mut shim = sandbox.shim().await;
    for number in jobs {
        let job = format!("job-{number}");
        shim.start(&job, &script("exit 1")).await.unwrap();
        shim.wait(&job).await.unwrap();
    }
}

//= promises.journal.facts
#[test]
fn facts_are_delivered_in_order_from_any_sequence_on_and_never_change() {
    run(async {
        let sandbox = TestSandbox::start().await;
        // Subscriptions receive facts as they occur: from the beginning, from the middle, and from a future sequence.
        let mut all = sandbox.shim().await.subscribe(1).await.unwrap();
        let mut zero = sandbox.shim().await.subscribe(0).await.unwrap();
        let mut middle = sandbox.shim().await.subscribe(50).await.unwrap();
        let mut future = sandbox.shim().await.subscribe(150).await.unwrap();
        assert!(sandbox.shim().await.journal(150).await.unwrap().is_empty());
        run_jobs(&sandbox, 0..100).await;
        let facts = collect(&mut all, 202).await;
        assert!(facts.iter().zip(1..).all(|(fact, sequence)| fact.sequence == sequence));
        assert!(facts.windows(2).all(|pair| pair[0].at_ms <= pair[1].at_ms));
        assert_eq!((facts[0].kind, facts[1].kind), (FactKind::Claimed, FactKind::Started));
        for (number, pair) in facts[2..].chunks(2).enumerate() {
            assert_eq!((pair[0].kind, pair[1].kind), (FactKind::JobStarted, FactKind::JobEnded));
            assert!(pair.iter().all(|fact| fact.job.as_deref() == Some(&format!("job-{number}"))));
        }
        assert_eq!(collect(&mut zero, 202).await, facts);
        assert_eq!(collect(&mut middle, 202 - 49).await, facts[49..]);
        assert_eq!(collect(&mut future, 202 - 149).await, facts[149..]);
        // Subscriptions receive further facts, and earlier facts do not change.
        run_jobs(&sandbox, 100..110).await;
        let more = collect(&mut future, 20).await;
        let mut shim = sandbox.shim().await;
        for from in [0, 1, 2, 63, 64, 65, 66, 128, 200, 222] {
            let read = shim.journal(from).await.unwrap();
            let expected: Vec<_> = facts.iter().chain(&more).skip(from.max(1) as usize - 1).cloned().collect();
            assert_eq!(read, expected, "from {from}");
        }
        assert!(shim.journal(223).await.unwrap().is_empty());
        assert!(shim.journal(u64::MAX).await.unwrap().is_empty());
        assert_eq!(shim.status().await.unwrap().sequence, 222);
    });
}

//= promises.journal.read
#[test]
fn a_subscriber_that_does_not_read_delays_no_other_client_and_misses_nothing() {
    run(async {
        let sandbox = TestSandbox::start().await;
        let mut slow = sandbox.raw_shim().await;
        slow.request(3, &JournalRead { from: 1, follow: true }).await;
        // Long commands make large facts: far more than the buffer of a connection.
        let mut shim = sandbox.shim().await;
        for number in 0..200 {
            let job = format!("job-{number}");
            let command = script(&format!(": {}", "x".repeat(20_000)));
            shim.start(&job, &command).await.unwrap();
            shim.wait(&job).await.unwrap();
        }
        let facts = shim.journal(1).await.unwrap();
        assert_eq!(facts.len(), 402);
        let largest = facts.iter().filter_map(|fact| fact.command.as_ref()).map(|command| command.concat().len()).max();
        assert!(largest.unwrap() < 5000, "only the recognisable beginning of a command is recorded");
        let mut received = Vec::new();
        while received.len() < facts.len() {
            received.extend(slow.next_of(3).await.message::<JournalFacts>().facts);
        }
        assert_eq!(received, facts);
    });
}
