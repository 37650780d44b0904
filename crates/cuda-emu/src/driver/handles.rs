//! The tables of driver objects: a handle that C holds is a number here, so that a wrong one is an
//! error and no crash.

use std::collections::BTreeMap;

use super::status::{Answer, Status};

/// Handles start here: 0, 1 and 2 name the default streams, and no pointer is so small.
const FIRST: usize = 0x1000;
const STEP: usize = 16;

/// Gives out handles; none twice, in the life of the process and over all kinds.
#[derive(Debug)]
pub(crate) struct Handles(usize);

impl Handles {
    /// All handles are free.
    pub(crate) fn new() -> Self {
        Self(FIRST)
    }

    /// A handle that was not given out before.
    pub(crate) fn fresh(&mut self) -> usize {
        self.0 += STEP;
        self.0 - STEP
    }
}

/// Objects of one kind by handle.
#[derive(Debug)]
pub(crate) struct Table<T>(BTreeMap<usize, T>);

impl<T> Default for Table<T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<T> Table<T> {
    /// Adds an object; gives its handle.
    pub(crate) fn add(&mut self, handles: &mut Handles, object: T) -> usize {
        let handle = handles.fresh();
        self.0.insert(handle, object);
        handle
    }

    /// The object, or `CUDA_ERROR_INVALID_HANDLE`.
    pub(crate) fn get(&self, handle: usize) -> Answer<&T> {
        self.0.get(&handle).ok_or(Status::InvalidHandle)
    }

    /// The object, or `CUDA_ERROR_INVALID_HANDLE`.
    pub(crate) fn get_mut(&mut self, handle: usize) -> Answer<&mut T> {
        self.0.get_mut(&handle).ok_or(Status::InvalidHandle)
    }

    /// Takes the object out.
    pub(crate) fn remove(&mut self, handle: usize) -> Answer<T> {
        self.0.remove(&handle).ok_or(Status::InvalidHandle)
    }

    /// Handles and objects, the oldest first.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (usize, &T)> {
        self.0.iter().map(|(handle, object)| (*handle, object))
    }

    /// Handles and objects, the oldest first.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (usize, &mut T)> {
        self.0.iter_mut().map(|(handle, object)| (*handle, object))
    }

    /// Keeps only what the function wants.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(&T) -> bool) {
        self.0.retain(|_, object| keep(object));
    }
}
