//! Decodes asynchronous copies and mbarriers.

use super::body::{Decoder, Reason};
use super::op::*;
use super::operand::Opcode;
use super::simple::{groups, operand};
use crate::memory::Space;
use crate::ptx::{Instruction, Number, Operand, Type};

impl<'a, 'u> Decoder<'a, 'u> {
    pub(super) fn copy(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let number = |index: usize| match operand(i, index)? {
            Operand::Number(Number::Int(value)) => Ok(*value as i64),
            _ => Err("expected a number".to_string()),
        };
        if op.has("bulk") {
            return self.bulk(i, op);
        } else if op.has("commit_group") {
            self.emit(Inst::new(Op::CpCommit));
        } else if op.has("wait_group") {
            self.emit(Inst { imm: groups(i)?, ..Inst::new(Op::CpWait) });
        } else if op.has("wait_all") {
            self.emit(Inst::new(Op::CpWaitAll));
        } else if op.has("mbarrier") {
            let address = self.shared_address(operand(i, 0)?)?;
            self.emit(Inst {
                a: address.0,
                imm: address.1,
                ..Inst::new(Op::CpArrive { noinc: op.has("noinc") })
            });
        } else {
            let (a, to_offset) = self.shared_address(operand(i, 0)?)?;
            let from = self.address(operand(i, 1)?, Space::Global)?;
            let bytes = number(2)?;
            if !(matches!(bytes, 4 | 8) && op.has("ca") || bytes == 16) {
                return Err(format!("copy of {bytes} bytes"));
            }
            let offset = |o: i64| i32::try_from(o).map_err(|_| "offset of more than 32 bits".to_string());
            let imm = i64::from(offset(to_offset)? as u32) | i64::from(offset(from.offset)?) << 32;
            // A fourth operand is the bytes to read, or a predicate to ignore the source.
            let hint = op.has("L2::cache_hint");
            let plain = i.operands.len() == if hint { 4 } else { 3 };
            let c = match i.operands.get(3) {
                Some(size) if !plain => self
                    .read(size, Type::U32)
                    .map_err(|e| format!("{e} (ignore-src predicates are not supported)"))?,
                _ => self.constant(bytes as u64, false),
            };
            self.emit(Inst { a, b: from.slot, c, imm, ..Inst::new(Op::CpAsync { bytes: bytes as u8 }) });
        }
        Ok(())
    }

    /// A shared address that stands in a 32-bit register: slot, offset.
    fn shared_address(&mut self, from: &Operand<'a>) -> Result<(Slot, i64), Reason> {
        let address = self.address(from, Space::Shared)?;
        if !address.narrow {
            return Err("a 64-bit shared address is not supported here".to_string());
        }
        Ok((address.slot, address.offset))
    }

    /// The same without an offset, which the instruction form has no place for.
    fn shared_slot(&mut self, from: &Operand<'a>) -> Result<Slot, Reason> {
        match self.shared_address(from)? {
            (slot, 0) => Ok(slot),
            _ => Err("an offset is not supported here".to_string()),
        }
    }

    fn bulk(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        if op.has("commit_group") {
            self.emit(Inst::new(Op::BulkCommit));
            return Ok(());
        }
        if op.has("wait_group") {
            self.emit(Inst { imm: groups(i)?, ..Inst::new(Op::BulkWait) });
            return Ok(());
        }
        if op.has("prefetch") {
            self.emit(Inst::new(Op::Nop));
            return Ok(());
        }
        if op.has("tensor") {
            return self.bulk_tensor(i, op);
        }
        if op.has("reduce") {
            return Err("instruction is not supported".to_string());
        }
        // Spaces in the order destination, source.
        let spaces: Vec<&str> =
            op.parts.iter().copied().filter(|p| p.starts_with("shared") || *p == "global").collect();
        let inst = match spaces[..] {
            ["global", _] => {
                let to = self.address(operand(i, 0)?, Space::Global)?;
                let b = self.shared_slot(operand(i, 1)?)?;
                let c = self.read(operand(i, 2)?, Type::U32)?;
                Inst { a: to.slot, b, c, imm: to.offset, ..Inst::new(Op::BulkStore) }
            }
            [_, "global"] => {
                let a = self.shared_slot(operand(i, 0)?)?;
                let from = self.address(operand(i, 1)?, Space::Global)?;
                let c = self.read(operand(i, 2)?, Type::U32)?;
                let barrier = self.shared_slot(operand(i, 3)?)?;
                if op.has("multicast::cluster") {
                    return Err("multicast of linear copies is not supported".to_string());
                }
                self.with_list(
                    Inst { a, b: from.slot, c, imm: from.offset, ..Inst::new(Op::BulkLoad) },
                    &[barrier],
                )?
            }
            _ => {
                let a = self.shared_slot(operand(i, 0)?)?;
                let b = self.shared_slot(operand(i, 1)?)?;
                let c = self.read(operand(i, 2)?, Type::U32)?;
                let barrier = self.shared_slot(operand(i, 3)?)?;
                self.with_list(Inst { a, b, c, ..Inst::new(Op::BulkShared) }, &[barrier])?
            }
        };
        self.emit(inst);
        Ok(())
    }

    fn bulk_tensor(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let dims = op.parts.iter().find_map(|p| {
            p.strip_suffix('d').and_then(|n| n.parse::<u8>().ok()).filter(|n| (1..=5).contains(n))
        });
        let dims = dims.ok_or("no number of dimensions in the opcode")?;
        if op.parts.iter().any(|p| p.starts_with("im2col") || *p == "reduce") {
            return Err("instruction is not supported".to_string());
        }
        let store = op.parts.iter().position(|p| *p == "global")
            < op.parts.iter().position(|p| p.starts_with("shared"));
        let tensor = operand(i, usize::from(!store))?;
        let Operand::Address(map, 0, rest) = tensor else {
            return Err("expected a tensor map and coordinates".to_string());
        };
        let [coordinates] = &rest[..] else { return Err("expected coordinates".to_string()) };
        let b = self.read(map, Type::U64)?;
        let mut list = Vec::new();
        let a = self.shared_slot(operand(i, usize::from(store))?)?;
        if !store {
            list.push(self.shared_slot(operand(i, 2)?)?);
        }
        list.extend(self.read_list(coordinates, Type::B32)?);
        if list.len() != dims as usize + usize::from(!store) {
            return Err("as many coordinates as dimensions are needed".to_string());
        }
        let multicast = op.has("multicast::cluster");
        let c = if multicast { self.read(operand(i, 3)?, Type::B16)? } else { SINK };
        let kind =
            if store { Op::TensorStore { dims, reduce: false } } else { Op::TensorLoad { dims, multicast } };
        let inst = self.with_list(Inst { a, b, c, ..Inst::new(kind) }, &list)?;
        self.emit(inst);
        Ok(())
    }

    pub(super) fn mbarrier(&mut self, i: &Instruction<'a>, op: &Opcode) -> Result<(), Reason> {
        let what = op.parts.get(1).copied().unwrap_or_default();
        if what == "pending_count" {
            let a = self.read(operand(i, 1)?, Type::B64)?;
            let d = self.write(operand(i, 0)?, Type::U32)?;
            self.emit(Inst { d, a, ..Inst::new(Op::MbarrierPending) });
            return Ok(());
        }
        let has_result = matches!(what, "arrive" | "arrive_drop" | "test_wait" | "try_wait");
        // An arrival at another block's mbarrier has no result and may leave it out.
        let first = usize::from(has_result && !matches!(operand(i, 0)?, Operand::Address(..)));
        let address = self.address(operand(i, first)?, Space::Shared)?;
        let mut inst =
            Inst { a: address.slot, imm: address.offset, c: u32::from(address.narrow), ..Inst::new(Op::Nop) };
        let one = self.constant(1, false);
        match what {
            "init" => (inst.op, inst.b) = (Op::MbarrierInit, self.read(operand(i, 1)?, Type::U32)?),
            "inval" => inst.op = Op::MbarrierInval,
            "arrive" | "arrive_drop" => {
                let (expect, drop) = (op.has("expect_tx"), what == "arrive_drop");
                let partial = op.has("noComplete");
                inst.op = Op::MbarrierArrive { expect, drop, partial };
                if partial && i.operands.len() < 3 {
                    return Err("an arrival of `.noComplete` needs its count".to_string());
                }
                inst.b = if i.operands.len() > first + 1 {
                    self.read(operand(i, first + 1)?, Type::U32)?
                } else {
                    one
                };
                if first == 1 {
                    inst.d = self.write(operand(i, 0)?, Type::B64)?;
                }
            }
            "expect_tx" => (inst.op, inst.b) = (Op::MbarrierExpectTx, self.read(operand(i, 1)?, Type::U32)?),
            "complete_tx" => {
                (inst.op, inst.b) = (Op::MbarrierCompleteTx, self.read(operand(i, 1)?, Type::U32)?)
            }
            "test_wait" | "try_wait" => {
                let parity = op.has("parity");
                inst.op = Op::MbarrierWait { parity, try_wait: what == "try_wait" };
                inst.b = self.read(operand(i, 2)?, if parity { Type::U32 } else { Type::B64 })?;
                let Operand::Name(name) = operand(i, 0)? else {
                    return Err("expected a predicate to write".to_string());
                };
                inst.d = self.pred_named(name, true)?;
            }
            _ => return Err("instruction is not supported".to_string()),
        }
        self.emit(inst);
        Ok(())
    }
}
