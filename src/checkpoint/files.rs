//! Files of a checkpoint: [`TensorFiles`] is one tensor table over all of them.

use std::collections::HashMap;
#[cfg(feature = "safetensors")]
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use super::scales::Spread;
#[cfg(feature = "safetensors")]
use super::stack::Numbered;
use super::stack::{Member, Stacks};
use super::stored::{Scales, StoredFile};
use super::{Fault, TensorInfo, WeightsError};

/// The files of a checkpoint and the tensors in them.
#[derive(Default)]
pub struct TensorFiles {
    /// Each file with the index of its first tensor.
    files: Vec<(usize, Arc<StoredFile>)>,
    /// Tensors in file order, followed by the stacks.
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    /// Scales of FP8 and NVFP4 tensors, by the name of the scaled tensor.
    scales: HashMap<String, Scales>,
    stacks: Stacks,
}

impl TensorFiles {
    /// Adds a file and its tensors. A tensor name that is already in the table is an error.
    pub(super) fn add(
        &mut self,
        file: impl Into<Arc<StoredFile>>,
        tensors: Vec<TensorInfo>,
    ) -> Result<(), WeightsError> {
        let file = file.into();
        let before = self.tensors.len();
        for info in tensors {
            if self.index.insert(info.name.clone(), self.tensors.len()).is_some() {
                let fault = Fault::DuplicateTensor { tensor: info.name };
                return Err(WeightsError::malformed(file.path(), fault));
            }
            self.tensors.push(info);
        }
        self.files.push((before, file));
        Ok(())
    }

    /// The tensor table in file order, followed by the stacks. A tensor's offset is relative to its own file.
    /// A stack has the total bytes of its members and the offset of the first.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The table entry for `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|&index| self.tensors.get(index))
    }

    /// A tensor's entry and the file that holds it; for a stack, the file of its first member.
    pub fn find(&self, name: &str) -> Option<(&StoredFile, &TensorInfo)> {
        let index = *self.index.get(name)?;
        if let Some(member) = self.stacks.get(name).first() {
            return Some((&member.file, self.tensors.get(index)?));
        }
        let after = self.files.partition_point(|&(before, _)| before <= index);
        let (_, file) = self.files.get(after.checked_sub(1)?)?;
        Some((file, self.tensors.get(index)?))
    }

    /// Adds the scales of a tensor. The scales themselves are not in the table.
    #[cfg(feature = "safetensors")]
    pub(super) fn add_scales(&mut self, name: String, scales: Scales) {
        self.scales.insert(name, scales);
    }

    /// The scales of a tensor, if any.
    pub(super) fn scales(&self, name: &str) -> Option<&Scales> {
        self.scales.get(name)
    }

    /// The member tensors of a stack; empty for a plain tensor.
    pub(super) fn members(&self, name: &str) -> &[Member] {
        self.stacks.get(name)
    }

    /// Groups numbered tensors into stacks, which replace them in the table.
    ///
    /// # Errors
    /// [`WeightsError::Missing`] or [`WeightsError::Shape`] if the members of a stack do not match;
    /// [`WeightsError::Malformed`] if a tensor already has the name of a stack.
    #[cfg(feature = "safetensors")]
    pub(super) fn stack(&mut self, name: impl Fn(&str) -> Option<Numbered<'_>>) -> Result<(), WeightsError> {
        if !self.tensors.iter().any(|info| name(&info.name).is_some()) {
            return Ok(());
        }
        let mut members = Vec::new();
        let mut rest = std::mem::take(&mut self.tensors).into_iter().peekable();
        let ends: Vec<usize> = self.files.iter().skip(1).map(|&(before, _)| before).collect();
        let mut at = 0;
        for (index, (before, file)) in self.files.iter_mut().enumerate() {
            *before = self.tensors.len();
            let end = ends.get(index).copied().unwrap_or(usize::MAX);
            while let Some(info) = rest.next_if(|_| at < end) {
                at += 1;
                if name(&info.name).is_some() {
                    let scales = self.scales.remove(&info.name);
                    members.push(Member { file: Arc::clone(file), info, scales });
                } else {
                    self.tensors.push(info);
                }
            }
        }
        let (stacks, infos) = Stacks::build(members, name)?;
        self.stacks = stacks;
        self.tensors.extend(infos);
        self.index.clear();
        for (index, info) in self.tensors.iter().enumerate() {
            if self.index.insert(info.name.clone(), index).is_some() {
                let path =
                    self.stacks.get(&info.name).first().map_or(Path::new(""), |member| member.file.path());
                return Err(WeightsError::malformed(
                    path,
                    Fault::DuplicateTensor { tensor: info.name.clone() },
                ));
            }
        }
        Ok(())
    }

    /// The stored parts of a tensor: itself, or the members of a stack.
    fn parts(&self, name: &str) -> impl Iterator<Item = (&StoredFile, &TensorInfo)> {
        let members = self.stacks.get(name);
        let whole = self.find(name).filter(|_| members.is_empty());
        whole.into_iter().chain(members.iter().map(|member| (&*member.file, &member.info)))
    }

    pub(super) fn prefetch(&self, name: &str) {
        self.parts(name).for_each(|(file, info)| file.prefetch(info));
    }

    pub(super) fn release(&self, name: &str) {
        self.parts(name).for_each(|(file, info)| file.release_tensor(info));
    }

    pub(super) fn is_mapped(&self) -> bool {
        self.files.iter().any(|(_, file)| file.is_mapped())
    }

    pub(super) fn modified(&self) -> Option<SystemTime> {
        self.files.iter().filter_map(|(_, file)| file.modified()).max()
    }

    pub(super) fn bytes(&self) -> u64 {
        self.files.iter().map(|(_, file)| file.len() as u64).sum()
    }

    pub(super) fn check_unchanged(&self) -> Result<(), WeightsError> {
        self.files.iter().try_for_each(|(_, file)| file.check_unchanged())
    }

    pub(super) fn fingerprint(&self) -> Result<[u8; 32], WeightsError> {
        let mut hasher = blake3::Hasher::new();
        hasher.update(&self.bytes().to_le_bytes());
        let own = self.tensors.len() - self.stacks.len();
        let ends = self.files.iter().skip(1).map(|&(before, _)| before).chain([own]);
        for ((start, file), end) in self.files.iter().zip(ends) {
            file.hash_into(self.tensors.get(*start..end).unwrap_or_default(), &mut hasher)?;
        }
        for member in self.stacks.all() {
            member.file.hash_tensor(&member.info, &mut hasher)?;
        }
        let scales = self.tensors.iter().filter_map(|info| self.scales.get(&info.name));
        for scales in scales.chain(self.stacks.all().filter_map(|member| member.scales.as_ref())) {
            scales.file.hash_tensor(&scales.info, &mut hasher)?;
            if scales.spread == Spread::Group {
                hasher.update(&scales.factor.to_le_bytes());
            }
        }
        Ok(*hasher.finalize().as_bytes())
    }
}
