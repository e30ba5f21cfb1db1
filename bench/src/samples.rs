//! What several rounds gave, and the one number that stands for them.

use std::time::Duration;

/// One figure, measured several times.
#[derive(Clone, Default)]
pub(crate) struct Samples(Vec<f64>);

impl Samples {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    pub(crate) fn push_us(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e6);
    }

    pub(crate) fn push_ms(&mut self, time: Duration) {
        self.push(time.as_secs_f64() * 1e3);
    }

    pub(crate) fn median(&self) -> f64 {
        self.quantile(0.5)
    }

    pub(crate) fn p99(&self) -> f64 {
        self.quantile(0.99)
    }

    pub(crate) fn max(&self) -> f64 {
        self.quantile(1.0)
    }

    /// The smallest sample that this share of all samples does not exceed; not a number when there are none.
    fn quantile(&self, share: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let rank = (share * sorted.len() as f64).ceil() as usize;
        sorted.get(rank.saturating_sub(1)).copied().unwrap_or(f64::NAN)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_samples() {
        let mut samples = Samples::default();
        assert!(samples.median().is_nan());
        for value in [3.0, 1.0, 2.0] {
            samples.push(value);
        }
        assert_eq!((samples.median(), samples.p99()), (2.0, 3.0));
    }
}
