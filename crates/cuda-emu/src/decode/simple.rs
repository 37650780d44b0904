//! Decodes moves, selects, comparisons, logic on predicates and address conversions; and chooses
//! the decoder of all others by the opcode's first word.

use super::body::{Decoder, Reason};
use super::kinds::*;
use super::op::*;
use super::operand::Opcode;
use crate::memory::Space;
use crate::ptx::{Instruction, Number, Operand, Type};

/// Groups that a wait may leave in flight.
const GROUPS_MAX: u64 = i32::MAX as u64;

/// Operand `index`, which must be there.
pub(super) fn operand<'i, 'a>(
    instruction: &'i Instruction<'a>,
    index: usize,
) -> Result<&'i Operand<'a>, Reason> {
    instruction.operands.get(index).ok_or_else(|| format!("operand {} is missing", index + 1))
}

/// How many groups may stay in flight, which an instruction says as its only operand.
pub(super) fn groups(instruction: &Instruction) -> Result<i64, Reason> {
    match operand(instruction, 0)? {
        Operand::Number(Number::Int(groups)) if *groups <= GROUPS_MAX => Ok(*groups as i64),
        Operand::Number(Number::Int(_)) => Err(format!("a number of groups up to {GROUPS_MAX} is needed")),
        _ => Err("expected a number".to_string()),
    }
}

impl<'a, 'u> Decoder<'a, 'u> {
    /// Decodes any instruction but a call.
    pub(super) fn instruction(&mut self, i: &'u Instruction<'a>) -> Result<(), Reason> {
        let op = Opcode::new(i.opcode);
        super::forms::check(i.opcode)?;
        match op.parts[0] {
            "mov" => self.mov(i, &op),
            "cvta" => self.cvta(i, &op),
            "isspacep" => self.isspacep(i, &op),
            "mapa" | "getctarank" => self.cluster_address(i, &op),
            "setp" => self.setp(i, &op),
            "set" => self.set(i, &op),
            "selp" => self.selp(i, &op),
            "slct" => self.slct(i, &op),
            "testp" => self.testp(i, &op),
            "and" | "or" | "xor" | "not" if op.has("pred") => self.pred_logic(i, &op),
            "add" | "sub" | "mul" | "mad" | "fma" | "div" | "rem" | "min" | "max" | "neg" | "abs" | "and"
            | "or" | "xor" | "not" | "shl" | "shr" | "sad" | "popc" | "clz" | "brev" | "bfind" | "bfe"
            | "bfi" | "addc" | "subc" | "madc" | "copysign" | "sqrt" | "rcp" | "rsqrt" | "ex2" | "lg2"
            | "sin" | "cos" | "tanh" => self.arithmetic(i, &op),
            "lop3" | "prmt" | "shf" | "dp4a" | "dp2a" | "bmsk" => self.bits(i, &op),
            "cvt" => self.cvt(i, &op),
            "ld" | "ldu" => self.load(i, &op),
            "st" => self.store(i, &op),
            "atom" | "red" => self.atomic(i, &op),
            "cp" => self.copy(i, &op),
            "mbarrier" => self.mbarrier(i, &op),
            "bra" | "brx" | "ret" | "exit" | "trap" | "brkpt" | "nanosleep" => self.branch(i, &op),
            "bar" | "barrier" => self.barrier(i, &op),
            "membar" | "fence" | "griddepcontrol" | "setmaxnreg" | "prefetch" | "prefetchu" | "discard"
            | "applypriority" | "createpolicy" | "pmevent" => self.fence(i, &op),
            "shfl" | "vote" | "match" | "redux" | "activemask" | "elect" => self.collective(i, &op),
            "ldmatrix" | "stmatrix" => self.matrix_access(i, &op),
            "mma" => self.mma(i, &op),
            "wgmma" => self.wgmma(i, &op),
            _ => Err("instruction is not supported".to_string()),
        }
    }

    fn mov(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        let (to, from) = (operand(i, 0)?, operand(i, 1)?);
        let part = |count: usize| match (ty.bytes() as usize * 8).checked_div(count) {
            Some(bits @ (8 | 16 | 32)) => Ok((bits as u8, if bits == 32 { Type::B32 } else { Type::B16 })),
            _ => Err("parts of a size that is not supported".to_string()),
        };
        if ty == Type::Pred && *from == Operand::Name("%is_explicit_cluster") {
            // A special register that is a predicate: it is not zero.
            let (a, b) = (self.read(from, Type::U32)?, self.constant(0, false));
            let Operand::Name(name) = to else { return Err("expected a predicate to write".to_string()) };
            let (d, imm) = (self.pred_named(name, true)?, i64::from(PRED_SINK));
            let kind = Op::Setp(Cmp::Ne, Type::U32, Combine::None);
            self.emit(Inst { d, a, b, c: TRUE, imm, ..Inst::new(kind) });
        } else if ty == Type::Pred {
            let (a, negated) = self.pred(from)?;
            let Operand::Name(name) = to else { return Err("expected a predicate to write".to_string()) };
            let d = self.pred_named(name, true)?;
            let kind = if negated { PredOp::Not } else { PredOp::Mov };
            self.emit(Inst { d, a, ..Inst::new(Op::Pred(kind)) });
        } else if let Operand::Vector(parts) = to {
            let (bits, part) = part(parts.len())?;
            let a = self.read(from, ty)?;
            let list = self.write_list(to, part)?;
            let inst = self.with_list(Inst { a, ..Inst::new(Op::Unpack { bits }) }, &list)?;
            self.emit(Inst { c: u32::from(ty.is_wide()), ..inst });
        } else if let Operand::Vector(parts) = from {
            let (bits, part) = part(parts.len())?;
            let list = self.read_list(from, part)?;
            let d = self.write(to, ty)?;
            let inst = self.with_list(Inst { d, ..Inst::new(Op::Pack { bits }) }, &list)?;
            self.emit(Inst { c: u32::from(ty.is_wide()), ..inst });
        } else {
            self.mov_plain(to, from, ty)?;
        }
        Ok(())
    }

    fn mov_plain(&mut self, to: &Operand<'a>, from: &Operand<'a>, ty: Type) -> Result<(), Reason> {
        // Clocks are read when they are read; other special registers are known before.
        let clock = match from {
            Operand::Name("%clock" | "%globaltimer_lo") => Some(Clock::Low),
            Operand::Name("%clock_hi" | "%globaltimer_hi") => Some(Clock::High),
            Operand::Name("%clock64" | "%globaltimer") => Some(Clock::Whole),
            _ => None,
        };
        if let Some(clock) = clock {
            let d = self.write(to, ty)?;
            self.emit(Inst { d, ..Inst::new(Op::ReadClock(clock)) });
            return Ok(());
        }
        let a = self.read(from, ty)?;
        let d = self.write(to, ty)?;
        self.emit(Inst { d, a, ..Inst::new(if ty.is_wide() { Op::Mov64 } else { Op::Mov32 }) });
        Ok(())
    }

    fn cvta(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let space = if op.has("param") { Space::Global } else { op.space() };
        let a = self.read(operand(i, 1)?, Type::U64)?;
        let d = self.write(operand(i, 0)?, Type::U64)?;
        let kind = match (space, op.has("to")) {
            (Space::Global | Space::Generic, _) => Op::Mov64,
            (space, true) => Op::FromGeneric(space),
            (space, false) => Op::ToGeneric(space),
        };
        self.emit(Inst { d, a, ..Inst::new(kind) });
        Ok(())
    }

    fn isspacep(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let a = self.read(operand(i, 1)?, Type::U64)?;
        let Operand::Name(name) = operand(i, 0)? else {
            return Err("expected a predicate to write".to_string());
        };
        let d = self.pred_named(name, true)?;
        let imm = i64::from(op.has("const"));
        self.emit(Inst { d, a, imm, ..Inst::new(Op::IsSpace(op.space())) });
        Ok(())
    }

    fn cluster_address(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        let a = self.read(operand(i, 1)?, ty)?;
        let inst = if op.parts[0] == "mapa" {
            let b = self.read(operand(i, 2)?, Type::U32)?;
            Inst { b, d: self.write(operand(i, 0)?, ty)?, ..Inst::new(Op::Mapa(ty.is_wide())) }
        } else {
            Inst { d: self.write(operand(i, 0)?, Type::U32)?, ..Inst::new(Op::GetCtaRank(ty.is_wide())) }
        };
        // A generic address carries its window, a shared one does not.
        self.emit(Inst { a, imm: i64::from(op.space() == Space::Generic), ..inst });
        Ok(())
    }

    /// Comparison, combination and the predicate to combine with: (op parts, slot, negated).
    fn comparison(
        &mut self,
        i: &Instruction<'a>,
        op: &Opcode,
        combined: usize,
    ) -> Result<(Cmp, Combine, Slot, bool), Reason> {
        let cmp = match op.parts.get(1).copied().unwrap_or_default() {
            "eq" => Cmp::Eq,
            "ne" => Cmp::Ne,
            "lt" | "lo" => Cmp::Lt,
            "le" | "ls" => Cmp::Le,
            "gt" | "hi" => Cmp::Gt,
            "ge" | "hs" => Cmp::Ge,
            "equ" => Cmp::Equ,
            "neu" => Cmp::Neu,
            "ltu" => Cmp::Ltu,
            "leu" => Cmp::Leu,
            "gtu" => Cmp::Gtu,
            "geu" => Cmp::Geu,
            "num" => Cmp::Num,
            "nan" => Cmp::Nan,
            other => return Err(format!("comparison `{other}`")),
        };
        let combine = match op.parts.get(2).copied().unwrap_or_default() {
            "and" => Combine::And,
            "or" => Combine::Or,
            "xor" => Combine::Xor,
            _ => Combine::None,
        };
        if combine == Combine::None {
            return Ok((cmp, combine, TRUE, false));
        }
        let (slot, negated) = self.pred(operand(i, combined)?)?;
        Ok((cmp, combine, slot, negated))
    }

    fn setp(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        let (cmp, combine, c, negated) = self.comparison(i, op, 3)?;
        let (a, b) = (self.read(operand(i, 1)?, ty)?, self.read(operand(i, 2)?, ty)?);
        let (d, second) = match operand(i, 0)? {
            Operand::Name(name) => (self.pred_named(name, true)?, PRED_SINK),
            Operand::Pair(p, q) => (self.pred_named(p, true)?, self.pred_named(q, true)?),
            _ => return Err("expected predicates to write".to_string()),
        };
        let imm = i64::from(second) | i64::from(negated) << 32 | i64::from(op.has("ftz")) << 33;
        self.emit(Inst { d, a, b, c, imm, ..Inst::new(Op::Setp(cmp, ty, combine)) });
        Ok(())
    }

    fn set(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let [to, from] = op.types()[..] else { return Err("expected two types".to_string()) };
        let (cmp, combine, c, negated) = self.comparison(i, op, 3)?;
        let (a, b) = (self.read(operand(i, 1)?, from)?, self.read(operand(i, 2)?, from)?);
        let d = self.write(operand(i, 0)?, to)?;
        let imm = i64::from(negated) << 32 | i64::from(op.has("ftz")) << 33;
        self.emit(Inst { d, a, b, c, imm, ..Inst::new(Op::Set(cmp, from, combine, to.is_float())) });
        Ok(())
    }

    fn selp(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        let (a, b) = (self.read(operand(i, 1)?, ty)?, self.read(operand(i, 2)?, ty)?);
        let (c, negated) = self.pred(operand(i, 3)?)?;
        let d = self.write(operand(i, 0)?, ty)?;
        let kind = if ty.is_wide() { Op::Select64 } else { Op::Select32 };
        self.emit(Inst { d, a, b, c, imm: i64::from(negated), ..Inst::new(kind) });
        Ok(())
    }

    fn slct(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let [ty, by] = op.types()[..] else { return Err("expected two types".to_string()) };
        let (a, b) = (self.read(operand(i, 1)?, ty)?, self.read(operand(i, 2)?, ty)?);
        let c = self.read(operand(i, 3)?, by)?;
        let d = self.write(operand(i, 0)?, ty)?;
        let imm = i64::from(op.has("ftz"));
        self.emit(Inst { d, a, b, c, imm, ..Inst::new(Op::Slct(ty.is_wide(), by == Type::F32)) });
        Ok(())
    }

    fn testp(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let ty = op.ty()?;
        let a = self.read(operand(i, 1)?, ty)?;
        let Operand::Name(name) = operand(i, 0)? else {
            return Err("expected a predicate to write".to_string());
        };
        let d = self.pred_named(name, true)?;
        // Bits: zero, subnormal, normal, infinite, NaN.
        let imm = match op.parts[1] {
            "finite" => 0b00111,
            "infinite" => 0b01000,
            "number" => 0b01111,
            "notanumber" => 0b10000,
            "normal" => 0b00100,
            "subnormal" => 0b00010,
            other => return Err(format!("class `{other}`")),
        };
        self.emit(Inst { d, a, imm, ..Inst::new(Op::Testp(ty.is_wide())) });
        Ok(())
    }

    fn pred_logic(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let kind = match op.parts[0] {
            "and" => PredOp::And,
            "or" => PredOp::Or,
            "xor" => PredOp::Xor,
            _ => PredOp::Not,
        };
        let (a, a_negated) = self.pred(operand(i, 1)?)?;
        let (b, b_negated) = if kind == PredOp::Not { (TRUE, false) } else { self.pred(operand(i, 2)?)? };
        let Operand::Name(name) = operand(i, 0)? else {
            return Err("expected a predicate to write".to_string());
        };
        let d = self.pred_named(name, true)?;
        let imm = i64::from(a_negated) | i64::from(b_negated) << 1;
        self.emit(Inst { d, a, b, imm, ..Inst::new(Op::Pred(kind)) });
        Ok(())
    }
}
