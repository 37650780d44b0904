//! [`TensorFiles`]: the files of a checkpoint, and one table over the tensors of all.

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
    /// Each with the number of tensors before its own.
    files: Vec<(usize, Arc<StoredFile>)>,
    /// Of all files, one file behind the other; then stacks.
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    /// By the name of a tensor of 8-bit or 4-bit floats.
    scales: HashMap<String, Scales>,
    stacks: Stacks,
}

impl TensorFiles {
    /// Adds a file and its tensors, none of which may be there already.
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

    /// The tensor table, one file behind the other; each tensor's offset is within its own file. Stacks of tensors stand
    /// at the end: their bytes are those of all, their offset the first one's.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The entry of the tensor called `name`.
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).and_then(|&index| self.tensors.get(index))
    }

    /// The file that holds a tensor, or the first one of a stack, and the tensor.
    pub fn find(&self, name: &str) -> Option<(&StoredFile, &TensorInfo)> {
        let index = *self.index.get(name)?;
        if let Some(member) = self.stacks.get(name).first() {
            return Some((&member.file, self.tensors.get(index)?));
        }
        let after = self.files.partition_point(|&(before, _)| before <= index);
        let (_, file) = self.files.get(after.checked_sub(1)?)?;
        Some((file, self.tensors.get(index)?))
    }

    /// Adds the scales of a tensor, which are no tensor of the table.
    #[cfg(feature = "safetensors")]
    pub(super) fn add_scales(&mut self, name: String, scales: Scales) {
        self.scales.insert(name, scales);
    }

    /// The scales of a tensor, if it has some.
    pub(super) fn scales(&self, name: &str) -> Option<&Scales> {
        self.scales.get(name)
    }

    /// The tensors of a stack; none of a tensor that a file has.
    pub(super) fn members(&self, name: &str) -> &[Member] {
        self.stacks.get(name)
    }

    /// Makes stacks of tensors by their names. They stand in the table in the place of these.
    ///
    /// # Errors
    /// [`WeightsError::Missing`], [`WeightsError::Shape`] if the tensors of one do not fit each other;
    /// [`WeightsError::Malformed`] if there is a tensor of a stack's name.
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

    /// A tensor as it lies in files: one part of it, or those of a stack.
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
