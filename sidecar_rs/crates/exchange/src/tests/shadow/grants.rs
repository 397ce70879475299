//! Grants as the rules allow them, and as they demand them.

use std::collections::HashSet;

use proptest::prelude::*;

use super::*;

/// Predictions are whole milliseconds, moments are not: what is nearer than this to a bound may go
/// either way.
const UNSURE_MS: f64 = 1e-6;

impl Shadow {
    /// Whether a unit is without an owner that could run it.
    pub(super) fn is_adrift(&self, known: &Unit) -> bool {
        let owner = self.workers.get(&known.owner);
        let is_silent = owner.is_some_and(|owner| owner.is_silent);
        known.orphan_since.is_some() || (known.batch.is_none() && is_silent)
    }

    /// Checks every grant against what is known, and takes it over; then that nothing more is due.
    pub(super) fn follow(&mut self, grants: &[Grant]) -> Result<(), TestCaseError> {
        let mut moved_now = HashSet::new();
        for grant in grants {
            let to = number(&grant.to);
            prop_assert!(!grant.units.is_empty());
            let mut granted_ms = 0.0;
            for moved in &grant.units {
                let unit = number(&moved.unit);
                prop_assert!(moved_now.insert(unit), "{} was granted twice", moved.unit);
                let known = self.units.get(&unit);
                prop_assert!(known.is_some(), "{} is finished or unknown", moved.unit);
                let known = known.unwrap().clone();
                prop_assert_eq!(worker_name(known.owner), moved.from.clone());
                prop_assert!(known.is_tokenized);
                self.check_move(unit, &known, to)?;
                granted_ms += known.cost_ms;
                let known = self.units.get_mut(&unit).unwrap();
                known.owner = to;
                known.orphan_since = None;
                known.starts = None;
            }
            let now = self.now;
            let worker = self.workers.get_mut(&to);
            prop_assert!(worker.is_some(), "{} is not connected", grant.to);
            let worker = worker.unwrap();
            worker.grants += 1;
            prop_assert_eq!(grant.number, worker.grants);
            worker.unseen.push((grant.number, granted_ms));
            if let Some(posted) = &mut worker.posted {
                let left_ms = posted.free_in_ms - since_ms(posted.free_as_of, now);
                posted.free_in_ms = left_ms.max(0.0) + granted_ms;
                posted.free_as_of = now;
            }
        }
        self.nothing_is_due()
    }

    /// A unit moves to its own owner after that one's restart, to an heir that holds its model, or by
    /// an offer to a sibling that has room for it.
    fn check_move(&mut self, unit: usize, known: &Unit, to: usize) -> Result<(), TestCaseError> {
        let is_adrift = self.is_adrift(known);
        let cost_ms = known.cost_ms;
        let now = self.now;
        let Some(worker) = self.workers.get_mut(&to) else {
            return Err(TestCaseError::fail(format!("w{to} is not connected")));
        };
        if to == known.owner {
            prop_assert!(known.orphan_since.is_some() && !worker.is_silent);
            if let Some(posted) = &mut worker.posted {
                posted.room_ms -= cost_ms;
            }
            return Ok(());
        }
        let posted = worker.posted.as_mut();
        prop_assert!(posted.is_some(), "w{} has posted nothing", to);
        let posted = posted.unwrap();
        prop_assert!(now - posted.at < SILENCE);
        let load_ms = posted.load_ms[unit % 2];
        prop_assert!(load_ms.is_some(), "w{} lacks the model", to);
        if !is_adrift {
            prop_assert!(known.batch.is_none());
            prop_assert!(known.starts.is_some(), "u{} is not on offer", unit);
            prop_assert!(posted.room_ms > 0.0 && posted.room_ms >= cost_ms);
            // At the earliest: other units of this grant may go first.
            let (as_of, starts_in_ms) = known.starts.unwrap();
            let owner_ms = starts_in_ms - since_ms(as_of, now);
            let left_ms = posted.free_in_ms - since_ms(posted.free_as_of, now);
            let start_ms = left_ms.max(0.0) + f64::from(load_ms.unwrap());
            prop_assert!(start_ms + MARGIN_MS <= owner_ms + UNSURE_MS);
        }
        posted.room_ms -= cost_ms;
        Ok(())
    }

    /// No unit waits that could have moved: not adrift while somebody could run it, and not on offer
    /// while a sibling has room and would start it sooner.
    fn nothing_is_due(&self) -> Result<(), TestCaseError> {
        for (unit, known) in self.units.iter().filter(|(_, known)| known.is_tokenized) {
            let is_adrift = self.is_adrift(known);
            let owner_is_back = known.orphan_since.is_some()
                && self.workers.get(&known.owner).is_some_and(|o| !o.is_silent);
            prop_assert!(!owner_is_back, "w{} lacks its u{}", known.owner, unit);
            for (name, worker) in self.workers.iter().filter(|(w, _)| **w != known.owner) {
                let fresh = |posted: &&Posted| self.now - posted.at < SILENCE;
                let Some(posted) = worker.posted.as_ref().filter(fresh) else {
                    continue;
                };
                let Some(load_ms) = posted.load_ms[unit % 2] else {
                    continue;
                };
                prop_assert!(
                    !is_adrift,
                    "u{} is adrift, and w{} could run it",
                    unit,
                    name
                );
                let Some((as_of, starts_in_ms)) = known.starts else {
                    continue;
                };
                let left_ms = posted.free_in_ms - since_ms(posted.free_as_of, self.now);
                let start_ms = left_ms.max(0.0) + f64::from(load_ms);
                let owner_ms = starts_in_ms - since_ms(as_of, self.now);
                let has_room = posted.room_ms > 0.0 && posted.room_ms >= known.cost_ms;
                let is_sooner = start_ms + MARGIN_MS <= owner_ms - UNSURE_MS;
                prop_assert!(!(has_room && is_sooner), "u{} should be w{}'s", unit, name);
            }
        }
        Ok(())
    }
}
