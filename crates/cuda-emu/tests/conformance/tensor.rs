//! Copies of boxes of tensors, with swizzled shared memory.

use cuda_emu::{Element, Swizzle, TensorMap};

use super::memory::random_bytes;
use crate::row::{Extra, Row, X};

/// A box of a tensor: sizes in elements, the innermost first, and where it begins.
struct Case {
    element: Element,
    dims: Vec<u64>,
    sides: Vec<u32>,
    start: Vec<i32>,
    swizzle: Swizzle,
}

impl Case {
    fn size(&self) -> usize {
        self.element as usize
    }

    /// Bytes between neighbours in each dimension.
    fn strides(&self) -> Vec<usize> {
        let mut strides = vec![self.size()];
        let mut row = (self.dims[0] as usize * self.size()).next_multiple_of(16);
        for dim in &self.dims[1..] {
            strides.push(row);
            row *= *dim as usize;
        }
        strides
    }

    fn tensor_bytes(&self) -> usize {
        match self.dims.len() {
            1 => self.dims[0] as usize * self.size(),
            rank => self.strides()[rank - 1] * self.dims[rank - 1] as usize,
        }
    }

    fn box_bytes(&self) -> usize {
        self.sides.iter().product::<u32>() as usize * self.size()
    }

    fn map(&self) -> TensorMap {
        TensorMap {
            element: self.element,
            address: 0,
            dims: self.dims.clone(),
            strides: self.strides()[1..].iter().map(|s| *s as u64).collect(),
            box_dims: self.sides.clone(),
            swizzle: self.swizzle,
            fill_nan: false,
        }
    }

    /// Of each element of the box: its place in shared memory, and in the tensor if inside.
    fn places(&self) -> Vec<(usize, Option<usize>)> {
        let strides = self.strides();
        (0..self.sides.iter().product::<u32>())
            .map(|n| {
                let (mut rest, mut global) = (n, Some(0usize));
                for (dimension, side) in self.sides.iter().enumerate() {
                    let at = i64::from(rest % side) + i64::from(self.start[dimension]);
                    rest /= side;
                    let inside = (0..self.dims[dimension] as i64).contains(&at);
                    global = global.filter(|_| inside).map(|g| g + at as usize * strides[dimension]);
                }
                // Chunks of 16 bytes, exchanged by the number of the line of 128 bytes.
                let linear = n as usize * self.size();
                let bits = [0, 1, 3, 7][self.swizzle as usize];
                (linear ^ (linear >> 7 & bits) << 4, global)
            })
            .collect()
    }
}

fn cases() -> Vec<Case> {
    let case = |element, dims: &[u64], sides: &[u32], start: &[i32], swizzle| Case {
        element,
        dims: dims.to_vec(),
        sides: sides.to_vec(),
        start: start.to_vec(),
        swizzle,
    };
    use Element::{Byte, Double, Half, Word};
    let none = Swizzle::None;
    let mut all = vec![
        case(Word, &[300], &[256], &[20], none),
        case(Byte, &[64, 9], &[32, 8], &[16, 1], none),
        // Partly outside, at either end.
        case(Half, &[40, 20], &[16, 8], &[-5, 15], none),
        case(Double, &[8, 3, 5], &[4, 2, 4], &[2, 1, -1], none),
        case(Word, &[12, 3, 2, 4], &[8, 2, 2, 2], &[2, 1, 0, 3], none),
        case(Half, &[16, 2, 3, 2, 3], &[8, 2, 2, 2, 2], &[8, 0, 1, 0, 1], none),
    ];
    for (swizzle, inner) in [(Swizzle::Bytes32, 32), (Swizzle::Bytes64, 64), (Swizzle::Bytes128, 128)] {
        all.push(case(Half, &[128, 40], &[inner / 2, 32], &[8, 3], swizzle));
        all.push(case(Byte, &[256, 40], &[inner, 16], &[64, 30], swizzle));
        all.push(case(Word, &[64, 5, 6], &[inner / 4, 4, 4], &[32, 2, 4], swizzle));
    }
    all
}

pub fn rows() -> Vec<Row> {
    let mut rows = Vec::new();
    for case in cases() {
        for mode in ["", ".tile"] {
            load(&mut rows, &case, &format!("shared::cluster.global{mode}"), "");
            load(&mut rows, &case, &format!("shared::cta.global{mode}"), "");
            multicast(&mut rows, &case, mode);
            for hint in ["", ".L2::cache_hint"] {
                store(&mut rows, &case, mode, hint);
            }
        }
        load(&mut rows, &case, "shared::cluster.global", ".L2::cache_hint");
    }
    rows
}

/// A policy of caches, and the operand that it is.
fn policy(hint: &str) -> (&'static str, &'static str) {
    match hint {
        "" => ("", ""),
        _ => ("createpolicy.fractional.L2::evict_first.b64 %x3, 1.0;", ", %x3"),
    }
}

const BUFFER: &str = ".shared .align 1024 .b8 buffer[8192]; .shared .align 8 .b64 barrier;";
/// `%x4` is the map's address, `%r0` the thread's own 16 bytes of the buffer.
const START: &str = "mov.b64 %x4, extra; cvta.param.u64 %x4, %x4; mov.u32 %r9, buffer; mov.u32 %r8, barrier; \
                     mad.lo.u32 %r0, %t, 16, %r9; setp.eq.u32 %p1, %t, 0;";

/// A block with a thread for each 16 bytes of the box.
fn row(form: &str, case: &Case, outs: &[crate::row::Size], bytes: &[u8]) -> Row {
    let threads = case.box_bytes() / 16;
    let inputs = (0..threads.next_multiple_of(32) as u64).map(|n| vec![n]).collect();
    Row::new(form, outs, &[X], inputs)
        .shape([1, 1, 1], [threads as u32, 1, 1])
        .sm90()
        .module(BUFFER)
        .extra(Extra::Map(case.map()))
        .memory(bytes)
}

fn coordinates(case: &Case) -> String {
    let numbers: Vec<_> = case.start.iter().map(i32::to_string).collect();
    format!("{{{}}}", numbers.join(", "))
}

/// What a load puts into shared memory: the tensor's bytes, and zeros for what is outside.
fn loaded(case: &Case, bytes: &[u8]) -> Vec<u8> {
    let mut wanted = vec![0u8; case.box_bytes()];
    for (shared, global) in case.places() {
        if let Some(global) = global {
            wanted[shared..shared + case.size()].copy_from_slice(&bytes[global..global + case.size()]);
        }
    }
    wanted
}

/// The two words of 16 bytes.
fn pair(bytes: &[u8], at: usize) -> Vec<u64> {
    bytes[at..at + 16].chunks(8).map(|word| u64::from_le_bytes(word.try_into().unwrap())).collect()
}

/// One block of a cluster of four loads a box for itself and others, by a mask; the others only
/// wait. Blocks that the mask leaves out keep what they have.
fn multicast(rows: &mut Vec<Row>, case: &Case, mode: &str) {
    const MASK: u64 = 0b1011;
    let bytes = random_bytes(case.tensor_bytes());
    let wanted = loaded(case, &bytes);
    let form = format!(
        "cp.async.bulk.tensor.{}d.shared::cluster.global{mode}.mbarrier::complete_tx::bytes.multicast::cluster",
        case.dims.len()
    );
    let threads = (case.box_bytes() / 16) as u64;
    // Threads of a block, of which each has 16 bytes; `%r6` is the block's rank.
    let text = format!(
        "mov.b64 %x4, extra; cvta.param.u64 %x4, %x4; mov.u32 %r9, buffer; mov.u32 %r8, barrier; \
         mov.u32 %r7, %tid.x; mad.lo.u32 %r0, %r7, 16, %r9; setp.eq.u32 %p1, %r7, 0; mov.u32 %r6, %cluster_ctarank; \
         st.shared.v2.b64 [%r0], {{5, 6}}; fence.proxy.async.shared::cta; \
         @%p1 mbarrier.init.shared::cta.b64 [%r8], 1; @%p1 fence.mbarrier_init.release.cluster; \
         barrier.cluster.arrive; barrier.cluster.wait; \
         shr.u32 %r5, {MASK}, %r6; and.b32 %r5, %r5, 1; setp.ne.u32 %p3, %r5, 0; \
         setp.ne.and.u32 %p4, %r5, 0, %p1; \
         @%p4 mbarrier.arrive.expect_tx.shared::cta.b64 %x7, [%r8], {}; \
         setp.eq.and.u32 %p5, %r6, 1, %p1; mov.b16 %h1, {MASK}; \
         @%p5 {form} [%r9], [%x4, {}], [%r8], %h1; @!%p3 bra END; \
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra WAIT; \
         END: ld.shared.v2.b64 {{%d0, %d1}}, [%r0]; barrier.cluster.arrive; barrier.cluster.wait;",
        case.box_bytes(),
        coordinates(case)
    );
    let inputs = (0..4 * threads).map(|n| vec![n]).collect();
    let row = Row::new(&form, &[X, X], &[X], inputs)
        .shape([4, 1, 1], [threads as u32, 1, 1])
        .sm90()
        .directives(".explicitcluster .reqnctapercluster 4, 1, 1")
        .module(BUFFER)
        .extra(Extra::Map(case.map()))
        .memory(&bytes);
    rows.push(row.text(&text).each(|v| match MASK >> (v[0] / threads) & 1 {
        1 => pair(&wanted, (v[0] % threads) as usize * 16),
        _ => vec![5, 6],
    }));
}

fn load(rows: &mut Vec<Row>, case: &Case, spaces: &str, hint: &str) {
    let bytes = random_bytes(case.tensor_bytes());
    let wanted = loaded(case, &bytes);
    let form =
        format!("cp.async.bulk.tensor.{}d.{spaces}.mbarrier::complete_tx::bytes{hint}", case.dims.len());
    let (make, operand) = policy(hint);
    let text = format!(
        "{START} {make} @%p1 mbarrier.init.shared::cta.b64 [%r8], 1; @%p1 fence.mbarrier_init.release.cluster; \
         bar.sync 0; @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 %x7, [%r8], {}; \
         @%p1 {form} [%r9], [%x4, {}], [%r8]{operand}; \
         WAIT: mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r8], 0; @!%p2 bra WAIT; \
         ld.shared.v2.b64 {{%d0, %d1}}, [%r0];",
        case.box_bytes(),
        coordinates(case)
    );
    let row = row(&form, case, &[X, X], &bytes);
    rows.push(row.text(&text).each(|v| pair(&wanted, v[0] as usize * 16)));
}

fn store(rows: &mut Vec<Row>, case: &Case, mode: &str, hint: &str) {
    let bytes = random_bytes(case.tensor_bytes());
    let mut after = bytes.clone();
    // What the kernel writes: of each 8 bytes, a multiple of their number.
    let filled =
        |at: usize| (at as u64 / 8).wrapping_mul(0x0101_0203_0507_0b0d).wrapping_add(3).to_le_bytes()[at % 8];
    for (shared, global) in case.places() {
        for n in 0..case.size() {
            if let Some(global) = global {
                after[global + n] = filled(shared + n);
            }
        }
    }
    let form = format!("cp.async.bulk.tensor.{}d.global.shared::cta{mode}.bulk_group{hint}", case.dims.len());
    let (make, operand) = policy(hint);
    let text = format!(
        "{START} {make} shl.b64 %x5, %a0, 1; mad.lo.u64 %x6, %x5, 0x0101020305070b0d, 3; add.u64 %x5, %x5, 1; \
         mad.lo.u64 %x5, %x5, 0x0101020305070b0d, 3; st.shared.v2.b64 [%r0], {{%x6, %x5}}; \
         fence.proxy.async.shared::cta; bar.sync 0; @%p1 {form} [%x4, {}], [%r9]{operand}; \
         @%p1 cp.async.bulk.commit_group; @%p1 cp.async.bulk.wait_group 0; bar.sync 0;",
        coordinates(case)
    );
    rows.push(row(&form, case, &[], &bytes).text(&text).memory_after(after).each(|_| Vec::new()));
    if case.swizzle == Swizzle::None {
        let form = format!("cp.async.bulk.prefetch.tensor.{}d.L2.global{mode}{hint}", case.dims.len());
        let text = format!("{START} {make} {form} [%x4, {}]{operand}; mov.b64 %d0, %a0;", coordinates(case));
        rows.push(row(&form, case, &[X], &bytes).text(&text).gives(|v| v[0]));
    }
}
