//! Who owns which unit on this machine: pure state, the clock passed in.
//!
//! A unit has one owner at any time. It is *held* until a batch claims it, and *in a batch* until the
//! batch finishes it or lets it go. The units of a worker that went away are *orphans*: its restart
//! gets them back, a sibling that is handed the same id takes it over, and after a while they lapse.

mod entry;
mod error;
mod table;
#[cfg(test)]
mod tests;

pub use error::NotOwned;
pub use table::{Admission, BatchKey, Exchange};
