//! A connected worker: what it posted, corrected by what it was granted since.

use std::time::{Duration, Instant};

use crate::countdown::{Countdown, MOST_MS, bounded_ms};
use crate::matching::Taker;
use crate::{Resident, Standing};

#[derive(Debug, Default)]
pub(crate) struct Member {
    posted: Option<Posted>,
    /// It has siblings and posted nothing for too long: as good as gone until it posts again.
    pub(crate) is_silent: bool,
    /// Number of the last grant on its connection.
    last_grant: u64,
    /// Grants that its standing doesn't count: number and predicted milliseconds.
    unseen: Vec<(u64, f64)>,
    /// The units of its newest offer, those included that have left it since.
    pub(crate) offered: Vec<String>,
}

#[derive(Debug)]
struct Posted {
    at: Instant,
    free_in: Countdown,
    /// Below 0 after orphans were forced on it.
    room_ms: f64,
    residents: Vec<Resident>,
}

impl Member {
    /// Takes in what the worker posts. Grants that it had not read then still count against it.
    pub(crate) fn post(&mut self, standing: Standing, now: Instant) {
        self.unseen
            .retain(|(number, _)| *number > standing.grants_seen);
        let unseen_ms: f64 = self.unseen.iter().map(|(_, cost_ms)| cost_ms).sum();
        let free_in_ms = bounded_ms(standing.free_in_ms, MOST_MS);
        self.is_silent = false;
        self.posted = Some(Posted {
            at: now,
            free_in: Countdown::new(free_in_ms + unseen_ms, now),
            room_ms: bounded_ms(standing.room_ms, 0.0) - unseen_ms,
            residents: standing.residents,
        });
    }

    /// Counts a grant in. Returns its number.
    pub(crate) fn grant(&mut self, cost_ms: f64, now: Instant) -> u64 {
        self.last_grant += 1;
        self.unseen.push((self.last_grant, cost_ms));
        if let Some(posted) = &mut self.posted {
            posted.free_in = Countdown::new(posted.free_in.left_ms(now) + cost_ms, now);
            posted.room_ms -= cost_ms;
        }
        self.last_grant
    }

    /// Forgets what it posted: it is judged by what it posts from now on.
    pub(crate) fn withdraw(&mut self) {
        self.posted = None;
        self.is_silent = false;
    }

    /// Judges it by how long it has posted nothing since `watched_since`.
    pub(crate) fn judge(&mut self, silence: Duration, watched_since: Instant, now: Instant) {
        let Some(posted) = &self.posted else {
            return;
        };
        let heard = posted.at.max(watched_since);
        self.is_silent |= now.saturating_duration_since(heard) >= silence;
    }

    /// What matching needs to know of it; none when what it posted is too old to go by.
    pub(crate) fn taker<'a>(
        &'a self,
        worker: &'a str,
        silence: Duration,
        now: Instant,
    ) -> Option<Taker<'a>> {
        let posted = self.posted.as_ref()?;
        let is_fresh = now.saturating_duration_since(posted.at) < silence;
        is_fresh.then(|| Taker {
            worker,
            free_in_ms: posted.free_in.left_ms(now),
            room_ms: posted.room_ms,
            residents: &posted.residents,
        })
    }
}
