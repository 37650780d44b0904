//! What is told about a row of logits besides its token: probabilities and the best tokens.

use crate::token::TokenId;

/// ln Σ exp(logit), in f64. Not a number if a logit is not; −∞ if all are.
pub fn log_sum_exp(logits: &[f32]) -> f64 {
    let max = logits.iter().fold(f32::NEG_INFINITY, |max, &logit| max.max(logit));
    let max = f64::from(max);
    if max == f64::NEG_INFINITY {
        return if logits.iter().any(|logit| logit.is_nan()) { f64::NAN } else { max };
    }
    let sum: f64 = logits.iter().map(|&logit| (f64::from(logit) - max).exp()).sum();
    max + sum.ln()
}

/// The `count` highest logits with their tokens, highest first, equal ones by rising id; `best`
/// is emptied first and used as scratch.
pub fn top_logits(logits: &[f32], count: usize, best: &mut Vec<(TokenId, f32)>) {
    best.clear();
    if count == 0 {
        return;
    }
    best.extend((0u32..).map(TokenId).zip(logits.iter().copied()));
    let order = |a: &(TokenId, f32), b: &(TokenId, f32)| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0));
    if count < best.len() {
        best.select_nth_unstable_by(count, order);
        best.truncate(count);
    }
    best.sort_unstable_by(order);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn log_sum_exp_survives_huge_and_absent_logits() {
        assert!((log_sum_exp(&[0.0; 4]) - 4f64.ln()).abs() < 1e-15);
        assert!((log_sum_exp(&[1e30, f32::NEG_INFINITY]) - f64::from(1e30f32)).abs() < 1e15);
        assert_eq!(log_sum_exp(&[f32::NEG_INFINITY; 3]), f64::NEG_INFINITY);
        assert!(log_sum_exp(&[0.0, f32::NAN]).is_nan());
        assert!(log_sum_exp(&[f32::NAN, f32::NAN]).is_nan());
    }

    #[test]
    fn the_best_come_first_and_ties_by_id() {
        let logits = [1.0, 3.0, 2.0, 3.0, -1.0];
        let mut best = Vec::new();
        top_logits(&logits, 3, &mut best);
        assert_eq!(best, [(TokenId(1), 3.0), (TokenId(3), 3.0), (TokenId(2), 2.0)]);
        top_logits(&logits, 99, &mut best);
        assert_eq!(best.len(), 5);
        assert_eq!(best[4], (TokenId(4), -1.0));
        top_logits(&logits, 0, &mut best);
        assert!(best.is_empty());
    }
}
