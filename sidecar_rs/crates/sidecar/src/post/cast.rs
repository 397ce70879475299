//! f32 values to the element type that was asked for: little-endian bytes.

use half::{bf16, f16};
use shoal_proto::shoal::v1::ElementType;

use crate::faults::ItemFault;

/// Casts a finished vector. f16 and bf16 round to nearest even, int8 is `round_half_even(127 * x)`,
/// binary has a bit for each value, set where it is above 0, most significant first.
pub fn cast(values: &[f32], to: ElementType) -> Result<Vec<u8>, ItemFault> {
    match to {
        ElementType::Unspecified | ElementType::F32 => Ok(values
            .iter()
            .flat_map(|value| value.to_le_bytes())
            .collect()),
        ElementType::F16 => {
            let halves: Vec<f16> = values.iter().map(|value| f16::from_f32(*value)).collect();
            if !halves.iter().all(|half| half.is_finite()) {
                return Err(ItemFault::BeyondF16);
            }
            Ok(halves.into_iter().flat_map(f16::to_le_bytes).collect())
        }
        ElementType::Bf16 => {
            let halves = values.iter().map(|value| bf16::from_f32(*value));
            Ok(halves.flat_map(bf16::to_le_bytes).collect())
        }
        ElementType::Int8 => {
            let scaled = values.iter().map(|value| (127.0 * value).round_ties_even());
            // `as` saturates: a value a hair above 1 stays 127.
            Ok(scaled
                .flat_map(|value| (value as i8).to_le_bytes())
                .collect())
        }
        ElementType::Binary => Ok(values.chunks(8).map(bits).collect()),
    }
}

fn bits(values: &[f32]) -> u8 {
    let set = |(index, value): (usize, &f32)| u8::from(*value > 0.0) << (7 - index);
    values.iter().enumerate().map(set).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_and_bf16_round_to_nearest_even() {
        // 2049 and 2051 lie halfway between halves: to 2048 and 2052.
        let halves = cast(&[1.0, 2049.0, 2051.0], ElementType::F16).unwrap();
        assert_eq!(halves, [0x00, 0x3c, 0x00, 0x68, 0x02, 0x68]);
        assert_eq!(
            cast(&[65_520.0], ElementType::F16),
            Err(ItemFault::BeyondF16)
        );
        // 1 + 2^-8 and 1 + 3 * 2^-8 lie halfway: to 1 and 1 + 2^-6.
        let ties = [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0, 3e38];
        let halves = cast(&ties, ElementType::Bf16).unwrap();
        assert_eq!(halves, [0x80, 0x3f, 0x82, 0x3f, 0x62, 0x7f]);
    }

    #[test]
    fn int8_rounds_half_to_even_and_saturates() {
        let of = |scaled: f32| scaled / 127.0;
        let values = [
            of(0.5),
            of(1.5),
            of(2.5),
            of(-0.5),
            of(-1.5),
            1.0,
            -1.0,
            1.01,
        ];
        let bytes = cast(&values, ElementType::Int8).unwrap();
        let ints: Vec<i8> = bytes.into_iter().map(|byte| byte as i8).collect();
        assert_eq!(ints, [0, 2, 2, 0, -2, 127, -127, 127]);
    }

    #[test]
    fn binary_sets_bits_above_zero_most_significant_first() {
        let values = [0.1, 0.0, -0.1, 1.0, -0.0, 0.0, 0.0, 1e-30, 5.0];
        assert_eq!(
            cast(&values, ElementType::Binary).unwrap(),
            [0b1001_0001, 0b1000_0000]
        );
    }

    #[test]
    fn f32_stays_as_it_is() {
        assert_eq!(cast(&[1.0], ElementType::F32).unwrap(), [0, 0, 0x80, 0x3f]);
    }
}
