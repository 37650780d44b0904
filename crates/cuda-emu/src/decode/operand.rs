//! Operands: registers, literals, special registers, addresses.

use super::Broadcast;
use super::body::{Decoder, Reason};
use super::kinds::{Order, Special};
use super::names::{Kind, Register};
use super::op::{NARROW, PRED_SINK, SINK, Slot, WIDE};
use super::variables::{Placed, number_bits};
use crate::memory::Space;
use crate::ptx::{Number, Operand, Type};

/// An opcode's parts between the dots.
pub(super) struct Opcode<'a> {
    pub(super) parts: Vec<&'a str>,
}

impl<'a> Opcode<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { parts: text.split('.').collect() }
    }

    pub(super) fn has(&self, part: &str) -> bool {
        self.parts.contains(&part)
    }

    /// All types, in order.
    pub(super) fn types(&self) -> Vec<Type> {
        self.parts[1..].iter().filter_map(|p| Type::parse(p)).collect()
    }

    /// The last type.
    pub(super) fn ty(&self) -> Result<Type, Reason> {
        self.types().last().copied().ok_or_else(|| "no type in the opcode".to_string())
    }

    /// How the access is ordered, if it is a strong one.
    pub(super) fn order(&self) -> Option<Order> {
        self.parts[1..].iter().find_map(|part| match *part {
            "volatile" | "relaxed" => Some(Order::Relaxed),
            "acquire" => Some(Order::Acquire),
            "release" => Some(Order::Release),
            "acq_rel" => Some(Order::AcqRel),
            _ => None,
        })
    }

    /// The space that the opcode names.
    pub(super) fn space(&self) -> Space {
        let found = self.parts[1..].iter().find_map(|part| match part.split("::").next() {
            Some("global" | "const") => Some(Space::Global),
            Some("shared") => Some(Space::Shared),
            Some("local") => Some(Space::Local),
            _ => None,
        });
        found.unwrap_or(Space::Generic)
    }
}

/// An address operand.
#[derive(Clone, Copy, Debug)]
pub(super) struct Address {
    pub(super) slot: Slot,
    /// The slot is of the 32-bit file.
    pub(super) narrow: bool,
    pub(super) offset: i64,
}

impl<'a> Decoder<'a, '_> {
    fn register(&mut self, name: &'a str) -> Option<Register> {
        self.scopes.find(name)
    }

    /// Where a variable lies: one of the body's local ones, or the kernel's and module's.
    pub(super) fn variable(&self, name: &str) -> Option<Placed> {
        let mut scope = Some(self.scopes.current());
        while let Some(current) = scope {
            if let Some(placed) = self.locals.get(&(current, name)) {
                return Some(*placed);
            }
            scope = self.scopes.parent(current);
        }
        self.layout.variables.get(name).copied()
    }

    /// Offset of a kernel's parameter.
    pub(super) fn param(&self, name: &str) -> Option<u32> {
        self.layout.params.iter().find(|p| p.name == name).map(|p| p.offset)
    }

    pub(super) fn constant(&mut self, value: u64, wide: bool) -> Slot {
        let value = if wide { value } else { value & 0xffff_ffff };
        self.broadcast(Broadcast::Const(value), wide)
    }

    /// Slot of an operand that is read as a type; the register's size must be the type's.
    pub(super) fn read(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, Reason> {
        let tagged = self.read_any(operand, ty)?;
        let fits = match ty.bytes() {
            8 => tagged & WIDE != 0,
            4 => tagged & (WIDE | NARROW) == 0,
            _ => tagged & WIDE == 0,
        };
        if fits {
            Ok(tagged & !(WIDE | NARROW))
        } else {
            Err(format!("an operand has not the size of {ty:?}"))
        }
    }

    /// As [`Decoder::read`], for any size of register: the slot carries its tag.
    pub(super) fn read_any(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, Reason> {
        let wide = ty.is_wide();
        let tag = if wide { WIDE } else { 0 };
        match operand {
            Operand::Name(name) => {
                if let Some(register) = self.register(name) {
                    return self.tagged(register, false);
                }
                if let Some(placed) = self.variable(name) {
                    return Ok(self.constant(placed.address, wide) | tag);
                }
                if let Some(offset) = self.param(name) {
                    return Ok(self.broadcast(Broadcast::ParamAddress(offset), wide) | tag);
                }
                Ok(self.special(name, wide)? | tag)
            }
            Operand::Sum(name, offset) => {
                if let Some(placed) = self.variable(name) {
                    return Ok(self.constant(placed.address.wrapping_add(*offset as u64), wide) | tag);
                }
                let base = self.param(name).ok_or_else(|| format!("`{name}` is not declared"))?;
                Ok(self.broadcast(Broadcast::ParamAddress(base.wrapping_add(*offset as u32)), wide) | tag)
            }
            Operand::Number(number) => {
                let bits = number_bits(*number, ty);
                let bits = if ty.bytes() == 2 { bits & 0xffff } else { bits };
                Ok(self.constant(bits, wide) | tag)
            }
            _ => Err("expected a register or a number".to_string()),
        }
    }

    fn tagged(&mut self, register: Register, write: bool) -> Result<Slot, Reason> {
        let tag = match register.kind {
            Kind::Wide => WIDE,
            Kind::Word => 0,
            Kind::Half => NARROW,
            Kind::Pred => return Err("a predicate stands where a value must".to_string()),
        };
        Ok(self.slot(register, write) | tag)
    }

    /// Slot of a register to write, whose size must be the type's.
    pub(super) fn write(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Slot, Reason> {
        if *operand == Operand::Name("_") {
            return Ok(SINK);
        }
        let tagged = self.write_any(operand)?;
        let fits = match ty.bytes() {
            8 => tagged & WIDE != 0,
            4 => tagged & (WIDE | NARROW) == 0,
            _ => tagged & WIDE == 0,
        };
        if fits {
            Ok(tagged & !(WIDE | NARROW))
        } else {
            Err(format!("the destination has not the size of {ty:?}"))
        }
    }

    /// Slot with its tag of a register to write; `_` is the sink.
    pub(super) fn write_any(&mut self, operand: &Operand<'a>) -> Result<Slot, Reason> {
        match operand {
            Operand::Name("_") => Ok(SINK),
            Operand::Name(name) => {
                let register =
                    self.register(name).ok_or_else(|| format!("register `{name}` is not declared"))?;
                self.tagged(register, true)
            }
            _ => Err("expected a register to write".to_string()),
        }
    }

    /// Slots of a vector's elements, or of one operand.
    pub(super) fn read_list(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Vec<Slot>, Reason> {
        match operand {
            Operand::Vector(elements) => elements.iter().map(|e| self.read(e, ty)).collect(),
            one => Ok(vec![self.read(one, ty)?]),
        }
    }

    /// As [`Decoder::read_list`], to write.
    pub(super) fn write_list(&mut self, operand: &Operand<'a>, ty: Type) -> Result<Vec<Slot>, Reason> {
        match operand {
            Operand::Vector(elements) => elements.iter().map(|e| self.write(e, ty)).collect(),
            one => Ok(vec![self.write(one, ty)?]),
        }
    }

    /// Slot of a named predicate.
    pub(super) fn pred_named(&mut self, name: &'a str, write: bool) -> Result<Slot, Reason> {
        if name == "_" && write {
            return Ok(PRED_SINK);
        }
        match self.register(name) {
            Some(register) if register.kind == Kind::Pred => Ok(self.slot(register, write)),
            _ => Err(format!("`{name}` is not a predicate")),
        }
    }

    /// Slot of a predicate that is read, and whether it is negated.
    pub(super) fn pred(&mut self, operand: &Operand<'a>) -> Result<(Slot, bool), Reason> {
        match operand {
            Operand::Name(name) => Ok((self.pred_named(name, false)?, false)),
            Operand::Not(name) => Ok((self.pred_named(name, false)?, true)),
            // A literal predicate: 0 or 1.
            Operand::Number(Number::Int(value)) => Ok((super::op::TRUE, *value == 0)),
            _ => Err("expected a predicate".to_string()),
        }
    }

    /// `d|p`: a register and a predicate, the latter optional.
    pub(super) fn pair(&mut self, operand: &Operand<'a>, ty: Type) -> Result<(Slot, Slot), Reason> {
        match operand {
            Operand::Pair(first, second) => {
                Ok((self.write(&Operand::Name(first), ty)?, self.pred_named(second, true)?))
            }
            one => Ok((self.write(one, ty)?, PRED_SINK)),
        }
    }

    /// An address in a space; shared and local addresses may stand in 32-bit registers.
    pub(super) fn address(&mut self, operand: &Operand<'a>, space: Space) -> Result<Address, Reason> {
        let Operand::Address(base, offset, rest) = operand else {
            return Err("expected an address in brackets".to_string());
        };
        if !rest.is_empty() {
            return Err("an address of several parts".to_string());
        }
        self.address_of(base, *offset, space)
    }

    /// The same for a base and an offset.
    pub(super) fn address_of(
        &mut self,
        base: &Operand<'a>,
        offset: i64,
        space: Space,
    ) -> Result<Address, Reason> {
        let small = matches!(space, Space::Shared | Space::Local);
        let tagged = self.read_any(base, if small { Type::U32 } else { Type::U64 })?;
        let narrow = tagged & WIDE == 0;
        if narrow && !small {
            return Err(format!("a 32-bit address of {space} memory"));
        }
        Ok(Address { slot: tagged & !(WIDE | NARROW), narrow, offset })
    }

    /// Slot of a special register.
    fn special(&mut self, name: &str, wide: bool) -> Result<Slot, Reason> {
        let unknown = || format!("`{name}` is not declared");
        let (base, axis) = name.split_once('.').unwrap_or((name, ""));
        let base = base.strip_prefix('%').ok_or_else(unknown)?;
        let vector = ["tid", "ctaid", "clusterid", "cluster_ctaid"]
            .iter()
            .any(|name| base.trim_start_matches('n') == *name)
            || base == "cluster_nctaid";
        let axis_number = match axis {
            "x" if vector => 0,
            "y" if vector => 1,
            "z" if vector => 2,
            "" if !vector => 0,
            _ => return Err(unknown()),
        };
        let special = match base {
            "tid" => Special::Tid(axis_number),
            "ntid" => Special::Ntid(axis_number),
            "ctaid" => Special::Ctaid(axis_number),
            "nctaid" => Special::Nctaid(axis_number),
            "clusterid" => Special::ClusterId(axis_number),
            "nclusterid" => Special::NclusterId(axis_number),
            "cluster_ctaid" => Special::ClusterCtaid(axis_number),
            "cluster_nctaid" => Special::ClusterNctaid(axis_number),
            "cluster_ctarank" => Special::ClusterCtarank,
            "cluster_nctarank" => Special::ClusterNctarank,
            "is_explicit_cluster" => Special::IsExplicitCluster,
            "laneid" => Special::Lane,
            "warpid" => Special::Warp,
            "nwarpid" => Special::Nwarp,
            "smid" => Special::Sm,
            "nsmid" => Special::Nsm,
            "gridid" => Special::GridId,
            "lanemask_eq" => Special::LaneEq,
            "lanemask_le" => Special::LaneLe,
            "lanemask_lt" => Special::LaneLt,
            "lanemask_ge" => Special::LaneGe,
            "lanemask_gt" => Special::LaneGt,
            "dynamic_smem_size" => Special::DynamicShared,
            "total_smem_size" => Special::TotalShared,
            "envreg1" => Special::Env(1),
            "envreg2" => Special::Env(2),
            _ => return Err(unknown()),
        };
        Ok(self.broadcast(Broadcast::Special(special), wide))
    }
}
