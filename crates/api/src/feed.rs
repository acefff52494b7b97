//! Events on their way to one client, who may be slow.
//!
//! What a client does not take stays in the log: one batch is on its way to it, and one more waits until that is taken. A
//! client that takes nothing for a while although something waits is told so, and has to come again from where it was.

use std::collections::HashMap;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;
use tokio_stream::Stream;
use tonic::{Code, Status};

use crate::status::with_info;

/// How long a client may take nothing although something waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience(pub(crate) Duration);

/// Where a feed comes from.
pub(crate) trait Source: Send + 'static {
    /// What it gives, as it waits: many clients share it.
    type Item: Send + Unpin + 'static;
    /// The same as it is sent.
    type Message;

    /// The next of them, at least one; `None` at the end.
    fn next(&mut self) -> impl Future<Output = Result<Option<Vec<Self::Item>>, Status>> + Send;

    /// What is sent for one of them.
    fn message(item: Self::Item) -> Self::Message;

    /// Where a client has to come again from that has this, and nothing that followed.
    fn place(item: &Self::Item) -> HashMap<String, String>;
}

/// A stream of events for one client.
#[derive(Debug)]
pub(crate) struct Feed<S: Source> {
    /// What was taken and is not given yet.
    batch: std::vec::IntoIter<S::Item>,
    batches: mpsc::Receiver<Vec<S::Item>>,
    /// How it ended, if not by itself.
    end: oneshot::Receiver<Status>,
    over: bool,
}

// === impl Feed ===

impl<S: Source> Feed<S> {
    /// Everything that a source gives.
    pub(crate) fn of(source: S, patience: Patience) -> Self {
        let ((give, batches), (tell, end)) = (mpsc::channel(1), oneshot::channel());
        tokio::spawn(async move {
            if let Err(status) = pass_on(source, &give, patience).await {
                // A client that is gone needs not be told.
                let _gone = tell.send(status);
            }
        });
        Self { batch: Vec::new().into_iter(), batches, end, over: false }
    }
}

async fn pass_on<S: Source>(
    mut source: S,
    give: &mpsc::Sender<Vec<S::Item>>,
    Patience(patience): Patience,
) -> Result<(), Status> {
    let mut last = HashMap::new();
    loop {
        // Nothing is read that could not be given: what waits may be all that a reader of the log takes.
        let room = match timeout(patience, give.reserve()).await {
            Ok(Ok(room)) => room,
            Ok(Err(_)) => return Ok(()),
            Err(_) => return Err(too_slow(last)),
        };
        let batch = tokio::select! {
            () = give.closed() => return Ok(()),
            batch = source.next() => batch?,
        };
        let Some(batch) = batch else { return Ok(()) };
        last = batch.last().map(S::place).unwrap_or(last);
        room.send(batch);
    }
}

fn too_slow(place: HashMap<String, String>) -> Status {
    let words = "events have waited too long to be taken: subscribe again after the last one that you have";
    with_info(Code::ResourceExhausted, words.to_owned(), "SUBSCRIBER_TOO_SLOW", place)
}

impl<S: Source> Stream for Feed<S> {
    type Item = Result<S::Message, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        loop {
            if let Some(item) = self.batch.next() {
                return Poll::Ready(Some(Ok(S::message(item))));
            }
            if self.over {
                return Poll::Ready(None);
            }
            match ready!(self.batches.poll_recv(cx)) {
                Some(batch) => self.batch = batch.into_iter(),
                None => {
                    self.over = true;
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

    /// Numbers from 1 on, two at a time, and how many were asked for.
    struct Numbers {
        next: u32,
        until: u32,
        asked: mpsc::UnboundedSender<u32>,
    }

    impl Source for Numbers {
        type Item = u32;
        type Message = String;

        async fn next(&mut self) -> Result<Option<Vec<u32>>, Status> {
            if self.next > self.until {
                return Ok(None);
            }
            let batch = vec![self.next, self.next + 1];
            self.next += 2;
            let _nobody = self.asked.send(self.next);
            Ok(Some(batch))
        }

        fn message(item: u32) -> String {
            item.to_string()
        }

        fn place(item: &u32) -> HashMap<String, String> {
            HashMap::from([("last_sequence".to_owned(), item.to_string())])
        }
    }

    fn numbers(until: u32) -> (Feed<Numbers>, mpsc::UnboundedReceiver<u32>) {
        let (asked, asks) = mpsc::unbounded_channel();
        (Feed::of(Numbers { next: 1, until, asked }, Patience(Duration::from_secs(60))), asks)
    }

    #[tokio::test(start_paused = true)]
    async fn everything_arrives_in_order_and_then_the_end() {
        let (feed, _asks) = numbers(1000);
        let got: Vec<_> = feed.map(Result::unwrap).collect().await;
        assert_eq!(got, (1..=1000).map(|number| number.to_string()).collect::<Vec<_>>());
    }

    //= promises.control-plane.subscriber-read
    #[tokio::test(start_paused = true)]
    async fn a_client_that_takes_nothing_is_told_and_costs_two_batches() {
        let (mut feed, mut asks) = numbers(1000);
        let began = Instant::now();
        // The source is let go of when the patience is at its end.
        while asks.recv().await.is_some() {}
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
    async fn a_client_that_takes_something_now_and_then_is_left_alone() {
        let (mut feed, _asks) = numbers(10);
        for number in 1..=10 {
            tokio::time::sleep(Duration::from_secs(29)).await;
            assert_eq!(feed.next().await.unwrap().unwrap(), number.to_string());
        }
        assert!(feed.next().await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_leaves_ends_the_reading() {
        let (feed, mut asks) = numbers(u32::MAX - 1);
        drop(feed);
        while asks.recv().await.is_some() {}
    }
}
