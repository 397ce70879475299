//! What a worker offers its siblings.

/// A unit that would start sooner elsewhere.
#[derive(Debug, Clone, PartialEq)]
pub struct Offered {
    /// Its id.
    pub unit: String,
    /// Predicted milliseconds that it adds to a batch.
    pub cost_ms: f64,
    /// Milliseconds until its owner would start it.
    pub starts_in_ms: f64,
}

/// Units on offer; takes the place of the same worker's offer before.
pub type Offer = Vec<Offered>;
