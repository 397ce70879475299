//! Which sibling a unit should go to: a pure choice among what is known of each.

use std::cmp::Ordering;

use crate::{ModelKey, Resident};

/// A worker that may take units, as it stands now.
#[derive(Debug, Clone)]
pub(crate) struct Taker<'a> {
    pub(crate) worker: &'a str,
    pub(crate) free_in_ms: f64,
    pub(crate) room_ms: f64,
    pub(crate) residents: &'a [Resident],
}

/// A unit that looks for an owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Seeker<'a> {
    pub(crate) owner: &'a str,
    pub(crate) model: &'a ModelKey,
    pub(crate) cost_ms: f64,
}

impl Taker<'_> {
    /// Counts a unit in that it will be granted.
    pub(crate) fn take(&mut self, cost_ms: f64) {
        self.free_in_ms += cost_ms;
        self.room_ms -= cost_ms;
    }

    /// What loading a model costs it first; none when it cannot run it.
    fn load_ms(&self, model: &ModelKey) -> Option<f64> {
        let resident = self.residents.iter().find(|one| one.model == *model)?;
        Some(resident.load_ms.max(0.0))
    }
}

/// The sibling that would start an offered unit soonest, if that is `margin_ms` sooner than its owner
/// would and the sibling has room for all of it. An owner that should have started it by now is never
/// beaten: then its own prediction was wrong, and it is about to offer anew.
pub(crate) fn soonest(
    takers: &[Taker<'_>],
    unit: Seeker<'_>,
    starts_in_ms: f64,
    margin_ms: f64,
) -> Option<usize> {
    best(takers, unit, |taker, load_ms| {
        let start_ms = taker.free_in_ms + load_ms;
        let has_room = taker.room_ms > 0.0 && taker.room_ms >= unit.cost_ms;
        (has_room && start_ms + margin_ms <= starts_in_ms).then_some((false, start_ms))
    })
}

/// The sibling that takes over a unit whose owner is gone: one that has the model ready before one that
/// would load it, then the one that starts it soonest, whether it has room or not.
pub(crate) fn heir(takers: &[Taker<'_>], unit: Seeker<'_>) -> Option<usize> {
    best(takers, unit, |taker, load_ms| {
        Some((load_ms > 0.0, taker.free_in_ms + load_ms))
    })
}

/// The taker with the least rank, and among equals the least loaded.
fn best(
    takers: &[Taker<'_>],
    unit: Seeker<'_>,
    rank: impl Fn(&Taker<'_>, f64) -> Option<(bool, f64)>,
) -> Option<usize> {
    let ranked = takers.iter().enumerate().filter_map(|(index, taker)| {
        let load_ms = taker.load_ms(unit.model)?;
        let is_sibling = taker.worker != unit.owner;
        let (loads, start_ms) = is_sibling.then(|| rank(taker, load_ms)).flatten()?;
        Some((index, (loads, start_ms, taker.room_ms)))
    });
    let order = |a: &(bool, f64, f64), b: &(bool, f64, f64)| -> Ordering {
        let starts = a.0.cmp(&b.0).then(a.1.total_cmp(&b.1));
        starts.then(b.2.total_cmp(&a.2))
    };
    let best = ranked.min_by(|(_, a), (_, b)| order(a, b));
    best.map(|(index, _)| index)
}
