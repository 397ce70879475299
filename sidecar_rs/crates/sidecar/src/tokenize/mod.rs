//! From the bytes of a unit to tokens.

mod item;
mod pool;
mod text;

pub use pool::{Arrival, Pool};
