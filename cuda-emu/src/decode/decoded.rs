//! What a pass over a kernel's body gives, and the program it becomes.

use super::liveness::Slots;
use super::names::Kind;
use super::op::{Inst, Op, Slot};
use super::variables::Layout;
use super::{Broadcast, Files, Origin, Program};
use crate::ptx::Function;

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
    pub(super) fn into_program(self, function: &Function, layout: &Layout, slots: &Slots) -> Program {
        let has_wgmma = self.code.iter().any(|inst| matches!(inst.op, Op::Wgmma(_)));
        let mut touched = Vec::new();
        for found in self.uses.iter().filter(|_| has_wgmma) {
            if matches!(self.registers[found.register as usize], Kind::Word | Kind::Half) {
                touched.push((found.instruction, slots.of[found.register as usize]));
            }
        }
        touched.sort_unstable();
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
        }
    }

    /// Results of `wgmma` are written when they are waited for: until then nothing else may take
    /// their registers' slots, so each wait counts as a read of all of them.
    pub(super) fn waits_read_accumulators(&mut self) {
        let code = &self.code;
        let is = |found: &Use, wanted: fn(Op) -> bool| wanted(code[found.instruction as usize].op);
        let mut written: Vec<u32> = self
            .uses
            .iter()
            .filter(|u| u.write && is(u, |op| matches!(op, Op::Wgmma(_))))
            .map(|u| u.register)
            .collect();
        written.sort_unstable();
        written.dedup();
        for (at, _) in code.iter().enumerate().filter(|(_, inst)| inst.op == Op::WgmmaWait) {
            let reads = written.iter().map(|register| Use {
                instruction: at as u32,
                register: *register,
                write: false,
            });
            self.uses.extend(reads);
        }
    }
}
