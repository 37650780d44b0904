//! Signs that decode is slower than the machine allows.

use super::{Measurement, Test, TestWork};

/// Minimum share of the read bandwidth for one sequence's decode, in per cent.
const BANDWIDTH_PERCENT_MIN: f64 = 60.0;
/// Minimum speed of one sequence relative to two sequences together. Both read the same weights, so a decode
/// bound by memory is close to half.
const SHARE_OF_TWO_MIN: f64 = 0.45;

/// One line per slow decode of a single sequence. Callers leave out GPUs, where a small model's launches take
/// longer than its bytes.
pub fn warnings(results: &[Measurement]) -> Vec<String> {
    let slow = results.iter().filter_map(|result| {
        let (tokens, 1) = decode(&result.test)? else { return None };
        let two = results
            .iter()
            .find(|other| decode(&other.test) == Some((tokens, 2)) && other.test.depth == result.test.depth);
        let share = two.map(|two| result.tokens_per_s / two.tokens_per_s);
        let reason = match (result.bandwidth_percent, share) {
            (Some(percent), _) if percent < BANDWIDTH_PERCENT_MIN => {
                format!(
                    "{percent:.0} % of the read bandwidth, expected at least {BANDWIDTH_PERCENT_MIN:.0} %"
                )
            }
            (_, Some(share)) if share < SHARE_OF_TWO_MIN => {
                format!("{share:.2} of the speed of two sequences, expected at least {SHARE_OF_TWO_MIN}")
            }
            _ => return None,
        };
        Some(format!("{}: {reason}; --profile shows which operations are slow", result.test.name))
    });
    slow.collect()
}

/// Tokens and sequences of a decode.
fn decode(test: &Test) -> Option<(usize, usize)> {
    match test.work {
        TestWork::Decode { tokens, requests } => Some((tokens, requests)),
        TestWork::Prefill(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn measured(work: TestWork, tokens_per_s: f64, bandwidth_percent: Option<f64>) -> Measurement {
        let test = Test { name: "tg64".into(), depth: 0, work };
        Measurement { test, tokens_per_s, spread: 0.0, bandwidth_percent, health: None, profile: None }
    }

    fn sequences(requests: usize, tokens_per_s: f64, percent: f64) -> Measurement {
        measured(TestWork::Decode { tokens: 64, requests }, tokens_per_s, Some(percent))
    }

    #[test]
    fn slow_decodes_of_one_sequence_are_named_with_a_reason() {
        let found = warnings(&[sequences(1, 39.0, 42.0), sequences(2, 133.0, 70.0)]);
        assert_eq!(
            found,
            [
                "tg64: 42 % of the read bandwidth, expected at least 60 %; --profile shows which operations are slow"
            ]
        );
        let found = warnings(&[sequences(1, 39.0, 80.0), sequences(2, 133.0, 70.0)]);
        assert_eq!(
            found,
            [
                "tg64: 0.29 of the speed of two sequences, expected at least 0.45; --profile shows which operations are slow"
            ]
        );
    }

    #[test]
    fn other_measurements_give_no_warning() {
        let prefill = measured(TestWork::Prefill(64), 100.0, None);
        let other_length = measured(TestWork::Decode { tokens: 8, requests: 2 }, 1000.0, Some(99.0));
        let fast = [prefill, sequences(1, 60.0, 61.0), sequences(2, 120.0, 30.0), other_length];
        assert_eq!(warnings(&fast), Vec::<String>::new());
    }
}
