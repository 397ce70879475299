//! The streams of the workers that are connected: who may speak, and who is told what.

use std::collections::HashMap;

use shoal_proto::shoal::sidecar::v1::Siblings;
use shoal_proto::shoal::sidecar::v1::attach_response::Message;

use super::Speaker;
use crate::outbox::Outbox;

#[derive(Default)]
pub struct Workers {
    outboxes: HashMap<String, Outbox>,
}

impl Workers {
    /// Makes a stream its worker's. Returns whether the worker was not connected.
    pub fn join(&mut self, speaker: &Speaker) -> bool {
        let Speaker { worker, outbox } = speaker.clone();
        self.outboxes.insert(worker, outbox).is_none()
    }

    pub fn leave(&mut self, worker: &str) {
        self.outboxes.remove(worker);
    }

    /// Whether this is its worker's stream still: a newer one may have replaced it.
    pub fn knows(&self, speaker: &Speaker) -> bool {
        let outbox = self.outboxes.get(&speaker.worker);
        outbox.is_some_and(|outbox| outbox.is_same(&speaker.outbox))
    }

    /// Tells a worker; one that is not connected hears nothing.
    pub fn tell(&self, worker: &str, message: Message) {
        if let Some(outbox) = self.outboxes.get(worker) {
            outbox.send(message);
        }
    }

    /// Tells a worker how many others there are, if there are any.
    pub fn greet(&self, worker: &str) {
        if self.outboxes.len() > 1 {
            self.tell(worker, self.siblings());
        }
    }

    /// Tells all but one that their number has changed.
    pub fn announce(&self, except: &str) {
        let others = self.outboxes.iter().filter(|(worker, _)| *worker != except);
        for (_, outbox) in others {
            outbox.send(self.siblings());
        }
    }

    fn siblings(&self) -> Message {
        let workers = self.outboxes.len().saturating_sub(1);
        Message::Siblings(Siblings {
            workers: u32::try_from(workers).unwrap_or(u32::MAX),
        })
    }
}
