//! How long to wait before the next try of something that failed.

use std::time::Duration;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(10);

/// Doubles from 0.1 s to 10 s; the first try after a success waits not at all.
#[derive(Debug, Default)]
pub struct Backoff {
    next: Duration,
}

impl Backoff {
    /// The wait before the next try.
    pub fn wait(&mut self) -> Duration {
        let wait = self.next;
        self.next = (2 * wait).clamp(FIRST, LONGEST);
        wait
    }

    /// A try succeeded.
    pub fn reset(&mut self) {
        self.next = Duration::ZERO;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_start_over_after_a_success() {
        let mut backoff = Backoff::default();
        let waits: Vec<u128> = (0..10).map(|_| backoff.wait().as_millis()).collect();
        assert_eq!(
            waits,
            [0, 100, 200, 400, 800, 1_600, 3_200, 6_400, 10_000, 10_000]
        );
        backoff.reset();
        assert_eq!(backoff.wait(), Duration::ZERO);
    }
}
