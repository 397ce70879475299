//! The table of units by id, with every move that a unit can make.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::countdown::{Countdown, MOST_MS, bounded_ms};
use crate::entry::{Entry, State};
use crate::{ModelKey, NotOwned, Offer};

/// Names a batch on this machine; unique while the table lives.
pub type BatchKey = u64;

/// Counts for a unit that was never offered, so that several orphans spread over their heirs.
pub(crate) const UNKNOWN_COST_MS: f64 = 1.0;

/// What became of an admitted id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// It was unknown: the admitter owns it and its content is wanted.
    New,
    /// It is here already: no copy was added, the newer ack subject is kept.
    Held {
        /// The admitter itself, or a sibling.
        owner: String,
        /// A silent worker whose it was until now.
        taken_from: Option<String>,
    },
}

/// What became of units that their owner hands back.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct GivenBack {
    /// Forgotten here: their ids, and where each is acknowledged.
    pub units: Vec<(String, String)>,
    /// Unknown, owned by another worker, in a batch, or named twice.
    pub not_owned: Vec<String>,
}

#[derive(Debug, Default)]
pub(crate) struct Table {
    units: HashMap<String, Entry>,
    admissions: u64,
}

impl Table {
    pub(crate) fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    pub(crate) fn get(&self, unit: &str) -> Option<&Entry> {
        self.units.get(unit)
    }

    /// Takes a unit in for `worker`. An orphan goes to whoever is handed its id, and so does a unit
    /// whose owner is silent.
    pub(crate) fn admit(
        &mut self,
        worker: &str,
        unit: &str,
        ack_subject: String,
        model: ModelKey,
        owner_is_silent: bool,
    ) -> Admission {
        let Some(entry) = self.units.get_mut(unit) else {
            self.admissions += 1;
            let entry = Entry {
                owner: worker.to_owned(),
                ack_subject,
                model,
                sequence: self.admissions,
                state: State::Held,
                is_tokenized: false,
                cost_ms: UNKNOWN_COST_MS,
                starts_in: None,
            };
            self.units.insert(unit.to_owned(), entry);
            return Admission::New;
        };
        entry.ack_subject = ack_subject;
        let mut taken_from = None;
        if entry.is_orphan() {
            entry.pass_to(worker);
        } else if owner_is_silent && entry.owner != worker {
            taken_from = Some(entry.owner.clone());
            entry.pass_to(worker);
        }
        Admission::Held {
            owner: entry.owner.clone(),
            taken_from,
        }
    }

    /// The content of units is here.
    pub(crate) fn tokenized<'a>(&mut self, units: impl Iterator<Item = &'a str>) {
        for unit in units {
            if let Some(entry) = self.units.get_mut(unit) {
                entry.is_tokenized = true;
            }
        }
    }

    /// Marks units as being computed: all of them, or none.
    pub(crate) fn claim(
        &mut self,
        worker: &str,
        batch: BatchKey,
        units: &[String],
    ) -> Result<(), NotOwned> {
        let (_, refused) = self.sort_out(worker, units.iter());
        if !refused.is_empty() {
            return Err(NotOwned { units: refused });
        }
        for unit in units {
            if let Some(entry) = self.units.get_mut(unit) {
                entry.state = State::InBatch(batch);
                entry.starts_in = None;
            }
        }
        Ok(())
    }

    /// Undoes a claim: the units wait again.
    pub(crate) fn unclaim(&mut self, batch: BatchKey, units: &[String]) {
        for unit in units {
            if let Some(entry) = self.units.get_mut(unit)
                && entry.state == State::InBatch(batch)
            {
                entry.state = State::Held;
            }
        }
    }

    /// Forgets units that a batch has computed, unless they left it meanwhile. Returns the forgotten.
    pub(crate) fn finish<'a>(&mut self, batch: BatchKey, units: &'a [String]) -> Vec<&'a str> {
        self.forget(units, |entry| entry.state == State::InBatch(batch))
    }

    /// Forgets units at their owner's word, in a batch or not. Returns the forgotten.
    pub(crate) fn release<'a>(&mut self, worker: &str, units: &'a [String]) -> Vec<&'a str> {
        self.forget(units, |entry| entry.owner == worker)
    }

    /// Forgets units that their owner hands back.
    pub(crate) fn give_back(&mut self, worker: &str, units: &[String]) -> GivenBack {
        let (held, not_owned) = self.sort_out(worker, units.iter());
        let gone = |unit: String| {
            let entry = self.units.remove(&unit)?;
            Some((unit, entry.ack_subject))
        };
        let units = held.into_iter().filter_map(gone).collect();
        GivenBack { units, not_owned }
    }

    /// Puts units on offer. Returns those that are, and those that their sender does not own.
    pub(crate) fn offer(
        &mut self,
        worker: &str,
        offer: &Offer,
        now: Instant,
    ) -> (Vec<String>, Vec<String>) {
        let sorted = self.sort_out(worker, offer.iter().map(|offered| &offered.unit));
        for offered in offer {
            if let Some(entry) = self.units.get_mut(&offered.unit)
                && entry.is_held_by(worker)
            {
                entry.cost_ms = bounded_ms(offered.cost_ms, MOST_MS);
                let starts_in_ms = bounded_ms(offered.starts_in_ms, 0.0);
                entry.starts_in = Some(Countdown::new(starts_in_ms, now));
            }
        }
        sorted
    }

    /// The connection that told `worker` of its units has ended: they become orphans, those in a batch
    /// too, since nobody is left to hear the batch's answer.
    pub(crate) fn orphan(&mut self, worker: &str, now: Instant) {
        for entry in self.units.values_mut() {
            if entry.owner == worker && !entry.is_orphan() {
                entry.state = State::Orphan(now);
                entry.starts_in = None;
            }
        }
    }

    /// Hands a unit over.
    pub(crate) fn pass(&mut self, unit: &str, worker: &str) {
        if let Some(entry) = self.units.get_mut(unit) {
            entry.pass_to(worker);
        }
    }

    pub(crate) fn has_orphans(&self) -> bool {
        self.units.values().any(Entry::is_orphan)
    }

    /// Units that need an owner and can change hands, oldest first: orphans, and what a silent worker
    /// holds.
    pub(crate) fn adrift(&self, is_silent: impl Fn(&str) -> bool) -> Vec<(&str, &Entry)> {
        let is_adrift = |entry: &Entry| match entry.state {
            State::Orphan(_) => true,
            State::Held => is_silent(&entry.owner),
            State::InBatch(_) => false,
        };
        let adrift = self
            .units
            .iter()
            .filter(|(_, entry)| entry.is_tokenized && is_adrift(entry));
        let mut adrift: Vec<(&str, &Entry)> = adrift.map(|(id, entry)| (&**id, entry)).collect();
        adrift.sort_unstable_by_key(|(_, entry)| entry.sequence);
        adrift
    }

    /// Forgets units that have been orphans for as long as `lasts`. Returns the forgotten.
    pub(crate) fn lapse(&mut self, lasts: Duration, now: Instant) -> Vec<String> {
        let lapsed = |_: &String, entry: &mut Entry| match entry.state {
            State::Orphan(since) => now.saturating_duration_since(since) >= lasts,
            State::Held | State::InBatch(_) => false,
        };
        let mut ids: Vec<String> = self.units.extract_if(lapsed).map(|(id, _)| id).collect();
        ids.sort_unstable();
        ids
    }

    /// Splits ids into those that `worker` holds, and the rest: unknown, another's, in a batch, or
    /// named before.
    fn sort_out<'a>(
        &self,
        worker: &str,
        units: impl Iterator<Item = &'a String>,
    ) -> (Vec<String>, Vec<String>) {
        let mut seen = HashSet::new();
        let is_held = |unit: &&'a String| {
            let entry = self.units.get(unit.as_str());
            seen.insert(unit.as_str()) && entry.is_some_and(|entry| entry.is_held_by(worker))
        };
        let (held, rest): (Vec<&String>, Vec<&String>) = units.partition(is_held);
        let owned = |units: Vec<&String>| units.into_iter().cloned().collect();
        (owned(held), owned(rest))
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
