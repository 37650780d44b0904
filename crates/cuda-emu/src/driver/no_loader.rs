//! In the place of `loader.rs` where the system has no such loader: nothing can be loaded, so that
//! `install` says why it cannot work, and all that needs no driver library is there.

use std::ffi::{CStr, c_void};
use std::path::Path;

/// None exists.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Loaded {}

impl Loaded {
    pub(super) fn load(_: &Path) -> Result<Self, String> {
        Err("this system has no dlopen".to_string())
    }

    pub(super) fn known_as(_: &CStr) -> Option<Self> {
        None
    }

    pub(super) fn symbol(self, _: &CStr) -> Option<*mut c_void> {
        match self {}
    }
}
