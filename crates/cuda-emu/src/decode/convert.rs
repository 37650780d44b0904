//! Decodes conversions.

use super::body::{Decoder, Reason};
use super::kinds::*;
use super::math::rounding;
use super::op::*;
use super::operand::Opcode;
use super::simple::operand;
use crate::ptx::{Instruction, Type};

impl<'a> Decoder<'a, '_> {
    pub(super) fn cvt(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let [to, from] = op.types()[..] else { return Err("expected two types".to_string()) };
        let integral = ["rni", "rzi", "rmi", "rpi"].iter().any(|r| op.has(r));
        let conversion = Conversion {
            to,
            from,
            rounding: rounding(op),
            to_integer: integral && to.is_float(),
            sat: op.has("sat"),
            satfinite: op.has("satfinite"),
            ftz: op.has("ftz"),
            relu: op.has("relu"),
        };
        supported(&conversion)?;
        if i.operands.len() == 3 {
            let (a, b) = (self.read(operand(i, 1)?, from)?, self.read(operand(i, 2)?, from)?);
            let d = self.write(operand(i, 0)?, to)?;
            self.emit(Inst { d, a, b, ..Inst::new(Op::ConvertPair(conversion)) });
            return Ok(());
        }
        let a = self.read_any(operand(i, 1)?, from)?;
        let d = self.write_any(operand(i, 0)?)?;
        self.emit(Inst { d, a, ..Inst::new(Op::Convert(conversion)) });
        Ok(())
    }
}

/// Whether a conversion between these types exists and is known here.
fn supported(c: &Conversion) -> Result<(), Reason> {
    use Type::*;
    let scalar = |t: Type| t.is_integer() && t != B128 || matches!(t, F16 | Bf16 | F32 | F64);
    let known = match (c.to, c.from) {
        (F16x2 | Bf16x2, F32) | (Tf32, F32) => true,
        (E4m3x2 | E5m2x2, F32 | F16x2) => true,
        (F16x2, E4m3x2 | E5m2x2) => true,
        (to, from) => scalar(to) && scalar(from),
    };
    let double = c.from == F64 || (c.to == F64 && c.from != F32);
    let directed = matches!(c.rounding, Rounding::Down | Rounding::Up | Rounding::Zero)
        && c.to.is_float()
        && !c.to_integer;
    if c.sat && (c.to == Bf16 || c.from == Bf16) {
        return Err("bf16 has no clamp".to_string());
    }
    match (known, directed && double && c.to == F64) {
        (false, _) => Err(format!("conversion of {:?} to {:?} is not supported", c.from, c.to)),
        (_, true) => Err("this rounding is not supported for f64".to_string()),
        _ => Ok(()),
    }
}
