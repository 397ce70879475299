//! Waiting to a tenth of a millisecond: tokio's timers go by whole ones, and a curve may be finer.

use std::time::Duration;

use tokio::time::Instant;

/// Left to a sleeping thread: tokio may be late by this much.
const LAST: Duration = Duration::from_millis(2);

/// Returns at that instant. No core is kept busy meanwhile.
pub async fn until(instant: Instant) {
    if let Some(early) = instant.checked_sub(LAST) {
        tokio::time::sleep_until(early).await;
    }
    let rest = instant.saturating_duration_since(Instant::now());
    if !rest.is_zero() {
        // It only fails when the process ends.
        let _ = tokio::task::spawn_blocking(move || std::thread::sleep(rest)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pauses_are_never_short_and_can_end_on_time() {
        for wanted_us in [0, 300, 1_700, 4_300, 11_650] {
            // The best of many: a busy machine wakes threads late.
            let mut least_late_us = u128::MAX;
            for _ in 0..200 {
                let start = Instant::now();
                until(start + Duration::from_micros(wanted_us)).await;
                let took_us = start.elapsed().as_micros();
                assert!(took_us >= u128::from(wanted_us), "{took_us} < {wanted_us}");
                least_late_us = least_late_us.min(took_us - u128::from(wanted_us));
                if least_late_us < 200 {
                    break;
                }
            }
            assert!(
                least_late_us < 200,
                "{wanted_us} µs: late by {least_late_us}"
            );
        }
    }
}
