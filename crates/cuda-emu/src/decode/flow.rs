//! Decodes branches, calls, barriers, fences and warp-wide instructions.

use super::body::{Decoder, Reason, fail};
use super::kinds::*;
use super::math::int_type;
use super::op::*;
use super::operand::Opcode;
use super::simple::operand;
use super::variables::Placed;
use crate::error::LoadError;
use crate::memory::Space;
use crate::ptx::{Instruction, Operand, Type};

impl<'a, 'u> Decoder<'a, 'u> {
    pub(super) fn branch(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        match op.parts[0] {
            "bra" => {
                let Operand::Name(label) = operand(i, 0)? else { return Err("expected a label".to_string()) };
                self.branch_to(label, None, i.line);
                self.emit(Inst::new(Op::Branch));
            }
            "brx" => {
                let a = self.read(operand(i, 0)?, Type::U32)?;
                let Operand::Name(name) = operand(i, 1)? else { return Err("expected a table".to_string()) };
                let table = self.table(name).ok_or_else(|| format!("no table `{name}` before"))?;
                for (place, label) in table.iter().enumerate() {
                    self.branch_to(label, Some(place), i.line);
                }
                let inst = self.with_list(Inst { a, ..Inst::new(Op::BranchIndex) }, &vec![0; table.len()])?;
                self.emit(inst);
            }
            "ret" => self.emit_return(i.line),
            "exit" => self.emit(Inst::new(Op::Exit)),
            "nanosleep" => self.emit(Inst::new(Op::Nanosleep)),
            _ => self.emit(Inst::new(Op::Trap)),
        }
        Ok(())
    }

    /// `call (returns), name, (params);`
    pub(super) fn call(&mut self, i: &'u Instruction<'a>, guard: (u16, bool)) -> Result<(), LoadError> {
        let mut groups = Vec::new();
        let mut name = None;
        for operand in &i.operands {
            match operand {
                Operand::Group(members) if name.is_none() => groups.insert(0, members.as_slice()),
                Operand::Group(members) => groups.push(members.as_slice()),
                Operand::Name(callee) if name.is_none() => {
                    name = Some(*callee);
                    groups.resize(1, &[]);
                }
                _ => return Err(fail(i.line, "calls through pointers are not supported")),
            }
        }
        let name = name.ok_or_else(|| fail(i.line, "call without a name"))?;
        let placed = |members: &[Operand<'a>], decoder: &Self| -> Result<Vec<Placed>, LoadError> {
            members
                .iter()
                .map(|member| {
                    let Operand::Name(name) = member else {
                        return Err(fail(i.line, "argument that is no variable"));
                    };
                    let found = decoder.variable(name).filter(|p| p.space == Space::Local);
                    found.ok_or_else(|| fail(i.line, format!("argument `{name}` is no .param variable")))
                })
                .collect()
        };
        let returns = placed(groups.first().copied().unwrap_or_default(), self)?;
        let params = placed(groups.get(1).copied().unwrap_or_default(), self)?;
        // A guarded call is one that is branched over.
        let skip = (guard.0 != TRUE as u16).then(|| self.label_scope());
        if let Some(scope) = skip {
            self.branch_in(scope, "%skip", i.line);
            self.emit(Inst { guard: guard.0, negated: !guard.1, ..Inst::new(Op::Branch) });
        }
        let addresses: Vec<Slot> = params.iter().map(|p| p.address as Slot).collect();
        let emit = |op: Op, decoder: &mut Self| {
            let inst = decoder.with_list(Inst::new(op), &addresses).map_err(|e| fail(i.line, e))?;
            decoder.emit(inst);
            Ok(())
        };
        match (name, addresses.len()) {
            ("vprintf", 2) => emit(Op::Printf, self)?,
            ("__assertfail", 5) => emit(Op::AssertFail, self)?,
            _ => self.copy_in(name, &returns, &params, i.line)?,
        }
        if let Some(scope) = skip {
            self.label_here(scope, "%skip");
        }
        Ok(())
    }

    pub(super) fn barrier(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        if op.has("warp") {
            let a = self.read(operand(i, 0)?, Type::U32)?;
            self.emit(Inst { a, ..Inst::new(Op::BarrierWarp) });
            return Ok(());
        }
        if op.has("cluster") {
            let kind = if op.has("arrive") { Op::ClusterArrive } else { Op::ClusterWait };
            self.emit(Inst { imm: i64::from(op.has("aligned")), ..Inst::new(kind) });
            return Ok(());
        }
        // `bar` is the aligned form of `barrier`.
        let aligned = op.parts[0] == "bar" || op.has("aligned");
        let arrive = op.has("arrive");
        let mut inst = Inst::new(Op::Barrier { aligned, arrive, reduction: None });
        if op.has("red") {
            let reduction = match () {
                () if op.has("popc") => BarrierReduction::Popc,
                () if op.has("and") => BarrierReduction::And,
                () => BarrierReduction::Or,
            };
            inst.op = Op::Barrier { aligned, arrive, reduction: Some(reduction) };
            let last = i.operands.len().saturating_sub(1);
            let (c, negated) = self.pred(operand(i, last)?)?;
            (inst.c, inst.imm) = (c, i64::from(negated));
            inst.d = match (reduction, operand(i, 0)?) {
                (BarrierReduction::Popc, target) => self.write(target, Type::U32)?,
                (_, Operand::Name(name)) => self.pred_named(name, true)?,
                _ => return Err("expected a predicate to write".to_string()),
            };
            inst.a = self.read(operand(i, 1)?, Type::U32)?;
            if i.operands.len() == 4 {
                inst.b = self.read(operand(i, 2)?, Type::U32)?;
            }
        } else {
            inst.a = self.read(operand(i, 0)?, Type::U32)?;
            if i.operands.len() > 1 {
                inst.b = self.read(operand(i, 1)?, Type::U32)?;
            } else if arrive {
                return Err("arrival without a count of threads".to_string());
            }
        }
        self.emit(inst);
        Ok(())
    }

    pub(super) fn fence(&mut self, _i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let kind = match op.parts[0] {
            // Proxies are told apart in shared memory only: a fence for global memory is none of theirs.
            "fence"
                if op.has("proxy") && op.has("async") && !op.has("global")
                    || op.parts.iter().any(|p| p.starts_with("async::")) =>
            {
                Op::FenceProxyAsync
            }
            // Those of other proxies, and for mbarriers that were made: warps are not ordered by them.
            "fence" if op.has("proxy") || op.has("mbarrier_init") => Op::Nop,
            "membar" | "fence" => Op::Fence(op.order().unwrap_or(Order::AcqRel)),
            "griddepcontrol" if op.has("wait") => Op::GridWait,
            "createpolicy" => return self.create_policy(_i),
            _ => Op::Nop,
        };
        self.emit(Inst::new(kind));
        Ok(())
    }

    /// A cache policy is a hint: any value will do.
    fn create_policy(&mut self, i: &Instruction<'a>) -> Result<(), Reason> {
        let a = self.constant(0, true);
        let d = self.write(operand(i, 0)?, Type::B64)?;
        self.emit(Inst { d, a, ..Inst::new(Op::Mov64) });
        Ok(())
    }

    pub(super) fn collective(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let word = Type::B32;
        match op.parts[0] {
            "shfl" => {
                let kind = match op.parts.get(2).copied().unwrap_or_default() {
                    "up" => ShuffleOp::Up,
                    "down" => ShuffleOp::Down,
                    "bfly" => ShuffleOp::Bfly,
                    "idx" => ShuffleOp::Idx,
                    other => return Err(format!("shuffle `{other}`")),
                };
                let (a, b) = (self.read(operand(i, 1)?, word)?, self.read(operand(i, 2)?, word)?);
                let (c, mask) = (self.read(operand(i, 3)?, word)?, self.read(operand(i, 4)?, word)?);
                let (d, p) = self.pair(operand(i, 0)?, word)?;
                let inst = self.with_list(
                    Inst { d, a, b, c, imm: i64::from(p), ..Inst::new(Op::Shuffle(kind)) },
                    &[mask],
                )?;
                self.emit(inst);
            }
            "vote" => {
                let kind = match op.parts.get(2).copied().unwrap_or_default() {
                    "ballot" => VoteOp::Ballot,
                    "any" => VoteOp::Any,
                    "all" => VoteOp::All,
                    "uni" => VoteOp::Uni,
                    other => return Err(format!("vote `{other}`")),
                };
                let (a, negated) = self.pred(operand(i, 1)?)?;
                let b = self.read(operand(i, 2)?, word)?;
                let d = match operand(i, 0)? {
                    Operand::Name(name) if kind != VoteOp::Ballot => self.pred_named(name, true)?,
                    target => self.write(target, word)?,
                };
                self.emit(Inst { d, a, b, imm: i64::from(negated), ..Inst::new(Op::Vote(kind)) });
            }
            "match" => {
                let ty = op.ty()?;
                let a = self.read(operand(i, 1)?, ty)?;
                let b = self.read(operand(i, 2)?, word)?;
                let (d, p) = self.pair(operand(i, 0)?, word)?;
                self.emit(Inst {
                    d,
                    a,
                    b,
                    imm: i64::from(p),
                    ..Inst::new(Op::Match(op.has("all"), ty.is_wide()))
                });
            }
            "redux" => {
                let kind = op.parts.get(2).copied().and_then(AtomicOp::parse);
                let is_reduction = |kind: &AtomicOp| {
                    !matches!(kind, AtomicOp::Exch | AtomicOp::Cas | AtomicOp::Inc | AtomicOp::Dec)
                };
                let kind = kind.filter(is_reduction).ok_or("reduction is not supported")?;
                let ty = op.ty()?;
                let (a, b) = (self.read(operand(i, 1)?, ty)?, self.read(operand(i, 2)?, word)?);
                let d = self.write(operand(i, 0)?, ty)?;
                self.emit(Inst { d, a, b, ..Inst::new(Op::Redux(kind, int_type(ty)?)) });
            }
            "activemask" => {
                let d = self.write(operand(i, 0)?, word)?;
                self.emit(Inst { d, ..Inst::new(Op::ActiveMask) });
            }
            _ => {
                let a = self.read(operand(i, 1)?, word)?;
                let (d, p) = self.pair(operand(i, 0)?, word)?;
                self.emit(Inst { d, a, imm: i64::from(p), ..Inst::new(Op::Elect) });
            }
        }
        Ok(())
    }
}
