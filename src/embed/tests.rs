//! A counting encoder instead of a model: batches, replies, refusals.

use std::sync::{Arc, Mutex};

use super::{EmbedError, EmbedHandle, EmbedText, unit_rows};
use crate::ir::StepLimits;
use crate::model::{DecoderMemory, ModelError, TextEncoder, TextTokens};
use crate::token::TokenId;

/// A row is the text's length, its first segment's length and the sum of its ids.
struct Counting {
    steps: Arc<Mutex<Vec<usize>>>,
}

impl TextEncoder for Counting {
    fn limits(&self) -> StepLimits {
        StepLimits { tokens_max: 10, outputs_max: 3 }
    }

    fn context_max(&self) -> usize {
        6
    }

    fn width(&self) -> usize {
        3
    }

    fn memory(&self) -> DecoderMemory {
        DecoderMemory::default()
    }

    fn encode(&mut self, texts: &[TextTokens<'_>], out: &mut [f32]) -> Result<(), ModelError> {
        let tokens: usize = texts.iter().map(|text| text.ids.len()).sum();
        assert!(texts.len() <= 3 && tokens <= 10, "{} texts of {tokens} tokens", texts.len());
        self.steps.lock().expect("no panic").push(texts.len());
        for (text, row) in texts.iter().zip(out.chunks_mut(3)) {
            let sum: u32 = text.ids.iter().map(|id| id.0).sum();
            if sum == 99 {
                return Err(ModelError::NoFreeMemory);
            }
            let poison = if sum == 98 { f32::NAN } else { 0.0 };
            row.copy_from_slice(&[text.ids.len() as f32, text.first_segment as f32 + poison, sum as f32]);
        }
        Ok(())
    }
}

fn text(ids: &[u32]) -> Result<EmbedText, EmbedError> {
    Ok(EmbedText::from(ids.iter().map(|&id| TokenId(id)).collect::<Vec<_>>()))
}

fn handle() -> (EmbedHandle, Arc<Mutex<Vec<usize>>>) {
    let steps = Arc::default();
    let encoder = Counting { steps: Arc::clone(&steps) };
    (EmbedHandle::spawn(encoder, 100).expect("a thread"), steps)
}

#[test]
fn rows_come_in_order_whatever_fills_the_steps() {
    let (handle, steps) = handle();
    let texts = || (0..500_u32).map(|n| text(&vec![n % 7; 1 + (n % 6) as usize]));
    let want: Vec<Vec<f32>> = (0..500_u32)
        .map(|n| {
            let (len, id) = (1 + n % 6, n % 7);
            vec![len as f32, len as f32, (len * id) as f32]
        })
        .collect();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            let handle = handle.clone();
            let want = &want;
            scope.spawn(move || assert_eq!(&handle.encode(texts()).expect("rows"), want));
        }
    });
    assert_eq!(steps.lock().expect("no panic").iter().sum::<usize>(), 2000);
}

#[test]
fn a_failing_text_fails_its_call_alone() {
    let (handle, _) = handle();
    let fails = |ids: &[u32]| {
        let error = handle.encode([text(&[1]), text(ids)]).expect_err("refused");
        assert_eq!(handle.encode([text(&[1, 2])]).expect("the next call"), [[2.0, 2.0, 3.0]]);
        error
    };
    assert!(matches!(fails(&[]), EmbedError::Empty { index: 1 }));
    assert!(matches!(fails(&[1; 7]), EmbedError::TooLong { index: 1, tokens: 7, context_max: 6 }));
    assert!(matches!(fails(&[100]), EmbedError::Token { index: 1, token: 100, vocab_size: 100 }));
    assert!(matches!(fails(&[98]), EmbedError::NotFinite { index: 1 }));
    assert!(matches!(fails(&[99]), EmbedError::Step(_)));
    let none: [Result<EmbedText, EmbedError>; 0] = [];
    assert!(handle.encode(none).expect("no rows").is_empty());
}

#[test]
fn rows_are_cut_before_they_are_scaled() {
    let rows = || vec![vec![3.0, 4.0, 12.0], vec![0.0; 3]];
    let of = |dimensions, normalize| {
        let mut rows = rows();
        unit_rows(&mut rows, 3, dimensions, normalize).map(|()| rows)
    };
    assert_eq!(of(Some(2), true).expect("2 of 3"), [vec![0.6, 0.8], vec![0.0; 2]]);
    assert_eq!(of(Some(2), false).expect("2 of 3"), [vec![3.0, 4.0], vec![0.0; 2]]);
    assert_eq!(of(None, false).expect("all"), rows());
    for found in [0, 4] {
        assert!(matches!(of(Some(found), true), Err(EmbedError::Dimensions { width: 3, .. })));
    }
}
