//! Seeded luck: the same seed, device and life give the same numbers in the same order.

/// A stream of numbers.
pub struct Chance {
    state: u64,
}

impl Chance {
    /// `life` counts the starts of the device.
    pub fn new(seed: u64, device: &str, life: u64) -> Self {
        let mut state = seed;
        for part in device.bytes().map(u64::from).chain([life]) {
            state = splitmix(&mut state) ^ part;
        }
        Self { state }
    }

    /// From 0 up to but not 1.
    pub fn share(&mut self) -> f64 {
        (splitmix(&mut self.state) >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Whether something happens that does so with this probability.
    pub fn happens(&mut self, probability: f64) -> bool {
        self.share() < probability
    }

    /// A factor around 1: lognormal with mean 1, whose logarithm spreads by `sigma`.
    pub fn factor(&mut self, sigma: f64) -> f64 {
        // Box and Muller's way from two even numbers to a normal one.
        let radius = (-2.0 * (1.0 - self.share()).ln()).sqrt();
        let normal = radius * (std::f64::consts::TAU * self.share()).cos();
        (sigma * normal - sigma * sigma / 2.0).exp()
    }
}

/// The next number of a splitmix64 sequence (Steele, Lea and Flood 2014).
pub fn splitmix(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mixed = (*state ^ (*state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn splitmix_gives_its_published_sequence() {
        let mut state = 1_234_567;
        let numbers = [(); 3].map(|()| splitmix(&mut state));
        assert_eq!(
            numbers,
            [
                6_457_827_717_110_365_317,
                3_203_168_211_198_807_973,
                9_817_491_932_198_370_423
            ]
        );
    }

    #[test]
    fn luck_is_its_seeds_its_devices_and_its_lifes() {
        let draw = |seed, device, life| {
            let mut chance = Chance::new(seed, device, life);
            [(); 4].map(|()| chance.share())
        };
        assert_eq!(draw(1, "sim:0", 1), draw(1, "sim:0", 1));
        for other in [
            draw(2, "sim:0", 1),
            draw(1, "sim:1", 1),
            draw(1, "sim:0", 2),
        ] {
            assert_ne!(draw(1, "sim:0", 1), other);
        }
    }

    #[test]
    fn factors_have_mean_one_and_the_spread_that_is_asked_for() {
        let mut chance = Chance::new(7, "sim:0", 1);
        let factors: Vec<f64> = (0..20_000).map(|_| chance.factor(0.3)).collect();
        let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
        assert!((mean(&factors) - 1.0).abs() < 0.01, "{}", mean(&factors));
        let logs: Vec<f64> = factors.iter().map(|factor| factor.ln()).collect();
        let middle = mean(&logs);
        let squares: Vec<f64> = logs.iter().map(|log| (log - middle).powi(2)).collect();
        assert!((mean(&squares).sqrt() - 0.3).abs() < 0.01);
        assert_eq!(Chance::new(7, "sim:0", 1).factor(0.0), 1.0);
    }

    #[test]
    fn what_never_happens_never_does() {
        let mut chance = Chance::new(7, "sim:0", 1);
        assert!((0..10_000).all(|_| !chance.happens(0.0) && chance.happens(1.0)));
        let happened = (0..10_000).filter(|_| chance.happens(0.1)).count();
        assert!((900..1_100).contains(&happened), "{happened}");
    }
}
