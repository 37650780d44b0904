//! Matrix products on every instruction set: bit-equal to a scalar emulation in int8, close to f64 in f32. A
//! row has the same bits whatever the other rows, threads and tiles are.

mod chunks;
mod random;
use std::num::NonZeroUsize;

use crate::TokenId;
use crate::backend::cpu::*;
use crate::backend::reference::activate;
use crate::backend::{ArenaMemory, PreparedMatrix, Weights};
use crate::ir::{
    Activation, Embed, Epilogue, GatherOutputs, KvDtype, Matmul, MatrixId, Place, Product, RmsNorm, Rows,
    StepInput, VectorId, WriteMode,
};
use crate::quant::{Bits, Codes, DenseMatrix, DenseValues, QuantMatrix, QuantParts, WeightMatrix};
use half::{bf16, f16};
use random::Random;

const NS: [usize; 5] = [1, 15, 16, 17, 49];
const KS: [usize; 5] = [32, 48, 64, 576, 100];
const MS: [usize; 7] = [33, 1, 2, 3, 7, 8, 9];

type Format = (Codes, usize, bool);

fn formats(cols: usize) -> Vec<Format> {
    [integers(cols), floats(cols)].concat()
}

fn integers(cols: usize) -> Vec<Format> {
    let mut formats = Vec::new();
    for bits in [Bits::Four, Bits::Five, Bits::Six, Bits::Eight] {
        for group in [16, 32, 64, 128, cols] {
            formats.extend([(bits.into(), group, false), (bits.into(), group, true)]);
        }
    }
    formats
}

fn floats(cols: usize) -> Vec<Format> {
    let groups = |kind| [32, 128, cols].map(|group| (kind, group, false));
    [vec![(Codes::E2m1, 16, false)], groups(Codes::E2m1).into(), groups(Codes::E4m3).into()].concat()
}

fn cpu(isa: Isa, compute: Compute, threads: usize) -> Cpu {
    Cpu::new(&CpuOptions {
        threads: NonZeroUsize::new(threads),
        isa: Some(isa),
        compute,
        ..CpuOptions::default()
    })
    .unwrap()
}

/// A step of `rows` unrelated tokens.
fn step(rows: usize) -> StepInput {
    StepInput { tokens: vec![TokenId(0); rows], ..StepInput::default() }
}

fn place(offset: usize, cols: usize) -> Place {
    Place { offset, rows: Rows::Tokens, cols, precision: Precision::F32 }
}

/// One operation with its weights; destinations follow the source in the arena.
#[derive(Clone)]
struct Setup {
    matrices: Vec<WeightMatrix>,
    vectors: Vec<Vec<f32>>,
    op: Matmul,
}

impl Setup {
    fn plain(matrix: impl Into<WeightMatrix>) -> Setup {
        let matrix = matrix.into();
        let (n, k) = (matrix.rows(), matrix.cols());
        let product = Product {
            dst: dst_place(k, n),
            matrix: MatrixId(0),
            bias: None,
            epilogue: Epilogue::Write(WriteMode::Store),
        };
        let op = Matmul { src: place(0, k), norm: None, products: vec![product] };
        Setup { matrices: vec![matrix], vectors: vec![], op }
    }

    fn weights(&self, cpu: &Cpu) -> Weights<Cpu> {
        Weights {
            matrices: self.matrices.iter().map(|m| cpu.prepare(m).unwrap()).collect(),
            vectors: self.vectors.iter().map(|v| cpu.upload_vector(v).unwrap()).collect(),
        }
    }

    /// Runs on `x`; the first product's destination is filled with `before` in advance.
    fn run(&self, cpu: &Cpu, weights: &Weights<Cpu>, x: &[f32], before: f32) -> Vec<f32> {
        let rows = x.len() / self.op.src.cols;
        let dst = self.op.products[0].dst;
        let mut arena = self.arena(cpu, rows);
        arena.write(&self.op.src, x).unwrap();
        let mut out = vec![before; rows * dst.cols];
        arena.write(&dst, &out).unwrap();
        let mut frame = Frame { weights, arena: &mut arena, kv: &mut no_kv(), step: &step(rows) };
        cpu.execute(&Op::Matmul(self.op.clone()), &mut frame).unwrap();
        arena.read(&dst, 0, &mut out).unwrap();
        out
    }

    fn arena(&self, cpu: &Cpu, rows: usize) -> Arena {
        let ops = [Op::Matmul(self.op.clone())];
        let limits = StepLimits { tokens_max: rows.max(33), outputs_max: 1 };
        cpu.arena(1 << 20, &ops, limits).unwrap()
    }
}

fn dst_place(k: usize, n: usize) -> Place {
    place((33 * k * 4).next_multiple_of(64), n)
}

impl From<QuantMatrix> for WeightMatrix {
    fn from(m: QuantMatrix) -> WeightMatrix {
        WeightMatrix::Quant(m)
    }
}

impl From<DenseMatrix> for WeightMatrix {
    fn from(m: DenseMatrix) -> WeightMatrix {
        WeightMatrix::Dense(m)
    }
}

/// A row quantised like in the backend, with one scale per 32 columns. Codes and residual codes are joined to
/// codes of 16 bits; without outliers the low byte is 0.
fn quantised(x: &[f32]) -> Vec<(Vec<i32>, f32)> {
    let largest = |x: &[f32]| x.iter().fold(0.0f32, |max, x| max.max(x.abs()));
    let mean = x.chunks(32).map(largest).fold(0.0, |sum, x| sum + x) / x.len().div_ceil(32) as f32;
    let group = |x: &[f32]| {
        let largest = largest(x);
        if largest <= 1e-32 {
            return (vec![0; x.len()], 0.0);
        }
        let outlier = largest > 2.0 * mean;
        let inverse = 127.0 / largest;
        let code = |x: &f32| {
            let first = (x * inverse).round_ties_even();
            let second = ((x * inverse - first) * 256.0).clamp(-127.0, 127.0).round_ties_even();
            first as i32 * 256 + if outlier { second as i32 } else { 0 }
        };
        (x.iter().map(code).collect(), largest / 127.0 / 256.0)
    };
    x.chunks(32).map(group).collect()
}

/// Bound on a product's error from quantised activations: per activation, half a step of the code, or one
/// step of the residual code if there is one (127 of its 128 steps are representable).
fn rounding(x: &[f32], weights: &[f32]) -> f64 {
    let steps = quantised(x).into_iter().flat_map(|(codes, step)| {
        let second = codes.iter().any(|code| code % 256 != 0);
        codes.into_iter().map(move |_| if second { step } else { 128.0 * step })
    });
    steps.zip(weights).map(|(step, weight)| f64::from(step * weight.abs())).sum()
}

/// The int8 product of a row of weights with a quantised row, in the backend's order of operations.
fn emulated(m: &QuantMatrix, row: usize, x: &[(Vec<i32>, f32)], fused: bool) -> f32 {
    let fma = |a: f32, b: f32, c: f32| if fused { a.mul_add(b, c) } else { a * b + c };
    let span = if m.group() == 16 { 16 } else { 32 };
    let mut sum = 0.0f32;
    for (group, (codes, scale)) in x.iter().enumerate() {
        for (part, codes) in codes.chunks(span).enumerate() {
            let col = group * 32 + part * span;
            let index = row * m.groups_per_row() + col / m.group();
            let dot: i32 = codes.iter().enumerate().map(|(i, a)| m.code(row, col + i) as i32 * a).sum();
            sum = fma(dot as f32 * m.scales()[index].to_f32(), *scale, sum);
            if let Some(mins) = m.mins() {
                sum = fma(mins[index].to_f32(), scale * codes.iter().sum::<i32>() as f32, sum);
            }
        }
    }
    sum
}

fn assert_same_bits(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len());
    for (i, (a, b)) in found.iter().zip(expected).enumerate() {
        // Zeros may differ in sign: an empty fused sum is +0.
        assert!(a.to_bits() == b.to_bits() || (*a == 0.0 && *b == 0.0), "{what}: {a} and {b} at {i}");
    }
}

/// `found = exact` within `eps` of the sum of magnitudes.
fn assert_close(found: &[f32], exact: &[(f64, f64)], eps: f64, what: &str) {
    for (i, (found, (exact, magnitude))) in found.iter().zip(exact).enumerate() {
        let error = (f64::from(*found) - exact).abs();
        assert!(error <= eps * magnitude + 1e-30, "{what}: {found} for {exact} at {i}");
    }
}

/// `(x · mᵀ, |x| · |m|ᵀ)` in f64.
fn product(m: &WeightMatrix, x: &[f32]) -> Vec<(f64, f64)> {
    let mut weights = vec![0.0; m.rows() * m.cols()];
    for (row, out) in weights.chunks_mut(m.cols()).enumerate() {
        m.dequantize_row(row, out);
    }
    let dot = |x: &[f32], w: &[f32]| {
        let terms = x.iter().zip(w).map(|(x, w)| f64::from(*x) * f64::from(*w));
        terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
    };
    x.chunks(m.cols()).flat_map(|x| weights.chunks(m.cols()).map(move |w| dot(x, w))).collect()
}

/// Whether an instruction set has fused multiply-add.
fn fuses(isa: Isa) -> bool {
    !matches!(isa, Isa::Portable | Isa::Tiles)
}

/// Calls `f` for every ragged shape and format.
fn each_case(mut f: impl FnMut(QuantMatrix, Vec<f32>, &str)) {
    for (seed, formats) in [(1, integers as fn(usize) -> Vec<Format>), (2, floats)] {
        let mut random = Random(seed);
        // Blocks of six tokens, then of two and one; of six, four and one; of four.
        let mut rows = [33, 29, 8].into_iter().cycle();
        for n in NS {
            for k in KS {
                for format in formats(k) {
                    let matrix = random.quant(n, k, format);
                    let x = random.activations(rows.next().unwrap(), k);
                    f(matrix, x, &format!("[{n}, {k}] {format:?}"));
                }
            }
        }
    }
}

#[test]
fn int8_products_equal_a_scalar_emulation_bit_by_bit() {
    let backends: Vec<Cpu> = Isa::available().into_iter().map(|isa| cpu(isa, Compute::Int8, 2)).collect();
    each_case(|matrix, x, what| {
        // E4M3 is multiplied like dense floats.
        if matrix.kind() == Codes::E4m3 {
            return;
        }
        let setup = Setup::plain(matrix.clone());
        for cpu in &backends {
            let fused = fuses(cpu.isa());
            let mut expected = Vec::new();
            for x in x.chunks(matrix.cols()) {
                let x = quantised(x);
                expected.extend((0..matrix.rows()).map(|n| emulated(&matrix, n, &x, fused)));
            }
            let found = setup.run(cpu, &setup.weights(cpu), &x, f32::NAN);
            assert_same_bits(&found, &expected, &format!("{what} on {}", cpu.isa()));
        }
    });
}

/// The integer sum of a group is exact for every code width, and all later operations are the same.
#[test]
fn few_bits_give_the_bits_of_eight() {
    let mut random = Random(12);
    let (n, k) = (49, 576);
    let formats = [
        (Bits::Five.into(), 32, false),
        (Bits::Five.into(), 32, true),
        (Bits::Six.into(), 16, false),
        (Codes::E2m1, 16, false),
        (Codes::E2m1, 32, false),
    ];
    for format in formats {
        let few = random.quant(n, k, format);
        let parts = QuantParts {
            rows: n,
            cols: k,
            kind: Bits::Eight.into(),
            group: few.group(),
            codes: (0..n * k).map(|at| few.code(at / k, at % k) as i32 as u8).collect(),
            scales: few.scales().to_vec(),
            mins: few.mins().map(<[f16]>::to_vec),
        };
        let [few, eight] = [few, QuantMatrix::new(parts).unwrap()].map(Setup::plain);
        let x = random.activations(MS[0], k);
        for isa in Isa::available() {
            let cpu = cpu(isa, Compute::Int8, 2);
            let [found, expected] = [&few, &eight].map(|setup| {
                let weights = setup.weights(&cpu);
                (weights.matrices[0].bytes(), setup.run(&cpu, &weights, &x, f32::NAN))
            });
            assert!(found.0 < expected.0, "{} bytes for {}", found.0, expected.0);
            assert_same_bits(&found.1, &expected.1, &format!("{format:?} on {isa}"));
        }
    }
}

#[test]
fn f32_products_are_close_to_f64() {
    let backends: Vec<Cpu> = Isa::available().into_iter().map(|isa| cpu(isa, Compute::F32, 1)).collect();
    each_case(|matrix, x, what| {
        // A code's offset and its minimum cancel, so the error scales with their magnitude, not with the
        // value's.
        let eps = if matrix.mins().is_some() { 1e-5 } else { 2e-6 };
        let setup = Setup::plain(matrix.clone());
        let exact = product(&matrix.into(), &x);
        for cpu in &backends {
            let found = setup.run(cpu, &setup.weights(cpu), &x, f32::NAN);
            assert_close(&found, &exact, eps, &format!("{what} on {}", cpu.isa()));
        }
    });
}

fn dense(random: &mut Random, n: usize, k: usize) -> [DenseMatrix; 3] {
    let values = random.vector(n * k);
    let half = values.iter().map(|&v| f16::from_f32(v)).collect();
    let brain = values.iter().map(|&v| bf16::from_f32(v)).collect();
    let values = [DenseValues::F32(values), DenseValues::F16(half), DenseValues::Bf16(brain)];
    values.map(|values| DenseMatrix::new(n, k, values).unwrap())
}

#[test]
fn dense_products_are_close_to_f64_in_either_mode() {
    let mut random = Random(2);
    for isa in Isa::available() {
        for (n, k) in [(1, 32), (17, 100), (49, 576), (16, 48)] {
            let x = random.activations(9, k);
            for (matrix, compute) in
                dense(&mut random, n, k).into_iter().zip([Compute::Int8, Compute::F32].iter().cycle())
            {
                let cpu = cpu(isa, *compute, 2);
                let setup = Setup::plain(matrix.clone());
                let found = setup.run(&cpu, &setup.weights(&cpu), &x, f32::NAN);
                assert_close(&found, &product(&matrix.into(), &x), 2e-6, &format!("{isa} [{n}, {k}]"));
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_whatever_its_neighbours_and_the_threads() {
    let mut random = Random(3);
    for isa in Isa::available() {
        for compute in [Compute::Int8, Compute::F32] {
            let backends = [1, 2, 3].map(|threads| cpu(isa, compute, threads));
            let formats = [
                (Bits::Four.into(), 32, true),
                (Bits::Six.into(), 16, false),
                (Bits::Five.into(), 128, false),
                (Codes::E2m1, 16, false),
                (Codes::E2m1, 32, false),
                (Codes::E4m3, 128, false),
            ];
            for format in formats {
                let (n, k) = (113, 160);
                let setup = Setup::plain(random.quant(n, k, format));
                let x = random.activations(MS[0], k);
                let weights = setup.weights(&backends[0]);
                let whole = setup.run(&backends[0], &weights, &x, f32::NAN);
                for (rows, first) in MS.into_iter().zip([0, 5, 11, 30, 2, 17, 24]) {
                    for cpu in &backends {
                        let part = setup.run(cpu, &weights, &x[first * k..(first + rows) * k], f32::NAN);
                        assert_same_bits(&part, &whole[first * n..(first + rows) * n], "rows");
                    }
                }
            }
        }
    }
}

/// Eight to sixteen tokens multiply a long row in K blocks, other counts in one pass; the epilogue runs after
/// the last block.
#[test]
fn stretches_of_a_row_have_the_bits_of_the_whole() {
    let (mut random, n, k) = (Random(31), 49, 5440);
    let forms = [
        (Bits::Eight.into(), 32, false),
        (Bits::Four.into(), 32, true),
        (Bits::Six.into(), 16, false),
        (Codes::E4m3, 128, false),
    ];
    for form in forms {
        let x = random.activations(17, k);
        let stored = Setup::plain(random.quant(n, k, form));
        let (mut added, mut gated) = (stored.clone(), stored.clone());
        added.vectors.push(random.vector(n));
        added.op.products[0].bias = Some(VectorId(0));
        added.op.products[0].epilogue = Epilogue::Write(WriteMode::Add);
        gated.matrices.push(random.quant(n, k, (Bits::Eight.into(), 32, false)).into());
        gated.op.products[0].epilogue = Epilogue::Gated { up: MatrixId(1), activation: Activation::Silu };
        for (setup, before) in [(stored, f32::NAN), (added, 0.5), (gated, f32::NAN)] {
            for isa in Isa::available() {
                for cpu in [Compute::Int8, Compute::F32].map(|compute| cpu(isa, compute, 2)) {
                    let weights = setup.weights(&cpu);
                    let of = |rows: usize| setup.run(&cpu, &weights, &x[..rows * k], before);
                    let whole = of(17);
                    for rows in [7, 8, 9, 12, 15, 16] {
                        assert_same_bits(&of(rows), &whole[..rows * n], &format!("{isa} {form:?} {rows}"));
                    }
                }
            }
        }
    }
}

/// Instruction sets with tiles multiply sixteen tokens at once and unpack codes for 256; others have blocks
/// of six.
#[test]
fn many_rows_have_the_bits_of_few() {
    const ROWS: usize = 273;
    let mut random = Random(29);
    for form in formats(288).into_iter().filter(|&(_, group, _)| group <= 32) {
        let (n, k) = (49, 288);
        let x = random.activations(ROWS, k);
        let mut setup = Setup::plain(random.quant(n, k, form));
        setup.op.products[0].dst.offset = ROWS * k * size_of::<f32>();
        for isa in Isa::available() {
            let cpu = cpu(isa, Compute::Int8, 2);
            let weights = setup.weights(&cpu);
            let found = setup.run(&cpu, &weights, &x, 0.0);
            for (i, x) in x.chunks(7 * k).enumerate() {
                let expected = setup.run(&cpu, &weights, x, 0.0);
                let found = &found[i * 7 * n..][..expected.len()];
                assert_same_bits(found, &expected, &format!("{isa} {form:?} from row {}", i * 7));
            }
        }
    }
}

#[test]
fn instruction_sets_agree() {
    let mut random = Random(4);
    let (n, k) = (49, 576);
    for format in formats(k) {
        let setup = Setup::plain(random.quant(n, k, format));
        let x = random.activations(7, k);
        let mut results = Vec::new();
        for isa in Isa::available() {
            let cpu = cpu(isa, Compute::Int8, 1);
            results.push((isa, setup.run(&cpu, &setup.weights(&cpu), &x, f32::NAN)));
        }
        let largest = results[0].1.iter().fold(0.0f32, |max, y| max.max(y.abs()));
        for (isa, result) in &results {
            for (a, b) in result.iter().zip(&results[0].1) {
                // Codes are the same; sums are rounded once or twice per step.
                assert!((a - b).abs() <= 1e-4 * largest, "{isa}: {a} and {b}");
            }
            if fuses(*isa) {
                assert_same_bits(result, &results[0].1, "instruction sets that fuse");
            }
        }
    }
}

#[test]
fn int8_error_stays_within_the_rounding_of_activations() {
    let mut random = Random(5);
    let k = 576;
    for isa in Isa::available() {
        let cpu = cpu(isa, Compute::Int8, 2);
        for format in formats(k) {
            let matrix: WeightMatrix = random.quant(17, k, format).into();
            let x = random.activations(8, k);
            let setup = Setup::plain(matrix.clone());
            let found = setup.run(&cpu, &setup.weights(&cpu), &x, f32::NAN);
            let exact = product(&matrix, &x);
            let mut weights = vec![0.0f32; k];
            for (i, found) in found.iter().enumerate() {
                matrix.dequantize_row(i % 17, &mut weights);
                // Plus the rounding of the sums.
                let bound = rounding(&x[i / 17 * k..][..k], &weights) * 1.001 + 1e-5 * exact[i].1 + 1e-12;
                assert!((f64::from(*found) - exact[i].0).abs() <= bound, "{isa} {format:?}");
            }
        }
    }
}

/// A norm, a shared source, a bias, a residual: products of one operation in mixed formats.
#[test]
fn norm_bias_residual_and_shared_source() {
    let mut random = Random(6);
    let (k, n, rows, eps) = (580, 49, 9, 1e-3f32);
    let matrices = vec![
        random.quant(n, k, (Bits::Four.into(), 32, true)).into(),
        random.quant(n, k, (Bits::Six.into(), 16, false)).into(),
        dense(&mut random, n, k)[1].clone().into(),
    ];
    let (gain, bias) = (random.vector(k), random.vector(n));
    let mut x = random.vector(rows * k);
    // Some groups have residual codes; losing those would exceed the bound.
    x.iter_mut().step_by(97).for_each(|x| *x *= 300.0);
    let dst = |i: usize| place(dst_place(k, n).offset + i * 33 * n * 4 / 64 * 64 + i * 64, n);
    let products = (0..3).map(|i| Product {
        dst: dst(i),
        matrix: MatrixId(i as u32),
        bias: (i != 1).then_some(VectorId(1)),
        epilogue: Epilogue::Write(if i == 2 { WriteMode::Add } else { WriteMode::Store }),
    });
    let norm = Some(RmsNorm { weight: VectorId(0), eps });
    let op = Matmul { src: place(0, k), norm, products: products.collect() };
    let setup = Setup { matrices, vectors: vec![gain.clone(), bias.clone()], op };
    let normed: Vec<f32> = x
        .chunks(k)
        .flat_map(|x| {
            let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / k as f64;
            let inverse = 1.0 / (mean + f64::from(eps)).sqrt();
            x.iter().zip(&gain).map(move |(x, g)| (f64::from(*x) * inverse * f64::from(*g)) as f32)
        })
        .collect();
    for isa in Isa::available() {
        for compute in [Compute::F32, Compute::Int8] {
            let cpu = cpu(isa, compute, 2);
            for first in 0..3 {
                let mut rotated = setup.clone();
                rotated.op.products.rotate_left(first);
                let found = rotated.run(&cpu, &rotated.weights(&cpu), &x, 0.5);
                let mut weights = vec![0.0f32; k];
                for (i, (mut y, magnitude)) in
                    product(&setup.matrices[first], &normed).into_iter().enumerate()
                {
                    y += if first == 1 { 0.0 } else { f64::from(bias[i % n]) };
                    y += if first == 2 { 0.5 } else { 0.0 };
                    setup.matrices[first].dequantize_row(i % n, &mut weights);
                    let codes = compute == Compute::Int8 && first != 2;
                    let missed = if codes { rounding(&normed[i / n * k..][..k], &weights) } else { 0.0 };
                    let error = (f64::from(found[i]) - y).abs();
                    let bound = 1.001 * missed + 1e-5 * magnitude;
                    assert!(
                        error <= bound,
                        "{isa} {compute:?} product {first}: {error} at {i}, at most {bound}"
                    );
                }
            }
        }
    }
}

#[test]
fn gated_products_apply_the_activation() {
    check_gated(49, 2);
    // A chunk has several panels, the last one fewer.
    check_gated(4177, 1);
}

fn check_gated(n: usize, threads: usize) {
    let (mut random, k) = (Random(7), 64);
    let formats = [(Bits::Four.into(), 32, false), (Bits::Eight.into(), 32, false)];
    let matrices: Vec<WeightMatrix> = formats.map(|f| random.quant(n, k, f).into()).into();
    for activation in [Activation::Silu, Activation::GeluTanh, Activation::Gelu] {
        let product_of = Product {
            dst: dst_place(k, n),
            matrix: MatrixId(0),
            bias: None,
            epilogue: Epilogue::Gated { up: MatrixId(1), activation },
        };
        let op = Matmul { src: place(0, k), norm: None, products: vec![product_of] };
        let setup = Setup { matrices: matrices.clone(), vectors: vec![], op };
        let x = random.vector(9 * k);
        let (gate, up) = (product(&matrices[0], &x), product(&matrices[1], &x));
        let act = |x: f64| activate(activation, x);
        let exact: Vec<_> =
            gate.iter().zip(&up).map(|(g, u)| (act(g.0) * u.0, (g.1 + act(g.0).abs()) * u.1)).collect();
        for isa in Isa::available() {
            let cpu = cpu(isa, Compute::F32, threads);
            let found = setup.run(&cpu, &setup.weights(&cpu), &x, f32::NAN);
            assert_close(&found, &exact, 1e-5, &format!("{isa} {activation:?}"));
        }
    }
}

#[test]
fn nan_and_infinity_spoil_their_own_row_only() {
    let mut random = Random(8);
    let (k, n) = (96, 33);
    let setup = Setup::plain(random.quant(n, k, (Bits::Eight.into(), 32, false)));
    for isa in Isa::available() {
        let cpu = cpu(isa, Compute::Int8, 2);
        let weights = setup.weights(&cpu);
        let x = random.activations(4, k);
        let clean = setup.run(&cpu, &weights, &x, f32::NAN);
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for col in [0, 17, 40, 95] {
                let mut x = x.clone();
                x[2 * k + col] = bad;
                let found = setup.run(&cpu, &weights, &x, 0.0);
                assert!(found[2 * n..3 * n].iter().all(|y| y.is_nan()), "{isa} {bad} at {col}");
                assert_same_bits(&found[..2 * n], &clean[..2 * n], "before");
                assert_same_bits(&found[3 * n..], &clean[3 * n..], "after");
            }
        }
    }
}

#[test]
fn packing_keeps_every_value() {
    for isa in Isa::available() {
        let cpu = cpu(isa, Compute::Int8, 2);
        let check = |matrix: WeightMatrix| {
            let packed = cpu.prepare(&matrix).unwrap();
            let (mut expected, mut found) = (vec![0.0; matrix.cols()], vec![f32::NAN; matrix.cols()]);
            for row in 0..matrix.rows() {
                matrix.dequantize_row(row, &mut expected);
                packed.row(row, 1.0, &mut found);
                assert_same_bits(&found, &expected, "row");
            }
        };
        each_case(|matrix, _, _| check(matrix.into()));
        dense(&mut Random(9), 49, 100).into_iter().for_each(|matrix| check(matrix.into()));
    }
}

#[test]
fn embedding_scales_rows_and_outputs_are_gathered() {
    let cpu = Cpu::new(&CpuOptions::default()).unwrap();
    let table: WeightMatrix = Random(10).quant(40, 100, (Bits::Eight.into(), 32, false)).into();
    let weights = Weights::<Cpu> { matrices: vec![cpu.prepare(&table).unwrap()], vectors: vec![] };
    let (hidden, out) = (place(0, 100), Place { rows: Rows::Outputs, ..place(4096, 100) });
    let step =
        StepInput { tokens: [7, 39, 0, 7].map(TokenId).into(), outputs: vec![1, 3], ..StepInput::default() };
    let mut arena = cpu.arena(8192, &[], StepLimits { tokens_max: 8, outputs_max: 8 }).unwrap();
    let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut no_kv(), step: &step };
    cpu.execute(&Op::Embed(Embed { dst: hidden, table: MatrixId(0), scale: 24.0 }), &mut frame).unwrap();
    cpu.execute(&Op::GatherOutputs(GatherOutputs { dst: out, src: hidden }), &mut frame).unwrap();
    let (mut row, mut found) = (vec![0.0; 100], vec![0.0; 100]);
    for (index, token) in [39, 7].into_iter().enumerate() {
        table.dequantize_row(token, &mut row);
        row.iter_mut().for_each(|x| *x *= 24.0);
        arena.read(&out, index, &mut found).unwrap();
        assert_eq!(found, row);
    }
}

fn refused(setup: &Setup, rows: usize) -> String {
    let cpu = Cpu::new(&CpuOptions::default()).unwrap();
    let weights = setup.weights(&cpu);
    let mut arena = setup.arena(&cpu, 9);
    let mut frame = Frame { weights: &weights, arena: &mut arena, kv: &mut no_kv(), step: &step(rows) };
    cpu.execute(&Op::Matmul(setup.op.clone()), &mut frame).unwrap_err().to_string()
}

#[test]
fn operands_that_do_not_fit_are_refused() {
    let setup = || Setup::plain(Random(11).quant(16, 64, (Bits::Eight.into(), 32, false)));
    let with = |change: &dyn Fn(&mut Matmul)| {
        let mut setup = setup();
        change(&mut setup.op);
        refused(&setup, 9)
    };
    let text = with(&|op| op.products[0].dst.cols = 15);
    assert_eq!(text, "matmul: expected dst [9, 16], found src [9, 64], matrix [16, 64], dst [9, 15]");
    assert_eq!(
        with(&|op| op.products[0].matrix = MatrixId(5)),
        "matmul: expected a matrix id below 1, found 5"
    );
    assert_eq!(
        with(&|op| op.norm = Some(RmsNorm { weight: VectorId(0), eps: 0.0 })),
        "matmul: expected a vector id below 0, found 0"
    );
    assert!(with(&|op| op.src.cols = 0).contains("a source of at least one column"));
    assert!(with(&|op| op.products[0].dst.offset = 64).contains("operands that do not overlap"));
    assert!(with(&|op| op.products[0].dst.offset = 1 << 20).contains("within the arena"));
    assert!(with(&|op| op.src.offset = 4).contains("within the arena"));
    let mut long = setup();
    long.op.products[0].dst.offset = 1 << 19;
    assert_eq!(
        refused(&long, 40),
        "matmul: expected at most 66 groups of activations, as the arena was made for, found 80"
    );
}

/// A matrix product needs no pool.
fn no_kv() -> KvPool {
    KvPool::new(KvLayout { layers: 0, kv_heads: 1, head_dim: 8, dtype: KvDtype::F16 }, 0)
        .expect("an empty pool")
}
