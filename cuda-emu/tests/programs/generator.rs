//! Makes PTX programs from seeds.

use std::fmt::Write;

/// What a thread stores.
pub const OUTPUT_BYTES: u64 = (WORDS * 4 + FLOATS * 4 + LONGS * 8) as u64;

const WORDS: usize = 10;
const FLOATS: usize = 6;
const LONGS: usize = 4;
const PREDICATES: usize = 4;
const HALVES: usize = 4;
/// Statements at the top, and how deep they nest.
const STATEMENTS: u64 = 30;
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
            ".version 8.5\n.target sm_80\n.address_size 64\n.visible .entry program(.param .u64 output) {{\n  \
             .reg .pred %p<9>; .reg .b16 %h<9>; .reg .b32 %r<20>, %f<9>, %loop<40>; .reg .b64 %x<9>;\n  \
             .shared .align 8 .b8 buffer[512];\n  mov.u32 %r15, %tid.x; mov.u32 %r16, %ctaid.x;"
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
    }

    /// A statement that all threads reach: only there do they meet.
    fn top(&mut self) {
        match self.below(6) {
            0 => self.shuffle(),
            1 => self.exchange(),
            2 => self.vote(),
            _ => self.statement(0),
        }
    }

    fn statement(&mut self, depth: u32) {
        match self.below(12) {
            0 | 1 if depth < DEPTH_MAX => self.branch(depth),
            2 if depth < DEPTH_MAX => self.repeat(depth),
            3 => self.compare(),
            4 => self.float(),
            5 => self.long(),
            6 => self.half(),
            7 => self.convert(),
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
            ("add.f16x2", 2),
            ("mul.f16x2", 2),
            ("max.NaN.f16x2", 2),
        ];
        self.instruction(&table, 'r', WORDS);
        let table = self.below(256);
        if self.below(4) == 0 {
            let [d, a, b, c] = [0; 4].map(|_: i32| self.below(WORDS));
            self.line(&format!("lop3.b32 %r{d}, %r{a}, %r{b}, %r{c}, {table};"));
        }
        // A divisor that is not zero.
        if self.below(4) == 0 {
            let [d, a, b] = [0; 3].map(|_: i32| self.below(WORDS));
            let op = self.pick(&["div.u32", "rem.u32"]);
            self.line(&format!("or.b32 %r17, %r{b}, 1; {op} %r{d}, %r{a}, %r17;"));
        }
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
        let text = match self.below(9) {
            0 => format!("cvt.rni.s32.f32 %r{r}, %f{f};"),
            1 => format!("cvt.rz.f32.u32 %f{f}, %r{r};"),
            2 => format!("cvt.u32.u64 %r{r}, %x{x};"),
            3 => format!("cvt.s64.s32 %x{x}, %r{r};"),
            4 => format!("cvt.rn.f16.f32 %h{h}, %f{f};"),
            5 => format!("cvt.f32.f16 %f{f}, %h{h};"),
            6 => format!("cvt.sat.s8.s32 %r{r}, %r{r};"),
            7 => format!("cvt.rzi.u64.f32 %x{x}, %f{f};"),
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
        let clamp = if mode == "up" { "0" } else { self.pick(&["31", "0x1c07", "0x100f"]) };
        self.line(&format!("shfl.sync.{mode}.b32 %r{d}|%p7, %r{a}, %r{b}, {clamp}, -1;"));
        self.line(&format!("selp.b32 %r{d}, %r{d}, %r{a}, %p7;"));
    }

    fn exchange(&mut self) {
        let (d, a, mask) = (self.below(WORDS), self.below(WORDS), self.below(64));
        self.line("bar.sync 0; mov.u32 %r18, buffer; mad.lo.u32 %r17, %r15, 4, %r18;");
        self.line(&format!("st.shared.u32 [%r17], %r{a}; bar.sync 0; xor.b32 %r17, %r15, {mask};"));
        self.line(&format!("mad.lo.u32 %r17, %r17, 4, %r18; ld.shared.u32 %r{d}, [%r17];"));
        if self.below(2) == 0 {
            let op = self.pick(&["add.u32", "xor.b32", "max.s32"]);
            let place = self.below(64) * 4;
            self.line(&format!("bar.sync 0; red.shared.{op} [%r18+{place}], %r{a}; bar.sync 0;"));
            self.line(&format!("ld.shared.u32 %r{d}, [%r18+{place}];"));
        }
    }

    fn vote(&mut self) {
        let (d, p) = (self.below(WORDS), self.below(PREDICATES));
        match self.below(3) {
            0 => self.line(&format!("vote.sync.ballot.b32 %r{d}, %p{p}, -1;")),
            1 => self.line(&format!("vote.sync.any.pred %p{p}, !%p{p}, -1;")),
            _ => self.line(&format!("redux.sync.add.s32 %r{d}, %r{d}, -1;")),
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
