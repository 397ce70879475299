//! A stretch of milliseconds that runs down by itself.

use std::time::Instant;

/// Longer than anything that a worker predicts: what it says is cut to this.
pub(crate) const MOST_MS: f64 = 1e9;

/// Milliseconds left as of a moment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Countdown {
    ms: f64,
    as_of: Instant,
}

impl Countdown {
    pub(crate) fn new(ms: f64, now: Instant) -> Self {
        Self { ms, as_of: now }
    }

    /// What is left of it; 0 once it has passed.
    pub(crate) fn left_ms(self, now: Instant) -> f64 {
        let gone = now.saturating_duration_since(self.as_of);
        (self.ms - gone.as_secs_f64() * 1e3).max(0.0)
    }
}

/// Milliseconds as a worker said them, within bounds; `if_nan` where it said no number.
pub(crate) fn bounded_ms(said: f64, if_nan: f64) -> f64 {
    if said.is_nan() {
        return if_nan;
    }
    said.clamp(0.0, MOST_MS)
}
