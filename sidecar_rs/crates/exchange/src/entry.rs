//! One unit's place: its owner, where it is acknowledged, what it needs and what it waits for.

use std::time::Instant;

use crate::countdown::Countdown;
use crate::{BatchKey, ModelKey};

#[derive(Debug)]
pub(crate) struct Entry {
    pub(crate) owner: String,
    pub(crate) ack_subject: String,
    pub(crate) model: ModelKey,
    /// Counts admissions: older units have smaller ones.
    pub(crate) sequence: u64,
    pub(crate) state: State,
    /// Its content is here; before that it cannot change hands.
    pub(crate) is_tokenized: bool,
    /// As it was last offered, by whoever owned it then.
    pub(crate) cost_ms: f64,
    /// Until its owner would start it, as it said in its offer; none once the unit has left that, other than
    /// by a newer offer (`Member::offered` has the newest).
    pub(crate) starts_in: Option<Countdown>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum State {
    /// Waits for its owner to claim it.
    Held,
    /// Is being computed.
    InBatch(BatchKey),
    /// Since this moment its owner does not know of it: the connection that it came on has ended.
    Orphan(Instant),
}

impl Entry {
    pub(crate) fn is_orphan(&self) -> bool {
        matches!(self.state, State::Orphan(_))
    }

    /// Whether `worker` can do with it as it likes.
    pub(crate) fn is_held_by(&self, worker: &str) -> bool {
        self.owner == worker && self.state == State::Held
    }

    /// Makes it `worker`'s, which is told of it.
    pub(crate) fn pass_to(&mut self, worker: &str) {
        worker.clone_into(&mut self.owner);
        self.state = State::Held;
        self.starts_in = None;
    }
}
