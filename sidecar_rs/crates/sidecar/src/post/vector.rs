//! A model's raw values to the vector that was asked for: cut, then normalised. Normalising before
//! the cut as well would change nothing but the rounding.

use crate::faults::ItemFault;
use crate::options::Options;

/// Below this, a norm is taken as this: what torch.nn.functional.normalize does.
const LEAST_NORM: f64 = 1e-12;

/// Reads little-endian f32 values and finishes them.
pub fn finished(bytes: &[u8], options: &Options) -> Result<Vec<f32>, ItemFault> {
    let words = bytes.chunks_exact(4);
    let mut values: Vec<f32> = words
        .map(|word| f32::from_le_bytes([word[0], word[1], word[2], word[3]]))
        .collect();
    if !values.iter().all(|value| value.is_finite()) {
        return Err(ItemFault::NonFinite);
    }
    values.truncate(options.dimensions);
    if options.normalize {
        normalize(&mut values);
    }
    Ok(values)
}

fn normalize(values: &mut [f32]) {
    let squares: f64 = values.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
    let norm = squares.sqrt().max(LEAST_NORM);
    for value in values {
        *value = (f64::from(*value) / norm) as f32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::minilm_profile;

    fn finish(values: &[f32], normalize: bool, dimensions: usize) -> Result<Vec<f32>, ItemFault> {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        let options = Options {
            normalize,
            dimensions,
            ..Options::parse(&[], &minilm_profile()).unwrap()
        };
        finished(&bytes, &options)
    }

    #[test]
    fn vectors_are_cut_and_have_length_one_afterwards() {
        assert_eq!(finish(&[3.0, 4.0], true, 2), Ok(vec![0.6, 0.8]));
        assert_eq!(finish(&[3.0, 4.0, 12.0], true, 2), Ok(vec![0.6, 0.8]));
        assert_eq!(finish(&[3.0, 4.0, 12.0], false, 2), Ok(vec![3.0, 4.0]));
        assert_eq!(finish(&[0.0, 0.0], true, 2), Ok(vec![0.0, 0.0]));
    }

    #[test]
    fn values_that_are_not_finite_are_a_fault() {
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            assert_eq!(finish(&[1.0, bad], true, 1), Err(ItemFault::NonFinite));
        }
    }
}
