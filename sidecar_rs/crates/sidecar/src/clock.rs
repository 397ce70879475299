//! Wall-clock time as the protos carry it.

use std::time::{SystemTime, UNIX_EPOCH};

use shoal_proto::shoal::sidecar::v1::Span;

/// Nanoseconds since 1970.
pub fn unix_ns() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| {
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    })
}

/// A span from `start` to now.
pub fn span_since(name: &str, start_unix_ns: u64) -> Span {
    Span {
        name: name.to_owned(),
        start_unix_ns,
        end_unix_ns: unix_ns(),
    }
}
