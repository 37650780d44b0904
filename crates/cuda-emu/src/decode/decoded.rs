//! What a pass over a kernel's body gives, and the program it becomes.

use super::liveness::Slots;
use super::names::Kind;
use super::op::{Inst, Op, Slot, TRUE};
use super::variables::Layout;
use super::{Broadcast, Files, Origin, Program, Touched};
use crate::memory::Space;
use crate::ptx::Function;
use crate::stats::InstructionClass;

/// A register that an instruction reads or writes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Use {
    pub(super) instruction: u32,
    pub(super) register: u32,
    pub(super) write: bool,
}

/// What a pass over a body gives.
#[derive(Debug, Default)]
pub(super) struct Decoded {
    pub(super) code: Vec<Inst>,
    pub(super) origins: Vec<Origin>,
    pub(super) lists: Vec<Slot>,
    pub(super) broadcasts: Vec<(Slot, Broadcast)>,
    pub(super) uses: Vec<Use>,
    /// Kinds of registers by number.
    pub(super) registers: Vec<Kind>,
    pub(super) files: Files,
    pub(super) local_bytes: u32,
}

impl Decoded {
    pub(super) fn into_program(mut self, function: &Function, layout: &Layout, slots: &Slots) -> Program {
        let touched = self.touched(slots);
        self.step_over_nothing();
        let async_proxy = self.code.iter().any(|inst| {
            matches!(
                inst.op,
                Op::Wgmma(_)
                    | Op::BulkLoad
                    | Op::BulkStore
                    | Op::BulkShared
                    | Op::TensorLoad { .. }
                    | Op::TensorStore { .. }
            )
        });
        let fences = self.code.iter().any(|inst| matches!(inst.op, Op::Fence(_)));
        let flags = self.code.iter().filter_map(|inst| inst.op.flag()).any(|o| fences || o.releases());
        let arrivals = self.code.iter().any(|inst| {
            matches!(inst.op, Op::Atomic(space, ..) if matches!(space, Space::Global | Space::Generic))
        });
        Program {
            name: function.name.to_string(),
            params: layout.params.clone(),
            param_bytes: layout.param_bytes,
            shared_bytes: layout.shared_bytes,
            local_bytes: self.local_bytes,
            block_max: function.block_max,
            block_required: function.block_required,
            cluster_required: function.cluster_required,
            registers_estimate: slots.registers_estimate,
            touched,
            code: self.code,
            origins: self.origins,
            lists: self.lists,
            files: self.files,
            broadcasts: self.broadcasts,
            async_proxy,
            flags,
            arrivals,
            constants: layout.constants.clone(),
        }
    }

    /// Lets each instruction be followed by the next that does something, or where lanes that were
    /// elsewhere may stand: there they become one warp again.
    fn step_over_nothing(&mut self) {
        let mut met = vec![false; self.code.len() + 1];
        for (at, inst) in self.code.iter().enumerate() {
            use InstructionClass::{Collective, Flow, Sync};
            met[at + 1] |= matches!(inst.op.class(), Flow | Sync | Collective);
            match inst.op {
                Op::Branch => met[inst.imm as usize] = true,
                Op::BranchIndex => inst.slots(&self.lists).iter().for_each(|to| met[*to as usize] = true),
                _ => {}
            }
        }
        let mut step: u8 = 1;
        for (at, inst) in self.code.iter_mut().enumerate().rev() {
            inst.step = step;
            let nothing = inst.op == Op::Nop && u32::from(inst.guard) == TRUE && !met[at];
            step = if nothing { step.saturating_add(1) } else { 1 };
        }
    }

    /// Registers that some `wgmma` has as accumulators or fragments of A, in order.
    pub(super) fn of_wgmma(&self) -> Vec<u32> {
        let narrow = |register: u32| matches!(self.registers[register as usize], Kind::Word | Kind::Half);
        let mut found: Vec<u32> = self
            .uses
            .iter()
            .filter(|u| matches!(self.code[u.instruction as usize].op, Op::Wgmma(_)) && narrow(u.register))
            .map(|u| u.register)
            .collect();
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Who else touches them.
    fn touched(&self, slots: &Slots) -> Touched {
        let watched = self.of_wgmma();
        if watched.is_empty() {
            return Touched::default();
        }
        let own = |op| matches!(op, Op::Wgmma(_) | Op::WgmmaFence | Op::WgmmaCommit | Op::WgmmaWait);
        let mut found: Vec<(u32, Slot, bool)> = self
            .uses
            .iter()
            .filter(|u| !own(self.code[u.instruction as usize].op))
            .filter(|u| watched.binary_search(&u.register).is_ok())
            .map(|u| (u.instruction, slots.of[u.register as usize], u.write))
            .collect();
        found.sort_unstable();
        Touched::new(self.code.len(), &found)
    }

    /// Results of `wgmma` are written when they are waited for, and fragments of A are read until
    /// then: nothing else may take their registers' slots before, so each wait counts as a read of
    /// all of them.
    pub(super) fn waits_read_registers_of_wgmma(&mut self) {
        let (code, registers) = (&self.code, self.of_wgmma());
        for (at, _) in code.iter().enumerate().filter(|(_, inst)| inst.op == Op::WgmmaWait) {
            let reads = registers.iter().map(|register| Use {
                instruction: at as u32,
                register: *register,
                write: false,
            });
            self.uses.extend(reads);
        }
    }
}
