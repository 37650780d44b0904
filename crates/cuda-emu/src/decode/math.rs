//! Decodes integer and floating arithmetic and bit operations.

use super::body::{Decoder, Reason};
use super::kinds::*;
use super::op::*;
use super::operand::Opcode;
use super::simple::operand;
use crate::ptx::{Instruction, Number, Operand, Type};

/// Twice the size, for `.wide`.
fn widened(ty: Type) -> Result<Type, Reason> {
    match ty {
        Type::U16 => Ok(Type::U32),
        Type::S16 => Ok(Type::S32),
        Type::U32 => Ok(Type::U64),
        Type::S32 => Ok(Type::S64),
        _ => Err(format!("no type is twice as wide as {ty:?}")),
    }
}

pub(super) fn int_type(ty: Type) -> Result<IntType, Reason> {
    Ok(match ty {
        Type::U16 | Type::B16 => IntType::U16,
        Type::S16 => IntType::S16,
        Type::U32 | Type::B32 => IntType::U32,
        Type::S32 => IntType::S32,
        Type::U64 | Type::B64 => IntType::U64,
        Type::S64 => IntType::S64,
        _ => return Err(format!("type {ty:?} is not supported here")),
    })
}

pub(super) fn rounding(op: &Opcode) -> Rounding {
    let of = |part: &&str| match *part {
        "rn" | "rni" => Some(Rounding::Nearest),
        "rz" | "rzi" => Some(Rounding::Zero),
        "rm" | "rmi" => Some(Rounding::Down),
        "rp" | "rpi" => Some(Rounding::Up),
        "rna" => Some(Rounding::Away),
        _ => None,
    };
    op.parts[1..].iter().find_map(of).unwrap_or(Rounding::Nearest)
}

impl<'a> Decoder<'a, '_> {
    pub(super) fn arithmetic(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        match ty {
            Type::F32 | Type::F64 => self.float(i, op, ty),
            Type::F16 | Type::F16x2 | Type::Bf16 | Type::Bf16x2 => self.half(i, op, ty),
            _ => self.int(i, op, ty),
        }
    }

    /// Reads the sources from operand 1 on, writes operand 0, and emits.
    fn emit_uniform(
        &mut self,
        i: &Instruction<'a>,
        kind: Op,
        sources: &[Type],
        to: Type,
        imm: i64,
    ) -> Result<(), Reason> {
        // The table of `lop3` comes after its sources.
        let others = usize::from(matches!(kind, Op::Bits(BitOp::Lop3(_))));
        if i.operands.len() != 1 + sources.len() + others {
            return Err(format!("{} operands are needed", 1 + sources.len() + others));
        }
        let mut slots = [SINK; 3];
        for (index, (slot, ty)) in slots.iter_mut().zip(sources).enumerate() {
            *slot = self.read(operand(i, index + 1)?, *ty)?;
        }
        let d = self.write(operand(i, 0)?, to)?;
        self.emit(Inst { d, a: slots[0], b: slots[1], c: slots[2], imm, ..Inst::new(kind) });
        Ok(())
    }

    fn int(&mut self, i: &Instruction<'a>, op: &Opcode, ty: Type) -> Result<(), Reason> {
        use IntOp::*;
        let int = int_type(ty)?;
        let (wide, high, carry_out) = (op.has("wide"), op.has("hi"), op.has("cc"));
        let carry_in = matches!(op.parts[0], "addc" | "subc" | "madc");
        let carry = i64::from(carry_in) | i64::from(carry_out) << 1;
        let (kind, count) = match op.parts[0] {
            "add" | "addc" if carry != 0 => (AddCarry, 2),
            "sub" | "subc" if carry != 0 => (SubCarry, 2),
            "mad" | "madc" if carry != 0 => (if high { MadHiCarry } else { MadLoCarry }, 3),
            "add" if op.has("sat") => (AddSat, 2),
            "sub" if op.has("sat") => (SubSat, 2),
            "add" => (Add, 2),
            "sub" => (Sub, 2),
            "mul" if wide => (MulWide, 2),
            "mul" if high => (MulHi, 2),
            "mul" => (MulLo, 2),
            "mad" if wide => (MadWide, 3),
            "mad" if high => (MadHi, 3),
            "mad" => (MadLo, 3),
            "sad" => (Sad, 3),
            "div" => (Div, 2),
            "rem" => (Rem, 2),
            "min" => (Min, 2),
            "max" => (Max, 2),
            "and" => (And, 2),
            "or" => (Or, 2),
            "xor" => (Xor, 2),
            "shl" => (Shl, 2),
            "shr" => (Shr, 2),
            "not" => (Not, 1),
            "neg" => (Neg, 1),
            "abs" => (Abs, 1),
            "popc" => (Popc, 1),
            "clz" => (Clz, 1),
            "brev" => (Brev, 1),
            "bfind" if op.has("shiftamt") => (BfindShift, 1),
            "bfind" => (Bfind, 1),
            "bfe" => (Bfe, 3),
            "bfi" => return self.bfi(i, ty, int),
            _ => return Err("instruction is not supported for this type".to_string()),
        };
        let (sources, to) = match kind {
            MulWide => ([ty; 3], widened(ty)?),
            MadWide => ([ty, ty, widened(ty)?], widened(ty)?),
            Shl | Shr => ([ty, Type::U32, ty], ty),
            Bfe => ([ty, Type::U32, Type::U32], ty),
            Popc | Clz | Bfind | BfindShift => ([ty; 3], Type::U32),
            _ => ([ty; 3], ty),
        };
        self.emit_uniform(i, Op::Int(kind, int), &sources[..count], to, carry)
    }

    fn bfi(&mut self, i: &Instruction<'a>, ty: Type, int: IntType) -> Result<(), Reason> {
        let (a, b) = (self.read(operand(i, 1)?, ty)?, self.read(operand(i, 2)?, ty)?);
        let list = [self.read(operand(i, 3)?, Type::U32)?, self.read(operand(i, 4)?, Type::U32)?];
        let d = self.write(operand(i, 0)?, ty)?;
        let inst = self.with_list(Inst { d, a, b, ..Inst::new(Op::Int(IntOp::Bfi, int)) }, &list)?;
        self.emit(inst);
        Ok(())
    }

    fn float(&mut self, i: &Instruction<'a>, op: &Opcode, ty: Type) -> Result<(), Reason> {
        use FloatOp::*;
        let (kind, count) = match op.parts[0] {
            "add" => (Add, 2),
            "sub" => (Sub, 2),
            "mul" => (Mul, 2),
            "div" => (Div, 2),
            "fma" | "mad" => (Fma, 3),
            "min" => (if op.has("NaN") { MinNan } else { Min }, 2),
            "max" => (if op.has("NaN") { MaxNan } else { Max }, 2),
            "neg" => (Neg, 1),
            "abs" => (Abs, 1),
            "sqrt" => (Sqrt, 1),
            "rcp" => (Rcp, 1),
            "rsqrt" => (Rsqrt, 1),
            "ex2" => (Ex2, 1),
            "lg2" => (Lg2, 1),
            "sin" => (Sin, 1),
            "cos" => (Cos, 1),
            "tanh" => (Tanh, 1),
            "copysign" => (CopySign, 2),
            _ => return Err("instruction is not supported for this type".to_string()),
        };
        let double = ty == Type::F64;
        let rounding = rounding(op);
        let named = ["rn", "rz", "rm", "rp"].iter().any(|part| op.has(part));
        if kind == Fma && !named || double && op.has("NaN") {
            return Err("this form of the instruction does not exist".to_string());
        }
        let directed_ok = matches!(kind, Add | Sub | Mul | Fma) && !double;
        if rounding != Rounding::Nearest && !directed_ok {
            return Err("this rounding is not supported for this instruction".to_string());
        }
        let mode = FloatMode { double, rounding, ftz: op.has("ftz"), sat: op.has("sat") };
        self.emit_uniform(i, Op::Float(kind, mode), &[ty; 3][..count], ty, 0)
    }

    fn half(&mut self, i: &Instruction<'a>, op: &Opcode, ty: Type) -> Result<(), Reason> {
        use HalfOp::*;
        let (kind, count) = match op.parts[0] {
            "add" => (Add, 2),
            "sub" => (Sub, 2),
            "mul" => (Mul, 2),
            "fma" => (Fma, 3),
            "min" => (if op.has("NaN") { MinNan } else { Min }, 2),
            "max" => (if op.has("NaN") { MaxNan } else { Max }, 2),
            "neg" => (Neg, 1),
            "abs" => (Abs, 1),
            "ex2" => (Ex2, 1),
            "tanh" => (Tanh, 1),
            _ => return Err("instruction is not supported for this type".to_string()),
        };
        let mode = HalfMode {
            bf16: matches!(ty, Type::Bf16 | Type::Bf16x2),
            packed: ty.bytes() == 4,
            ftz: op.has("ftz"),
            sat: op.has("sat"),
            relu: op.has("relu"),
        };
        self.emit_uniform(i, Op::Half(kind, mode), &[ty; 3][..count], ty, 0)
    }

    pub(super) fn bits(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let word = Type::B32;
        let kind = match op.parts[0] {
            "lop3" => {
                let Operand::Number(Number::Int(table)) = operand(i, 4)? else {
                    return Err("expected a table".to_string());
                };
                BitOp::Lop3(u8::try_from(*table).map_err(|_| "table of more than 8 bits".to_string())?)
            }
            "prmt" => BitOp::Prmt(match op.parts.get(2).copied() {
                None => PrmtMode::Index,
                Some("f4e") => PrmtMode::Forward4,
                Some("b4e") => PrmtMode::Backward4,
                Some("rc8") => PrmtMode::Replicate8,
                Some("ecl") => PrmtMode::EdgeLeft,
                Some("ecr") => PrmtMode::EdgeRight,
                Some("rc16") => PrmtMode::Replicate16,
                Some(other) => return Err(format!("mode `{other}`")),
            }),
            "shf" if op.has("l") => BitOp::ShfLeft { wrap: op.has("wrap") },
            "shf" => BitOp::ShfRight { wrap: op.has("wrap") },
            "bmsk" => BitOp::Bmsk { wrap: op.has("wrap") },
            name => {
                let [a, b] = op.types()[..] else { return Err("expected two types".to_string()) };
                let (a_signed, b_signed) = (a.is_signed(), b.is_signed());
                if name == "dp4a" {
                    BitOp::Dp4a(a_signed, b_signed)
                } else {
                    BitOp::Dp2a { a_signed, b_signed, high: op.has("hi") }
                }
            }
        };
        let count = if op.parts[0] == "bmsk" { 2 } else { 3 };
        self.emit_uniform(i, Op::Bits(kind), &[word; 3][..count], word, 0)
    }
}
