//! Syntax tree to a compact instruction form.

use crate::error::LoadError;
use crate::memory::Memory;
use crate::module::{GlobalSet, Param};
use crate::ptx::{Function, Unit};

/// A kernel, decoded.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: String,
    pub(crate) params: Vec<Param>,
    pub(crate) param_bytes: u32,
    pub(crate) shared_bytes: u32,
    pub(crate) local_bytes: u32,
    pub(crate) block_max: Option<[u32; 3]>,
    pub(crate) block_required: Option<[u32; 3]>,
    pub(crate) cluster_required: Option<[u32; 3]>,
    pub(crate) registers_estimate: u32,
}

pub(crate) fn place_variables(
    _unit: &Unit,
    _globals: &mut GlobalSet,
    _memory: &Memory,
) -> Result<(), LoadError> {
    Ok(())
}

pub(crate) fn program(
    _unit: &Unit,
    function: &Function,
    _text: &str,
    _globals: &GlobalSet,
) -> Result<Program, LoadError> {
    let message = "instructions are not decoded yet".to_string();
    Err(LoadError { kernel: function.name.to_string(), line: function.line, text: String::new(), message })
}
