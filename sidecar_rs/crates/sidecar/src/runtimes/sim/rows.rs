//! What a row gives: values that depend on its token ids alone, so that a test can tell what to expect.
//! `tests/support/sim.py` has the same function.

use super::chance::splitmix;

const FNV_OFFSET: u64 = 0xcbf2_9ce4_8422_2325;
const FNV_PRIME: u64 = 0x0100_0000_01b3;
/// Bits that a value is made of: an f32 holds them exactly.
const VALUE_BITS: u32 = 24;

/// The values of a row, from -1 up to but not 1: a splitmix64 sequence whose state starts at the
/// row's hash, FNV-1a over ids as 32-bit words in place of bytes. Of each number the upper 24 bits
/// count.
pub fn values(ids: &[i32], dimensions: usize) -> impl Iterator<Item = f32> {
    let mut state = hash(ids);
    let half = (1_u64 << (VALUE_BITS - 1)) as f32;
    (0..dimensions).map(move |_| {
        let upper = splitmix(&mut state) >> (u64::BITS - VALUE_BITS);
        // Exact: both the quotient and the difference have no more than 24 bits.
        (upper as f32) / half - 1.0
    })
}

/// FNV-1a, a whole id at a time.
pub fn hash(ids: &[i32]) -> u64 {
    ids.iter().fold(FNV_OFFSET, |state, id| {
        (state ^ u64::from(id.cast_unsigned())).wrapping_mul(FNV_PRIME)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_those_that_the_python_tests_expect() {
        let given = |ids: &[i32]| values(ids, 4).collect::<Vec<f32>>();
        // From tests/support/sim.py, which tests/unit/support/test_sim.py holds to the same numbers.
        assert_eq!(
            given(&[101, 3869, 102]),
            [0.069_493_53, -0.218_256_95, 0.215_860_49, -0.627_346_16]
        );
        assert_eq!(
            given(&[-1, 5])[..3],
            [0.895_772_6, -0.488_593_46, -0.389_694_8]
        );
        assert_eq!(given(&[])[..3], [0.527_389_05, -0.874_607_8, -0.337_779_4]);
    }

    #[test]
    fn values_lie_in_their_range_and_differ_between_rows() {
        let many: Vec<f32> = values(&[7; 3], 10_000).collect();
        assert!(many.iter().all(|value| (-1.0..1.0).contains(value)));
        let mean = many.iter().sum::<f32>() / many.len() as f32;
        assert!(mean.abs() < 0.05, "{mean}");
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
        assert_ne!(hash(&[0]), hash(&[0, 0]));
    }
}
