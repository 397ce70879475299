//! A worker's stream as everyone else sees it: somewhere to put messages without waiting.

use shoal_proto::shoal::sidecar::v1::AttachResponse;
use shoal_proto::shoal::sidecar::v1::attach_response::Message;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::Status;

use crate::limits::OUTBOX_MESSAGES;

/// Puts messages on one worker's stream. Nobody waits for a worker that doesn't read: it is cut off.
#[derive(Clone, Debug)]
pub struct Outbox {
    messages: mpsc::Sender<Result<AttachResponse, Status>>,
    closed: CancellationToken,
}

/// What tonic writes to the worker: its one writer.
pub type Outgoing = ReceiverStream<Result<AttachResponse, Status>>;

impl Outbox {
    pub fn new() -> (Self, Outgoing) {
        let (messages, outgoing) = mpsc::channel(OUTBOX_MESSAGES);
        let closed = CancellationToken::new();
        (Self { messages, closed }, ReceiverStream::new(outgoing))
    }

    /// Queues a message; one for a stream that has ended is dropped.
    pub fn send(&self, message: Message) {
        if self.is_closed() {
            return;
        }
        let response = AttachResponse {
            message: Some(message),
        };
        if let Err(error) = self.messages.try_send(Ok(response)) {
            if matches!(error, mpsc::error::TrySendError::Full(_)) {
                tracing::error!(
                    waiting = OUTBOX_MESSAGES,
                    "a worker does not read: cutting it off"
                );
            }
            self.closed.cancel();
        }
    }

    /// Ends the stream with `status` as the last word.
    pub fn close(&self, status: Status) {
        if !self.is_closed() {
            self.closed.cancel();
            // A full queue has no room for the last word; the stream then ends without it.
            let _ = self.messages.try_send(Err(status));
        }
    }

    /// Whether nobody reads what is sent.
    pub fn is_closed(&self) -> bool {
        self.closed.is_cancelled() || self.messages.is_closed()
    }

    /// Resolves when the stream is to end.
    pub async fn closed(&self) {
        tokio::select! {
            () = self.closed.cancelled() => {}
            () = self.messages.closed() => {}
        }
    }

    /// Whether both put messages on the same stream.
    pub fn is_same(&self, other: &Self) -> bool {
        self.messages.same_channel(&other.messages)
    }
}
