//! Makes PTX programs from seeds.

use std::fmt::Write;

/// What a thread stores.
pub const OUTPUT_BYTES: u64 = (WORDS * 4 + FLOATS * 4 + LONGS * 8) as u64;

const WORDS: usize = 10;
const FLOATS: usize = 6;
const LONGS: usize = 4;
const PREDICATES: usize = 4;
const HALVES: usize = 4;
/// Threads of a block: each has a row of 16 bytes in shared memory, and one in `scratch`.
pub const THREADS: u32 = 64;
/// Blocks of a launch.
pub const BLOCKS: u32 = 2;
/// Places of a block in `sums`.
const SUMS: usize = 32;
/// Statements at the top, and how deep they nest.
const STATEMENTS: u64 = 36;
const DEPTH_MAX: u32 = 3;

struct Generator {
    state: u64,
    text: String,
    labels: u32,
    loops: u32,
}

/// The program of a seed: its kernel is `program`, its parameter where to store.
pub fn program(seed: u64) -> String {
    let mut generator = Generator {
        state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
        text: String::new(),
        labels: 0,
        loops: 0,
    };
    generator.start();
    for _ in 0..STATEMENTS {
        generator.top();
    }
    generator.finish();
    generator.text
}

impl Generator {
    fn below(&mut self, limit: usize) -> usize {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        (self.state.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit
    }

    fn pick<'t>(&mut self, from: &[&'t str]) -> &'t str {
        from[self.below(from.len())]
    }

    fn line(&mut self, text: &str) {
        let _ = writeln!(self.text, "  {text}");
    }

    fn start(&mut self) {
        let _ = writeln!(
            self.text,
            ".version 8.5\n.target sm_90\n.address_size 64\n.global .align 16 .b8 scratch[{}];\n\
             .global .align 16 .b8 sums[{}];\n.visible .entry program(.param .u64 output) {{\n  \
             .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>, %f<9>, %t<12>, %loop<40>;\n  \
             .reg .b64 %x<12>; .reg .f64 %d<3>; .shared .align 16 .b8 buffer[{}];\n  \
             mov.u32 %r15, %tid.x; mov.u32 %r16, %ctaid.x; mov.u32 %r18, buffer;\n  \
             mad.lo.u32 %r17, %r16, {THREADS}, %r15; mul.wide.u32 %x8, %r17, 16;\n  \
             mov.u64 %x7, scratch; add.u64 %x8, %x7, %x8; mov.u64 %x7, sums;\n  \
             mad.wide.u32 %x7, %r16, {}, %x7; shl.b32 %r17, %r15, 4; add.u32 %r19, %r18, %r17;",
            THREADS * BLOCKS * 16,
            SUMS as u32 * 8 * BLOCKS,
            THREADS * 16,
            SUMS * 8
        );
        for n in 0..WORDS {
            let factor = self.below(1 << 20) * 2 + 1;
            self.line(&format!("mad.lo.u32 %r{n}, %r15, {factor}, %r16;"));
        }
        for n in 0..FLOATS {
            self.line(&format!("cvt.rn.f32.s32 %f{n}, %r{n}; mul.f32 %f{n}, %f{n}, 0f3A83126F;"));
        }
        for n in 0..LONGS {
            self.line(&format!("mul.wide.s32 %x{n}, %r{n}, %r{};", n + 1));
        }
        for n in 0..HALVES {
            self.line(&format!("cvt.rn.f16.f32 %h{n}, %f{n};"));
        }
        for n in 0..PREDICATES {
            self.line(&format!("setp.lt.u32 %p{n}, %r15, {};", 5 + 13 * n));
        }
        self.line("st.shared.v4.b32 [%r19], {%r0, %r1, %r2, %r3};");
        self.line("st.global.v4.b32 [%x8], {%r4, %r5, %r6, %r7};");
    }

    /// A statement that all threads reach: only there do they meet.
    fn top(&mut self) {
        match self.below(14) {
            0 | 1 => self.shuffle(),
            2 => self.exchange(),
            3 => self.vote(),
            4 => self.multiply(),
            5 => self.matrices(),
            6 => self.copy(),
            7 => self.contend(),
            _ => self.statement(0),
        }
    }

    fn statement(&mut self, depth: u32) {
        match self.below(16) {
            0 | 1 if depth < DEPTH_MAX => self.branch(depth),
            2 if depth < DEPTH_MAX => self.repeat(depth),
            3 => self.compare(),
            4 => self.float(),
            5 => self.long(),
            6 => self.half(),
            7 => self.pairs(),
            8 => self.convert(),
            9 => self.double(),
            10 => self.atomic(),
            11 => self.select(),
            _ => self.word(),
        }
    }

    fn label(&mut self) -> u32 {
        self.labels += 1;
        self.labels
    }

    fn branch(&mut self, depth: u32) {
        let (label, p) = (self.label(), self.below(PREDICATES));
        let not = self.pick(&["", "!"]);
        self.line(&format!("@{not}%p{p} bra ELSE{label};"));
        for _ in 0..1 + self.below(4) {
            self.statement(depth + 1);
        }
        self.line(&format!("bra END{label};\nELSE{label}:"));
        for _ in 0..self.below(4) {
            self.statement(depth + 1);
        }
        self.line(&format!("END{label}:"));
    }

    /// A loop of a few turns, other ones for other lanes.
    fn repeat(&mut self, depth: u32) {
        if self.loops == 40 {
            return;
        }
        let (label, counter) = (self.label(), self.loops);
        self.loops += 1;
        let source = self.below(WORDS);
        self.line(&format!("and.b32 %loop{counter}, %r{source}, 3;\nLOOP{label}:"));
        for _ in 0..1 + self.below(3) {
            self.statement(depth + 1);
        }
        self.line(&format!("sub.s32 %loop{counter}, %loop{counter}, 1; setp.ge.s32 %p8, %loop{counter}, 0;"));
        self.line(&format!("@%p8 bra LOOP{label};"));
    }

    fn guard(&mut self) -> String {
        let p = self.below(PREDICATES);
        match self.below(6) {
            0 => format!("@%p{p} "),
            1 => format!("@!%p{p} "),
            _ => String::new(),
        }
    }

    /// One instruction on registers of a letter, guarded or not.
    fn instruction(&mut self, table: &[(&str, usize)], letter: char, count: usize) {
        let (opcode, sources) = table[self.below(table.len())];
        let mut text = format!("{}{opcode} %{letter}{}", self.guard(), self.below(count));
        for _ in 0..sources {
            let _ = write!(text, ", %{letter}{}", self.below(count));
        }
        self.line(&(text + ";"));
    }

    fn word(&mut self) {
        let table = [
            ("add.u32", 2),
            ("sub.s32", 2),
            ("mul.lo.u32", 2),
            ("mul.hi.s32", 2),
            ("mad.lo.s32", 3),
            ("min.s32", 2),
            ("max.u32", 2),
            ("and.b32", 2),
            ("or.b32", 2),
            ("xor.b32", 2),
            ("not.b32", 1),
            ("shl.b32", 2),
            ("shr.u32", 2),
            ("shr.s32", 2),
            ("popc.b32", 1),
            ("clz.b32", 1),
            ("brev.b32", 1),
            ("bfe.u32", 3),
            ("bfe.s32", 3),
            ("bfi.b32", 4),
            ("prmt.b32", 3),
            ("shf.l.wrap.b32", 3),
            ("shf.r.clamp.b32", 3),
            ("dp4a.s32.u32", 3),
            ("add.sat.s32", 2),
            ("sad.u32", 3),
            ("abs.s32", 1),
            ("neg.s32", 1),
            ("bfind.u32", 1),
            ("dp2a.hi.u32.s32", 3),
        ];
        self.instruction(&table, 'r', WORDS);
        // A divisor that is not zero.
        if self.below(4) == 0 {
            let [d, a, b] = [0; 3].map(|_: i32| self.below(WORDS));
            let op = self.pick(&["div.u32", "rem.u32"]);
            self.line(&format!("or.b32 %r17, %r{b}, 1; {op} %r{d}, %r{a}, %r17;"));
        }
    }

    /// Bytes and bits by a table: selectors that are constants have ways of their own.
    fn select(&mut self) {
        let [d, a, b, c] = [0; 4].map(|_: i32| self.below(WORDS));
        let (guard, table) = (self.guard(), self.below(1 << 16));
        let mode = self.pick(&["", "", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"]);
        let text = match self.below(3) {
            0 => format!("lop3.b32 %r{d}, %r{a}, %r{b}, %r{c}, {};", table & 255),
            1 => format!("prmt.b32{mode} %r{d}, %r{a}, %r{b}, {table};"),
            _ => format!("prmt.b32{mode} %r{d}, %r{a}, %r{b}, %r{c};"),
        };
        self.line(&(guard + &text));
    }

    /// Two halves in a word.
    fn pairs(&mut self) {
        let table = [
            ("add.f16x2", 2),
            ("sub.ftz.sat.f16x2", 2),
            ("mul.f16x2", 2),
            ("fma.rn.f16x2", 3),
            ("fma.rn.relu.f16x2", 3),
            ("fma.rn.ftz.sat.f16x2", 3),
            ("min.f16x2", 2),
            ("max.NaN.f16x2", 2),
            ("neg.f16x2", 1),
            ("abs.f16x2", 1),
            ("add.rn.bf16x2", 2),
            ("mul.bf16x2", 2),
            ("fma.rn.bf16x2", 3),
            ("fma.rn.relu.bf16x2", 3),
            ("max.bf16x2", 2),
            ("min.NaN.bf16x2", 2),
        ];
        self.instruction(&table, 'r', WORDS);
        if self.below(4) == 0 {
            let (p, a, b) = (self.below(PREDICATES), self.below(WORDS), self.below(WORDS));
            let (cmp, kind) = (self.pick(&["lt", "geu", "num"]), self.pick(&["f16x2", "bf16x2"]));
            self.line(&format!("setp.{cmp}.{kind} %p{p}|%p7, %r{a}, %r{b};"));
        }
    }

    /// Between whole numbers: what a NaN of 64 bits looks like is not certain.
    fn double(&mut self) {
        let [a, b, d] = [0; 3].map(|_: i32| self.below(LONGS));
        let op = self.pick(&["add.f64", "sub.f64", "mul.f64", "div.rn.f64", "min.f64", "max.f64"]);
        let to = self.pick(&["rni.s64", "rzi.u64", "rmi.s64", "rpi.sat.u64"]);
        let (last, f) = (self.pick(&["sqrt.rn.f64", "neg.f64", "abs.f64"]), self.below(FLOATS));
        self.line(&format!("cvt.rn.f64.s64 %d0, %x{a}; cvt.rn.f64.u64 %d1, %x{b}; {op} %d2, %d0, %d1;"));
        self.line(&format!("fma.rn.f64 %d0, %d2, %d1, %d0; {last} %d1, %d2;"));
        self.line(&format!("cvt.{to}.f64 %x{d}, %d0; cvt.rn.f32.f64 %f{f}, %d1;"));
    }

    /// On what no other thread has: the old value is certain.
    fn atomic(&mut self) {
        let (guard, [d, a, b]) = (self.guard(), [0; 3].map(|_: i32| self.below(WORDS)));
        let (x, y, f) = (self.below(LONGS), self.below(LONGS), self.below(FLOATS));
        let (space, address) = if self.below(2) == 0 { ("global", "%x8") } else { ("shared", "%r19") };
        let place = format!("[{address}+{}]", self.below(2) * 8);
        let word = self.pick(&["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "exch.b32"]);
        let long = self.pick(&["add.u64", "max.s64", "min.u64", "xor.b64", "exch.b64"]);
        let half = self.pick(&["f16x2", "bf16x2"]);
        let text = match self.below(7) {
            0 => format!("atom.{space}.{word} %r{d}, {place}, %r{a};"),
            1 => format!("atom.{space}.{long} %x{x}, {place}, %x{y};"),
            2 => format!("atom.{space}.cas.b32 %r{d}, {place}, %r{a}, %r{b};"),
            3 => format!("atom.{space}.inc.u32 %r{d}, {place}, %r{a};"),
            4 => format!("red.{space}.dec.u32 {place}, %r{a};"),
            5 => format!("atom.{space}.add.noftz.{half} %r{d}, {place}, %r{a};"),
            // What a NaN in memory looks like is not certain: nobody reads it as a word.
            _ => format!(
                "atom.{space}.exch.b32 %r{d}, {place}, %r{a};{guard}atom.{space}.add.f32 %f{f}, {place}, %f{f};\
                 {guard}atom.{space}.exch.b32 %r17, {place}, %r{b};"
            ),
        };
        self.line(&(guard + &text));
    }

    fn float(&mut self) {
        let table = [
            ("add.f32", 2),
            ("sub.rz.f32", 2),
            ("mul.f32", 2),
            ("fma.rn.f32", 3),
            ("fma.rm.f32", 3),
            ("mul.rp.f32", 2),
            ("div.rn.f32", 2),
            ("sqrt.rn.f32", 1),
            ("rcp.rn.f32", 1),
            ("min.f32", 2),
            ("max.f32", 2),
            ("neg.f32", 1),
            ("abs.f32", 1),
            ("add.ftz.sat.f32", 2),
            ("ex2.approx.f32", 1),
            ("copysign.f32", 2),
        ];
        self.instruction(&table, 'f', FLOATS);
    }

    fn long(&mut self) {
        let table = [
            ("add.u64", 2),
            ("sub.s64", 2),
            ("mul.lo.s64", 2),
            ("mul.hi.u64", 2),
            ("mad.lo.u64", 3),
            ("min.s64", 2),
            ("max.u64", 2),
            ("xor.b64", 2),
            ("brev.b64", 1),
            ("not.b64", 1),
            ("neg.s64", 1),
        ];
        self.instruction(&table, 'x', LONGS);
    }

    fn half(&mut self) {
        let table = [
            ("add.f16", 2),
            ("sub.f16", 2),
            ("mul.f16", 2),
            ("fma.rn.f16", 3),
            ("min.f16", 2),
            ("fma.rn.bf16", 3),
            ("neg.f16", 1),
            ("add.u16", 2),
            ("mul.lo.u16", 2),
            ("max.s16", 2),
            ("add.ftz.f16", 2),
        ];
        self.instruction(&table, 'h', HALVES);
    }

    /// Between sizes. NaN has no certain bits: `max` of two makes it the canonical one.
    fn convert(&mut self) {
        let (r, f, x, h) = (self.below(WORDS), self.below(FLOATS), self.below(LONGS), self.below(HALVES));
        let (g, q) = (self.below(FLOATS), self.below(WORDS));
        let round = self.pick(&["rn", "rz", "rm", "rp"]);
        let whole = self.pick(&["rni", "rzi", "rmi", "rpi"]);
        let pair = self.pick(&["f16x2", "bf16x2"]);
        let small = self.pick(&["e4m3x2", "e5m2x2"]);
        let int = self.pick(&["u8", "s8", "u16", "s16", "u32", "s32"]);
        let relu = self.pick(&["", ".relu"]);
        let text = match self.below(22) {
            0 => format!("cvt.{whole}.s32.f32 %r{r}, %f{f};"),
            1 => format!("cvt.{round}.f32.u32 %f{f}, %r{r};"),
            2 => format!("cvt.u32.u64 %r{r}, %x{x};"),
            3 => format!("cvt.s64.s32 %x{x}, %r{r};"),
            4 => format!("cvt.{round}.f16.f32 %h{h}, %f{f};"),
            5 => format!("cvt.f32.f16 %f{f}, %h{h};"),
            6 => format!("cvt.sat.s8.s32 %r{r}, %r{q};"),
            7 => format!("cvt.{whole}.u64.f32 %x{x}, %f{f};"),
            8 => format!("cvt.{int}.u32 %r{r}, %r{q};"),
            9 => format!("cvt.{round}.f32.s64 %f{f}, %x{x};"),
            10 => format!("cvt.{round}.f16.s32 %h{h}, %r{r};"),
            11 => format!("cvt.{whole}.s32.f16 %r{r}, %h{h};"),
            12 => format!("cvt.{round}.bf16.f32 %h{h}, %f{f};"),
            13 => format!("cvt.f32.bf16 %f{f}, %h{h};"),
            14 => format!("cvt.rn{relu}.{pair}.f32 %r{r}, %f{f}, %f{g};"),
            15 => format!("cvt.rz.{pair}.f32 %r{r}, %f{f}, %f{g};"),
            16 => format!("cvt.rn.satfinite{relu}.{small}.f32 %h{h}, %f{f}, %f{g};"),
            17 => format!("cvt.rn.satfinite.{small}.f16x2 %h{h}, %r{r};"),
            18 => format!("cvt.rn{relu}.f16x2.{small} %r{r}, %h{h};"),
            19 => format!("cvt.{whole}.ftz.sat.f32.f32 %f{f}, %f{g};"),
            20 => format!("max.f32 %f{f}, %f{f}, %f{f}; cvt.rna.tf32.f32 %r{r}, %f{f};"),
            _ => format!("max.f32 %f{f}, %f{f}, %f{f}; mov.b32 %r{r}, %f{f};"),
        };
        self.line(&text);
    }

    fn compare(&mut self) {
        let (p, q) = (self.below(PREDICATES), self.below(PREDICATES));
        let cmp = self.pick(&["eq", "ne", "lt", "le", "gt", "ge"]);
        let (a, b) = (self.below(WORDS), self.below(WORDS));
        let (c, d) = (self.below(FLOATS), self.below(FLOATS));
        let text = match self.below(5) {
            0 => format!("setp.{cmp}.s32 %p{p}, %r{a}, %r{b};"),
            1 => format!("setp.{cmp}.and.u32 %p{p}|%p7, %r{a}, %r{b}, !%p{q};"),
            2 => format!("setp.{cmp}u.f32 %p{p}, %f{c}, %f{d};"),
            3 => format!("selp.b32 %r{a}, %r{b}, %r{a}, %p{p}; set.{cmp}.u32.f32 %r{b}, %f{c}, %f{d};"),
            _ => format!("xor.pred %p{p}, %p{p}, %p{q}; selp.f32 %f{c}, %f{d}, %f{c}, %p{p};"),
        };
        self.line(&text);
    }

    fn shuffle(&mut self) {
        let (d, a, b) = (self.below(WORDS), self.below(WORDS), self.below(WORDS));
        let mode = self.pick(&["up", "down", "bfly", "idx"]);
        // Whole warps, parts of them, and any mask with any clamp: known here, or a register's.
        let whole = if mode == "up" { 0 } else { 31 };
        let mask = [0, 0x10, 0x18, 0x1c, self.below(32)][self.below(5)];
        let clamp = [mask << 8 | whole, mask << 8 | self.below(32)][self.below(2)];
        let clamp = if self.below(4) == 0 {
            self.line(&format!("mov.b32 %r17, {clamp};"));
            "%r17".to_string()
        } else {
            clamp.to_string()
        };
        self.line(&format!("shfl.sync.{mode}.b32 %r{d}|%p7, %r{a}, %r{b}, {clamp}, -1;"));
        self.line(&format!("selp.b32 %r{d}, %r{d}, %r{a}, %p7;"));
    }

    /// A row of another thread, once all are there: each has just one that asks for it.
    fn other_row(&mut self) {
        let mask = self.below(THREADS as usize);
        self.line(&format!("bar.sync 0; xor.b32 %r17, %r15, {mask}; mad.lo.u32 %r17, %r17, 16, %r18;"));
    }

    fn exchange(&mut self) {
        let [d, a, b] = [0; 3].map(|_: i32| self.below(WORDS));
        let x = self.below(LONGS);
        self.line(&format!("st.shared.u32 [%r19+4], %r{a}; st.shared.u64 [%r19+8], %x{x};"));
        self.other_row();
        self.line(&format!("ld.shared.u32 %r{d}, [%r17+8]; ld.shared.s8 %r{b}, [%r17+5]; bar.sync 0;"));
    }

    /// Sums of all threads of a block: by operations of which the order does not show.
    fn contend(&mut self) {
        let [d, a] = [0; 2].map(|_: i32| self.below(WORDS));
        let (x, place) = (self.below(LONGS), self.below(SUMS) * 8);
        let guard = self.guard();
        let word = self.pick(&["add.u32", "xor.b32", "or.b32", "and.b32", "max.s32", "min.u32", "min.s32"]);
        let long = self.pick(&["add.u64", "max.u64", "min.s64", "xor.b64", "and.b64"]);
        let limit = self.below(1 << 16);
        self.line("bar.sync 0;");
        match self.below(4) {
            0 => {
                self.line(&format!("{guard}red.shared.{word} [%r18+{place}], %r{a}; bar.sync 0;"));
                self.line(&format!("ld.shared.u32 %r{d}, [%r18+{place}];"));
            }
            1 => {
                self.line(&format!("{guard}red.relaxed.gpu.global.{word} [%x7+{place}], %r{a}; bar.sync 0;"));
                self.line(&format!("ld.global.u32 %r{d}, [%x7+{place}];"));
            }
            2 => {
                self.line(&format!("{guard}red.global.{long} [%x7+{place}], %x{x}; bar.sync 0;"));
                self.line(&format!("ld.global.u64 %x{x}, [%x7+{place}];"));
            }
            _ => {
                self.line(&format!("{guard}red.global.inc.u32 [%x7+{place}], {limit}; bar.sync 0;"));
                self.line(&format!("ld.global.u32 %r{d}, [%x7+{place}];"));
            }
        }
        self.line("bar.sync 0;");
    }

    /// Rows of 16 bytes from `scratch`, whole or with zeros behind a part.
    fn copy(&mut self) {
        let [a, b, c, d] = [0; 4].map(|_: i32| self.below(WORDS));
        let mask = self.below(THREADS as usize) * 16;
        self.line(&format!("st.global.v2.b32 [%x8+8], {{%r{a}, %r{b}}}; bar.sync 0;"));
        // Another thread's: rows of a block differ in these bits alone.
        self.line("mov.u64 %x9, scratch; sub.u64 %x10, %x8, %x9;");
        self.line(&format!("xor.b64 %x10, %x10, {mask}; add.u64 %x9, %x9, %x10;"));
        let (kind, bytes) = [("cg", 16), ("ca", 16), ("ca", 8), ("ca", 4)][self.below(4)];
        let part = if self.below(3) == 0 { format!(", {}", self.below(bytes + 1)) } else { String::new() };
        self.line(&format!("cp.async.{kind}.shared.global [%r19], [%x9], {bytes}{part};"));
        self.line("cp.async.commit_group;");
        if bytes < 16 {
            self.line("cp.async.ca.shared.global [%r19+12], [%x9+8], 4; cp.async.commit_group;");
        }
        let wait = self.pick(&["cp.async.wait_group 0;", "cp.async.wait_all;"]);
        self.line(wait);
        self.other_row();
        let half = self.below(2) * 8;
        self.line(&format!("ld.shared.v2.b32 {{%r{c}, %r{d}}}, [%r17+{half}]; bar.sync 0;"));
    }

    /// Matrices to registers and back. A row is read, or written, by one thread's address.
    fn matrices(&mut self) {
        let (count, trans) = ([1, 2, 4][self.below(3)], self.pick(&["", ".trans"]));
        let first = self.below(WORDS - 3);
        let list: Vec<String> = (first..first + count).map(|n| format!("%r{n}")).collect();
        let list = list.join(", ");
        let load = self.below(2) == 0;
        self.other_row();
        self.line(&if load {
            format!("ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {{{list}}}, [%r17];")
        } else {
            format!("stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%r17], {{{list}}};")
        });
        if !load {
            self.other_row();
            self.line(&format!("ld.shared.v2.b32 {{%r{first}, %r{}}}, [%r17];", first + 1));
        }
        self.line("bar.sync 0;");
    }

    /// Fragments of numbers below 2, that sums stay finite.
    fn multiply(&mut self) {
        let shapes = [
            ("m16n8k16.row.col.f32.f16.f16.f32", 4, 0xbfff_bfffu32),
            ("m16n8k8.row.col.f32.f16.f16.f32", 2, 0xbfff_bfff),
            ("m16n8k16.row.col.f16.f16.f16.f16", 4, 0xbfff_bfff),
            ("m16n8k16.row.col.f32.bf16.bf16.f32", 4, 0xbfff_bfff),
            ("m16n8k8.row.col.f32.tf32.tf32.f32", 4, 0xbfff_ffff),
            ("m16n8k32.row.col.s32.s8.s8.s32", 4, u32::MAX),
            ("m16n8k32.row.col.satfinite.s32.u8.s8.s32", 4, u32::MAX),
            ("m16n8k16.row.col.s32.s8.u8.s32", 2, u32::MAX),
            ("m16n8k32.row.col.f32.e4m3.e5m2.f32", 4, 0xbfbf_bfbf),
        ];
        let (shape, of_a, mask) = shapes[self.below(shapes.len())];
        let names = |letter: char, from: usize, count: usize| {
            let names: Vec<String> = (from..from + count).map(|n| format!("%{letter}{n}")).collect();
            format!("{{{}}}", names.join(", "))
        };
        for n in 0..of_a * 3 / 2 {
            let source = self.below(WORDS);
            self.line(&format!("and.b32 %t{n}, %r{source}, {mask};"));
        }
        let acc = match shape {
            _ if shape.ends_with("f32") => names('f', self.below(FLOATS - 3), 4),
            _ if shape.ends_with("s32") => names('r', self.below(WORDS - 3), 4),
            _ => {
                self.line(&format!("and.b32 %t8, %t0, {mask}; and.b32 %t9, %t1, {mask};"));
                names('t', 8, 2)
            }
        };
        let (a, b) = (names('t', 0, of_a), names('t', of_a, of_a / 2));
        self.line(&format!("mma.sync.aligned.{shape} {acc}, {a}, {b}, {acc};"));
        if acc.starts_with("{%t") {
            let d = self.below(WORDS);
            self.line(&format!("xor.b32 %r{d}, %t8, %t9;"));
        }
    }

    fn vote(&mut self) {
        let (d, a, p) = (self.below(WORDS), self.below(WORDS), self.below(PREDICATES));
        let x = self.below(LONGS);
        let mode = self.pick(&["any", "all", "uni"]);
        let op = self.pick(&["add.s32", "min.u32", "max.s32", "and.b32", "or.b32", "xor.b32"]);
        match self.below(6) {
            0 => self.line(&format!("vote.sync.ballot.b32 %r{d}, %p{p}, -1;")),
            1 => self.line(&format!("vote.sync.{mode}.pred %p{p}, !%p{p}, -1;")),
            2 => self.line(&format!("and.b32 %r17, %r{a}, 3; match.any.sync.b32 %r{d}, %r17, -1;")),
            3 => self.line(&format!("match.all.sync.b64 %r{d}|%p{p}, %x{x}, -1;")),
            4 => self.line(&format!("bar.red.popc.u32 %r{d}, 0, %p{p}; bar.red.or.pred %p{p}, 0, !%p{p};")),
            _ => self.line(&format!("redux.sync.{op} %r{d}, %r{a}, -1;")),
        }
    }

    fn finish(&mut self) {
        self.line("ld.param.u64 %x5, [output]; mov.u32 %r17, %ntid.x; mad.lo.u32 %r17, %r16, %r17, %r15;");
        self.line(&format!("mul.wide.u32 %x6, %r17, {OUTPUT_BYTES}; add.u64 %x5, %x5, %x6;"));
        for n in 0..LONGS {
            self.line(&format!("st.global.b64 [%x5+{}], %x{n};", n * 8));
        }
        for n in 0..WORDS {
            self.line(&format!("st.global.b32 [%x5+{}], %r{n};", LONGS * 8 + n * 4));
        }
        for n in 0..FLOATS {
            self.line(&format!(
                "max.f32 %f{n}, %f{n}, %f{n}; st.global.b32 [%x5+{}], %f{n};",
                LONGS * 8 + WORDS * 4 + n * 4
            ));
        }
        self.text += "  ret;\n}\n";
    }
}
