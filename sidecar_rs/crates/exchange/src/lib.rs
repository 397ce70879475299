//! Who owns which unit on this machine, and who should: pure state, the clock passed in.
//!
//! A unit has one owner at any time. It is *held* until a batch claims it, and *in a batch* until the
//! batch finishes it or lets it go. The units of a worker that went away are *orphans*, those of one
//! that fell silent are as good as orphans: a sibling that holds their model takes them over at once.
//! A held unit moves as well when its owner offers it and a sibling, by the state that it posted,
//! would start it sooner.

mod countdown;
mod entry;
mod error;
mod exchange;
mod matching;
mod member;
mod offers;
mod settle;
mod standing;
mod table;
#[cfg(test)]
mod tests;

pub use error::NotOwned;
pub use exchange::{Exchange, Grant, Moved, Passed, Rules};
pub use offers::{Offer, Offered};
pub use standing::{ModelKey, Resident, Standing};
pub use table::{Admission, BatchKey, GivenBack};
