//! One unit's place: its owner, where it is acknowledged, and what it waits for.

use std::time::Instant;

use crate::BatchKey;

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) owner: String,
    pub(crate) ack_subject: String,
    pub(crate) state: State,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for its owner to claim it.
    Held,
    /// Is being computed.
    InBatch(BatchKey),
    /// Its owner's connection ended at this moment.
    Orphan(Instant),
}
