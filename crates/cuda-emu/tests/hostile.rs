//! Broken PTX: committed kernels with tokens lost, doubled, exchanged or replaced, and texts cut off.
//! Each is refused, or runs to its end or to a fault; nothing panics, crashes or runs on.

use std::panic::catch_unwind;

use cuda_emu::{
    Arch, Checks, Device, DeviceConfig, Element, Kernel, Launch, Module, Swizzle, TensorMap, launch,
};

const TEXTS: [(&str, Arch); 6] = [
    (include_str!("ptx/llm.sm_80.ptx"), Arch::Sm80),
    (include_str!("ptx/model.sm_80.ptx"), Arch::Sm80),
    (include_str!("ptx/hopper.sm_90a.ptx"), Arch::Sm90),
    (include_str!("ptx/chained.sm_90a.ptx"), Arch::Sm90),
    (include_str!("ptx/bugs.sm_90a.ptx"), Arch::Sm90),
    (include_str!("ptx/wide.sm_90a.ptx"), Arch::Sm90),
];
/// Mutants of each kernel.
const MUTANTS: u64 = 120;
/// The same in a long run.
const MUTANTS_LONG: u64 = 5000;

struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % limit.max(1)
    }
}

/// Each kernel of a text with what stands before the first: its header and declarations.
fn kernels(text: &str) -> Vec<String> {
    let starts: Vec<usize> = text.match_indices("\n.visible .entry").map(|(at, _)| at).collect();
    let ends = starts.iter().skip(1).copied().chain([text.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|(start, end)| format!("{}{}", &text[..starts[0]], &text[*start..end]))
        .collect()
}

/// Words, numbers and signs, as slices of the text.
fn tokens(text: &str) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    let mut start = None;
    for (at, c) in text.char_indices() {
        let word = c.is_ascii_alphanumeric() || "._%$:".contains(c);
        match (word, start) {
            (true, None) => start = Some(at),
            (false, Some(from)) => {
                found.push((from, at));
                start = None;
            }
            _ => {}
        }
        if !word && !c.is_whitespace() {
            found.push((at, at + c.len_utf8()));
        }
    }
    found
}

/// What takes the place of tokens: limits, and what means something elsewhere.
const REPLACEMENTS: [&str; 30] = [
    "0",
    "-1",
    "4294967295",
    "9223372036854775808",
    "0x7fffffff",
    "0f7FC00000",
    "1.5",
    ";",
    ",",
    "{",
    "}",
    "(",
    "[",
    "]",
    "@",
    "!",
    "_",
    "%p1",
    "%r1",
    "%rd1",
    "%tid.x",
    "bra",
    "ret",
    "add.u32",
    ".reg",
    ".b8",
    ".shared",
    "mov.b64",
    ".align",
    "1073741824",
];

/// Another token that begins as one does: a register of the same letter, a number, an opcode.
fn alike(text: &str, tokens: &[(usize, usize)], (start, end): (usize, usize), random: &mut Random) -> String {
    let begin = &text[start..end.min(start + 3)];
    let drawn: Vec<&str> =
        (0..200).map(|_| tokens[random.below(tokens.len())]).map(|(s, e)| &text[s..e]).collect();
    let first = |token: &&&str| {
        token.starts_with(begin) || begin.chars().all(char::is_numeric) && token.parse::<u32>().is_ok()
    };
    drawn.iter().find(first).map_or_else(|| text[start..end].to_string(), |token| token.to_string())
}

fn mutant(text: &str, random: &mut Random) -> String {
    let mut text = text.to_string();
    for _ in 0..1 + random.below(3) {
        let tokens = tokens(&text);
        if tokens.is_empty() {
            break;
        }
        let (start, end) = tokens[random.below(tokens.len())];
        let (other, other_end) = tokens[random.below(tokens.len())];
        let replacement = match random.below(21) {
            0 => String::new(),
            1 => format!("{0} {0}", &text[start..end]),
            2 => REPLACEMENTS[random.below(REPLACEMENTS.len())].to_string(),
            3 => {
                text.truncate(end);
                continue;
            }
            // An opcode without one of its modifiers.
            4 => text[start..end].rsplit_once('.').map_or(String::new(), |(first, _)| first.to_string()),
            5 => format!(
                "{}{}",
                &text[start..end],
                [".v4", ".s8", ".f64", ".sat", ".cc", ".pred"][random.below(6)]
            ),
            6 => text[other..other_end].to_string(),
            // What no token has, or what begins and ends other things than tokens.
            7 => ["\0", "é", "\u{2028}", "\"", "\\", "/*", "//", "."][random.below(8)].to_string(),
            _ => alike(&text, &tokens, (start, end), random),
        };
        text.replace_range(start..end, &replacement);
    }
    text
}

/// Loads a text and runs its kernels, for a little while; whether one of them began.
fn attempt(text: &str, arch: Arch, checks: Checks) -> bool {
    let device = Device::new(DeviceConfig {
        arch,
        checks,
        threads: 1,
        warp_instructions_max: 20_000,
        memory_bytes: 64 << 20,
        ..DeviceConfig::default()
    });
    let Ok(module) = Module::load(&device, text) else { return false };
    let Ok(buffer) = device.memory().alloc(1 << 16) else { return false };
    device.memory().fill(buffer, &[1, 0, 0, 0], 1 << 14).unwrap();
    let names: Vec<String> = module.kernel_names().map(String::from).collect();
    let mut began = false;
    for name in names {
        if let Ok(kernel) = module.kernel(&name) {
            began = true;
            let _ = launch(
                &device,
                &Launch {
                    dynamic_shared_bytes: 4096,
                    ..Launch::new(&kernel, [1, 1, 1], block(&kernel), &params(&kernel, buffer))
                },
            );
        }
    }
    began
}

fn block(kernel: &Kernel) -> [u32; 3] {
    kernel.block_required().unwrap_or([kernel.threads_max().min(64), 1, 1])
}

/// Addresses for what could be one, tensor maps likewise, small numbers for the rest.
fn params(kernel: &Kernel, buffer: u64) -> Vec<u8> {
    let mut bytes = vec![0; kernel.param_bytes() as usize];
    for param in kernel.params() {
        if param.bytes as usize == TensorMap::BYTES {
            bytes[param.offset as usize..][..TensorMap::BYTES]
                .copy_from_slice(&map(buffer).encode().unwrap());
            continue;
        }
        let value = if param.bytes == 8 { buffer } else { 3 };
        let length = (param.bytes as usize).min(8);
        bytes[param.offset as usize..][..length].copy_from_slice(&value.to_le_bytes()[..length]);
    }
    bytes
}

/// A matrix of 64 × 64 halves.
fn map(address: u64) -> TensorMap {
    let (element, swizzle) = (Element::Half, Swizzle::Bytes128);
    let (dims, strides, box_dims) = (vec![64, 64], vec![128], vec![64, 64]);
    TensorMap { element, address, dims, strides, box_dims, swizzle, fill_nan: false }
}

#[test]
fn broken_ptx_is_refused_or_faults() {
    break_kernels(0, MUTANTS);
}

/// Many more, others each time.
#[test]
#[ignore = "takes minutes"]
fn much_broken_ptx_is_refused_or_faults() {
    let since = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap();
    println!("from number {}", since.as_secs() << 20);
    break_kernels(since.as_secs() << 20, MUTANTS_LONG);
}

fn break_kernels(first: u64, mutants: u64) {
    let (mut number, mut began) = (first, 0);
    for (text, arch) in TEXTS {
        for kernel in kernels(text) {
            for _ in 0..mutants {
                number += 1;
                let broken = mutant(&kernel, &mut Random(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1));
                let checks = if number % 2 == 0 { Checks::All } else { Checks::Bounds };
                match catch_unwind(|| attempt(&broken, arch, checks)) {
                    Ok(ran) => began += u64::from(ran),
                    Err(_) => panic!("mutant {number} panicked:\n{broken}"),
                }
            }
        }
    }
    let number = number - first;
    assert!(began > number / 10 && began < number, "{began} of {number} mutants ran");
}

#[test]
fn texts_that_are_cut_off_are_refused() {
    for (text, _) in TEXTS {
        for kernel in kernels(text) {
            let mut random = Random(text.len() as u64);
            for _ in 0..40 {
                let end =
                    (0..=random.below(kernel.len())).rev().find(|n| kernel.is_char_boundary(*n)).unwrap();
                let device = Device::new(DeviceConfig { arch: Arch::Sm90, ..DeviceConfig::default() });
                let _ = Module::load(&device, &kernel[..end]);
            }
        }
    }
}

/// What once was, or could be, deep, long or large.
#[test]
fn extremes_are_refused() {
    let header = ".version 8.5\n.target sm_80\n.address_size 64\n";
    let kernel = |body: &str| format!("{header}.visible .entry k() {{ {body} ret; }}");
    let texts = [
        kernel(&"{".repeat(100_000)),
        kernel(&format!("mov.b32 {};", "{".repeat(100_000))),
        kernel(&format!("ld.global.u32 {};", "[".repeat(100_000))),
        kernel(".shared .b8 big[2147483647];"),
        kernel(".local .b8 big[2147483647]; .reg .b64 %x; mov.u64 %x, big; st.local.u8 [%x], 1;"),
        kernel(
            ".local .b8 a[1073741824]; .local .b8 b[1073741824]; .local .b8 c[1073741824]; .local .b8 d[1073741824]; .local .b8 e[9];",
        ),
        kernel(".reg .b32 %r<4294967295>; mov.u32 %r4294967294, 1;"),
        kernel(".reg .b32 %r<99999999999999999999>;"),
        kernel("L: bra L2; L2: bra L;"),
        kernel("cp.async.commit_group; cp.async.wait_group -1; cp.async.wait_group 4294967295;"),
        kernel("cp.async.bulk.commit_group; cp.async.bulk.wait_group -1;"),
        kernel(
            "wgmma.fence.sync.aligned; wgmma.commit_group.sync.aligned; wgmma.wait_group.sync.aligned -1;",
        ),
        kernel(".reg .b32 %r<2>; .reg .b64 %rd<2>; mov.b64 %rd1, -4; st.shared.u32 [%rd1], %r1;"),
        kernel(".reg .b32 %r<2>; bar.sync 4000000000; bar.sync 99, 7; bar.sync 0, 4294967295;"),
        format!("{header}.global .b8 big[18446744073709551615];"),
        format!("{header}.global .align 65536 .b8 big[65536][65536][65536];"),
        format!("{header}.visible .entry k(.param .b8 big[4294967295]) {{ ret; }}"),
        format!("{header}.visible .entry k() .maxntid 0, 0, 0 {{ ret; }}"),
        format!("{header}.visible .entry k() .reqntid 4294967295, 4294967295, 4294967295 {{ ret; }}"),
        format!("{header}.visible .entry k() .reqnctapercluster 65536, 65536, 65536 {{ ret; }}"),
        format!("{header}.func f() {{ call f; ret; }} .visible .entry k() {{ call f; ret; }}"),
        "\u{feff}\u{0}".to_string(),
        format!("{header}/*"),
        format!("{header}\"unfinished"),
    ];
    for text in &texts {
        if catch_unwind(|| attempt(text, Arch::Sm80, Checks::All)).is_err() {
            panic!("panicked: {}", &text[..text.len().min(300)]);
        }
    }
}

/// Tensor maps that are valid and of no use: boxes larger than memory, addresses at the end of all.
#[test]
fn extreme_tensor_maps_fault() {
    let text = TEXTS[2].0;
    let device = Device::new(DeviceConfig { arch: Arch::Sm90, threads: 1, ..DeviceConfig::default() });
    let module = Module::load(&device, text).unwrap();
    let kernel = module.kernel("gemm").unwrap();
    let buffer = device.memory().alloc(1 << 16).unwrap();
    let plain = map(buffer);
    let maps = [
        TensorMap { box_dims: vec![64, 256], ..plain.clone() },
        TensorMap { address: u64::MAX - 15, ..plain.clone() },
        TensorMap { address: u64::MAX - 15, dims: vec![1 << 32, 1 << 32], ..plain.clone() },
        TensorMap { dims: vec![1 << 32, 1 << 32], strides: vec![(1 << 40) - 16], ..plain.clone() },
    ];
    for map in maps {
        let mut bytes = params(&kernel, buffer);
        for param in kernel.params().iter().filter(|param| param.bytes as usize == TensorMap::BYTES) {
            bytes[param.offset as usize..][..TensorMap::BYTES].copy_from_slice(&map.encode().unwrap());
        }
        let last = kernel.params().last().unwrap().offset as usize;
        bytes[last..last + 4].copy_from_slice(&256i32.to_le_bytes());
        let described = Launch::new(&kernel, [1, 2, 1], [256, 1, 1], &bytes);
        let outcome = launch(&device, &Launch { dynamic_shared_bytes: 32768, ..described });
        assert!(outcome.is_err(), "{map:?}");
    }
}

/// A box of 2^43 bytes, by a kernel that copies boxes of five dimensions.
#[test]
fn a_box_larger_than_any_memory_faults() {
    let text = ".version 8.5\n.target sm_90a\n.address_size 64\n.shared .align 1024 .b8 tile[1024];\n\
                .shared .align 8 .b64 full;\n\
                .visible .entry k(.param .align 64 .b8 map[128]) { .reg .b32 %r<4>; .reg .b64 %x<3>;\n\
                mov.b64 %x1, map; cvta.param.u64 %x1, %x1; mov.u32 %r1, tile; mov.u32 %r2, full;\n\
                mbarrier.init.shared::cta.b64 [%r2], 1;\n\
                cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [%x1, {0, 0, 0, 0, 0}], [%r2]; ret; }";
    let device = Device::new(DeviceConfig { arch: Arch::Sm90, threads: 1, ..DeviceConfig::default() });
    let module = Module::load(&device, text).unwrap();
    let kernel = module.kernel("k").unwrap();
    let map = TensorMap {
        element: Element::Double,
        address: device.memory().alloc(4096).unwrap(),
        dims: vec![256; 5],
        strides: vec![2048; 4],
        box_dims: vec![256; 5],
        swizzle: Swizzle::None,
        fill_nan: false,
    };
    let bytes = map.encode().unwrap();
    assert!(launch(&device, &Launch::new(&kernel, [1, 1, 1], [1, 1, 1], &bytes)).is_err());
}
