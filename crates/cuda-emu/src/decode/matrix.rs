//! Decodes tensor-core instructions and the loads and stores of their fragments.

use super::body::{Decoder, Reason};
use super::kinds::*;
use super::op::*;
use super::operand::Opcode;
use super::simple::{groups, operand};
use crate::memory::Space;
use crate::ptx::{Instruction, Number, Operand, Type};

impl<'a> Decoder<'a, '_> {
    pub(super) fn matrix_access(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        if op.ty()? != Type::B16 || !op.has("m8n8") {
            return Err("matrices of this type are not supported".to_string());
        }
        let load = op.parts[0] == "ldmatrix";
        let address = self.address(operand(i, usize::from(load))?, Space::Shared)?;
        let list = if load {
            self.write_list(operand(i, 0)?, Type::B32)?
        } else {
            self.read_list(operand(i, 1)?, Type::B32)?
        };
        let count = list.len() as u8;
        if !op.has(["", "x1", "x2", "", "x4"].get(list.len()).copied().unwrap_or("")) {
            return Err("as many registers as matrices are needed".to_string());
        }
        let (transposed, wide) = (op.has("trans"), !address.narrow);
        let kind = if load {
            Op::Ldmatrix { count, transposed, wide }
        } else {
            Op::Stmatrix { count, transposed, wide }
        };
        let inst = self.with_list(Inst { a: address.slot, imm: address.offset, ..Inst::new(kind) }, &list)?;
        self.emit(inst);
        Ok(())
    }

    pub(super) fn mma(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let [acc, a, b, c] = op.types()[..] else { return Err("expected four types".to_string()) };
        let shape = op.parts.get(3).copied().unwrap_or_default();
        let k = shape.strip_prefix("m16n8k").and_then(|k| k.parse::<u8>().ok()).unwrap_or(0);
        let sat = op.has("satfinite");
        let byte = |t: Type| matches!(t, Type::S8 | Type::U8);
        let fp8 = |t: Type| matches!(t, Type::E4m3 | Type::E5m2);
        let known = match (acc, a, b, k) {
            (Type::F32 | Type::F16, Type::F16, Type::F16, 8 | 16) => true,
            (Type::F32, Type::Bf16, Type::Bf16, 8 | 16) => true,
            (Type::F32, Type::Tf32, Type::Tf32, 4 | 8) => true,
            (Type::S32, a, b, 16 | 32) => byte(a) && byte(b),
            (Type::F32, a, b, 32) => fp8(a) && fp8(b),
            _ => false,
        };
        if !known || c != acc || !op.has("row") || !op.has("col") {
            return Err("matrix multiplication of this shape or these types is not supported".to_string());
        }
        let registers_a = u32::from(k) * 16 * a.bytes() / 128;
        let registers_acc = if acc == Type::F16 { 2 } else { 4 };
        let acc_part = if acc == Type::F16 { Type::B32 } else { acc };
        let (va, vb) =
            (self.read_list(operand(i, 1)?, Type::B32)?, self.read_list(operand(i, 2)?, Type::B32)?);
        let vc = self.read_list(operand(i, 3)?, acc_part)?;
        let vd = self.write_list(operand(i, 0)?, acc_part)?;
        let sizes = [vd.len(), va.len(), vb.len(), vc.len()].map(|n| n as u32);
        if sizes != [registers_acc, registers_a, registers_a / 2, registers_acc] {
            return Err("fragments of other sizes than the shape has".to_string());
        }
        let kind = MmaKind { k, a, b, acc, sat };
        let inst = self.with_list(Inst::new(Op::Mma(kind)), &[vd, va, vb, vc].concat())?;
        self.emit(inst);
        Ok(())
    }

    pub(super) fn wgmma(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        match op.parts.get(1).copied().unwrap_or_default() {
            "fence" => self.emit(Inst::new(Op::WgmmaFence)),
            "commit_group" => self.emit(Inst::new(Op::WgmmaCommit)),
            "wait_group" => self.emit(Inst { imm: groups(i)?, ..Inst::new(Op::WgmmaWait) }),
            "mma_async" => self.mma_async(i, op)?,
            _ => return Err("instruction is not supported".to_string()),
        }
        Ok(())
    }

    fn mma_async(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let [acc, a, b] = op.types()[..] else { return Err("expected three types".to_string()) };
        let shape = op.parts.iter().find_map(|p| p.strip_prefix("m64n")).and_then(|s| s.split_once('k'));
        let (n, k) = shape
            .and_then(|(n, k)| Some((n.parse::<u16>().ok()?, k.parse::<u32>().ok()?)))
            .ok_or("no shape in the opcode")?;
        let known = match (acc, a) {
            (Type::F32, Type::F16 | Type::Bf16) | (Type::F16, Type::F16) => a == b,
            (Type::F32, Type::E4m3 | Type::E5m2) => a == b,
            (Type::F32, Type::Tf32) => a == b,
            (Type::S32, Type::S8 | Type::U8) => a == b,
            _ => false,
        };
        if !known || k * a.bytes() != 32 || n % 8 != 0 || !(8..=256).contains(&n) {
            return Err("matrix multiplication of this shape or these types is not supported".to_string());
        }
        let acc_part = if acc == Type::F16 { Type::B32 } else { acc };
        let mut list = self.read_list(operand(i, 0)?, acc_part)?;
        self.write_list(operand(i, 0)?, acc_part)?;
        if list.len() != n as usize / if acc == Type::F16 { 4 } else { 2 } {
            return Err("accumulators of another size than the shape has".to_string());
        }
        let a_registers = matches!(operand(i, 1)?, Operand::Vector(_));
        let mut descriptor = SINK;
        if a_registers {
            let registers = self.read_list(operand(i, 1)?, Type::B32)?;
            if registers.len() != 4 {
                return Err("A of four registers is needed".to_string());
            }
            list.extend(registers);
        } else {
            descriptor = self.read(operand(i, 1)?, Type::B64)?;
        }
        let b_slot = self.read(operand(i, 2)?, Type::B64)?;
        let (scale, negated) = self.scale(i)?;
        let number = |index: usize| match i.operands.get(index) {
            None => Ok(0),
            Some(Operand::Number(Number::Int(value))) => Ok(*value as i64),
            Some(_) => Err("expected a number".to_string()),
        };
        let (scale_a, scale_b) = (number(4)?, number(5)?);
        // With A in registers only B can be transposed.
        let (trans_a, trans_b) = if a_registers { (0, number(6)?) } else { (number(6)?, number(7)?) };
        let imm = i64::from(scale_a < 0)
            | i64::from(scale_b < 0) << 1
            | (trans_a & 1) << 2
            | (trans_b & 1) << 3
            | i64::from(negated) << 4;
        let kind = WgmmaKind { n, a, acc, a_registers };
        let inst = self.with_list(
            Inst { a: descriptor, b: b_slot, c: scale, imm, ..Inst::new(Op::Wgmma(kind)) },
            &list,
        )?;
        self.emit(inst);
        Ok(())
    }

    /// The predicate that keeps the old accumulators.
    fn scale(&mut self, i: &Instruction<'a>) -> Result<(Slot, bool), Reason> {
        match i.operands.get(3) {
            None => Ok((TRUE, false)),
            Some(operand) => self.pred(operand),
        }
    }
}
