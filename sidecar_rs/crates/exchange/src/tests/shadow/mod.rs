//! What should be, by the rules alone: it makes each move beside the exchange.

mod grants;

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

pub(super) const WORKERS: usize = 3;
pub(super) const UNITS: usize = 8;

#[derive(Debug, Clone)]
pub(super) enum Move {
    Admit(usize, usize),
    Tokenized(Vec<usize>),
    Claim(usize, Vec<usize>),
    Unclaim,
    Finish,
    Release(usize, Vec<usize>),
    GiveBack(usize, Vec<usize>),
    Post(usize, Post),
    /// Units with their cost and start.
    Offer(usize, Vec<(usize, u32, u32)>),
    Gone(usize),
    Back(usize),
    /// Milliseconds pass, then the exchange is told.
    Pass(u64),
}

#[derive(Debug, Clone)]
pub(super) struct Post {
    pub(super) free_in_ms: u32,
    pub(super) room_ms: u32,
    /// What loading model `m0` and `m1` would cost; none when it cannot.
    pub(super) load_ms: [Option<u32>; 2],
    pub(super) sees_grants: bool,
}

/// What the rules say of a unit.
#[derive(Debug, Clone)]
struct Unit {
    owner: usize,
    batch: Option<u64>,
    orphan_since: Option<Instant>,
    is_tokenized: bool,
    /// As last offered.
    cost_ms: f64,
    /// While on offer: until when its owner would start it.
    starts: Option<(Instant, f64)>,
}

/// What the rules say of a connected worker.
#[derive(Debug, Clone, Default)]
struct Worker {
    posted: Option<Posted>,
    is_silent: bool,
    grants: u64,
    unseen: Vec<(u64, f64)>,
}

#[derive(Debug, Clone)]
struct Posted {
    at: Instant,
    free_in_ms: f64,
    free_as_of: Instant,
    room_ms: f64,
    load_ms: [Option<u32>; 2],
}

pub(super) struct Shadow {
    exchange: Exchange,
    now: Instant,
    units: BTreeMap<usize, Unit>,
    workers: BTreeMap<usize, Worker>,
    batches: Vec<(u64, Vec<usize>)>,
    last_batch: u64,
    last_tick: Option<Instant>,
    watched_since: Instant,
}

fn unit_name(unit: usize) -> String {
    format!("u{unit}")
}

fn worker_name(worker: usize) -> String {
    format!("w{worker}")
}

fn number(name: &str) -> usize {
    name[1..].parse().unwrap()
}

fn unit_names(units: &[usize]) -> Vec<String> {
    units.iter().copied().map(unit_name).collect()
}

/// Even units run with `m0`, odd ones with `m1`.
fn model_of(unit: usize) -> ModelKey {
    model(&format!("m{}", unit % 2))
}

fn since_ms(then: Instant, now: Instant) -> f64 {
    (now - then).as_secs_f64() * 1e3
}

impl Shadow {
    pub(super) fn new() -> Self {
        let now = Instant::now();
        Self {
            exchange: Exchange::new(RULES),
            now,
            units: BTreeMap::new(),
            workers: BTreeMap::new(),
            batches: Vec::new(),
            last_batch: 0,
            last_tick: None,
            watched_since: now,
        }
    }

    pub(super) fn step(&mut self, step: Move) -> Result<(), TestCaseError> {
        match step {
            Move::Admit(worker, unit) => self.admit(worker, unit),
            Move::Tokenized(units) => self.tokenized(&units),
            Move::Claim(worker, units) => self.claim(worker, units),
            Move::Unclaim => self.unclaim(),
            Move::Finish => self.finish(),
            Move::Release(worker, units) => self.release(worker, &units),
            Move::GiveBack(worker, units) => self.give_back(worker, &units),
            Move::Post(worker, post) => self.post(worker, &post),
            Move::Offer(worker, offer) => self.offer(worker, &offer),
            Move::Gone(worker) => self.gone(worker),
            Move::Back(worker) => self.back(worker),
            Move::Pass(milliseconds) => self.pass(milliseconds),
        }
    }

    fn admit(&mut self, worker: usize, unit: usize) -> Result<(), TestCaseError> {
        if !self.workers.contains_key(&worker) {
            return Ok(());
        }
        let expected = match self.units.get_mut(&unit) {
            None => {
                let unknown = Unit {
                    owner: worker,
                    batch: None,
                    orphan_since: None,
                    is_tokenized: false,
                    cost_ms: 1.0,
                    starts: None,
                };
                self.units.insert(unit, unknown);
                Admission::New
            }
            Some(known) => {
                let owner = self.workers.get(&known.owner);
                let is_silent = owner.is_some_and(|owner| owner.is_silent);
                let is_taken = known.orphan_since.is_none() && is_silent && known.owner != worker;
                let taken_from = is_taken.then(|| worker_name(known.owner));
                if is_taken || known.orphan_since.is_some() {
                    known.owner = worker;
                    known.batch = None;
                    known.orphan_since = None;
                    known.starts = None;
                }
                Admission::Held {
                    owner: worker_name(known.owner),
                    taken_from,
                }
            }
        };
        let (worker, ack) = (worker_name(worker), "ack".to_owned());
        let admission = self
            .exchange
            .admit(&worker, &unit_name(unit), ack, model_of(unit));
        prop_assert_eq!(admission, expected);
        Ok(())
    }

    fn tokenized(&mut self, units: &[usize]) -> Result<(), TestCaseError> {
        for unit in units {
            if let Some(known) = self.units.get_mut(unit) {
                known.is_tokenized = true;
            }
        }
        let names = unit_names(units);
        let names = names.iter().map(String::as_str);
        let grants = self.exchange.tokenized(names, self.now);
        self.follow(&grants)
    }

    fn claim(&mut self, worker: usize, units: Vec<usize>) -> Result<(), TestCaseError> {
        self.last_batch += 1;
        let refused = self.refused(worker, &units);
        let batch = self.last_batch;
        let claimed = self
            .exchange
            .claim(&worker_name(worker), batch, &unit_names(&units));
        if refused.is_empty() {
            prop_assert_eq!(claimed, Ok(()));
            for unit in &units {
                let known = self.units.get_mut(unit).unwrap();
                known.batch = Some(batch);
                known.starts = None;
            }
            self.batches.push((batch, units));
        } else {
            let units = unit_names(&refused);
            prop_assert_eq!(claimed, Err(NotOwned { units }));
        }
        Ok(())
    }

    fn unclaim(&mut self) -> Result<(), TestCaseError> {
        if let Some((batch, units)) = self.batches.pop() {
            self.exchange.unclaim(batch, &unit_names(&units));
            for known in self.units.values_mut() {
                known.batch = known.batch.filter(|of| *of != batch);
            }
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<(), TestCaseError> {
        if let Some((batch, units)) = self.batches.pop() {
            let before = self.units.len();
            self.units.retain(|_, known| known.batch != Some(batch));
            let names = unit_names(&units);
            let finished = self.exchange.finish(batch, &names).len();
            prop_assert_eq!(finished, before - self.units.len());
        }
        Ok(())
    }

    fn release(&mut self, worker: usize, units: &[usize]) -> Result<(), TestCaseError> {
        let is_released =
            |unit: &usize, known: &Unit| known.owner == worker && units.contains(unit);
        self.units.retain(|unit, known| !is_released(unit, known));
        self.exchange
            .release(&worker_name(worker), &unit_names(units));
        Ok(())
    }

    fn give_back(&mut self, worker: usize, units: &[usize]) -> Result<(), TestCaseError> {
        let refused = self.refused(worker, units);
        let given = self
            .exchange
            .give_back(&worker_name(worker), &unit_names(units));
        prop_assert_eq!(given.not_owned, unit_names(&refused));
        for (unit, _) in &given.units {
            let gone = self.units.remove(&number(unit));
            prop_assert!(gone.is_some(), "{} was given back twice", unit);
        }
        prop_assert_eq!(given.units.len(), units.len() - refused.len());
        Ok(())
    }

    fn post(&mut self, worker: usize, post: &Post) -> Result<(), TestCaseError> {
        let now = self.now;
        let mut grants_seen = 0;
        if let Some(known) = self.workers.get_mut(&worker) {
            if post.sees_grants {
                known.unseen.clear();
                grants_seen = known.grants;
            }
            let unseen_ms: f64 = known.unseen.iter().map(|(_, cost_ms)| cost_ms).sum();
            known.is_silent = false;
            known.posted = Some(Posted {
                at: now,
                free_in_ms: f64::from(post.free_in_ms) + unseen_ms,
                free_as_of: now,
                room_ms: f64::from(post.room_ms) - unseen_ms,
                load_ms: post.load_ms,
            });
        }
        let residents = post.load_ms.iter().enumerate().filter_map(|(model, load)| {
            Some(Resident {
                model: model_of(model),
                load_ms: f64::from((*load)?),
            })
        });
        let standing = Standing {
            free_in_ms: f64::from(post.free_in_ms),
            room_ms: f64::from(post.room_ms),
            residents: residents.collect(),
            grants_seen,
        };
        let grants = self.exchange.post(&worker_name(worker), standing, now);
        self.follow(&grants)
    }

    fn offer(&mut self, worker: usize, offer: &[(usize, u32, u32)]) -> Result<(), TestCaseError> {
        let units: Vec<usize> = offer.iter().map(|(unit, _, _)| *unit).collect();
        let refused = match self.workers.get(&worker) {
            Some(_) => self.refused(worker, &units),
            None => units,
        };
        if self.workers.contains_key(&worker) {
            let mine = |known: &&mut Unit| known.owner == worker;
            for known in self.units.values_mut().filter(mine) {
                known.starts = None;
            }
            for (unit, cost_ms, starts_in_ms) in offer {
                let known = self.units.get_mut(unit);
                let mine = |known: &&mut Unit| {
                    known.owner == worker && known.batch.is_none() && known.orphan_since.is_none()
                };
                if let Some(known) = known.filter(mine) {
                    known.cost_ms = f64::from(*cost_ms);
                    known.starts = Some((self.now, f64::from(*starts_in_ms)));
                }
            }
        }
        let said = offer.iter().map(|(unit, cost_ms, starts_in_ms)| {
            let (cost_ms, starts_in_ms) = (f64::from(*cost_ms), f64::from(*starts_in_ms));
            offered(&unit_name(*unit), cost_ms, starts_in_ms)
        });
        let (grants, not_owned) =
            self.exchange
                .offer(&worker_name(worker), &said.collect(), self.now);
        prop_assert_eq!(not_owned, unit_names(&refused));
        self.follow(&grants)
    }

    fn gone(&mut self, worker: usize) -> Result<(), TestCaseError> {
        self.workers.remove(&worker);
        self.orphan(worker);
        let grants = self.exchange.worker_gone(&worker_name(worker), self.now);
        self.follow(&grants)
    }

    fn back(&mut self, worker: usize) -> Result<(), TestCaseError> {
        self.workers.remove(&worker);
        if self.workers.len() == 1 {
            for alone in self.workers.values_mut() {
                alone.posted = None;
                alone.is_silent = false;
            }
        }
        self.workers.insert(worker, Worker::default());
        self.orphan(worker);
        let grants = self.exchange.worker_back(&worker_name(worker), self.now);
        self.follow(&grants)
    }

    fn pass(&mut self, milliseconds: u64) -> Result<(), TestCaseError> {
        self.now += ms(milliseconds);
        let now = self.now;
        let slept = self.last_tick.is_none_or(|last| now - last > SILENCE / 2);
        if slept {
            self.watched_since = now;
        }
        self.last_tick = Some(now);
        if self.workers.len() > 1 {
            for worker in self.workers.values_mut() {
                if let Some(posted) = &worker.posted {
                    worker.is_silent |= now - posted.at.max(self.watched_since) >= SILENCE;
                }
            }
        }
        let lapses = |known: &Unit| {
            let since = known.orphan_since;
            since.is_some_and(|since| now - since >= ACK_WAIT)
        };
        let lapsed: Vec<usize> = self
            .units
            .iter()
            .filter(|(_, known)| lapses(known))
            .map(|(unit, _)| *unit)
            .collect();
        self.units.retain(|unit, _| !lapsed.contains(unit));
        let passed = self.exchange.tick(now);
        prop_assert_eq!(passed.lapsed, unit_names(&lapsed));
        self.follow(&passed.grants)
    }

    fn orphan(&mut self, worker: usize) {
        for known in self
            .units
            .values_mut()
            .filter(|known| known.owner == worker)
        {
            known.batch = None;
            known.starts = None;
            known.orphan_since.get_or_insert(self.now);
        }
    }

    /// Ids that a worker does not hold, or names a second time.
    fn refused(&self, worker: usize, units: &[usize]) -> Vec<usize> {
        let is_held = |unit: &usize| {
            self.units.get(unit).is_some_and(|known| {
                known.owner == worker && known.batch.is_none() && known.orphan_since.is_none()
            })
        };
        let named = units.iter().enumerate();
        named
            .filter(|(at, unit)| units[..*at].contains(unit) || !is_held(unit))
            .map(|(_, unit)| *unit)
            .collect()
    }

    /// Each unit has the owner that the rules give it, and no other is known.
    pub(super) fn owners_agree(&self) -> Result<(), TestCaseError> {
        for unit in 0..UNITS {
            let owner = self.units.get(&unit).map(|known| worker_name(known.owner));
            prop_assert_eq!(self.exchange.owner(&unit_name(unit)), owner.as_deref());
        }
        prop_assert_eq!(self.exchange.is_empty(), self.units.is_empty());
        Ok(())
    }
}
