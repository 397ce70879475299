//! The table of units by id, with every move that a unit can make.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::NotOwned;
use crate::entry::{Entry, State};

/// Names a batch on this machine; unique while the table lives.
pub type BatchKey = u64;

/// What became of an admitted id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It was unknown: the admitter owns it and its content is wanted.
    New,
    /// It is held already, by `owner`: no copy was added, the newer ack subject is kept.
    Held {
        /// The admitter itself, or a sibling.
        owner: String,
    },
}

/// The units of this machine.
#[derive(Debug)]
pub struct Exchange {
    units: HashMap<String, Entry>,
    orphans_last: Duration,
}

impl Exchange {
    /// An empty table. `orphans_last` is the queue's ack_wait: afterwards another copy is on its way.
    pub fn new(orphans_last: Duration) -> Self {
        Self {
            units: HashMap::new(),
            orphans_last,
        }
    }

    /// Takes a unit in for `worker`. An orphan goes to whoever is handed its id.
    pub fn admit(&mut self, worker: &str, unit: &str, ack_subject: String) -> Admission {
        let Some(entry) = self.units.get_mut(unit) else {
            let entry = Entry {
                owner: worker.to_owned(),
                ack_subject,
                state: State::Held,
            };
            self.units.insert(unit.to_owned(), entry);
            return Admission::New;
        };
        entry.ack_subject = ack_subject;
        if matches!(entry.state, State::Orphan(_)) {
            entry.owner = worker.to_owned();
            entry.state = State::Held;
        }
        Admission::Held {
            owner: entry.owner.clone(),
        }
    }

    /// Marks units as being computed: all of them, or none.
    pub fn claim(
        &mut self,
        worker: &str,
        batch: BatchKey,
        units: &[String],
    ) -> Result<(), NotOwned> {
        let mut seen = HashSet::with_capacity(units.len());
        let refused: Vec<String> = units
            .iter()
            .filter(|unit| !seen.insert(unit.as_str()) || !self.is_held_by(worker, unit))
            .cloned()
            .collect();
        if !refused.is_empty() {
            return Err(NotOwned { units: refused });
        }
        for unit in units {
            if let Some(entry) = self.units.get_mut(unit) {
                entry.state = State::InBatch(batch);
            }
        }
        Ok(())
    }

    /// Undoes a claim: the units wait again.
    pub fn unclaim(&mut self, batch: BatchKey, units: &[String]) {
        for unit in units {
            if let Some(entry) = self.units.get_mut(unit)
                && entry.state == State::InBatch(batch)
            {
                entry.state = State::Held;
            }
        }
    }

    /// Forgets units that a batch has computed, unless they left it meanwhile. Returns the forgotten.
    pub fn finish<'a>(&mut self, batch: BatchKey, units: &'a [String]) -> Vec<&'a str> {
        self.forget(units, |entry| entry.state == State::InBatch(batch))
    }

    /// Forgets units at their owner's word, in a batch or not. Returns the forgotten.
    pub fn release<'a>(&mut self, worker: &str, units: &'a [String]) -> Vec<&'a str> {
        self.forget(units, |entry| entry.owner == worker)
    }

    /// A worker's connection ended: its units become orphans, those in a batch too, since nobody is
    /// left to hear the batch's answer.
    pub fn worker_gone(&mut self, worker: &str, now: Instant) {
        for entry in self.owned_by(worker) {
            entry.state = State::Orphan(now);
        }
    }

    /// A worker is back: its orphans are held again. Returns the ids of all that it owns, sorted.
    pub fn worker_back(&mut self, worker: &str) -> Vec<String> {
        for entry in self.owned_by(worker) {
            if matches!(entry.state, State::Orphan(_)) {
                entry.state = State::Held;
            }
        }
        let owned = self.units.iter().filter(|(_, entry)| entry.owner == worker);
        let mut ids: Vec<String> = owned.map(|(id, _)| id.clone()).collect();
        ids.sort_unstable();
        ids
    }

    /// Forgets orphans that nobody came back for. Returns the forgotten.
    pub fn expire(&mut self, now: Instant) -> Vec<String> {
        let lapsed = |entry: &Entry| match entry.state {
            State::Orphan(since) => now.duration_since(since) >= self.orphans_last,
            State::Held | State::InBatch(_) => false,
        };
        let ids = self.units.iter().filter(|(_, entry)| lapsed(entry));
        let ids: Vec<String> = ids.map(|(id, _)| id.clone()).collect();
        for id in &ids {
            self.units.remove(id);
        }
        ids
    }

    /// Who owns a unit.
    pub fn owner(&self, unit: &str) -> Option<&str> {
        self.units.get(unit).map(|entry| entry.owner.as_str())
    }

    /// Where a unit is acknowledged: the subject of its newest delivery.
    pub fn ack_subject(&self, unit: &str) -> Option<&str> {
        self.units.get(unit).map(|entry| entry.ack_subject.as_str())
    }

    fn is_held_by(&self, worker: &str, unit: &str) -> bool {
        let entry = self.units.get(unit);
        entry.is_some_and(|entry| entry.owner == worker && entry.state == State::Held)
    }

    fn owned_by(&mut self, worker: &str) -> impl Iterator<Item = &mut Entry> {
        self.units
            .values_mut()
            .filter(move |entry| entry.owner == worker)
    }

    fn forget<'a>(&mut self, units: &'a [String], which: impl Fn(&Entry) -> bool) -> Vec<&'a str> {
        let mut forgotten = Vec::with_capacity(units.len());
        for unit in units {
            if self.units.get(unit).is_some_and(&which) {
                self.units.remove(unit);
                forgotten.push(unit.as_str());
            }
        }
        forgotten
    }
}
