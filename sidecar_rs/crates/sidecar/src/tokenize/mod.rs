//! From the bytes of a unit to tokens.

mod item;
mod media;
mod pool;
mod source;
mod text;

pub use pool::{Arrival, Pool};
pub use source::{Source, Stored};
