//! Decodes loads, stores and atomics.

use super::Broadcast;
use super::body::{Decoder, Reason};
use super::kinds::*;
use super::op::*;
use super::operand::{Address, Opcode};
use super::simple::operand;
use crate::memory::Space;
use crate::ptx::{Instruction, Operand, Type};

/// Fails unless there are as many registers as the opcode says.
fn vector_of(op: &Opcode, registers: usize) -> Result<(), Reason> {
    let wanted = if op.has("v2") {
        2
    } else if op.has("v4") {
        4
    } else {
        1
    };
    if registers == wanted { Ok(()) } else { Err(format!("{wanted} registers are needed")) }
}

impl<'a, 'u> Decoder<'a, 'u> {
    pub(super) fn load(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        let from = operand(i, 1)?;
        let targets: &[Operand<'a>] = match operand(i, 0)? {
            Operand::Vector(elements) => elements,
            one => std::slice::from_ref(one),
        };
        vector_of(op, targets.len())?;
        let space = if op.has("param") || op.has("param::entry") || op.has("param::func") {
            match self.param_address(from) {
                Some(Ok(offset)) => return self.load_param(targets, ty, offset),
                Some(Err(placed)) => {
                    let slot = self.constant(placed as u64, false);
                    return self.emit_load(
                        targets,
                        ty,
                        Op::Load(Space::Local, ty),
                        Address { slot, narrow: true, offset: 0 },
                    );
                }
                // Through a register: parameters lie in global memory here.
                None => Space::Global,
            }
        } else {
            op.space()
        };
        let address = self.address(from, space)?;
        let kind = match op.order() {
            Some(order) => Op::LoadStrong(space, ty, order),
            None => Op::Load(space, ty),
        };
        self.emit_load(targets, ty, kind, address)
    }

    fn emit_load(
        &mut self,
        targets: &[Operand<'a>],
        ty: Type,
        op: Op,
        address: Address,
    ) -> Result<(), Reason> {
        if ty.bytes() > 8 || targets.len() > 4 || targets.len() as u32 * ty.bytes() > 16 {
            return Err("load of this size is not supported".to_string());
        }
        let list: Vec<Slot> = targets.iter().map(|t| self.write_any(t)).collect::<Result<_, _>>()?;
        let inst =
            Inst { a: address.slot, c: u32::from(address.narrow), imm: address.offset, ..Inst::new(op) };
        let inst = self.with_list(inst, &list)?;
        self.emit(inst);
        Ok(())
    }

    /// Where a named parameter lies: in the parameter block, or (a call's) in local memory.
    fn param_address(&self, from: &Operand<'a>) -> Option<Result<u32, u32>> {
        let Operand::Address(base, offset, _) = from else { return None };
        let Operand::Name(name) = **base else { return None };
        if let Some(placed) = self.variable(name).filter(|p| p.space == Space::Local) {
            return Some(Err((placed.address as i64).wrapping_add(*offset) as u32));
        }
        self.param(name).map(|start| Ok(i64::from(start).wrapping_add(*offset) as u32))
    }

    /// Parameters are known before the kernel starts: their loads are moves.
    fn load_param(&mut self, targets: &[Operand<'a>], ty: Type, offset: u32) -> Result<(), Reason> {
        let bytes = ty.bytes();
        let end = u64::from(offset) + u64::from(bytes) * targets.len() as u64;
        if end > u64::from(self.layout.param_bytes) || !offset.is_multiple_of(bytes.max(1)) || bytes > 8 {
            return Err("load outside of the parameters, or misaligned".to_string());
        }
        for (index, target) in targets.iter().enumerate() {
            let at = offset + index as u32 * bytes;
            let tagged = self.write_any(target)?;
            let wide = tagged & WIDE != 0;
            let a = self.broadcast(Broadcast::Param(at, bytes as u8, ty.is_signed()), wide);
            let d = tagged & !(WIDE | NARROW);
            self.emit(Inst { d, a, ..Inst::new(if wide { Op::Mov64 } else { Op::Mov32 }) });
        }
        Ok(())
    }

    pub(super) fn store(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        if op.has("async") || op.has("bulk") {
            return Err("instruction is not supported".to_string());
        }
        let ty = op.ty()?;
        let sources: &[Operand<'a>] = match operand(i, 1)? {
            Operand::Vector(elements) => elements,
            one => std::slice::from_ref(one),
        };
        vector_of(op, sources.len())?;
        if ty.bytes() > 8 || sources.len() > 4 || sources.len() as u32 * ty.bytes() > 16 {
            return Err("store of this size is not supported".to_string());
        }
        let (space, address) = if op.has("param") || op.has("param::func") {
            let Some(Err(placed)) = self.param_address(operand(i, 0)?) else {
                return Err("store to a parameter".to_string());
            };
            (Space::Local, Address { slot: self.constant(u64::from(placed), false), narrow: true, offset: 0 })
        } else {
            let space = op.space();
            (space, self.address(operand(i, 0)?, space)?)
        };
        let op = match op.order() {
            Some(order) => Op::StoreStrong(space, ty, order),
            None => Op::Store(space, ty),
        };
        let list: Vec<Slot> = sources.iter().map(|s| self.read_any(s, ty)).collect::<Result<_, _>>()?;
        let inst =
            Inst { a: address.slot, c: u32::from(address.narrow), imm: address.offset, ..Inst::new(op) };
        let inst = self.with_list(inst, &list)?;
        self.emit(inst);
        Ok(())
    }

    pub(super) fn atomic(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        let kind = op.parts[1..].iter().copied().find_map(AtomicOp::parse);
        let kind = kind.ok_or("operation is not supported")?;
        if op.parts[0] == "red" && matches!(kind, AtomicOp::Exch | AtomicOp::Cas) {
            return Err("a reduction without its old value has no use for this".to_string());
        }
        let float_ok = kind == AtomicOp::Add
            || matches!(kind, AtomicOp::Min | AtomicOp::Max) && ty.bytes() < 8 && ty != Type::F32;
        if ty.is_float() && !float_ok || ty.bytes() > 8 || op.has("async") {
            return Err("atomic of this type is not supported".to_string());
        }
        let (space, order) = (op.space(), op.order().unwrap_or(Order::Relaxed));
        let first = usize::from(op.parts[0] == "atom");
        let address = self.address(operand(i, first)?, space)?;
        let sources: Vec<Operand<'a>> = match operand(i, first + 1)? {
            Operand::Vector(elements) if first == 0 => elements.clone(),
            Operand::Vector(_) => return Err("atomic of vectors is not supported".to_string()),
            one => vec![one.clone()],
        };
        for (index, source) in sources.iter().enumerate() {
            let b = self.read(source, ty)?;
            let c = if kind == AtomicOp::Cas { self.read(operand(i, first + 2)?, ty)? } else { SINK };
            let d = if first == 1 { self.write(operand(i, 0)?, ty)? } else { SINK };
            let imm = address.offset + index as i64 * i64::from(ty.bytes());
            let inst =
                Inst { d, a: address.slot, b, c, imm, ..Inst::new(Op::Atomic(space, kind, ty, order)) };
            let inst = self.with_list(inst, &[u32::from(address.narrow)])?;
            self.emit(inst);
        }
        Ok(())
    }
}
