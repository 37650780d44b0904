//! Demands of a chat template, found by small conversations: a template states them only by an error in its
//! own words.

use std::sync::OnceLock;

use ottava::text::{Message, ToolCall};
use serde_json::{Value, json};

use crate::request::template_compat::{
    arguments_as_texts, broken_arguments_as_objects, join_assistants, join_first_systems, join_users,
    join_users_to_results, later_systems_into_users, short_ids, systems_into_users, user_first,
};

/// Rewrites messages; returns whether anything changed.
type Change = fn(&mut Vec<Message>) -> bool;

/// A demand that some templates have.
struct Demand {
    /// A conversation that templates with the demand refuse.
    probe: fn() -> Vec<Message>,
    /// The rewriting that meets it.
    change: Change,
}

/// In the order in which the changes apply. A probe is changed by those before it.
const DEMANDS: &[Demand] = &[
    Demand {
        probe: || called("abc123XYZ", "north".into()),
        change: |messages| broken_arguments_as_objects(messages),
    },
    Demand {
        probe: || called("abc123XYZ", json!({"x": 1})),
        change: |messages| arguments_as_texts(messages),
    },
    Demand {
        probe: || called("call_abcdefghijklmnopqrstuvwx", json!({"x": 1})),
        change: |messages| short_ids(messages),
    },
    Demand { probe: || turns(&["system", "user"]), change: systems_into_users },
    Demand { probe: || turns(&["system", "system", "user"]), change: join_first_systems },
    Demand {
        probe: || turns(&["system", "user", "assistant", "system", "user"]),
        change: later_systems_into_users,
    },
    Demand { probe: || turns(&["user", "user"]), change: join_users },
    Demand { probe: || turns(&["user", "assistant", "assistant", "user"]), change: join_assistants },
    Demand { probe: called_and_continued, change: join_users_to_results },
    Demand { probe: || turns(&["assistant", "user"]), change: user_first },
    Demand { probe: || turns(&["system"]), change: user_first },
];

/// Demands of one template. They are determined when it first refuses a conversation.
#[derive(Debug, Default)]
pub(crate) struct TemplateDemands {
    changes: OnceLock<Vec<Change>>,
}

impl TemplateDemands {
    /// The messages as the template demands them; `None` if they are already. `accepts` renders a small
    /// conversation.
    ///
    /// # Errors
    /// An error of `accepts`: whether the template accepts the conversation is unknown.
    pub(crate) fn met<E>(
        &self,
        messages: &[Message],
        accepts: impl Fn(Vec<Message>) -> Result<bool, E>,
    ) -> Result<Option<Vec<Message>>, E> {
        let changes = match self.changes.get() {
            Some(changes) => changes,
            None => {
                let found = found(accepts)?;
                self.changes.get_or_init(|| found)
            }
        };
        let mut messages = messages.to_vec();
        let changed = changes.iter().filter(|change| change(&mut messages)).count();
        Ok((changed > 0).then_some(messages))
    }
}

/// The changes that a template needs: it refuses the probe and accepts the changed one.
fn found<E>(accepts: impl Fn(Vec<Message>) -> Result<bool, E>) -> Result<Vec<Change>, E> {
    let mut changes: Vec<Change> = Vec::new();
    for Demand { probe, change } in DEMANDS {
        let mut probe = probe();
        for change in &changes {
            change(&mut probe);
        }
        if accepts(probe.clone())? {
            continue;
        }
        change(&mut probe);
        if accepts(probe)? {
            changes.push(*change);
        }
    }
    Ok(changes)
}

/// A turn of each role.
fn turns(roles: &[&str]) -> Vec<Message> {
    roles.iter().map(|&role| Message::new(role, "a")).collect()
}

/// A call and its result.
fn called(id: &str, arguments: Value) -> Vec<Message> {
    let mut messages = turns(&["user", "assistant", "tool"]);
    if let [_, call, result] = &mut messages[..] {
        call.tool_calls = Some(vec![ToolCall::new(id, "f", arguments)]);
        (result.tool_call_id, result.name) = (Some(id.into()), Some("f".into()));
    }
    messages
}

fn called_and_continued() -> Vec<Message> {
    let mut messages = called("abc123XYZ", json!({"x": 1}));
    messages.extend(turns(&["user"]));
    messages
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template with strict turns after an optional system text.
    fn is_strict(messages: &[Message]) -> bool {
        let roles: Vec<&str> = messages.iter().map(|message| message.role.as_str()).collect();
        let turns = roles.strip_prefix(&["system"]).unwrap_or(&roles);
        turns.iter().enumerate().all(|(at, role)| *role == if at % 2 == 0 { "user" } else { "assistant" })
    }

    #[test]
    fn only_refused_things_are_changed() {
        let demands = TemplateDemands::default();
        let met = |roles: &[&str]| {
            let messages = demands.met(&turns(roles), |messages| Ok::<_, ()>(is_strict(&messages)));
            messages.expect("known").map(|messages| {
                messages.iter().map(|message| message.role.clone()).collect::<Vec<_>>().join(" ")
            })
        };
        assert_eq!(met(&["user", "user"]).as_deref(), Some("user"));
        assert_eq!(met(&["system", "system", "assistant"]).as_deref(), Some("system user assistant"));
        assert_eq!(met(&["user", "system", "assistant", "system"]).as_deref(), Some("user assistant user"));
        assert_eq!(met(&["system", "user", "assistant", "user"]), None);
        let free = TemplateDemands::default();
        let turns = turns(&["assistant", "system", "user", "user"]);
        assert_eq!(free.met(&turns, |_| Err("out of memory")), Err("out of memory"));
        assert_eq!(free.met(&turns, |_| Ok::<_, ()>(true)), Ok(None), "an error is not kept");
        assert_eq!(free.met(&turns, |_| Err("out of memory")), Ok(None), "demands are");
    }
}
