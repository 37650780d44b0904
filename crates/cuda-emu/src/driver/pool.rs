//! Memory pools of the stream-ordered allocator, as far as programs ask about them: the emulator
//! gives memory back at once, whatever the release threshold is.

use std::collections::BTreeMap;

use super::status::{Answer, Status};

/// `CU_MEMPOOL_ATTR_…` that tell of bytes.
const RESERVED_CURRENT: u32 = 5;
const USED_HIGH: u32 = 8;
/// `CU_MEMPOOL_ATTR_RELEASE_THRESHOLD`, the first with 64 bits.
const RELEASE_THRESHOLD: u32 = 4;

/// A pool.
#[derive(Debug, Default)]
pub(crate) struct Pool {
    values: BTreeMap<u32, u64>,
}

impl Pool {
    /// Whether the attribute's value has 64 bits; the reuse policies have 32.
    pub(crate) fn is_wide(attribute: u32) -> Answer<bool> {
        match attribute {
            1..RELEASE_THRESHOLD => Ok(false),
            RELEASE_THRESHOLD..=USED_HIGH => Ok(true),
            _ => Err(Status::InvalidValue),
        }
    }

    /// Sets an attribute.
    pub(crate) fn set(&mut self, attribute: u32, value: u64) {
        self.values.insert(attribute, value);
    }

    /// An attribute, given the bytes in use on the device.
    pub(crate) fn get(&self, attribute: u32, used: u64) -> u64 {
        match attribute {
            RESERVED_CURRENT..=USED_HIGH => used,
            RELEASE_THRESHOLD => self.values.get(&attribute).copied().unwrap_or(0),
            // The reuse policies are all on.
            _ => self.values.get(&attribute).copied().unwrap_or(1),
        }
    }
}
