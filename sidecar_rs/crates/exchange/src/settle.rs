//! What should change hands by now, and its handing over.

use std::collections::BTreeMap;
use std::time::Instant;

use crate::matching::{Seeker, Taker, heir, soonest};
use crate::{Exchange, Grant, Moved};

/// A change of hands that is decided and not yet done.
struct Transfer {
    unit: String,
    from: String,
    to: String,
    cost_ms: f64,
    /// Units of a grant run in this order.
    rank: f64,
}

impl Exchange {
    /// Hands over whatever should change hands by now.
    pub(crate) fn settle(&mut self, now: Instant) -> Vec<Grant> {
        let transfers = self.transfers(now);
        let grants = self.hand_over(transfers, now);
        self.may_have_orphans = self.may_have_orphans && self.table.has_orphans();
        grants
    }

    fn transfers(&self, now: Instant) -> Vec<Transfer> {
        let silence = self.rules.owner_silence;
        let members = self.members.iter();
        let mut takers: Vec<Taker<'_>> = members
            .filter_map(|(worker, member)| member.taker(worker, silence, now))
            .collect();
        let mut transfers = Vec::new();
        self.match_adrift(&mut takers, &mut transfers);
        self.match_offers(&mut takers, &mut transfers, now);
        transfers
    }

    /// Units without an owner that could run them: an orphan goes to its owner if that is back, the rest
    /// to the sibling that can start it soonest.
    fn match_adrift(&self, takers: &mut [Taker<'_>], transfers: &mut Vec<Transfer>) {
        let is_silent = |worker: &str| {
            let member = self.members.get(worker);
            member.is_some_and(|member| member.is_silent)
        };
        if !self.may_have_orphans && !self.members.values().any(|member| member.is_silent) {
            return;
        }
        for (unit, entry) in self.table.adrift(is_silent) {
            let seeker = Seeker {
                owner: &entry.owner,
                model: &entry.model,
                cost_ms: entry.cost_ms,
            };
            let owner_is_back = self.members.contains_key(&entry.owner) && !is_silent(&entry.owner);
            let to = if owner_is_back {
                entry.owner.as_str()
            } else if let Some(index) = heir(takers, seeker) {
                takers[index].take(entry.cost_ms);
                takers[index].worker
            } else {
                continue;
            };
            transfers.push(Transfer {
                unit: unit.to_owned(),
                from: entry.owner.clone(),
                to: to.to_owned(),
                cost_ms: entry.cost_ms,
                rank: 0.0,
            });
        }
    }

    /// Units on offer, those first that would start last.
    fn match_offers(&self, takers: &mut [Taker<'_>], transfers: &mut Vec<Transfer>, now: Instant) {
        if takers.iter().all(|taker| taker.room_ms <= 0.0) {
            return;
        }
        let owners = self.members.iter().filter(|(_, member)| !member.is_silent);
        let offered = owners.flat_map(|(owner, member)| {
            member.offered.iter().filter_map(move |unit| {
                let entry = self.table.get(unit)?;
                let can_move = entry.is_tokenized && entry.is_held_by(owner);
                let starts_in = entry.starts_in.filter(|_| can_move)?;
                Some((starts_in.left_ms(now), unit, entry))
            })
        });
        let mut offered: Vec<_> = offered.collect();
        offered.sort_by(|(a, _, _), (b, _, _)| b.total_cmp(a));
        for (starts_in_ms, unit, entry) in offered {
            let seeker = Seeker {
                owner: &entry.owner,
                model: &entry.model,
                cost_ms: entry.cost_ms,
            };
            let Some(index) = soonest(takers, seeker, starts_in_ms, self.rules.margin_ms) else {
                continue;
            };
            takers[index].take(entry.cost_ms);
            transfers.push(Transfer {
                unit: unit.clone(),
                from: entry.owner.clone(),
                to: takers[index].worker.to_owned(),
                cost_ms: entry.cost_ms,
                rank: starts_in_ms,
            });
        }
    }

    /// Makes one grant a worker.
    fn hand_over(&mut self, mut transfers: Vec<Transfer>, now: Instant) -> Vec<Grant> {
        transfers.sort_by(|a, b| a.rank.total_cmp(&b.rank));
        let mut by_worker: BTreeMap<String, (f64, Vec<Moved>)> = BTreeMap::new();
        for transfer in transfers {
            self.table.pass(&transfer.unit, &transfer.to);
            let (cost_ms, units) = by_worker.entry(transfer.to).or_default();
            *cost_ms += transfer.cost_ms;
            units.push(Moved {
                unit: transfer.unit,
                from: transfer.from,
            });
        }
        let grants = by_worker.into_iter().filter_map(|(to, (cost_ms, units))| {
            let number = self.members.get_mut(&to)?.grant(cost_ms, now);
            Some(Grant { to, number, units })
        });
        grants.collect()
    }
}
