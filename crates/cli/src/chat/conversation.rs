//! Messages of a conversation. When the context is full, the oldest turns are dropped.
//!
//! A line that cannot be answered leaves the conversation unchanged: fitting works on a copy, which is
//! committed together with the answer.

use ottava::Error;
use ottava::engine::SubmitError;
use ottava::text::Message;

use super::super::Failure;

/// An optional system message, and turns: a user message and everything up to the next one.
pub struct Conversation {
    messages: Vec<Message>,
}

/// Messages for the model that fit in the context.
#[derive(Debug)]
pub struct Fitted<P> {
    pub messages: Vec<Message>,
    /// Their encoded prompt.
    pub prompt: P,
    /// Number of turns dropped to fit.
    pub dropped: usize,
}

impl Conversation {
    /// A conversation without turns.
    pub fn new(system: Option<String>) -> Conversation {
        Conversation { messages: system.map(|text| Message::new("system", text)).into_iter().collect() }
    }

    pub fn messages(&self) -> &[Message] {
        &self.messages
    }

    /// Drops all messages except the system message.
    pub fn clear(&mut self) {
        self.messages.truncate(system_len(&self.messages));
    }

    /// The conversation plus `new`: a user's line or the results of tool calls. The oldest turns are dropped
    /// until the prompt and an answer fit in `room` tokens; the answer is counted as `answer_max` tokens, at
    /// most a quarter of `room`. The last turn is kept if its prompt alone fits. `encode` makes a prompt and
    /// its number of tokens.
    pub fn fit<P>(
        &self,
        new: Vec<Message>,
        room: usize,
        answer_max: usize,
        encode: impl Fn(&[Message]) -> ottava::Result<(P, usize)>,
    ) -> Result<Fitted<P>, Failure> {
        let mut messages = self.messages.clone();
        messages.extend(new);
        let (system, answer) = (system_len(&messages), answer_max.min(room / 4).max(1));
        let mut dropped = 0;
        loop {
            let (found, prompt) = match encode(&messages) {
                Ok((prompt, tokens)) => (tokens, Some(prompt)),
                Err(Error::Submit(SubmitError::TooLong { tokens, .. })) => (tokens, None),
                Err(error) => return Err(error.into()),
            };
            let is_last = messages.iter().filter(|message| message.role == "user").count() <= 1;
            match prompt {
                Some(prompt) if found + answer <= room || (is_last && found < room) => {
                    return Ok(Fitted { messages, prompt, dropped });
                }
                _ if is_last => {
                    // A refused prompt is not counted to its end.
                    let least = if prompt.is_none() { "at least " } else { "" };
                    return Err(Failure::Failed(format!(
                        "the line is too long: with the system message it takes {least}{found} tokens, the \
                         context has {room} (-c); the conversation goes on without it"
                    )));
                }
                _ => drop_turn(&mut messages, system),
            }
            dropped += 1;
        }
    }

    /// Replaces the conversation by the sent messages and the answer.
    pub fn commit(&mut self, sent: Vec<Message>, answer: Message) {
        self.messages = sent;
        self.messages.push(answer);
    }
}

/// Number of system messages at the start: 0 or 1.
fn system_len(messages: &[Message]) -> usize {
    messages.first().is_some_and(|message| message.role == "system").into()
}

/// Removes the oldest turn: the first message after the system message, and all up to the next user message.
fn drop_turn(messages: &mut Vec<Message>, system: usize) {
    let after = messages.iter().enumerate().skip(system + 1);
    let next = after.filter(|(_, message)| message.role == "user").map(|(at, _)| at).next();
    messages.drain(system..next.unwrap_or(messages.len()));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts one token per byte, plus two per message for the template.
    fn encode(messages: &[Message]) -> ottava::Result<((), usize)> {
        Ok(((), messages.iter().map(|message| message.content.to_text().len() + 2).sum::<usize>()))
    }

    fn user(line: &str) -> Vec<Message> {
        vec![Message::new("user", line)]
    }

    fn say(conversation: &mut Conversation, line: &str, room: usize) -> usize {
        let fitted = conversation.fit(user(line), room, 8, encode).unwrap();
        let dropped = fitted.dropped;
        conversation.commit(fitted.messages, Message::new("assistant", "12345678"));
        dropped
    }

    #[test]
    fn the_oldest_turns_go_and_the_system_message_stays() {
        let mut conversation = Conversation::new(Some("sys".into()));
        // The system message takes 5 tokens, a turn 20, a line 10, its answer 8.
        let dropped: Vec<_> = (0..5).map(|_| say(&mut conversation, "a line..", 64)).collect();
        assert_eq!(dropped, [0, 0, 0, 1, 1]);
        let roles: Vec<&str> = conversation.messages().iter().map(|message| message.role.as_str()).collect();
        assert_eq!(roles, ["system", "user", "assistant", "user", "assistant", "user", "assistant"]);
    }

    #[test]
    fn a_line_that_never_fits_changes_nothing() {
        let mut conversation = Conversation::new(None);
        say(&mut conversation, "a line..", 64);
        let error = conversation.fit(user(&"x".repeat(62)), 64, 8, encode).unwrap_err();
        assert!(
            matches!(error, Failure::Failed(why) if why.contains("64 tokens") && why.contains("goes on"))
        );
        assert_eq!(conversation.messages().len(), 2);
        assert_eq!(say(&mut conversation, "a line..", 64), 0);
        // The last line is answered even if it leaves less room than an answer is counted as.
        assert_eq!(conversation.fit(user(&"x".repeat(61)), 64, 8, encode).unwrap().dropped, 2);
        conversation.clear();
        assert!(conversation.messages().is_empty());
    }

    #[test]
    fn calls_and_their_results_go_with_their_turn() {
        let mut conversation = Conversation::new(None);
        say(&mut conversation, "a line..", 64);
        let results = || vec![Message::new("tool", "a result")];
        let fitted = conversation.fit(results(), 64, 8, encode).unwrap();
        assert_eq!((fitted.dropped, fitted.messages.len()), (0, 3));
        conversation.commit(fitted.messages, Message::new("assistant", "12345678"));
        let fitted = conversation.fit(user("a line.."), 64, 24, encode).unwrap();
        assert_eq!((fitted.dropped, fitted.messages.len()), (1, 1));
        assert!(conversation.fit(results(), 32, 8, encode).is_err(), "the last turn stays whole");
    }

    #[test]
    fn a_prompt_that_the_library_refuses_as_too_long_is_shortened_too() {
        let refusing = |messages: &[Message]| {
            let (_, tokens) = encode(messages)?;
            if tokens > 30 {
                return Err(SubmitError::TooLong { tokens, context_max: 30 }.into());
            }
            Ok(((), tokens))
        };
        let mut conversation = Conversation::new(None);
        say(&mut conversation, "a line..", 64);
        say(&mut conversation, "a line..", 64);
        assert_eq!(conversation.fit(user("a line.."), 30, 8, refusing).unwrap().dropped, 2);
        let error = conversation.fit(user(&"x".repeat(90)), 30, 8, refusing).unwrap_err();
        assert!(matches!(error, Failure::Failed(why) if why.contains("takes at least 92 tokens")));
    }
}
