//! Where variables and parameters lie: module-level ones in global memory, shared and local ones
//! at offsets of their windows, parameters at offsets of the parameter block.

use std::collections::HashMap;
use std::ops::Range;

use crate::error::LoadError;
use crate::memory::{Memory, Space};
use crate::module::{Global, GlobalSet, Param};
use crate::ptx::{Function, Init, Number, Statement, Type, Unit, Variable, VariableSpace};

/// Bytes of a kernel's parameters, at most (sm_70 and later).
const PARAM_BYTES_MAX: u64 = 32764;
/// Shared bytes that a module may declare, at most, before a launch's own limit looks at it.
const SHARED_BYTES_MAX: u64 = 256 << 10;
/// Local bytes per thread, at most.
const LOCAL_BYTES_MAX: u64 = 512 << 10;

/// A variable's address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Placed {
    pub(super) space: Space,
    pub(super) address: u64,
}

/// All that has an address in a kernel, by name.
#[derive(Debug, Default)]
pub(super) struct Layout<'a> {
    pub(super) params: Vec<Param>,
    pub(super) param_bytes: u32,
    pub(super) shared_bytes: u32,
    pub(super) variables: HashMap<&'a str, Placed>,
    pub(super) constants: Vec<Range<u64>>,
}

fn fail(variable: &Variable, message: impl Into<String>) -> LoadError {
    let text = variable.name.to_string();
    LoadError { kernel: String::new(), line: variable.line, text, message: message.into() }
}

/// Places one thing after another.
#[derive(Debug, Default)]
pub(super) struct Cursor {
    pub(super) bytes: u64,
}

impl Cursor {
    pub(super) fn place(&mut self, bytes: u64, align: u64) -> u64 {
        let offset = self.bytes.next_multiple_of(align.max(1));
        self.bytes = offset + bytes;
        offset
    }

    /// As [`Cursor::place`], but not beyond a size.
    pub(super) fn place_within(&mut self, variable: &Variable, most: u64) -> Result<u64, LoadError> {
        let offset = self.place(variable.bytes(), u64::from(variable.align));
        if self.bytes > most {
            return Err(fail(variable, format!("{} bytes with it, at most {most}", self.bytes)));
        }
        Ok(offset)
    }
}

/// Allocates and initialises the module's `.global` and `.const` variables.
pub(crate) fn place_variables(
    unit: &Unit,
    globals: &mut GlobalSet,
    memory: &Memory,
) -> Result<(), LoadError> {
    let lies_there = |v: &&Variable| matches!(v.space, VariableSpace::Global | VariableSpace::Const);
    for variable in unit.variables.iter().filter(lies_there) {
        let bytes = variable.bytes();
        let address = memory.alloc(bytes).map_err(|e| fail(variable, e.to_string()))?;
        globals.variables.push(Global { name: variable.name.to_string(), address, bytes });
    }
    for variable in unit.variables.iter().filter(lies_there) {
        let image = image(variable, globals)?;
        let place = globals.variables.iter().find(|g| g.name == variable.name).map_or(0, |g| g.address);
        memory.copy_in(place, &image).map_err(|e| fail(variable, e.to_string()))?;
    }
    Ok(())
}

/// A variable's bytes at the start: its initialiser, then zeros.
fn image(variable: &Variable, globals: &GlobalSet) -> Result<Vec<u8>, LoadError> {
    let mut image = vec![0; variable.bytes() as usize];
    let size = variable.ty.bytes() as usize;
    if variable.init.len() > image.len() / size.max(1) {
        return Err(fail(variable, "more initial values than elements"));
    }
    for (slot, init) in image.chunks_exact_mut(size.max(1)).zip(&variable.init) {
        let bits = match init {
            Init::Number(number) => number_bits(*number, variable.ty),
            Init::Address(name, offset) => {
                let global = globals.variables.iter().find(|g| g.name == *name);
                let global = global
                    .ok_or_else(|| fail(variable, format!("`{name}` has no address in global memory")))?;
                global.address.wrapping_add(*offset as u64)
            }
        };
        slot.copy_from_slice(
            bits.to_le_bytes().get(..size).ok_or_else(|| fail(variable, "type of initial value"))?,
        );
    }
    Ok(image)
}

/// The bits of a literal as a value of a type.
pub(super) fn number_bits(number: Number, ty: Type) -> u64 {
    match (number, ty) {
        (Number::Int(value), Type::F32) => u64::from((value as i64 as f32).to_bits()),
        (Number::Int(value), Type::F64) => (value as i64 as f64).to_bits(),
        (Number::Int(value), _) => value,
        (Number::Single(bits), Type::F64) => f64::from(f32::from_bits(bits)).to_bits(),
        (Number::Single(bits), _) => u64::from(bits),
        (Number::Double(bits), Type::F32) => u64::from((f64::from_bits(bits) as f32).to_bits()),
        (Number::Double(bits), _) => bits,
    }
}

/// Where everything lies that a kernel names, but for variables inside of its body's blocks that
/// are local (those are placed as the body is decoded).
pub(super) fn layout<'a>(
    unit: &Unit<'a>,
    function: &Function<'a>,
    globals: &GlobalSet,
) -> Result<Layout<'a>, LoadError> {
    let mut layout = Layout::default();
    let mut params = Cursor::default();
    for param in &function.params {
        let offset = params.place_within(param, PARAM_BYTES_MAX)? as u32;
        let (bytes, align) = (param.bytes() as u32, param.align);
        layout.params.push(Param { name: param.name.to_string(), offset, bytes, align });
    }
    layout.param_bytes = params.bytes as u32;
    for global in &globals.variables {
        if let Some(variable) = unit.variables.iter().find(|v| v.name == global.name) {
            let address = global.address;
            layout.variables.insert(variable.name, Placed { space: Space::Global, address });
            if variable.space == VariableSpace::Const {
                layout.constants.push(address..address + global.bytes);
            }
        }
    }
    let mut shared = Cursor::default();
    let declared = unit
        .functions
        .iter()
        .filter(|f| !f.entry || f.name == function.name)
        .flat_map(|f| f.body.iter().flatten());
    let inner = declared.filter_map(|s| if let Statement::Variable(v) = s { Some(v) } else { None });
    let all: Vec<&Variable> =
        unit.variables.iter().chain(inner).filter(|v| v.space == VariableSpace::Shared).collect();
    for variable in all.iter().filter(|v| v.count.is_some()) {
        let address = shared.place_within(variable, SHARED_BYTES_MAX)?;
        layout.variables.insert(variable.name, Placed { space: Space::Shared, address });
    }
    // Arrays without a length all begin where the dynamic shared memory does. Windows start at a
    // multiple of 1024 bytes on a card, so that swizzled tiles can ask for that alignment.
    let open: Vec<&&Variable> = all.iter().filter(|v| v.count.is_none()).collect();
    let align = open.iter().map(|v| u64::from(v.align)).max().unwrap_or(1).max(16);
    layout.shared_bytes = shared.bytes as u32;
    if !open.is_empty() {
        let address = shared.place(0, align);
        layout.shared_bytes = address as u32;
        for variable in open {
            layout.variables.insert(variable.name, Placed { space: Space::Shared, address });
        }
    }
    Ok(layout)
}

/// Places a local variable (or a call's parameter, which lies there too).
pub(super) fn place_local(cursor: &mut Cursor, variable: &Variable) -> Result<Placed, LoadError> {
    let address = cursor.place_within(variable, LOCAL_BYTES_MAX)?;
    Ok(Placed { space: Space::Local, address })
}
