//! Values, weights and pages in f64, every access checked.

use std::ops::Range;

use half::f16;

use super::shape_error;
use crate::backend::states::States;
use crate::backend::{ArenaMemory, BackendError, MatrixSource, PageMemory, PreparedMatrix, StateMemory};
use crate::ir::{Heads, KV_SCALE_GROUP, KvDtype, KvLayout, PAGE_TOKENS, PageId, Place, StepInput};
use crate::quant::WeightMatrix;

/// All intermediate values of a plan. They start as NaN, which exposes reads of unwritten values.
#[derive(Debug)]
pub struct Arena(Vec<f64>);

/// How two values may share memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sharing {
    /// They may start at the same element.
    InPlace,
    /// They must not overlap at all.
    Apart,
}

impl Arena {
    pub(super) fn new(bytes: usize) -> Result<Arena, BackendError> {
        Ok(Arena(filled(f64::NAN, bytes / size_of::<f64>(), "intermediate values")?))
    }

    /// Refuses shared memory that the operation does not allow.
    pub(super) fn check_sharing(
        &self,
        op: &'static str,
        [a, b]: [&Place; 2],
        sharing: Sharing,
        step: &StepInput,
    ) -> Result<(), BackendError> {
        let range = |place: &Place| self.range(op, place, place.rows.count(step));
        let (first, second) = (range(a)?, range(b)?);
        let overlap = first.start < second.end && second.start < first.end;
        if !overlap || (sharing == Sharing::InPlace && first.start == second.start) {
            return Ok(());
        }
        Err(shape_error(op, "operands that do not overlap".into(), format!("{a:?} and {b:?}")))
    }

    /// Element range of the first `rows` rows.
    fn range(&self, op: &'static str, place: &Place, rows: usize) -> Result<Range<usize>, BackendError> {
        let bytes = place.range(op, rows, size_of::<f64>(), size_of_val(self.0.as_slice()))?;
        Ok(bytes.start / size_of::<f64>()..bytes.end / size_of::<f64>())
    }

    /// The first `rows` rows of a value.
    pub(super) fn get(&self, op: &'static str, place: &Place, rows: usize) -> Result<Vec<f64>, BackendError> {
        Ok(self.0[self.range(op, place, rows)?].to_vec())
    }

    /// Overwrites a value's first rows; `values` must be whole rows.
    pub(super) fn put(
        &mut self,
        op: &'static str,
        place: &Place,
        values: &[f64],
    ) -> Result<(), BackendError> {
        let range = self.range(op, place, place.whole_rows(op, values.len())?)?;
        self.0[range].copy_from_slice(values);
        Ok(())
    }
}

impl ArenaMemory for Arena {
    fn write(&mut self, place: &Place, values: &[f32]) -> Result<(), BackendError> {
        let values: Vec<f64> = values.iter().map(|&x| f64::from(x)).collect();
        self.put("write", place, &values)
    }

    fn read(&self, place: &Place, first_row: usize, out: &mut [f32]) -> Result<(), BackendError> {
        let rows = place.whole_rows("read", out.len())?;
        let values = self.get("read", place, first_row.saturating_add(rows))?;
        let values = values.iter().skip(first_row * place.cols);
        out.iter_mut().zip(values).for_each(|(out, &value)| *out = value as f32);
        Ok(())
    }
}

/// `count` copies of `value`, or an error if memory is short.
fn filled<T: Clone>(value: T, count: usize, what: &'static str) -> Result<Vec<T>, BackendError> {
    let mut values = Vec::new();
    let bytes = count.saturating_mul(size_of::<T>());
    values.try_reserve_exact(count).map_err(|_| BackendError::OutOfMemory { bytes, what })?;
    values.resize(count, value);
    Ok(values)
}

/// A weight matrix, dequantised.
#[derive(Debug)]
pub struct Matrix {
    pub(super) rows: usize,
    pub(super) cols: usize,
    values: Vec<f32>,
}

impl PreparedMatrix for Matrix {
    fn bytes(&self) -> usize {
        size_of_val(self.values.as_slice())
    }
}

impl Matrix {
    pub(super) fn new<S: MatrixSource>(matrix: &S) -> Result<Matrix, S::Error> {
        let (rows, cols) = (matrix.rows(), matrix.cols());
        let mut values = filled(0.0, rows.saturating_mul(cols), "weights")?;
        let mut row_at_hand = WeightMatrix::default();
        for (row, out) in values.chunks_exact_mut(cols.max(1)).enumerate() {
            matrix.read(row..row + 1, &mut row_at_hand)?;
            row_at_hand.dequantize_row(0, out);
        }
        Ok(Matrix { rows, cols, values })
    }

    /// One row, if it exists.
    pub(super) fn row(&self, row: usize) -> Option<impl Iterator<Item = f64> + '_> {
        let start = row.checked_mul(self.cols)?;
        let values = self.values.get(start..start.checked_add(self.cols)?)?;
        Some(values.iter().map(|&x| f64::from(x)))
    }
}

/// Keys and values of layers, which may differ in their heads, and recurrent states.
#[derive(Debug)]
pub struct KvPool {
    pages: usize,
    layers: Vec<Layer>,
    /// Not rounded.
    pub(super) states: States<f64>,
}

/// `[page][slot][kv head][element]`, rounded to the layout's dtype.
#[derive(Debug)]
struct Layer {
    /// Layout of this one layer.
    layout: KvLayout,
    keys: Vec<f64>,
    values: Vec<f64>,
}

impl Layer {
    fn slot_elements(&self) -> usize {
        self.layout.kv_heads * self.layout.head_dim
    }

    fn start(&self, page: PageId, slot: usize) -> usize {
        (page.index() * PAGE_TOKENS + slot) * self.slot_elements()
    }

    /// Element range of a page.
    fn range(&self, page: PageId) -> Range<usize> {
        self.start(page, 0)..self.start(page, PAGE_TOKENS)
    }
}

/// A slot of a page in a layer.
#[derive(Clone, Copy, Debug)]
pub(super) struct Slot {
    pub(super) layer: usize,
    pub(super) page: PageId,
    pub(super) slot: usize,
}

impl KvPool {
    pub(super) fn new(layout: KvLayout, pages: usize) -> Result<KvPool, BackendError> {
        let mut pool = KvPool { pages, layers: Vec::new(), states: States::default() };
        pool.add_layers(layout)?;
        Ok(pool)
    }

    /// Checks that an operation's heads are those of its layer.
    pub(super) fn check(&self, op: &'static str, layer: usize, heads: Heads) -> Result<(), BackendError> {
        let refuse = |expected| Err(shape_error(op, expected, format!("layer {layer}, {heads:?}")));
        let Some(Layer { layout, .. }) = self.layers.get(layer) else {
            return refuse(format!("a layer below {}", self.layers.len()));
        };
        let (kv_heads, head_dim) = (layout.kv_heads, layout.head_dim);
        if (heads.kv, heads.dim) == (kv_heads, head_dim)
            && kv_heads > 0
            && heads.query.is_multiple_of(kv_heads)
        {
            return Ok(());
        }
        refuse(format!("a layer of {kv_heads} heads of {head_dim}"))
    }

    /// Stores the keys and values of one token, rounded.
    pub(super) fn store(&mut self, at: Slot, keys: &[f64], values: &[f64]) {
        let layer = &mut self.layers[at.layer];
        let (start, n) = (layer.start(at.page, at.slot), layer.slot_elements());
        layer.keys[start..start + n].copy_from_slice(&rounded(keys, &layer.layout));
        layer.values[start..start + n].copy_from_slice(&rounded(values, &layer.layout));
    }

    /// The key and the value of one head of one token.
    pub(super) fn load(&self, at: Slot, kv_head: usize) -> (&[f64], &[f64]) {
        let layer = &self.layers[at.layer];
        let start = layer.start(at.page, at.slot) + kv_head * layer.layout.head_dim;
        let range = start..start + layer.layout.head_dim;
        (&layer.keys[range.clone()], &layer.values[range])
    }

    fn check_page(&self, page: PageId) -> Result<(), BackendError> {
        if page.index() < self.pages {
            return Ok(());
        }
        Err(shape_error("kv page", format!("a page below {}", self.pages), format!("page {}", page.0)))
    }
}

impl PageMemory for KvPool {
    fn copy_page(&mut self, from: PageId, to: PageId) -> Result<(), BackendError> {
        self.check_page(from)?;
        self.check_page(to)?;
        for layer in &mut self.layers {
            let (from, to) = (layer.range(from), layer.start(to, 0));
            layer.keys.copy_within(from.clone(), to);
            layer.values.copy_within(from, to);
        }
        Ok(())
    }

    /// Elements are written as f16, which represents f16 pages exactly. Int8 pages are rounded once more to
    /// codes and scales, so that the size is the contract's [`KvLayout::page_bytes`].
    fn export_page(&self, page: PageId, out: &mut Vec<u8>) -> Result<(), BackendError> {
        self.check_page(page)?;
        for layer in &self.layers {
            for elements in [&layer.keys[layer.range(page)], &layer.values[layer.range(page)]] {
                for head in elements.chunks_exact(layer.layout.head_dim) {
                    encode(head, layer.layout.dtype, out);
                }
            }
        }
        Ok(())
    }

    fn import_page(&mut self, page: PageId, bytes: &[u8]) -> Result<(), BackendError> {
        self.check_page(page)?;
        let expected: usize = self.layers.iter().map(|layer| layer.layout.page_bytes()).sum();
        if bytes.len() != expected {
            return Err(shape_error(
                "kv page",
                format!("{expected} bytes"),
                format!("{} bytes", bytes.len()),
            ));
        }
        let mut rest = bytes;
        for layer in &mut self.layers {
            let (own, after) = rest.split_at(layer.layout.page_bytes());
            let (range, layout) = (layer.range(page), layer.layout);
            let mut heads = own.chunks_exact((own.len() / (2 * PAGE_TOKENS * layout.kv_heads).max(1)).max(1));
            for elements in [&mut layer.keys[range.clone()], &mut layer.values[range.clone()]] {
                for (head, bytes) in elements.chunks_exact_mut(layout.head_dim).zip(&mut heads) {
                    decode(bytes, layout.dtype, head);
                }
            }
            rest = after;
        }
        Ok(())
    }

    fn add_layers(&mut self, layout: KvLayout) -> Result<(), BackendError> {
        let sizes = [self.pages, PAGE_TOKENS, layout.kv_heads, layout.head_dim];
        let elements = sizes.into_iter().fold(1, usize::saturating_mul);
        let zeros = || filled(0.0, elements, "keys and values");
        for _ in 0..layout.layers {
            let layout = KvLayout { layers: 1, ..layout };
            self.layers.push(Layer { layout, keys: zeros()?, values: zeros()? });
        }
        Ok(())
    }

    fn states(&self) -> Option<&dyn StateMemory> {
        Some(&self.states)
    }

    fn states_mut(&mut self) -> Option<&mut dyn StateMemory> {
        Some(&mut self.states)
    }
}

/// Elements after a round trip through a pool of this layout.
fn rounded(values: &[f64], layout: &KvLayout) -> Vec<f64> {
    let mut out = Vec::with_capacity(values.len());
    for head in values.chunks(layout.head_dim.max(1)) {
        match layout.dtype {
            KvDtype::F16 => out.extend(head.iter().map(|&x| saturated(x).to_f64())),
            KvDtype::Int8 => {
                for group in head.chunks(KV_SCALE_GROUP) {
                    let scale = scale_of(group);
                    out.extend(group.iter().map(|&x| f64::from(code_of(x, scale)) * scale.to_f64()));
                }
            }
        }
    }
    out
}

/// Half precision, saturating at ±65504.
fn saturated(x: f64) -> f16 {
    f16::from_f64(x.clamp(f16::MIN.to_f64(), f16::MAX.to_f64()))
}

/// A group's scale: its largest magnitude / 127 in half precision, saturating. NaN if an element is not
/// finite, so that everything read back is NaN, too.
fn scale_of(group: &[f64]) -> f16 {
    if group.iter().any(|x| !x.is_finite()) {
        return f16::NAN;
    }
    let largest = group.iter().fold(0.0, |max: f64, x| max.max(x.abs()));
    saturated(largest / 127.0)
}

fn code_of(x: f64, scale: f16) -> i8 {
    let scale = scale.to_f64();
    if scale == 0.0 { 0 } else { (x / scale).round_ties_even().clamp(-127.0, 127.0) as i8 }
}

fn encode(head: &[f64], dtype: KvDtype, out: &mut Vec<u8>) {
    match dtype {
        KvDtype::F16 => head.iter().for_each(|&x| out.extend_from_slice(&saturated(x).to_le_bytes())),
        KvDtype::Int8 => {
            for group in head.chunks(KV_SCALE_GROUP) {
                let scale = scale_of(group);
                out.extend_from_slice(&scale.to_le_bytes());
                out.extend(group.iter().map(|&x| code_of(x, scale) as u8));
            }
        }
    }
}

fn decode(bytes: &[u8], dtype: KvDtype, head: &mut [f64]) {
    let half = |bytes: &[u8]| f16::from_le_bytes([bytes[0], bytes[1]]).to_f64();
    match dtype {
        KvDtype::F16 => head.iter_mut().zip(bytes.chunks_exact(2)).for_each(|(x, bytes)| *x = half(bytes)),
        KvDtype::Int8 => {
            let groups = head.chunks_mut(KV_SCALE_GROUP).zip(bytes.chunks(KV_SCALE_GROUP + 2));
            for (group, bytes) in groups {
                let scale = half(bytes);
                let codes = bytes[2..].iter().map(|&code| f64::from(code as i8));
                group.iter_mut().zip(codes).for_each(|(x, code)| *x = code * scale);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_rounded_as_the_dtype_says() {
        let layout = |dtype| KvLayout { layers: 1, kv_heads: 1, head_dim: 40, dtype };
        let mut values = vec![0.0; 40];
        (values[0], values[1], values[2]) = (1e6, 1.0 / 3.0, -1e6);
        let f16s = rounded(&values, &layout(KvDtype::F16));
        assert_eq!(f16s[..3], [65504.0, f16::from_f64(1.0 / 3.0).to_f64(), -65504.0]);
        (values[0], values[1], values[2], values[33]) = (127.0, 0.4, -63.5, 0.25);
        let int8s = rounded(&values, &layout(KvDtype::Int8));
        assert_eq!(int8s[..3], [127.0, 0.0, -64.0], "scale 1, ties to even");
        assert!((int8s[33] - 0.25).abs() < 1e-4, "the second group has its own scale");
        assert_eq!(int8s[5], 0.0);
    }

    #[test]
    fn pages_come_back_and_strangers_are_refused() {
        for dtype in [KvDtype::F16, KvDtype::Int8] {
            let layout = KvLayout { layers: 2, kv_heads: 2, head_dim: 40, dtype };
            let mut pool = KvPool::new(layout, 3).unwrap();
            let at = Slot { layer: 1, page: PageId(2), slot: 5 };
            let values: Vec<f64> = (0..80).map(|i| f64::from(i) - 30.5).collect();
            pool.store(at, &values, &values);
            let mut bytes = Vec::new();
            pool.export_page(PageId(2), &mut bytes).unwrap();
            assert_eq!(bytes.len(), layout.page_bytes());
            pool.import_page(PageId(0), &bytes).unwrap();
            pool.copy_page(PageId(0), PageId(1)).unwrap();
            let moved = Slot { page: PageId(1), ..at };
            assert_eq!(pool.load(moved, 1), pool.load(at, 1));
            assert!(pool.export_page(PageId(3), &mut bytes).is_err());
            assert!(pool.import_page(PageId(0), &bytes[1..]).is_err());
        }
    }
}
