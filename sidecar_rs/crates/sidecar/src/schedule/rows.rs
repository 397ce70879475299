//! A runtime's answer cut into the values of each row.

use bytes::Bytes;
use shoal_proto::shoal::runtime::v1::BatchResult;

use crate::batch::Batch;

/// The values of each row, or why there are none.
pub fn split(
    result: &BatchResult,
    batch: &Batch,
    count: usize,
) -> Result<impl Iterator<Item = Bytes> + use<>, String> {
    if !result.error.is_empty() {
        return Err(result.error.clone());
    }
    let expected = batch.units.first().map_or(0, |member| {
        member.claimed.unit.model.profile.encode.dimensions
    });
    let row_bytes = 4 * expected;
    if result.dimensions as usize != expected || result.rows.len() != count * row_bytes {
        return Err(format!(
            "it answered {} bytes of {} dimensions where {count} rows of {expected} f32 were due",
            result.rows.len(),
            result.dimensions
        ));
    }
    let rows = result.rows.clone();
    Ok((0..count).map(move |row| rows.slice(row * row_bytes..(row + 1) * row_bytes)))
}
