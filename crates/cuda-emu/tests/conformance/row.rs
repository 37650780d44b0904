//! A row of the table: a PTX text, its inputs, and what it must give.

use std::fmt::Write;

use cuda_emu::{Arch, TensorMap};

use super::number::{Format, decode};
use super::values::mask;

/// How large an operand is: a predicate, or a register of 16, 32 or 64 bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Size {
    P,
    H,
    W,
    X,
}
pub use Size::{H, P, W, X};

impl Size {
    pub fn of(bits: u32) -> Self {
        match bits {
            64 => X,
            32 => W,
            _ => H,
        }
    }

    pub fn bits(self) -> u32 {
        match self {
            P => 1,
            H => 16,
            W => 32,
            X => 64,
        }
    }
}

/// How results are compared.
#[derive(Clone, Copy, Debug)]
pub enum Check {
    /// Bit by bit.
    Bits,
    /// Floats of a format (several in a register, if it is longer): any NaN is as good as another.
    Float(Format),
    /// Only a card can tell the last bits: a float within relative or absolute distance.
    CardOnly { format: Format, relative: f64, absolute: f64 },
}

/// A fourth parameter.
#[derive(Clone)]
pub enum Extra {
    None,
    /// A tensor over `memory`: its address counts from there.
    Map(TensorMap),
    Bytes([u8; 128]),
}

/// A row.
#[derive(Clone)]
pub struct Row {
    /// The opcode with all its modifiers.
    pub form: String,
    pub arch: Arch,
    pub block: [u32; 3],
    pub grid: [u32; 3],
    /// Declarations of the module, and directives of the kernel.
    pub module: String,
    pub directives: String,
    /// Instructions between the loads of `%a0..` and the stores of `%d0..`.
    pub text: String,
    pub outs: Vec<Size>,
    pub ins: Vec<Size>,
    /// Of each thread, its operands.
    pub inputs: Vec<Vec<u64>>,
    /// Bytes at `%memory`, before and after; none after if they do not matter.
    pub memory: Vec<u8>,
    pub memory_after: Option<Vec<u8>>,
    /// What the parameter `extra` holds, 128 bytes.
    pub extra: Extra,
    pub expected: Vec<Vec<u64>>,
    pub check: Check,
}

impl Row {
    /// A row of `form`: one instruction on all operands, a thread for each input.
    pub fn new(form: &str, outs: &[Size], ins: &[Size], inputs: Vec<Vec<u64>>) -> Self {
        let names = (0..outs.len()).map(|n| format!("%d{n}")).chain((0..ins.len()).map(|n| format!("%a{n}")));
        let text = format!("{form} {};", names.collect::<Vec<_>>().join(", "));
        let mut row = Self {
            form: form.to_string(),
            arch: Arch::Sm80,
            block: [32, 1, 1],
            grid: [1, 1, 1],
            module: String::new(),
            directives: String::new(),
            text,
            outs: outs.to_vec(),
            ins: ins.to_vec(),
            inputs,
            memory: Vec::new(),
            memory_after: None,
            extra: Extra::None,
            expected: Vec::new(),
            check: Check::Bits,
        };
        row.pad();
        row
    }

    /// Fills the last block with inputs from the start.
    fn pad(&mut self) {
        let block = 32;
        let first = self.inputs.clone();
        assert!(!first.is_empty(), "{}: no inputs", self.form);
        self.inputs
            .extend(first.iter().cycle().take(first.len().next_multiple_of(block) - first.len()).cloned());
        self.grid[0] = (self.inputs.len() / block) as u32;
    }

    pub fn text(mut self, text: &str) -> Self {
        self.text = text.to_string();
        self
    }

    pub fn module(mut self, text: &str) -> Self {
        self.module = text.to_string();
        self
    }

    pub fn sm90(mut self) -> Self {
        self.arch = Arch::Sm90;
        self
    }

    /// Another shape of the grid; there must be inputs for as many threads.
    pub fn shape(mut self, grid: [u32; 3], block: [u32; 3]) -> Self {
        (self.grid, self.block) = (grid, block);
        let threads = grid.iter().chain(&block).product::<u32>() as usize;
        assert!(self.inputs.len() >= threads, "{}", self.form);
        self.inputs.truncate(threads);
        self
    }

    pub fn directives(mut self, text: &str) -> Self {
        self.directives = text.to_string();
        self
    }

    pub fn extra(mut self, extra: Extra) -> Self {
        self.extra = extra;
        self
    }

    pub fn float(mut self, format: Format) -> Self {
        self.check = Check::Float(format);
        self
    }

    pub fn card_only(mut self, format: Format, relative: f64, absolute: f64) -> Self {
        self.check = Check::CardOnly { format, relative, absolute };
        self
    }

    /// Bytes at `%memory`.
    pub fn memory(mut self, before: &[u8]) -> Self {
        self.memory = before.to_vec();
        self
    }

    /// What `%memory` holds afterwards.
    pub fn memory_after(mut self, after: Vec<u8>) -> Self {
        self.memory_after = Some(after);
        self
    }

    /// What a thread with these operands gives.
    pub fn each(mut self, expected: impl Fn(&[u64]) -> Vec<u64>) -> Self {
        self.expected = self.inputs.iter().map(|v| expected(v)).collect();
        self
    }

    /// The same for a single result.
    pub fn gives(self, expected: impl Fn(&[u64]) -> u64) -> Self {
        self.each(|v| vec![expected(v)])
    }

    /// What all threads together give.
    pub fn whole(mut self, expected: impl Fn(&[Vec<u64>]) -> Vec<Vec<u64>>) -> Self {
        self.expected = expected(&self.inputs);
        self
    }

    /// What stands before kernels.
    pub fn header(&self) -> String {
        let target = if self.arch == Arch::Sm80 { "sm_80" } else { "sm_90a" };
        format!(".version {}\n.target {target}\n.address_size 64\n", self.version())
    }

    /// The version of PTX that knows the form.
    fn version(&self) -> &'static str {
        let newer = [".shared::cta.global", ".sync_restrict"];
        let newer = newer.iter().any(|words| self.form.contains(words));
        if newer && self.arch == Arch::Sm90 { "8.6" } else { "8.5" }
    }

    /// The module's PTX; its kernel is `row`.
    pub fn ptx(&self) -> String {
        self.header() + &self.kernel("row")
    }

    /// The kernel's PTX, with the module's declarations.
    pub fn kernel(&self, name: &str) -> String {
        let extra = if matches!(self.extra, Extra::None) { "" } else { ", .param .align 64 .b8 extra[128]" };
        let mut ptx = format!(
            "{}\n.visible .entry {name}(.param .u64 input, .param .u64 output, .param .u64 memory{extra}) {}\n\
             {{\n.reg .pred %p<9>; .reg .b16 %h<33>; .reg .b32 %r<65>; .reg .b64 %x<33>; .reg .b32 %t, %u; \
             .reg .b64 %in, %out, %memory, %w;\n",
            self.module, self.directives
        );
        self.registers(&mut ptx, "%a", &self.ins);
        self.registers(&mut ptx, "%d", &self.outs);
        let (ins, outs) = (self.ins.len() * 8, self.outs.len() * 8);
        // The thread's number in the grid, block by block.
        ptx += "ld.param.u64 %in, [input]; ld.param.u64 %out, [output]; ld.param.u64 %memory, [memory];\n\
                mov.u32 %t, 0;\n";
        for (index, count) in [("ctaid", "nctaid"), ("tid", "ntid")] {
            for axis in ["z", "y", "x"] {
                let _ = writeln!(
                    ptx,
                    "mov.u32 %u, %{count}.{axis}; mul.lo.u32 %t, %t, %u; mov.u32 %u, %{index}.{axis}; \
                     add.u32 %t, %t, %u;"
                );
            }
        }
        let _ = writeln!(
            ptx,
            "mul.wide.u32 %w, %t, {ins}; add.u64 %in, %in, %w; mul.wide.u32 %w, %t, {outs}; \
             add.u64 %out, %out, %w;"
        );
        self.loads(&mut ptx);
        let _ = writeln!(ptx, "{}", self.text);
        self.stores(&mut ptx);
        ptx + "ret;\n}\n"
    }

    fn loads(&self, ptx: &mut String) {
        for (n, size) in self.ins.iter().enumerate() {
            let at = n * 8;
            let _ = match size {
                P => writeln!(ptx, "ld.global.b64 %w, [%in+{at}]; setp.ne.b64 %a{n}, %w, 0;"),
                size => writeln!(ptx, "ld.global.b{} %a{n}, [%in+{at}];", size.bits()),
            };
        }
    }

    fn stores(&self, ptx: &mut String) {
        for (n, size) in self.outs.iter().enumerate() {
            let _ = match size {
                P => write!(ptx, "selp.b64 %w, 1, 0, %d{n}; "),
                H => write!(ptx, "cvt.u64.u16 %w, %d{n}; "),
                W => write!(ptx, "cvt.u64.u32 %w, %d{n}; "),
                X => write!(ptx, "mov.b64 %w, %d{n}; "),
            };
            let _ = writeln!(ptx, "st.global.b64 [%out+{}], %w;", n * 8);
        }
    }

    fn registers(&self, ptx: &mut String, prefix: &str, sizes: &[Size]) {
        for (n, size) in sizes.iter().enumerate() {
            let ty = if *size == P { "pred".to_string() } else { format!("b{}", size.bits()) };
            let _ = writeln!(ptx, ".reg .{ty} {prefix}{n};");
        }
    }

    /// What is wrong with results, if anything.
    pub fn mismatch(&self, results: &[Vec<u64>], memory: &[u8]) -> Option<String> {
        for (thread, (found, wanted)) in results.iter().zip(&self.expected).enumerate() {
            if !found.iter().zip(wanted).zip(&self.outs).all(|((f, w), size)| self.same(*f, *w, size.bits()))
            {
                let inputs = &self.inputs[thread];
                return Some(format!("thread {thread}: {found:x?} instead of {wanted:x?} for {inputs:x?}"));
            }
        }
        let after = self.memory_after.as_ref()?;
        let at = after.iter().zip(memory).position(|(wanted, found)| wanted != found)?;
        let from = at & !15;
        Some(format!(
            "memory at {at}: {:02x?} instead of {:02x?} (from {from})",
            &memory[from..memory.len().min(from + 16)],
            &after[from..memory.len().min(from + 16)]
        ))
    }

    fn same(&self, found: u64, wanted: u64, bits: u32) -> bool {
        let format = match self.check {
            Check::Bits => return found == wanted,
            Check::Float(format) | Check::CardOnly { format, .. } => format,
        };
        let step = format.bits().min(bits);
        (0..bits / step).all(|n| {
            let part = |v: u64| v >> (n * step) & mask(step);
            self.close(part(found), part(wanted), format)
        })
    }

    fn close(&self, found: u64, wanted: u64, format: Format) -> bool {
        if found == wanted || format.is_nan(found) && format.is_nan(wanted) {
            return true;
        }
        let Check::CardOnly { relative, absolute, .. } = self.check else { return false };
        let [found, wanted] = [found, wanted].map(|v| decode(v, format).to_f64());
        (found - wanted).abs() <= absolute.max(relative * wanted.abs())
    }
}
