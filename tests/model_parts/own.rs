//! A graph of one's own in the engine; `examples/own_model.rs` holds its answers against a naive computation.

use ottava::graph::{AttentionSpec, Graph, GraphError};
use ottava::ir::{Heads, Rows};
use ottava::model::OwnModel;
use ottava::quant::QuantFormat;
use ottava::session::NamedWeights;
use ottava::{Device, Engine, EngineBuilder, EngineConfig, KvBudget, Request, TokenId};

use crate::{Outcome, weights_of};

const VOCAB: usize = 20;
const HEADS: Heads = Heads { query: 2, kv: 1, dim: 8 };

/// A layer of attention between words and logits, as far as it is asked for.
fn decoder(attends: bool, of_outputs: bool, name: &str) -> Result<Graph, GraphError> {
    scaled(1.0, attends, of_outputs, name)
}

/// The same with its own scale of the attention.
fn scaled(scale: f32, attends: bool, of_outputs: bool, name: &str) -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let words = g.matrix("words", VOCAB, 16)?;
    let mut x = g.embed(words, 1.0)?;
    if attends {
        let kv = g.matrix("kv", 8, 16)?;
        let kv = g.matmul(x, kv)?;
        let spec = AttentionSpec { layer: 0, heads: HEADS, scale, window: None, soft_cap: None };
        let attended = g.attention(x, kv, kv, spec)?;
        x = g.add(x, attended)?;
    }
    let x = if of_outputs { g.outputs(x)? } else { x };
    let logits = g.matmul(x, words)?;
    g.output(name, logits)?;
    Ok(g)
}

fn builder(graph: Graph) -> Result<EngineBuilder, Box<dyn std::error::Error>> {
    let model = OwnModel::new("toy", graph.clone(), weights_of(&graph)?).ends([TokenId(3)]);
    Ok(Engine::builder_of(model).device(Device::Cpu).context_max(64))
}

#[test]
fn a_graph_runs_in_the_engine_by_token_ids() -> Outcome {
    let whole = || builder(decoder(true, true, "logits")?);
    let expected = whole()?.estimate()?;
    let engine = whole()?.build()?;
    let info = engine.info();
    assert_eq!((info.name.as_str(), info.parameters, info.file_bytes), ("toy", (20 * 16 + 8 * 16), 0));
    // Two contexts, whose keys and values are one head of 8 in f16.
    let kv_bytes = 2 * 64 * 2 * 8 * 2;
    assert_eq!((info.memory.kv_bytes, expected.kv_bytes), (kv_bytes, kv_bytes));
    assert_eq!(engine.vocab().stop_ids(), [TokenId(3)]);
    let ids: Vec<TokenId> = (0..40).map(|id| TokenId(id % VOCAB as u32)).collect();
    let ask = || engine.submit(Request::tokens(ids.clone()).max_tokens(6).ignore_eos());
    let (first, second) = (ask()?.text()?, ask()?.text()?);
    assert_eq!((first.tokens.len(), &first.tokens), (6, &second.tokens));
    assert_eq!(second.usage.cached_tokens, 32, "whole pages of the prompt");
    #[cfg(feature = "text")]
    {
        let error = engine.submit(Request::text("the den")).err().ok_or("there is no tokenizer")?;
        assert_eq!(error.kind(), ottava::ErrorKind::Unsupported, "{error}");
        assert!(error.to_string().starts_with("toy: text needs a tokenizer"), "{error}");
    }
    // What was saved belongs to these weights, and to this computation, however it is cut into steps.
    let folder = tempfile::tempdir()?;
    let kept = folder.path().join("kept");
    engine.save_prompt(&ids, &kept)?;
    assert_eq!(whole()?.build()?.restore_prompt(&kept)?, 40);
    let graph = decoder(true, true, "logits")?;
    let others = weights_of(&graph)?.dense("kv", [8, 16], vec![0.5; 8 * 16])?;
    let other = Engine::builder_of(OwnModel::new("toy", graph, others)).device(Device::Cpu).context_max(64);
    assert!(other.build()?.restore_prompt(&kept).is_err());
    let short = EngineConfig { prefill_chunk: Some(8), ..EngineConfig::default() };
    assert_eq!(whole()?.scheduling(short).build()?.restore_prompt(&kept)?, 40);
    let sharper = builder(scaled(2.0, true, true, "logits")?)?;
    assert!(sharper.build()?.restore_prompt(&kept).is_err());
    Ok(())
}

#[test]
fn a_graph_that_is_no_decoder_is_refused_by_what_it_lacks() -> Outcome {
    let refused = |builder: EngineBuilder, what: &str| {
        let error = builder.build().err().map(|error| error.to_string()).unwrap_or_default();
        assert!(error.contains(what), "{error}, and not {what}");
    };
    refused(builder(decoder(true, true, "scores")?)?, "it has no output `logits`");
    refused(builder(decoder(true, false, "logits")?)?, "not rows of outputs");
    refused(builder(decoder(false, true, "logits")?)?, "it has no attention");
    let whole = || builder(decoder(true, true, "logits")?);
    refused(whole()?.quantise("w8row".parse::<QuantFormat>()?), "not quantised");
    refused(whole()?.sidecar(), "not kept in a file");
    refused(whole()?.context_max(0), "context");
    refused(whole()?.kv(KvBudget::Bytes(100)), "100");
    let unnamed = OwnModel::new("toy", decoder(true, true, "logits")?, NamedWeights::new());
    refused(Engine::builder_of(unnamed).device(Device::Cpu), "weight matrix kv: expected [8, 16]");
    let mut stateful = decoder(true, true, "logits")?;
    stateful.state("past", 2, 2)?;
    refused(builder(stateful)?, "states of sequences");
    let mut pooled = decoder(true, true, "scores")?;
    let words = pooled.matrix("words", VOCAB, 16)?;
    let x = pooled.embed(words, 1.0)?;
    let mean = pooled.mean_rows(x)?;
    let logits = pooled.matmul(mean, words)?;
    pooled.output("logits", logits)?;
    refused(builder(pooled)?, "rows of a step are mixed");
    let mut narrow = Graph::new();
    let words = narrow.matrix("words", 4, 16)?;
    let x = narrow.embed(words, 1.0)?;
    let spec = AttentionSpec { layer: 0, heads: HEADS, scale: 1.0, window: None, soft_cap: None };
    let kv = narrow.matrix("kv", 8, 16)?;
    let kv = narrow.matmul(x, kv)?;
    let x = narrow.attention(x, kv, kv, spec)?;
    let x = narrow.outputs(x)?;
    assert_eq!(narrow.shape(x)?.0, Rows::Outputs);
    let head = narrow.matrix("head", VOCAB, 16)?;
    let logits = narrow.matmul(x, head)?;
    narrow.output("logits", logits)?;
    refused(builder(narrow)?, "cannot embed all tokens");
    Ok(())
}
