//! Units and workers together: after every move, whatever should change hands does.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use crate::member::Member;
use crate::table::Table;
use crate::{Admission, BatchKey, GivenBack, ModelKey, NotOwned, Offer, Standing};

/// What the exchange goes by.
#[derive(Debug, Clone, Copy)]
pub struct Rules {
    /// How long orphans are kept, the queue's ack_wait: afterwards another copy is on its way.
    pub orphans_last: Duration,
    /// A worker with siblings that posts nothing for so long counts as gone.
    pub owner_silence: Duration,
    /// An offered unit moves when it starts sooner by at least this many milliseconds.
    pub margin_ms: f64,
}

/// Units that are a worker's from now on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grant {
    /// Whose.
    pub to: String,
    /// Counts the grants on this worker's connection, from 1.
    pub number: u64,
    /// In the order in which they should run.
    pub units: Vec<Moved>,
}

/// A unit that changed hands.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Moved {
    /// Its id.
    pub unit: String,
    /// Whose it was; the same worker's after its restart.
    pub from: String,
}

/// What the passing of time did.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Units that silent workers lost.
    pub grants: Vec<Grant>,
    /// Orphans that nobody came back for, forgotten.
    pub lapsed: Vec<String>,
}

/// The units and workers of this machine.
#[derive(Debug)]
pub struct Exchange {
    pub(crate) rules: Rules,
    pub(crate) table: Table,
    /// The workers that are connected.
    pub(crate) members: BTreeMap<String, Member>,
    /// Whether any unit may be an orphan.
    pub(crate) may_have_orphans: bool,
    last_tick: Option<Instant>,
    /// No silence before this moment is held against anyone.
    watched_since: Option<Instant>,
}

impl Exchange {
    /// Without units and workers.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            table: Table::default(),
            members: BTreeMap::new(),
            may_have_orphans: false,
            last_tick: None,
            watched_since: None,
        }
    }

    /// Takes a unit in for `worker`. Orphans and what a silent worker owns go to whoever is handed
    /// their id.
    pub fn admit(
        &mut self,
        worker: &str,
        unit: &str,
        ack_subject: String,
        model: ModelKey,
    ) -> Admission {
        let owner = self.table.get(unit).map(|entry| &entry.owner);
        let owner = owner.and_then(|owner| self.members.get(owner));
        let is_silent = owner.is_some_and(|owner| owner.is_silent);
        self.table
            .admit(worker, unit, ack_subject, model, is_silent)
    }

    /// The content of units is here: from now on they can change hands.
    pub fn tokenized<'a>(
        &mut self,
        units: impl IntoIterator<Item = &'a str>,
        now: Instant,
    ) -> Vec<Grant> {
        self.table.tokenized(units.into_iter());
        self.settle(now)
    }

    /// Marks units as being computed: all of them, or none. They are no longer on offer.
    pub fn claim(
        &mut self,
        worker: &str,
        batch: BatchKey,
        units: &[String],
    ) -> Result<(), NotOwned> {
        self.table.claim(worker, batch, units)
    }

    /// Undoes a claim: the units wait again.
    pub fn unclaim(&mut self, batch: BatchKey, units: &[String]) {
        self.table.unclaim(batch, units);
    }

    /// Forgets units that a batch has computed, unless they left it meanwhile. Returns the forgotten.
    pub fn finish<'a>(&mut self, batch: BatchKey, units: &'a [String]) -> Vec<&'a str> {
        self.table.finish(batch, units)
    }

    /// Forgets units at their owner's word, in a batch or not. Returns the forgotten.
    pub fn release<'a>(&mut self, worker: &str, units: &'a [String]) -> Vec<&'a str> {
        self.table.release(worker, units)
    }

    /// Forgets units that their owner puts on the queue again.
    pub fn give_back(&mut self, worker: &str, units: &[String]) -> GivenBack {
        self.table.give_back(worker, units)
    }

    /// A worker says how it stands. It stands as a claim on what is offered, now and later.
    pub fn post(&mut self, worker: &str, standing: Standing, now: Instant) -> Vec<Grant> {
        let Some(member) = self.members.get_mut(worker) else {
            return Vec::new();
        };
        member.post(standing, now);
        self.settle(now)
    }

    /// A worker offers units, in the place of its offer before. Returns what found a taker at once, and
    /// the units that the worker cannot offer: unknown, not its own, in a batch, or named twice.
    pub fn offer(
        &mut self,
        worker: &str,
        offer: &Offer,
        now: Instant,
    ) -> (Vec<Grant>, Vec<String>) {
        let Some(member) = self.members.get_mut(worker) else {
            let units = offer.iter().map(|offered| offered.unit.clone());
            return (Vec::new(), units.collect());
        };
        let (offered, not_owned) = self.table.offer(worker, offer, now);
        member.offered = offered;
        (self.settle(now), not_owned)
    }

    /// A worker's connection ended: its units go to siblings, or wait for its restart as orphans.
    pub fn worker_gone(&mut self, worker: &str, now: Instant) -> Vec<Grant> {
        self.members.remove(worker);
        self.table.orphan(worker, now);
        self.may_have_orphans = true;
        self.settle(now)
    }

    /// A worker connected, anew or in the place of its connection before: it is granted what it owns
    /// still, now or once it is tokenized.
    pub fn worker_back(&mut self, worker: &str, now: Instant) -> Vec<Grant> {
        self.members.remove(worker);
        if self.members.len() == 1 {
            // It was alone and need not have posted: from now on it must.
            self.members.values_mut().for_each(Member::withdraw);
        }
        self.members.insert(worker.to_owned(), Member::default());
        self.table.orphan(worker, now);
        self.may_have_orphans = true;
        self.settle(now)
    }

    /// Time passes: silent workers lose what they hold, orphans lapse. To be called a few times within
    /// `owner_silence` as long as there are units.
    pub fn tick(&mut self, now: Instant) -> Passed {
        // Whoever does not call was not running, and could hear nobody.
        let patience = self.rules.owner_silence / 2;
        let was_away = self
            .last_tick
            .is_none_or(|last| now.saturating_duration_since(last) > patience);
        if was_away {
            self.watched_since = Some(now);
        }
        self.last_tick = Some(now);
        let watched_since = self.watched_since.unwrap_or(now);
        if self.members.len() > 1 {
            for member in self.members.values_mut() {
                member.judge(self.rules.owner_silence, watched_since, now);
            }
        }
        let lapsed = self.table.lapse(self.rules.orphans_last, now);
        let grants = self.settle(now);
        Passed { grants, lapsed }
    }

    /// Whether there are no units.
    pub fn is_empty(&self) -> bool {
        self.table.is_empty()
    }

    /// Who owns a unit.
    pub fn owner(&self, unit: &str) -> Option<&str> {
        self.table.get(unit).map(|entry| entry.owner.as_str())
    }

    /// Where a unit is acknowledged: the subject of its newest delivery.
    pub fn ack_subject(&self, unit: &str) -> Option<&str> {
        self.table.get(unit).map(|entry| entry.ack_subject.as_str())
    }
}
