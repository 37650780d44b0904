//! Token masks: the hook for grammars and other constraints on an answer.

use super::SampleError;
use crate::token::TokenId;

/// A constraint on an answer: a grammar, a choice, a format. It sees the answer's tokens, not the prompt's.
///
/// A mask runs on the engine's few mask threads, one call at a time. After each choice it first returns the
/// forced tokens; then it computes the allowed ones while the model's step runs. A step waits at most 50 ms
/// for masks, longer if the model has recurrent states. A slower mask does not delay answers without a mask
/// any further, but it shares its threads with other masks. A mask fails its own request with a
/// [`SampleError`] if it panics, takes longer than 5 seconds, allows nothing, or names a token outside the
/// vocabulary. With the feature `constraints`, [`Engine::constrain`](crate::Engine) makes masks of JSON
/// schemas and grammars.
///
/// ```
/// use ottava::sample::{TokenMask, TokenSet};
/// use ottava::TokenId;
///
/// /// Four tokens out of a few.
/// #[derive(Clone)]
/// struct Few(Vec<TokenId>);
///
/// impl TokenMask for Few {
///     fn allowed(&mut self, _answer: &[TokenId], allowed: &mut TokenSet) {
///         allowed.extend(self.0.iter().copied());
///     }
///
///     fn is_finished(&self, answer: &[TokenId]) -> bool {
///         answer.len() == 4
///     }
/// }
/// # #[cfg(feature = "text")]
/// # fn ask(digits: Vec<TokenId>) -> ottava::Request {
/// ottava::Request::text("The year was ").mask(Few(digits))
/// # }
/// ```
pub trait TokenMask: Send {
    /// Inserts the tokens that may follow `answer` into `allowed`, which is empty. The end-of-turn token is a
    /// token like any other: an answer may end where it is allowed.
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet);

    /// The tokens that must follow `answer`, as far as there is no choice. They are not sampled, and several
    /// take one step. Successive calls get a longer answer or the same one again. Default: none.
    fn forced(&mut self, answer: &[TokenId]) -> &[TokenId] {
        let _ = answer;
        &[]
    }

    /// Whether the answer is complete; it then ends with
    /// [`FinishReason::Mask`](crate::engine::FinishReason::Mask). Default: false.
    fn is_finished(&self, answer: &[TokenId]) -> bool {
        let _ = answer;
        false
    }
}

/// A closure as a mask, for an answer that may end anywhere it is allowed to.
///
/// ```
/// # use ottava::{Request, TokenId, sample::TokenSet};
/// # let (request, digits) = (Request::tokens(vec![TokenId(1)]), [TokenId(4), TokenId(5)]);
/// let request = request.mask(move |_: &[TokenId], allowed: &mut TokenSet| allowed.extend(digits));
/// ```
impl<F: FnMut(&[TokenId], &mut TokenSet) + Send> TokenMask for F {
    fn allowed(&mut self, answer: &[TokenId], allowed: &mut TokenSet) {
        self(answer, allowed);
    }
}

/// A set of tokens of a vocabulary, one bit each.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct TokenSet {
    vocab: usize,
    words: Vec<u32>,
    /// The first inserted token outside the vocabulary.
    outside: Option<TokenId>,
    failure: Option<&'static str>,
}

impl TokenSet {
    /// An empty set for a vocabulary of `vocab` tokens.
    pub fn new(vocab: usize) -> TokenSet {
        TokenSet { vocab, words: vec![0; vocab.div_ceil(32)], outside: None, failure: None }
    }

    /// Size of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.vocab
    }

    /// Inserts a token. One outside the vocabulary fails the request.
    pub fn insert(&mut self, token: TokenId) {
        match self.words.get_mut(token.index() / 32) {
            Some(word) if token.index() < self.vocab => *word |= 1 << (token.0 % 32),
            _ => self.outside = self.outside.or(Some(token)),
        }
    }

    /// Removes a token.
    pub fn remove(&mut self, token: TokenId) {
        if let Some(word) = self.words.get_mut(token.index() / 32) {
            *word &= !(1 << (token.0 % 32));
        }
    }

    /// Inserts the whole vocabulary.
    pub fn insert_all(&mut self) {
        self.words.fill(u32::MAX);
        if let Some(last) = self.words.last_mut() {
            *last = u32::MAX >> ((32 - self.vocab % 32) % 32);
        }
    }

    /// Removes all tokens.
    pub fn clear(&mut self) {
        self.words.fill(0);
        (self.outside, self.failure) = (None, None);
    }

    /// Whether a token is in the set.
    pub fn contains(&self, token: TokenId) -> bool {
        self.words.get(token.index() / 32).is_some_and(|word| word >> (token.0 % 32) & 1 == 1)
    }

    /// Sets the logits of all tokens outside the set to −∞.
    pub(crate) fn mask(&self, logits: &mut [f32]) {
        let words = self.words.iter().copied().chain(std::iter::repeat(0));
        for (logits, word) in logits.chunks_mut(32).zip(words) {
            match word {
                u32::MAX => {}
                0 => logits.fill(f32::NEG_INFINITY),
                // A select without a branch runs in vector registers.
                _ => logits.iter_mut().enumerate().for_each(|(bit, logit)| {
                    *logit = if word & (1 << bit) == 0 { f32::NEG_INFINITY } else { *logit };
                }),
            }
        }
    }

    /// Number of tokens in the set.
    pub fn len(&self) -> usize {
        self.words.iter().map(|word| word.count_ones() as usize).sum()
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|&word| word == 0)
    }

    /// The bits of the set, for masks that compute bits: bit `i % 32` of word `i / 32` is token `i`.
    pub fn words_mut(&mut self) -> &mut [u32] {
        &mut self.words
    }

    /// Replaces the set by bits in the layout of [`TokenSet::words_mut`]. Bits beyond the vocabulary are
    /// ignored.
    pub fn fill(&mut self, words: &[u32]) {
        self.words.fill(0);
        self.words.iter_mut().zip(words).for_each(|(word, from)| *word = *from);
        if let Some(last) = self.words.last_mut() {
            *last &= u32::MAX >> ((32 - self.vocab % 32) % 32);
        }
    }

    /// Reports that the mask cannot compute the allowed tokens: the request fails with this reason.
    pub fn fail(&mut self, reason: &'static str) {
        self.failure = Some(reason);
    }

    /// Checks the set.
    ///
    /// # Errors
    /// [`SampleError::MaskFailed`] after [`TokenSet::fail`], [`SampleError::MaskToken`] for a token outside
    /// the vocabulary, [`SampleError::NothingAllowed`] for an empty set.
    pub fn check(&self) -> Result<(), SampleError> {
        if let Some(reason) = self.failure {
            return Err(SampleError::MaskFailed(reason));
        }
        let end = TokenId(self.vocab as u32);
        let beyond = (end.0..end.0.next_multiple_of(32)).map(TokenId).find(|&token| self.contains(token));
        match self.outside.or(beyond) {
            Some(token) => Err(SampleError::MaskToken { token, vocab: self.vocab }),
            None if self.is_empty() => Err(SampleError::NothingAllowed),
            None => Ok(()),
        }
    }
}

impl Extend<TokenId> for TokenSet {
    fn extend<T: IntoIterator<Item = TokenId>>(&mut self, tokens: T) {
        tokens.into_iter().for_each(|token| self.insert(token));
    }
}

impl std::fmt::Debug for TokenSet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenSet({} of {})", self.len(), self.vocab)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any insertions and removals, in and around the last word.
        #[test]
        fn a_set_is_a_set(
            vocab in 1..100u32, changes in prop::collection::vec((0..140u32, any::<bool>()), 0..60), all: bool,
        ) {
            let (mut set, mut model) = (TokenSet::new(vocab as usize), BTreeSet::new());
            if all {
                set.insert_all();
                model.extend(0..vocab);
            }
            for (id, put) in changes {
                if !put {
                    set.remove(TokenId(id));
                    model.remove(&id);
                } else if id < vocab {
                    set.insert(TokenId(id));
                    model.insert(id);
                }
            }
            let found: BTreeSet<u32> = (0..200).filter(|&id| set.contains(TokenId(id))).collect();
            prop_assert_eq!((set.len(), set.is_empty()), (model.len(), model.is_empty()));
            prop_assert_eq!(found, model);
            prop_assert_eq!(set.check().is_ok(), !set.is_empty());
            let mut logits: Vec<f32> = (0..vocab).map(|id| id as f32).collect();
            set.mask(&mut logits);
            for (id, &logit) in logits.iter().enumerate() {
                let kept = set.contains(TokenId(id as u32));
                prop_assert_eq!(logit, if kept { id as f32 } else { f32::NEG_INFINITY });
            }
        }
    }

    #[test]
    fn tokens_outside_the_vocabulary_are_named() {
        for vocab in [1, 31, 32, 33, 64] {
            let outside = |token| Err(SampleError::MaskToken { token: TokenId(token), vocab });
            let mut set = TokenSet::new(vocab);
            set.insert_all();
            assert_eq!((set.len(), set.check()), (vocab, Ok(())));
            set.extend([TokenId(0), TokenId(vocab as u32), TokenId(u32::MAX)]);
            assert_eq!(set.check(), outside(vocab as u32));
            set.clear();
            assert_eq!(set.check(), Err(SampleError::NothingAllowed));
            if vocab % 32 > 0 {
                *set.words_mut().last_mut().unwrap() = u32::MAX;
                assert_eq!(set.check(), outside(vocab as u32));
            }
        }
    }
}
