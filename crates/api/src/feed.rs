//! A stream of events to one client, which may be slow.
//!
//! Events that a client does not read stay in the log: one batch is being sent, and one more is queued. A client that
//! reads nothing for a while although events are queued gets an error, and has to subscribe again.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::{Code, Status};

use crate::status::with_info;

/// How long a client may read nothing although events are queued.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SubscriberTimeout(pub(crate) Duration);

/// The source of a feed.
pub(crate) trait EventSource: Send + 'static {
    /// An item, which many clients share.
    type Item: Send + Unpin + 'static;
    /// The message for an item.
    type Message;

    /// The next items, at least one; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<Self::Item>>, Status>> + Send;

    /// Converts an item to its message.
    fn message(item: Self::Item) -> Self::Message;

    /// The metadata from which a client resumes that received this item last.
    fn resume_metadata(item: &Self::Item) -> HashMap<String, String>;
}

/// A stream of events for one client.
#[derive(Debug)]
pub(crate) struct EventFeed<S: EventSource> {
    /// Items that were received and not sent yet.
    batch: std::vec::IntoIter<S::Item>,
    batches: mpsc::Receiver<Vec<S::Item>>,
    /// The error that ended the feed, if any.
    end: oneshot::Receiver<Status>,
    ended: bool,
}

// === impl EventFeed ===

impl<S: EventSource> EventFeed<S> {
    /// Streams all items of a source.
    pub(crate) fn new(source: S, timeout: SubscriberTimeout) -> Self {
        let ((sender, batches), (end_sender, end)) = (mpsc::channel(1), oneshot::channel());
        tokio::spawn(async move {
            if let Err(status) = forward(source, &sender, timeout).await {
                // The client may have disconnected.
                let _disconnected = end_sender.send(status);
            }
        });
        Self { batch: Vec::new().into_iter(), batches, end, ended: false }
    }
}

async fn forward<S: EventSource>(
    mut source: S,
    sender: &mpsc::Sender<Vec<S::Item>>,
    SubscriberTimeout(max_wait): SubscriberTimeout,
) -> Result<(), Status> {
    let mut last = HashMap::new();
    loop {
        // The source is read only when there is room, because a queued batch may be all that a reader of the log holds.
        let permit = match timeout(max_wait, sender.reserve()).await {
            Ok(Ok(permit)) => permit,
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(too_slow(last)),
        };
        let batch = tokio::select! {
            () = sender.closed() => return Ok(()),
            batch = source.next() => batch?,
        };
        let Some(batch) = batch else { return Ok(()) };
        last = batch.last().map(S::resume_metadata).unwrap_or(last);
        permit.send(batch);
    }
}

fn too_slow(metadata: HashMap<String, String>) -> Status {
    let message = "the client reads events too slowly; subscribe again after the last event received";
    with_info(Code::ResourceExhausted, message.to_owned(), "SUBSCRIBER_TOO_SLOW", metadata)
}

impl<S: EventSource> Stream for EventFeed<S> {
    type Item = Result<S::Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.batch.next() {
                return Poll::Ready(Some(Ok(S::message(item))));
            }
            if self.ended {
                return Poll::Ready(None);
            }
            match ready!(self.batches.poll_recv(cx)) {
                Some(batch) => self.batch = batch.into_iter(),
                None => {
                    self.ended = true;
                    return Poll::Ready(self.end.try_recv().ok().map(Err));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;
    use tokio_stream::StreamExt;
    use tonic_types::StatusExt;

    use super::*;

    /// Numbers from 1, two at a time. It reports each request.
    struct NumberSource {
        next: u32,
        until: u32,
        requested: mpsc::UnboundedSender<u32>,
    }

    impl EventSource for NumberSource {
        type Item = u32;
        type Message = String;

        async fn next(&mut self) -> Result<Option<Vec<u32>>, Status> {
            if self.next > self.until {
                return Ok(None);
            }
            let batch = vec![self.next, self.next + 1];
            self.next += 2;
            let _dropped = self.requested.send(self.next);
            Ok(Some(batch))
        }

        fn message(item: u32) -> String {
            item.to_string()
        }

        fn resume_metadata(item: &u32) -> HashMap<String, String> {
            HashMap::from([("last_sequence".to_owned(), item.to_string())])
        }
    }

    fn numbers(until: u32) -> (EventFeed<NumberSource>, mpsc::UnboundedReceiver<u32>) {
        let (requested, requests) = mpsc::unbounded_channel();
        (
            EventFeed::new(NumberSource { next: 1, until, requested }, SubscriberTimeout(Duration::from_secs(60))),
            requests,
        )
    }

    #[tokio::test(start_paused = true)]
    async fn all_events_arrive_in_order_before_the_end() {
        let (feed, _requests) = numbers(1000);
        let got: Vec<_> = feed.map(Result::unwrap).collect().await;
        assert_eq!(got, (1..=1000).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    //= promises.control-plane.subscriber-read
    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_nothing_is_disconnected_and_costs_two_batches() {
        let (mut feed, mut requests) = numbers(1000);
        let began = Instant::now();
        // The source is dropped when the timeout expires.
        while requests.recv().await.is_some() {}
        assert_eq!(began.elapsed(), Duration::from_secs(60));
        assert_eq!(feed.next().await.unwrap().unwrap(), "1");
        assert_eq!(feed.next().await.unwrap().unwrap(), "2");
        let status = feed.next().await.unwrap().unwrap_err();
        let info = status.get_details_error_info().unwrap();
        assert_eq!((status.code(), info.reason.as_str()), (Code::ResourceExhausted, "SUBSCRIBER_TOO_SLOW"));
        assert_eq!(info.metadata["last_sequence"], "2");
        assert!(feed.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_reads_slowly_stays_connected() {
        let (mut feed, _requests) = numbers(10);
        for number in 1..=10 {
            tokio::time::sleep(Duration::from_secs(29)).await;
            assert_eq!(feed.next().await.unwrap().unwrap(), number.to_string());
        }
        assert!(feed.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_disconnects_stops_the_source() {
        let (feed, mut requests) = numbers(u32::MAX - 1);
        drop(feed);
        while requests.recv().await.is_some() {}
    }
}
