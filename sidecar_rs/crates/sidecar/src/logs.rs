//! Logs: JSON lines on stderr.

use tracing::level_filters::LevelFilter;

pub fn start(level: LevelFilter) {
    tracing_subscriber::fmt()
        .json()
        .flatten_event(true)
        .with_max_level(level)
        .with_writer(std::io::stderr)
        .init();
}
