//! Walks a kernel's statements and those of the functions it calls, and emits instructions.

use std::collections::HashMap;

use super::decoded::{Decoded, Use};
use super::liveness::Slots;
use super::names::{Kind, Register, Scopes};
use super::op::{Inst, Op, SINK, Slot, TRUE};
use super::variables::{Cursor, Layout, Placed, place_local};
use super::{Broadcast, Files, Origin};
use crate::error::{LoadError, SourceLine};
use crate::ptx::{Function, Instruction, Source, Statement, Unit, VariableSpace};

/// Calls inside of calls; more is recursion.
const CALL_DEPTH_MAX: u32 = 16;
/// Instructions of a kernel, copies of called functions included.
const INSTRUCTIONS_MAX: usize = 1 << 20;

/// Why an instruction cannot be decoded.
pub(super) type Reason = String;

/// State of a pass.
pub(super) struct Decoder<'a, 'u> {
    unit: &'u Unit<'a>,
    text: &'u str,
    pub(super) layout: &'u Layout<'a>,
    slots: Option<&'u Slots>,
    pub(super) scopes: Scopes<'a>,
    pub(super) out: Decoded,
    interned: HashMap<(Broadcast, bool), Slot>,
    /// Labels and local variables, by scope.
    labels: HashMap<(usize, &'a str), usize>,
    pub(super) locals: HashMap<(usize, &'a str), Placed>,
    tables: HashMap<&'a str, &'u [&'a str]>,
    local: Cursor,
    /// Branches to patch: instruction, place in its list, scope, label, line.
    fixups: Vec<(usize, Option<usize>, usize, &'a str, u32)>,
    source: Option<Source>,
    call_depth: u32,
    /// Label at the end of the function that is being copied in; none in the kernel itself.
    return_label: Option<(usize, &'a str)>,
}

/// Decodes a kernel's body; the first pass has no slots yet.
pub(super) fn decode<'a>(
    unit: &Unit<'a>,
    function: &Function<'a>,
    text: &str,
    layout: &Layout<'a>,
    slots: Option<&Slots>,
) -> Result<Decoded, LoadError> {
    let mut decoder = Decoder {
        unit,
        text,
        layout,
        slots,
        scopes: Scopes::default(),
        out: Decoded::default(),
        interned: HashMap::new(),
        labels: HashMap::new(),
        locals: HashMap::new(),
        tables: HashMap::new(),
        local: Cursor::default(),
        fixups: Vec::new(),
        source: None,
        call_depth: 0,
        return_label: None,
    };
    if let Some(slots) = slots {
        decoder.out.files = Files { narrow: slots.narrow, wide: slots.wide, preds: slots.preds };
    }
    let in_kernel = |e: LoadError| LoadError { kernel: function.name.to_string(), ..e };
    decoder.scopes.open(false);
    decoder.function(function).map_err(in_kernel)?;
    decoder.finish(function).map_err(in_kernel)?;
    Ok(decoder.out)
}

impl<'a, 'u> Decoder<'a, 'u> {
    fn function(&mut self, function: &'u Function<'a>) -> Result<(), LoadError> {
        let body = function.body.as_deref().unwrap_or_default();
        let mut label = None;
        for statement in body {
            match statement {
                Statement::Open => self.scopes.open(true),
                Statement::Close => drop(self.scopes.close()),
                Statement::Registers(ty, names) => {
                    let kind = Kind::of(*ty)
                        .ok_or_else(|| fail(function.line, "128-bit registers are not supported"))?;
                    names.iter().for_each(|(name, count)| self.scopes.declare(kind, name, *count));
                }
                Statement::Variable(variable) => {
                    if matches!(variable.space, VariableSpace::Local | VariableSpace::Param) {
                        let placed = place_local(&mut self.local, variable)?;
                        self.locals.insert((self.scopes.current(), variable.name), placed);
                    }
                }
                Statement::Label(name) => {
                    label = Some(*name);
                    self.labels.insert((self.scopes.current(), name), self.out.code.len());
                }
                Statement::Targets(labels) => drop(label.map(|name| self.tables.insert(name, labels))),
                Statement::Source(source) => self.source = Some(*source),
                Statement::Instruction(instruction) => self.statement(instruction)?,
            }
        }
        Ok(())
    }

    fn statement(&mut self, instruction: &'u Instruction<'a>) -> Result<(), LoadError> {
        let first = self.out.code.len();
        let text = self.text.get(instruction.span.0..instruction.span.1).unwrap_or_default();
        let located = |message| LoadError {
            kernel: String::new(),
            line: instruction.line,
            text: text.to_string(),
            message,
        };
        let guard = self.guard(instruction).map_err(located)?;
        if instruction.opcode.starts_with("call") {
            let here = |e: LoadError| if e.line == instruction.line { located(e.message) } else { e };
            self.call(instruction, guard).map_err(here)?;
        } else {
            self.instruction(instruction).map_err(located)?;
        }
        if self.out.code.len() > INSTRUCTIONS_MAX {
            return Err(located(format!("more than {INSTRUCTIONS_MAX} instructions")));
        }
        if !instruction.opcode.starts_with("call") {
            for inst in &mut self.out.code[first..] {
                (inst.guard, inst.negated) = guard;
            }
        }
        let origin = Origin { line: instruction.line, text: text.to_string(), source: self.source_lines() };
        self.out.origins.resize(self.out.code.len(), origin);
        Ok(())
    }

    fn guard(&mut self, instruction: &Instruction<'a>) -> Result<(u16, bool), Reason> {
        let Some((name, negated)) = instruction.guard else { return Ok((TRUE as u16, false)) };
        let slot = self.pred_named(name, false)?;
        let slot = u16::try_from(slot).map_err(|_| "more predicates than fit in 16 bits".to_string())?;
        Ok((slot, negated))
    }

    fn source_lines(&self) -> Vec<SourceLine> {
        let Some(source) = self.source else { return Vec::new() };
        let named = |(number, line): (u32, u32)| {
            let file = self.unit.files.iter().find(|(n, _)| *n == number).map_or("?", |(_, name)| *name);
            SourceLine { file: file.to_string(), line }
        };
        [Some((source.file, source.line)), source.inlined_at].into_iter().flatten().map(named).collect()
    }

    /// Appends an instruction; a move to where the value is already does nothing.
    pub(super) fn emit(&mut self, mut inst: Inst) {
        if self.slots.is_some() && matches!(inst.op, Op::Mov32 | Op::Mov64) && inst.d == inst.a {
            inst.op = Op::Nop;
        }
        self.out.code.push(inst);
    }

    /// Puts a list behind the others and notes it in the instruction.
    pub(super) fn with_list(&mut self, mut inst: Inst, list: &[Slot]) -> Result<Inst, Reason> {
        inst.list = self.out.lists.len() as u32;
        inst.list_len =
            u8::try_from(list.len()).map_err(|_| "more operands than any instruction has".to_string())?;
        self.out.lists.extend_from_slice(list);
        Ok(inst)
    }

    /// Slot of a register; notes the use at the instruction that comes next.
    pub(super) fn slot(&mut self, register: Register, write: bool) -> Slot {
        let id = register.id as usize;
        if self.out.registers.len() <= id {
            self.out.registers.resize(id + 1, register.kind);
        }
        self.out.registers[id] = register.kind;
        self.out.uses.push(Use { instruction: self.out.code.len() as u32, register: register.id, write });
        match self.slots {
            Some(slots) => match slots.known.get(&register.id) {
                Some(value) => self.broadcast(*value, register.kind == Kind::Wide),
                None => slots.of.get(id).copied().unwrap_or(SINK),
            },
            // The first pass only looks at uses: any slot that is not the guard's `TRUE` will do.
            None => 2,
        }
    }

    /// Slot of a value that is known before the kernel starts.
    pub(super) fn broadcast(&mut self, value: Broadcast, wide: bool) -> Slot {
        if let Some(slot) = self.interned.get(&(value, wide)) {
            return *slot;
        }
        let files = &mut self.out.files;
        let next = if wide { &mut files.wide } else { &mut files.narrow };
        let slot = *next;
        *next += 1;
        self.interned.insert((value, wide), slot);
        self.out.broadcasts.push((if wide { slot | super::op::WIDE } else { slot }, value));
        slot
    }

    /// Notes that the next instruction branches to a label; into place `list` of its list, or `imm`.
    pub(super) fn branch_to(&mut self, label: &'a str, list: Option<usize>, line: u32) {
        self.fixups.push((self.out.code.len(), list, self.scopes.current(), label, line));
    }

    /// The labels of a `.branchtargets` table.
    pub(super) fn table(&self, name: &str) -> Option<&'u [&'a str]> {
        self.tables.get(name).copied()
    }

    /// `ret`: to the end of the function that is copied in, else the thread's end.
    pub(super) fn emit_return(&mut self, line: u32) {
        match self.return_label {
            None => self.emit(Inst::new(Op::Exit)),
            Some((scope, label)) => {
                self.fixups.push((self.out.code.len(), None, scope, label, line));
                self.emit(Inst::new(Op::Branch));
            }
        }
    }

    /// Copies a called function in: parameters are local variables of the caller by other names.
    pub(super) fn copy_in(
        &mut self,
        name: &'a str,
        returns: &[Placed],
        params: &[Placed],
        line: u32,
    ) -> Result<(), LoadError> {
        let alias = self.unit.aliases.iter().find(|(alias, _)| *alias == name);
        let own_name = alias.map_or(name, |(_, own)| own);
        let callee = self.unit.functions.iter().find(|f| f.name == own_name && f.body.is_some());
        let callee = callee.ok_or_else(|| fail(line, format!("`{name}` has no body in this module")))?;
        if callee.params.len() != params.len() || callee.returns.len() != returns.len() {
            return Err(fail(line, format!("`{name}` takes other parameters")));
        }
        if self.call_depth >= CALL_DEPTH_MAX {
            return Err(fail(
                line,
                format!("calls nested more than {CALL_DEPTH_MAX} deep: recursion is not supported"),
            ));
        }
        let (scope, return_label, source) = (self.scopes.current(), self.return_label, self.source);
        self.scopes.open(false);
        let inner = self.scopes.current();
        for (formal, actual) in callee.params.iter().zip(params).chain(callee.returns.iter().zip(returns)) {
            self.locals.insert((inner, formal.name), *actual);
        }
        self.return_label = Some((inner, "%end"));
        self.call_depth += 1;
        self.function(callee)?;
        self.call_depth -= 1;
        self.labels.insert((inner, "%end"), self.out.code.len());
        self.return_label = return_label;
        self.source = source;
        self.scopes.return_to(Some(scope));
        Ok(())
    }

    /// Puts a label where the next instruction will be, for a branch that skips a guarded call.
    pub(super) fn label_here(&mut self, scope: usize, label: &'a str) {
        self.labels.insert((scope, label), self.out.code.len());
    }

    /// Opens a scope that only holds a label, and gives it.
    pub(super) fn label_scope(&mut self) -> usize {
        let current = self.scopes.current();
        self.scopes.open(true);
        let scope = self.scopes.current();
        self.scopes.return_to(Some(current));
        scope
    }

    /// Branches to a label of a given scope.
    pub(super) fn branch_in(&mut self, scope: usize, label: &'a str, line: u32) {
        self.fixups.push((self.out.code.len(), None, scope, label, line));
    }

    fn finish(&mut self, function: &Function) -> Result<(), LoadError> {
        // Falling off the end is a return; and a label at the end needs something to stand before.
        self.emit(Inst::new(Op::Exit));
        let origin = Origin { line: function.line, text: "ret".to_string(), source: Vec::new() };
        self.out.origins.resize(self.out.code.len(), origin);
        for (at, list, scope, label, line) in std::mem::take(&mut self.fixups) {
            let mut scope = Some(scope);
            let target = loop {
                let Some(current) = scope else {
                    let text = self.out.origins[at].text.clone();
                    return Err(LoadError { text, ..fail(line, format!("no label `{label}`")) });
                };
                if let Some(target) = self.labels.get(&(current, label)) {
                    break *target;
                }
                scope = self.scopes.parent(current);
            };
            match list {
                None => self.out.code[at].imm = target as i64,
                Some(place) => {
                    let start = self.out.code[at].list as usize;
                    self.out.lists[start + place] = target as u32;
                }
            }
        }
        self.out.waits_read_registers_of_wgmma();
        self.out.local_bytes = self.local.bytes as u32;
        self.out.registers.resize(self.scopes.count() as usize, Kind::Word);
        Ok(())
    }
}

pub(super) fn fail(line: u32, message: impl Into<String>) -> LoadError {
    LoadError { kernel: String::new(), line, text: String::new(), message: message.into() }
}

impl Inst {
    /// An instruction without operands and guard.
    pub(super) fn new(op: Op) -> Self {
        Self {
            op,
            guard: TRUE as u16,
            negated: false,
            list_len: 0,
            step: 1,
            list: 0,
            d: SINK,
            a: SINK,
            b: SINK,
            c: SINK,
            imm: 0,
        }
    }
}
