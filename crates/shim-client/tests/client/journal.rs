//! Facts, read at once and streamed.

use carrel_shim_client::ShimError;
use carrel_shim_client::messages::{Fact, FactKind, FailureCode, JournalEnd, JournalFacts, JournalRead};

use crate::peer::{connected, ended, failed};
use crate::requests::is_pending;

fn fact(sequence: u64) -> Fact {
    Fact { sequence, ..Fact::new(1, FactKind::Paused) }
}

#[tokio::test]
async fn the_journal_is_read_to_the_end() {
    let (mut client, mut peer) = connected().await;
    let answering = async {
        let (id, read) = peer.expect::<JournalRead>().await;
        assert_eq!(read, JournalRead { from: 3, follow: false });
        peer.send(id, &JournalFacts { facts: vec![fact(3), fact(4)] }).await;
        peer.send(id, &JournalFacts { facts: vec![fact(5)] }).await;
        peer.send(id, &JournalEnd { last: 5 }).await;
    };
    let (facts, ()) = tokio::join!(client.journal(3), answering);
    assert_eq!(facts.unwrap(), [fact(3), fact(4), fact(5)]);
}

#[tokio::test]
async fn a_subscriber_receives_every_fact_until_the_end() {
    for by_end_of_journal in [true, false] {
        let (client, mut peer) = connected().await;
        let mut facts = client.subscribe(1).await.unwrap();
        assert!(is_pending(std::pin::pin!(facts.next())));
        let (id, read) = tokio::join!(async { assert_eq!(facts.next().await.unwrap(), Some(vec![fact(1)])) }, async {
            let (id, read) = peer.expect::<JournalRead>().await;
            peer.send(id, &JournalFacts { facts: vec![fact(1)] }).await;
            (id, read)
        })
        .1;
        assert_eq!(read, JournalRead { from: 1, follow: true });
        peer.send(id, &JournalFacts { facts: vec![fact(2), fact(3)] }).await;
        if by_end_of_journal {
            peer.send(id, &JournalEnd { last: 3 }).await;
        } else {
            peer.send(0, &ended()).await;
        }
        drop(peer);
        assert_eq!(facts.next().await.unwrap(), Some(vec![fact(2), fact(3)]));
        for _ in 0..2 {
            assert_eq!(facts.next().await.unwrap(), None);
        }
        assert_eq!(facts.ended(), (!by_end_of_journal).then(ended).as_ref());
    }
}

#[tokio::test]
async fn a_subscription_fails_with_the_failure_sent_or_when_disconnected() {
    let (client, mut peer) = connected().await;
    let mut facts = client.subscribe(1).await.unwrap();
    let answering = async {
        let (id, _) = peer.expect::<JournalRead>().await;
        peer.send(id, &failed(FailureCode::JournalFailed)).await;
    };
    let error = tokio::join!(facts.next(), answering).0.unwrap_err();
    assert_eq!(error.code(), Some(FailureCode::JournalFailed));
    assert_eq!(facts.next().await.unwrap_err().code(), Some(FailureCode::JournalFailed), "it is permanent");

    let (client, peer) = connected().await;
    let mut facts = client.subscribe(1).await.unwrap();
    drop(peer);
    assert!(matches!(facts.next().await, Err(ShimError::Gone)));
    assert_eq!(facts.ended(), None);
}
