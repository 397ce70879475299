//! How a claim fails.

/// A batch named units that its sender cannot run; none of its units was claimed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not held by this worker: {}", units.join(", "))]
pub struct NotOwned {
    /// The units that are unknown, owned by another worker, in a batch already, or named twice.
    pub units: Vec<String>,
}
