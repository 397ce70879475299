//! Media to the tokens that stand for them, for models that take media.

use sha2::{Digest, Sha256};

use crate::faults::ItemFault;
use crate::limits::MEDIA_BYTES;
use crate::unit::Tokens;

/// Media up to this size are looked at whole.
const WHOLE_BYTES: usize = 64 * 1024;
/// Of larger ones so many windows, the first at the begin and the last at the end.
const WINDOWS: usize = 64;
const WINDOW_BYTES: usize = 1024;

/// Eight ids: the SHA-256 of a sample of the data as little-endian words, each without its sign bit.
/// Only simulated models take media, and theirs is any function of the data; what it costs to
/// compute is for the sim file to say.
pub fn tokens(data: &[u8]) -> Result<Tokens, ItemFault> {
    let bytes = data.len();
    if bytes == 0 {
        return Err(ItemFault::MediaEmpty);
    }
    if bytes > MEDIA_BYTES {
        return Err(ItemFault::MediaTooLarge { bytes });
    }
    let digest = sample(data);
    let words = digest.as_ref().as_chunks().0.iter();
    let ids: Box<[i32]> = words
        .map(|word| i32::from_le_bytes(*word) & i32::MAX)
        .collect();
    Ok(Tokens {
        input_tokens: ids.len() as u32,
        ids,
        lower_bound: false,
    })
}

fn sample(data: &[u8]) -> impl AsRef<[u8]> {
    if data.len() <= WHOLE_BYTES {
        return Sha256::digest(data);
    }
    let mut digest = Sha256::new().chain_update((data.len() as u64).to_le_bytes());
    for window in 0..WINDOWS {
        let begin = window * (data.len() - WINDOW_BYTES) / (WINDOWS - 1);
        digest.update(&data[begin..begin + WINDOW_BYTES]);
    }
    digest.finalize()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_those_that_the_python_tests_expect() {
        // From tests/support/sim.py, which tests/unit/support/test_sim.py holds to the same numbers.
        let expected = [
            1_058_437_306,
            1_791_951_247,
            1_581_269_313,
            589_475_421,
            593_560_496,
            477_763_478,
            1_644_105_908,
            756_351_218,
        ];
        let small = tokens(b"abc").unwrap();
        assert_eq!(*small.ids, expected);
        assert_eq!((small.input_tokens, small.truncated()), (8, false));
        let large: Vec<u8> = (0..1_000_000).map(|place| (place % 251) as u8).collect();
        let expected = [
            2_002_908_509,
            1_143_776_391,
            2_139_341_145,
            1_094_046_007,
            2_111_881_168,
            1_544_483_327,
            1_382_035_625,
            340_919_976,
        ];
        assert_eq!(*tokens(&large).unwrap().ids, expected);
    }

    #[test]
    fn media_have_data_but_not_too_much() {
        assert_eq!(tokens(b"").unwrap_err(), ItemFault::MediaEmpty);
        assert!(tokens(&vec![0; MEDIA_BYTES]).is_ok());
        let bytes = MEDIA_BYTES + 1;
        let fault = tokens(&vec![0; bytes]).unwrap_err();
        assert_eq!(fault, ItemFault::MediaTooLarge { bytes });
        assert_eq!(
            fault.to_string(),
            "item.media.data has 33554433 bytes, at most 33554432 are allowed"
        );
    }
}
