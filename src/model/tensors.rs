//! Checks of tensors against hyperparameters. Sizes come first, before anything is built; then every weight
//! of the graph and every tensor of the file.

use std::collections::{BTreeSet, HashMap, HashSet};

use crate::checkpoint::{Checkpoint, Part, Role, TensorInfo};
use crate::graph::{Graph, MatrixSpec};
use crate::ir::Heads;

use super::family::Family;
use super::recipe::{MlpRecipe, NormPlacement};
use super::{Experts, ModelConfig, ModelError, missing, scaling};

/// Hyperparameters that determine tensor sizes.
#[derive(Clone, Copy)]
pub(super) struct Sizes {
    pub family: &'static Family,
    pub block_count: usize,
    pub heads: Heads,
    pub embedding_length: usize,
    pub feed_forward_length: usize,
    pub experts: Option<Experts>,
}

/// Rejects a mixture of experts in a dense family, by the first tensor that belongs to an expert.
pub(super) fn refuse_experts(file: &dyn Checkpoint) -> Result<(), ModelError> {
    // `ffn_gate_exps`, `ffn_up_shexp`, the router, and the older scheme with a tensor per expert:
    // `blk.0.ffn_gate.3.weight`.
    let expert = |name: &str| {
        file.dialect().layer_of(name).is_some_and(|(_, part)| {
            let (kind, rest) = part.split_once('.').unwrap_or((part, ""));
            let numbered = kind.starts_with("ffn_") && rest.starts_with(|c: char| c.is_ascii_digit());
            numbered
                || ["_exps", "_shexp", "_chexps"].iter().any(|end| kind.ends_with(end))
                || kind == "ffn_gate_inp"
        })
    };
    match file.tensors().iter().find(|info| expert(&info.name)) {
        Some(info) => Err(ModelError::Experts { shown_by: format!("tensor {} is one of theirs", info.name) }),
        None => Ok(()),
    }
}

/// Checks sizes against the tensors of every layer. Sizes that pass are bounded by the file's size.
pub(super) fn check_sizes(
    file: &dyn Checkpoint,
    sizes: Sizes,
    fused: &BTreeSet<String>,
) -> Result<(), ModelError> {
    let dialect = file.dialect();
    check_shape(file, &dialect.weight(Role::TokenEmbedding), None, sizes.embedding_length)?;
    if sizes.family.encoder.is_none_or(|encoder| encoder.output_norm) {
        check_shape(file, &dialect.weight(Role::OutputNorm), Some(1), sizes.embedding_length)?;
    }
    for index in 0..sizes.block_count {
        let name = |part| dialect.weight(Role::Layer { index, part });
        for (part, rows, cols) in sizes.parts(index, |part| fused.contains(&name(part))) {
            check_shape(file, &name(part), Some(rows), cols)?;
        }
    }
    Ok(())
}

impl Sizes {
    /// Parts of a layer with rows and columns.
    fn parts(&self, index: usize, is_fused: impl Fn(Part) -> bool) -> Vec<(Part, usize, usize)> {
        let Sizes { family, heads, embedding_length, feed_forward_length, experts, .. } = *self;
        let (query, kv) = (heads.query.saturating_mul(heads.dim), heads.kv.saturating_mul(heads.dim));
        let mut parts = Vec::new();
        let first = index > 0 || family.encoder.is_none_or(|encoder| encoder.first_norm);
        if first && !matches!(family.layer.norms, NormPlacement::Post | NormPlacement::AfterResidual) {
            parts.push((Part::AttentionNorm, 1, embedding_length));
        }
        if is_fused(Part::QueryKeyValue) {
            let rows = kv.saturating_mul(2).saturating_add(query);
            parts.push((Part::QueryKeyValue, rows, embedding_length));
        } else {
            parts.push((Part::Query, query, embedding_length));
            parts.extend([Part::Key, Part::Value].map(|part| (part, kv, embedding_length)));
        }
        parts.push((Part::AttentionOutput, embedding_length, query));
        if matches!(family.layer.norms, NormPlacement::Pre | NormPlacement::Sandwich) {
            parts.push((Part::MlpNorm, 1, embedding_length));
        }
        let (into, down) = match family.layer.mlp {
            MlpRecipe::Gated(_) => (&[Part::Gate, Part::Up][..], Part::Down),
            MlpRecipe::Plain(_) => (&[Part::Up][..], Part::Down),
            MlpRecipe::Experts(_) => (&[Part::GateExperts, Part::UpExperts][..], Part::DownExperts),
        };
        parts.extend(experts.map(|experts| (Part::Router, experts.count, embedding_length)));
        // The rows of all experts are consecutive.
        let count = experts.map_or(1, |experts| experts.count);
        if !is_fused(Part::GateUp) {
            let rows = count.saturating_mul(feed_forward_length);
            parts.extend(into.iter().map(|&part| (part, rows, embedding_length)));
        }
        parts.push((down, count.saturating_mul(embedding_length), feed_forward_length));
        parts
    }
}

/// Checks a tensor's shape; `None` allows any number of rows.
fn check_shape(
    file: &dyn Checkpoint,
    name: &str,
    rows: Option<usize>,
    cols: usize,
) -> Result<(), ModelError> {
    let shape = |rows: usize| format!("[{rows}, {cols}]");
    let info = file.tensor(name).ok_or_else(|| missing(name, &shape(rows.unwrap_or(0))))?;
    let rows = rows.unwrap_or(info.rows());
    if (info.rows(), info.cols()) != (rows, cols) {
        let found = format!("[{}, {}]", info.rows(), info.cols());
        return Err(ModelError::TensorShape { tensor: name.into(), expected: shape(rows), found });
    }
    Ok(())
}

/// Checks every weight of the graph against the file, and every tensor of the file against the graph.
/// `others` are tensors that are used without the graph.
pub(super) fn check(
    file: &dyn Checkpoint,
    graph: &Graph,
    config: &ModelConfig,
    others: &[String],
) -> Result<(), ModelError> {
    let mut used: HashSet<&str> = HashSet::from([scaling::FREQUENCIES]);
    used.extend(others.iter().map(String::as_str));
    if config.short_rope.is_some() {
        used.extend([scaling::FACTORS_LONG, scaling::FACTORS_SHORT]);
    }
    let mut rows: HashMap<&str, usize> = HashMap::new();
    for spec in graph.matrices() {
        *rows.entry(&spec.name).or_default() += spec.rows;
    }
    for spec in graph.matrices().iter().filter(|spec| used.insert(&spec.name)) {
        check_shape(file, &spec.name, rows.get(spec.name.as_str()).copied(), spec.cols)?;
        check_stack(file, spec)?;
    }
    for spec in graph.vectors() {
        check_shape(file, &spec.name, Some(1), spec.len)?;
        used.insert(&spec.name);
    }
    let unused = file.tensors().iter().filter(|info| !used.contains(info.name.as_str()));
    for info in unused {
        // An unused tensor indicates another architecture, unless it has no effect.
        if !is_redundant(file, info, config)? {
            let (tensor, family) = (info.name.clone(), config.family.name);
            return Err(ModelError::UnusedTensor { tensor, family });
        }
    }
    Ok(())
}

/// Checks the matrices of a three-dimensional tensor, which all have the same number of rows.
fn check_stack(file: &dyn Checkpoint, spec: &MatrixSpec) -> Result<(), ModelError> {
    match file.tensor(&spec.name).map(|info| info.dims.as_slice()) {
        Some(&[_, rows, count, ..]) if count > 1 && rows != spec.rows as u64 => {
            Err(ModelError::TensorShape {
                tensor: spec.name.clone(),
                expected: format!("matrices of [{}, {}]", spec.rows, spec.cols),
                found: format!("{count} of [{rows}, {}]", spec.cols),
            })
        }
        _ => Ok(()),
    }
}

/// Whether the tensor has no effect: a bias of zeros, or frequencies that the hyperparameters also give.
fn is_redundant(file: &dyn Checkpoint, info: &TensorInfo, config: &ModelConfig) -> Result<bool, ModelError> {
    let name = info.name.as_str();
    let vector = || if info.rows() == 1 { file.vector(name) } else { Ok(Vec::new()) };
    if name.ends_with(".bias") {
        return Ok(vector()?.iter().all(|&value| value == 0.0) && info.rows() == 1);
    }
    match file.dialect().layer_of(name).map(|(_, part)| part) {
        Some("rope_freqs.weight") => {
            let global = file.tensor(scaling::FREQUENCIES).is_some();
            Ok(global && vector()? == file.vector(scaling::FREQUENCIES)?)
        }
        Some("attn_rot_embd.weight" | "attn_rot_embd") => {
            let found = vector()?;
            let near = |(&value, &freq): (&f32, &f64)| (f64::from(value) / freq - 1.0).abs() < 1e-2;
            let frequencies = &config.rope.global.inv_freq;
            Ok(found.len() == frequencies.len() && found.iter().zip(frequencies.iter()).all(near))
        }
        _ => Ok(false),
    }
}
