//! Tensor stacks: [`Stacks`] joins the numbered per-expert matrices of a checkpoint into one tensor per
//! projection.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::stored::{Scales, StoredFile};
use super::{TensorInfo, WeightsError};

/// One tensor of a stack.
pub(super) struct Member {
    pub file: Arc<StoredFile>,
    pub info: TensorInfo,
    pub scales: Option<Scales>,
}

/// Stacks by name. Each has at least one member, in numeric order.
#[derive(Default)]
pub(super) struct Stacks(BTreeMap<String, Vec<Member>>);

/// A numbered tensor name, split into prefix, number and suffix.
#[derive(Clone, Copy)]
pub(super) struct Numbered<'n> {
    pub prefix: &'n str,
    pub number: usize,
    pub suffix: &'n str,
}

impl Numbered<'_> {
    /// Name of the stack: the name without the number.
    fn stack(&self) -> String {
        format!("{}{}", self.prefix, self.suffix.strip_prefix('.').unwrap_or(self.suffix))
    }

    fn of(&self, number: usize) -> String {
        format!("{}{number}{}", self.prefix, self.suffix)
    }
}

impl Stacks {
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Members of a stack; empty if there is no such stack.
    pub fn get(&self, name: &str) -> &[Member] {
        self.0.get(name).map_or(&[], Vec::as_slice)
    }

    pub fn all(&self) -> impl Iterator<Item = &Member> {
        self.0.values().flatten()
    }

    /// Groups tensors, in any order, into stacks. Returns the table entries: the stack is the third
    /// dimension.
    ///
    /// # Errors
    /// [`WeightsError::Missing`] if a number is left out, [`WeightsError::Shape`] if a member differs from
    /// the first one of its stack in shape, type or granularity of scales.
    pub fn build(
        members: Vec<Member>,
        name: impl Fn(&str) -> Option<Numbered<'_>>,
    ) -> Result<(Stacks, Vec<TensorInfo>), WeightsError> {
        let mut found: BTreeMap<String, BTreeMap<usize, Member>> = BTreeMap::new();
        for member in members {
            if let Some(numbered) = name(&member.info.name) {
                let (stack, number) = (numbered.stack(), numbered.number);
                found.entry(stack).or_default().insert(number, member);
            }
        }
        let mut stacks = Stacks::default();
        let mut infos = Vec::with_capacity(found.len());
        for (stack, numbered) in found {
            let missing = numbered.keys().enumerate().find(|&(expected, &number)| expected != number);
            if let Some(((expected, _), member)) = missing.zip(numbered.values().next()) {
                let tensor = name(&member.info.name).map(|name| name.of(expected)).unwrap_or_default();
                return Err(WeightsError::Missing { file: member.file.path().to_owned(), tensor });
            }
            let members: Vec<Member> = numbered.into_values().collect();
            infos.extend(whole(&stack, &members)?);
            stacks.0.insert(stack, members);
        }
        Ok((stacks, infos))
    }
}

/// Table entry of a stack, at the offset of its first member.
fn whole(stack: &str, members: &[Member]) -> Result<Option<TensorInfo>, WeightsError> {
    let Some(first) = members.first() else { return Ok(None) };
    let differs = |other: &&Member| {
        let spread = |member: &Member| member.scales.as_ref().map(|scales| scales.spread);
        let of = |member: &Member| (member.info.dtype, spread(member));
        other.info.dims != first.info.dims || of(other) != of(first)
    };
    if let Some(other) = members.iter().find(differs) {
        return Err(other.file.shape_error(&other.info, "the shape and the type of the first expert's"));
    }
    if first.info.dims.len() != 2 {
        return Err(first.file.shape_error(&first.info, "two dimensions"));
    }
    let dims = first.info.dims.iter().copied().chain([members.len() as u64]).collect();
    let bytes = members.iter().map(|member| member.info.bytes).sum();
    Ok(Some(TensorInfo { name: stack.to_owned(), dims, bytes, ..first.info.clone() }))
}

/// Members that contain rows of a stack, each with the range of its own rows.
pub(super) fn pieces(
    members: &[Member],
    rows: Range<usize>,
) -> impl Iterator<Item = (&Member, Range<usize>)> {
    let each = members.first().map_or(1, |member| member.info.rows()).max(1);
    let first = rows.start / each;
    members.iter().enumerate().skip(first).map_while(move |(index, member)| {
        let start = index * each;
        let (from, to) = (rows.start.max(start), rows.end.min(start + each));
        (from < to).then(|| (member, from - start..to - start))
    })
}
