//! What a worker posts of itself: how soon it could start more, how much it takes, and what it can run.

/// A model, with or without an adapter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ModelKey {
    /// The profile's digest.
    pub profile_digest: String,
    /// The adapter's digest; empty for the model alone.
    pub adapter_digest: String,
}

/// A model on a worker's device.
#[derive(Debug, Clone, PartialEq)]
pub struct Resident {
    /// Which one.
    pub model: ModelKey,
    /// Milliseconds that loading would take first; 0 when it is ready.
    pub load_ms: f64,
}

/// Takes the place of what the same worker posted before.
#[derive(Debug, Clone, PartialEq)]
pub struct Standing {
    /// Milliseconds until its device could start a unit that it is granted now.
    pub free_in_ms: f64,
    /// Predicted milliseconds of further units that it takes.
    pub room_ms: f64,
    /// What it can run.
    pub residents: Vec<Resident>,
    /// Number of the last grant that it counted into the above.
    pub grants_seen: u64,
}
