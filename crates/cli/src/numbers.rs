//! Value parsers of numeric options. They check the range and name it in the error.

use std::fmt::Display;

/// Maximum number of threads.
pub const THREADS_MAX: usize = 1024;
/// Maximum tokens of a context or an answer; also the maximum of `--top-k` and `--chunks`.
pub const TOKENS_MAX: usize = 1 << 24;
/// Maximum size of the KV cache in MiB: 16 TiB.
pub const MIB_MAX: usize = 1 << 24;
/// Maximum prompt tokens per step.
pub const CHUNK_MAX: usize = 1 << 16;

/// Value parser of an integer from `low` to `high`.
pub fn whole<N>(low: N, high: N) -> impl Fn(&str) -> Result<N, String> + Clone + Send + Sync + 'static
where
    N: TryFrom<i128> + PartialOrd + Display + Copy + Send + Sync + 'static,
{
    move |text| {
        let number = text.parse::<i128>().ok().and_then(|number| N::try_from(number).ok());
        let fits = number.filter(|number| (low..=high).contains(number));
        fits.ok_or_else(|| format!("expected a whole number from {low} to {high}"))
    }
}

/// Value parser of a float from `low` to `high`.
pub fn real(low: f32, high: f32) -> impl Fn(&str) -> Result<f32, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = text.parse::<f32>().ok().filter(|number| (low..=high).contains(number));
        number.ok_or_else(|| format!("expected a number from {low} to {high}"))
    }
}

/// Parses a probability above 0, at most 1.
pub fn probability(text: &str) -> Result<f32, String> {
    let number = text.parse::<f32>().ok().filter(|&number| number > 0.0 && number <= 1.0);
    number.ok_or_else(|| "expected a number above 0, at most 1".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_range_are_refused_with_the_range() {
        let count = whole(1_usize, 64);
        assert_eq!((count("1"), count("64"), count("+7")), (Ok(1), Ok(64), Ok(7)));
        for text in ["0", "-1", "65", "", "x", "1.5", "99999999999999999999999999999999999999999999", "1e3"] {
            assert_eq!(count(text), Err("expected a whole number from 1 to 64".into()), "{text}");
        }
        assert_eq!(whole(0, u64::MAX)("18446744073709551615"), Ok(u64::MAX));
        assert!(whole(0, u64::MAX)("18446744073709551616").is_err());
        let temperature = real(0.0, 100.0);
        assert_eq!((temperature("0"), temperature("1e2")), (Ok(0.0), Ok(100.0)));
        for text in ["-1", "-0.001", "100.1", "nan", "inf", "-inf", "1e99", "warm"] {
            assert_eq!(temperature(text), Err("expected a number from 0 to 100".into()), "{text}");
        }
        assert!(probability("0").is_err() && probability("NaN").is_err() && probability("-0.5").is_err());
        assert_eq!(probability("1"), Ok(1.0));
    }
}
