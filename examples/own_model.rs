//! A model that no file describes: a graph of two layers with weights by name, in the engine, which gives it the KV
//! cache, batches and sampling: `cargo run --example own_model`. Every token is held against a naive computation.

use std::error::Error;

use ottava::api::Compute;
use ottava::engine::Event;
use ottava::graph::{AttentionSpec, Graph, GraphError, NodeId};
use ottava::ir::{Activation, Heads};
use ottava::model::OwnModel;
use ottava::session::{NamedWeights, SessionError};
use ottava::{Device, Engine, Request, TokenId};

const LAYERS: usize = 2;
const VOCAB: usize = 40;
const WIDTH: usize = 16;
const HIDDEN: usize = 24;
const HEADS: Heads = Heads { query: 2, kv: 2, dim: 8 };
const EPS: f32 = 1e-5;
/// The ninth word ends an answer.
const END: TokenId = TokenId(9);

/// Words, then layers of attention and of an MLP with the exact GELU, then a head.
fn graph() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let words = g.matrix("words", VOCAB, WIDTH)?;
    let mut x = g.embed(words, 1.0)?;
    for layer in 0..LAYERS {
        let h = norm(&mut g, x, &format!("{layer}.norm"))?;
        let [q, k, v] = ["q", "k", "v"].map(|part| linear(&mut g, h, &format!("{layer}.{part}"), WIDTH));
        let spec = AttentionSpec { layer, heads: HEADS, scale: 1.0, window: None, soft_cap: None };
        let attended = g.attention(q?, k?, v?, spec)?;
        x = g.add(x, attended)?;
        let h = norm(&mut g, x, &format!("{layer}.mlp_norm"))?;
        let h = linear(&mut g, h, &format!("{layer}.up"), HIDDEN)?;
        let h = g.activation(h, Activation::Gelu)?;
        let h = linear(&mut g, h, &format!("{layer}.down"), WIDTH)?;
        x = g.add(x, h)?;
    }
    // Only rows whose next word is wanted go through the head.
    let x = g.outputs(x)?;
    let x = norm(&mut g, x, "norm")?;
    let logits = linear(&mut g, x, "head", VOCAB)?;
    g.output("logits", logits)?;
    Ok(g)
}

fn linear(g: &mut Graph, x: NodeId, name: &str, rows: usize) -> Result<NodeId, GraphError> {
    let cols = g.shape(x)?.1;
    let matrix = g.matrix(name, rows, cols)?;
    g.matmul(x, matrix)
}

fn norm(g: &mut Graph, x: NodeId, name: &str) -> Result<NodeId, GraphError> {
    let gain = g.vector(name, WIDTH)?;
    g.layer_norm(x, gain, None, EPS)
}

/// Numbers in place of training.
fn values(name: &str, count: usize) -> Vec<f32> {
    let mut seed =
        name.bytes().fold(7, |seed: u32, byte| seed.wrapping_mul(31).wrapping_add(u32::from(byte)));
    let mut next = || {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 8) as f32 / (1 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn weights(g: &Graph) -> Result<NamedWeights, SessionError> {
    let mut weights = NamedWeights::new();
    for spec in g.matrices() {
        let shape = [spec.rows, spec.cols];
        weights = weights.dense(&spec.name, shape, values(&spec.name, spec.rows * spec.cols))?;
    }
    for spec in g.vectors() {
        weights = weights.vector(&spec.name, values(&spec.name, spec.len));
    }
    Ok(weights)
}

/// Two answers at once, one greedy, one drawn.
pub fn run() -> Result<Vec<Vec<TokenId>>, Box<dyn Error>> {
    let graph = graph()?;
    let weights = weights(&graph)?;
    let model = OwnModel::new("toy", graph, weights).ends([END]);
    let builder = Engine::builder_of(model).device(Device::Cpu).compute(Compute::F32);
    let engine = builder.context_max(64).build()?;
    let prompts: [&[u32]; 2] = [&[1, 2, 3], &[30, 4, 17, 21, 8, 2, 2]];
    let requests = [0.0, 0.8].into_iter().zip(prompts).map(|(temperature, prompt)| {
        let prompt = prompt.iter().copied().map(TokenId).collect();
        Request::tokens(prompt).max_tokens(24).temperature(temperature).seed(5).top_logprobs(1)
    });
    let running = requests.map(|request| engine.submit(request)).collect::<Result<Vec<_>, _>>()?;
    let mut answers = Vec::new();
    for (generation, prompt) in running.into_iter().zip(prompts) {
        let mut text = prompt.to_vec();
        for event in generation {
            if let Event::Token(token) = event? {
                let found = token.logprobs.ok_or("log-probabilities were asked for")?;
                let naive = naive_logprobs(&text);
                let best = naive.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                for (name, found, naive) in
                    [("chosen", found.chosen, naive[token.id.index()]), ("best", found.top[0].1, best)]
                {
                    // Keys and values are kept in 16 bits.
                    assert!((found - naive).abs() < 0.02, "{name}: {found}, and naively {naive}");
                }
                text.push(token.id.0);
            }
        }
        println!("{prompt:?} goes on: {:?}", &text[prompt.len()..]);
        answers.push(text[prompt.len()..].iter().copied().map(TokenId).collect());
    }
    Ok(answers)
}

/// Log-probabilities of the next word, all computed again in f64.
fn naive_logprobs(text: &[u32]) -> Vec<f64> {
    let words = values("words", VOCAB * WIDTH);
    let word = |&id: &u32| words[id as usize * WIDTH..][..WIDTH].iter().map(|&x| f64::from(x)).collect();
    let mut rows: Vec<Vec<f64>> = text.iter().map(word).collect();
    for layer in 0..LAYERS {
        let named = |part: &str| format!("{layer}.{part}");
        let normed: Vec<_> = rows.iter().map(|x| naive_norm(x, &named("norm"))).collect();
        let [q, k, v] = ["q", "k", "v"].map(|part| -> Vec<Vec<f64>> {
            normed.iter().map(|x| naive_linear(x, &named(part), WIDTH)).collect()
        });
        for (at, x) in rows.iter_mut().enumerate() {
            for head in (0..WIDTH).step_by(HEADS.dim) {
                let score = |key: &Vec<f64>| (head..head + HEADS.dim).map(|i| q[at][i] * key[i]).sum::<f64>();
                let weights: Vec<f64> = k[..=at].iter().map(|key| score(key).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for i in head..head + HEADS.dim {
                    x[i] += v.iter().zip(&weights).map(|(v, weight)| v[i] * weight / sum).sum::<f64>();
                }
            }
            let up = naive_linear(&naive_norm(x, &named("mlp_norm")), &named("up"), HIDDEN);
            let up: Vec<f64> = up.into_iter().map(|x| x * normal(x)).collect();
            x.iter_mut().zip(naive_linear(&up, &named("down"), WIDTH)).for_each(|(x, y)| *x += y);
        }
    }
    let last = rows.last().map(|x| naive_norm(x, "norm")).unwrap_or_default();
    let logits = naive_linear(&last, "head", VOCAB);
    let sum = logits.iter().map(|x| x.exp()).sum::<f64>().ln();
    logits.into_iter().map(|x| x - sum).collect()
}

fn naive_linear(x: &[f64], name: &str, rows: usize) -> Vec<f64> {
    let matrix = values(name, rows * x.len());
    let dot = |row: &[f32]| row.iter().zip(x).map(|(w, x)| f64::from(*w) * x).sum();
    matrix.chunks_exact(x.len()).map(dot).collect()
}

fn naive_norm(x: &[f64], name: &str) -> Vec<f64> {
    let mean = x.iter().sum::<f64>() / x.len() as f64;
    let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = 1.0 / (variance + f64::from(EPS)).sqrt();
    x.iter().zip(values(name, x.len())).map(|(x, gain)| (x - mean) * scale * f64::from(gain)).collect()
}

/// The normal distribution, by the midpoint rule.
fn normal(x: f64) -> f64 {
    const PARTS: i32 = 400;
    let width = x / f64::from(PARTS);
    let bell = |part: i32| (-((f64::from(part) + 0.5) * width).powi(2) / 2.0).exp();
    0.5 + (0..PARTS).map(bell).sum::<f64>() * width / (2.0 * std::f64::consts::PI).sqrt()
}

fn main() -> Result<(), Box<dyn Error>> {
    assert_eq!(run()?, run()?, "drawn by their seeds");
    Ok(())
}
