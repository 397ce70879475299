//! How long a batch takes: a curve in its rows' lengths, as the cost model of the workers has it.

use serde::{Deserialize, Serialize};

/// milliseconds = batch_ms + token_us·tokens/1e3 + squared_token_ns·Σlength²/1e6 + item_us·rows/1e3
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Cost {
    pub batch_ms: f64,
    pub token_us: f64,
    pub squared_token_ns: f64,
    pub item_us: f64,
}

impl Cost {
    /// Milliseconds of a batch with rows of these lengths.
    pub fn ms(&self, lengths: &[usize]) -> f64 {
        let tokens: usize = lengths.iter().sum();
        let squared_tokens: f64 = lengths.iter().map(|length| (*length as f64).powi(2)).sum();
        self.batch_ms
            + self.token_us * tokens as f64 / 1e3
            + self.squared_token_ns * squared_tokens / 1e6
            + self.item_us * lengths.len() as f64 / 1e3
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_coefficient_counts_in_its_unit() {
        let cost = Cost {
            batch_ms: 4.0,
            token_us: 2.0,
            squared_token_ns: 50.0,
            item_us: 100.0,
        };
        // 4 + 0.002·300 + 0.00005·50,000 + 0.1·2
        assert!((cost.ms(&[100, 200]) - 7.3).abs() < 1e-9);
        assert_eq!(Cost::default().ms(&[100, 200]), 0.0);
        assert_eq!(cost.ms(&[]), 4.0);
    }
}
