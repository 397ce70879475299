//! Logs: JSON lines on stderr.

use tracing::Level;
use tracing_subscriber::filter::Targets;
use tracing_subscriber::fmt;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;

use crate::settings::LogLevel;

/// Logs the sidecar's own lines from `level` on, and those of libraries from warnings on.
pub fn start(level: LogLevel) {
    let level = match level {
        LogLevel::Debug => Level::DEBUG,
        LogLevel::Info => Level::INFO,
        LogLevel::Warning => Level::WARN,
        LogLevel::Error => Level::ERROR,
    };
    let lines = fmt::layer()
        .json()
        .flatten_event(true)
        .with_writer(std::io::stderr);
    let shown = Targets::new()
        .with_default(level.min(Level::WARN))
        .with_target("shoal_sidecar", level);
    tracing_subscriber::registry()
        .with(lines)
        .with(shown)
        .init();
}
