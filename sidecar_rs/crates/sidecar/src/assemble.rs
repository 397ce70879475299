//! Rows of a batch to the packed form that runtimes take.

use bytes::Bytes;

use crate::batch::Batch;

/// Packed rows: ids one row after the other, and the length of each; little-endian i32.
#[derive(Debug, PartialEq, Eq)]
pub struct Packed {
    pub token_ids: Bytes,
    pub lengths: Bytes,
}

/// Sorts `rows` by length, shortest first, and packs their tokens in that order.
pub fn pack(batch: &Batch, rows: &mut [usize]) -> Packed {
    rows.sort_by_key(|row| batch.tokens(*row).len());
    let tokens: usize = rows.iter().map(|row| batch.tokens(*row).len()).sum();
    let mut token_ids = Vec::with_capacity(4 * tokens);
    let mut lengths = Vec::with_capacity(4 * rows.len());
    for row in rows.iter() {
        let tokens = batch.tokens(*row);
        lengths.extend_from_slice(&(tokens.len() as i32).to_le_bytes());
        for id in tokens {
            token_ids.extend_from_slice(&id.to_le_bytes());
        }
    }
    Packed {
        token_ids: token_ids.into(),
        lengths: lengths.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::batch_of_lengths;

    fn i32s(bytes: &[u8]) -> Vec<i32> {
        let words = bytes.chunks_exact(4);
        words
            .map(|word| i32::from_le_bytes(word.try_into().unwrap()))
            .collect()
    }

    #[test]
    fn rows_go_shortest_first_and_equal_ones_keep_their_order() {
        let (batch, _outgoing) = batch_of_lengths(7, &[&[3, 1], &[2, 1]]);
        let mut rows = vec![0, 1, 2, 3];
        let packed = pack(&batch, &mut rows);
        assert_eq!(rows, [1, 3, 2, 0]);
        assert_eq!(i32s(&packed.lengths), [1, 1, 2, 3]);
        assert_eq!(i32s(&packed.token_ids), [2, 2, 1, 1, 1, 1, 1]);
    }
}
