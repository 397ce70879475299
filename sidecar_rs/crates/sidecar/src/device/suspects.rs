//! Models that a runtime ended of while it loaded them: pure state.

use std::collections::HashMap;

use tokio::time::Instant;

use crate::limits::{LOAD_DEATHS, LOAD_REST};

/// Models under suspicion, by profile digest. One that was unloaded stays under it.
#[derive(Default)]
pub struct Suspects {
    records: HashMap<String, Record>,
}

struct Record {
    deaths: u32,
    last: Instant,
}

impl Suspects {
    /// A runtime ended while it loaded this model.
    pub fn died(&mut self, digest: &str, now: Instant) {
        // Longer than the rest, so that the try after it is a careful one too.
        self.records
            .retain(|_, record| now < record.last + 2 * LOAD_REST);
        let first = Record {
            deaths: 0,
            last: now,
        };
        let record = self.records.entry(digest.to_owned()).or_insert(first);
        record.deaths += 1;
        record.last = now;
    }

    /// A runtime answered for this model, well or not, and lives.
    pub fn survived(&mut self, digest: &str) {
        self.records.remove(digest);
    }

    /// Whether it is to be loaded last, with nothing beside it.
    pub fn contains(&self, digest: &str) -> bool {
        self.records.contains_key(digest)
    }

    /// Why it is not to be loaded now; none if it may be.
    pub fn verdict(&self, digest: &str, now: Instant) -> Option<String> {
        let record = self.records.get(digest)?;
        let guilty = record.deaths >= LOAD_DEATHS && now < record.last + LOAD_REST;
        guilty.then(|| {
            format!(
                "the runtime ended while it loaded this model, {} times",
                record.deaths
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: std::time::Duration = std::time::Duration::from_secs(1);

    #[test]
    fn a_model_rests_after_its_second_death_and_then_after_each() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        suspects.died("m", start);
        assert!(suspects.contains("m"));
        assert_eq!(suspects.verdict("m", start), None);
        suspects.died("m", start);
        let verdict = suspects.verdict("m", start + LOAD_REST - SECOND);
        assert!(verdict.unwrap().ends_with("2 times"));
        assert_eq!(suspects.verdict("m", start + LOAD_REST), None);
        assert!(suspects.contains("m"), "the next try is a careful one");
        suspects.died("m", start + LOAD_REST);
        let verdict = suspects.verdict("m", start + LOAD_REST);
        assert!(verdict.unwrap().ends_with("3 times"));
        assert!(!suspects.contains("other"));
    }

    #[test]
    fn a_model_that_a_runtime_survives_starts_over() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        suspects.died("m", start);
        suspects.survived("m");
        assert!(!suspects.contains("m"));
        suspects.died("m", start);
        assert_eq!(suspects.verdict("m", start), None);
    }

    #[test]
    fn models_that_nobody_tries_any_more_are_forgotten() {
        let (mut suspects, start) = (Suspects::default(), Instant::now());
        suspects.died("m", start);
        suspects.died("other", start + 2 * LOAD_REST);
        assert!(!suspects.contains("m") && suspects.contains("other"));
    }
}
