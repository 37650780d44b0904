//! Two programs of one graph: an encoder runs once over its frames, then a decoder token by token.

use ottava::TokenId;
use ottava::backend::{Backend, Reference};
use ottava::graph::{AttentionSpec, CompileOptions, Fusion, Graph, GraphError, Plan};
use ottava::ir::{KvDtype, KvLayout, PageId, PageRef, Precision, StepInput, StepLimits, StepSequence};
use ottava::session::{KvMemory, Session, SessionError};

use crate::{Builder, HEADS, Outcome, Values, WIDTH, attended, by_sequence, cpu, softmax, step, weights_of};

const VOCAB: usize = 10;
const FRAMES: [u32; 2] = [6, 11];
const TOKENS: [&[u32]; 2] = [&[3, 1, 4, 1, 5], &[9, 2, 6]];

/// `frames → encoded`, and `tokens, memory → y`; the encoder's norm is the decoder's too.
fn encoder_and_decoder() -> Result<Graph, GraphError> {
    let mut b = Builder(Graph::new());
    let axis = b.0.axis(0, 24);
    let frames = b.0.input("frames", axis, WIDTH)?;
    let own = b.attend(frames, frames, "encoder")?;
    let sum = b.0.add(frames, own)?;
    let encoded = b.layer_norm(sum, "norm")?;
    b.0.output("encoded", encoded)?;

    let table = b.0.matrix("table", VOCAB, WIDTH)?;
    let memory = b.0.input("memory", axis, WIDTH)?;
    let x = b.0.embed(table, 1.0)?;
    let [q, k, v] = ["q", "k", "v"].map(|part| b.linear(x, &format!("self.{part}"), WIDTH));
    let scale = 1.0 / (HEADS.dim as f32).sqrt();
    let spec = AttentionSpec { layer: 0, heads: HEADS, scale, window: None, soft_cap: None };
    let seen = b.0.attention(q?, k?, v?, spec)?;
    let x = b.0.add(x, seen)?;
    let h = b.layer_norm(x, "norm")?;
    let crossed = b.attend(h, memory, "cross")?;
    let y = b.0.add(x, crossed)?;
    b.0.output("y", y)?;
    Ok(b.0)
}

/// Outputs of the decoder for all tokens of a sequence over its encoded frames, with keys and values in f16.
fn decoded(tokens: &[u32], encoded: &Values) -> Values {
    let table = Values::named("table", VOCAB, WIDTH);
    let rows = tokens.iter().map(|&token| table.rows[token as usize].clone()).collect();
    let x = Values { cols: WIDTH, rows };
    let kept = |part: &str| {
        let values = x.linear(part, WIDTH);
        values.map(WIDTH, |row| row.iter().map(|&x| half::f16::from_f64(x).to_f64()).collect())
    };
    let (q, k, v) = (x.linear("self.q", WIDTH), kept("self.k"), kept("self.v"));
    let of_row = |row: usize| -> Vec<f64> {
        let of_head = |head: usize| {
            let part = head * HEADS.dim..(head + 1) * HEADS.dim;
            let score = |key: &Vec<f64>| {
                let products = q.rows[row][part.clone()].iter().zip(&key[part.clone()]).map(|(q, k)| q * k);
                products.sum::<f64>() / (HEADS.dim as f64).sqrt()
            };
            let weights = softmax(&k.rows[..=row].iter().map(score).collect::<Vec<_>>());
            let sum = |col: usize| v.rows.iter().zip(&weights).map(|(v, w)| v[col] * w).sum::<f64>();
            part.clone().map(sum).collect::<Vec<_>>()
        };
        (0..HEADS.query).flat_map(of_head).collect()
    };
    let seen = Values { cols: WIDTH, rows: (0..tokens.len()).map(of_row).collect() };
    let x = x.plus(&seen);
    x.plus(&attended(&x.layer_norm("norm"), encoded, "cross"))
}

fn plan<B: Backend>(backend: &B, graph: &Graph, tokens_max: usize) -> Result<Plan, GraphError> {
    graph.compile(&CompileOptions {
        limits: StepLimits { tokens_max, outputs_max: 0 },
        element_bytes: &|precision| backend.element_bytes(precision),
        fuse: Fusion::On,
        activations: Precision::F32,
    })
}

fn both_programs<B: Backend>(backend: B) -> Result<Session<B>, Box<dyn std::error::Error>> {
    let graph = encoder_and_decoder()?;
    let decoder = plan(&backend, &graph.program(&["y"])?, 16)?;
    let encoder = plan(&backend, &graph.program(&["encoded"])?, 0)?;
    assert_eq!(decoder.inputs().collect::<Vec<_>>(), ["memory"]);
    assert_eq!(encoder.inputs().collect::<Vec<_>>(), ["frames"]);
    assert!(encoder.kv().is_empty() && encoder.ops().len() < decoder.ops().len());
    let weights = weights_of(&graph)?.bind(&decoder, &backend)?;
    let layout = KvLayout { layers: 1, kv_heads: HEADS.kv, head_dim: HEADS.dim, dtype: KvDtype::F16 };
    let session = Session::new(backend, decoder, weights, Some(KvMemory { layout, pages: 2 }))?;
    Ok(session.with_program(encoder)?)
}

/// The next token, or all tokens, of each sequence that has one at `position`.
fn tokens_from(position: usize, count: usize) -> StepInput {
    let mut out = StepInput::default();
    let mut rows = Vec::new();
    for (index, tokens) in TOKENS.iter().enumerate() {
        let first = FRAMES[..index].iter().sum::<u32>();
        let start = out.tokens.len() as u32;
        let part = tokens.iter().enumerate().skip(position).take(count);
        part.for_each(|(position, &token)| {
            out.tokens.push(TokenId(token));
            out.positions.push(position as u32);
        });
        if out.tokens.len() as u32 > start {
            let page = index as u32;
            out.sequences.push(StepSequence {
                rows: start..out.tokens.len() as u32,
                pages: out.pages.len() as u32..out.pages.len() as u32 + 1,
                window: None,
            });
            out.pages.push(PageRef { page: PageId(page), start: 0 });
            rows.push(first..first + FRAMES[index]);
        }
    }
    out.axes = vec![ottava::ir::AxisRows { rows }];
    out
}

fn decode<B: Backend>(session: &mut Session<B>, step: &StepInput) -> Result<Vec<Vec<f32>>, SessionError> {
    session.main().run(step)?;
    let mut out = vec![0.0; step.tokens.len() * WIDTH];
    session.read("y", 0, &mut out)?;
    Ok(out.chunks(WIDTH).map(<[f32]>::to_vec).collect())
}

fn check_programs<B: Backend>(backend: B, tolerance: f64) -> Outcome {
    let frames = Values::named("frames", FRAMES.iter().sum::<u32>() as usize, WIDTH);
    let want = by_sequence(&frames, &FRAMES, |x, index| {
        decoded(TOKENS[index], &x.plus(&attended(x, x, "encoder")).layer_norm("norm"))
    });
    let mut session = both_programs(backend)?;
    let values: Vec<f32> = frames.rows.iter().flatten().map(|&x| x as f32).collect();
    let mut encoded = vec![0.0; values.len()];
    let mut encoder = session.program(1).ok_or("no second program")?;
    encoder.set_input("frames", &values)?;
    encoder.run(&step(&[0, 0], &FRAMES))?;
    encoder.read("encoded", 0, &mut encoded)?;
    session.main().set_input("memory", &encoded)?;

    let whole = decode(&mut session, &tokens_from(0, usize::MAX))?;
    let largest = want.rows.iter().flatten().fold(0.0f64, |max, x| max.max(x.abs()));
    for (found, want) in whole.iter().zip(&want.rows) {
        let error = found.iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
        assert!(error <= tolerance * largest, "{error:e} of {largest}");
    }
    assert_eq!(whole.len(), want.rows.len());
    // Token by token, while the encoder's memory stays as it was set.
    for position in 0..TOKENS[1].len() {
        let rows = decode(&mut session, &tokens_from(position, 1))?;
        assert_eq!(
            rows,
            [whole[position].clone(), whole[TOKENS[0].len() + position].clone()],
            "at {position}"
        );
    }
    let encoder = session.program(1).ok_or("no second program")?;
    assert_eq!(encoder.steps(), 1);
    let mut again = vec![0.0; encoded.len()];
    encoder.read("encoded", 0, &mut again)?;
    assert_eq!((again, session.steps()), (encoded, 1 + TOKENS[1].len() as u64));
    assert!(session.program(2).is_none());
    Ok(())
}

#[test]
fn an_encoder_runs_once_and_its_decoder_token_by_token() -> Outcome {
    check_programs(Reference, 1e-3)?;
    check_programs(cpu()?, 1e-3)
}

#[test]
fn programs_of_one_session_are_of_one_graph() -> Outcome {
    let graph = encoder_and_decoder()?;
    match graph.program(&["z"]) {
        Err(GraphError::UnknownOutput { name, known }) => assert_eq!((&*name, &*known), ("z", "encoded, y")),
        other => panic!("{other:?}"),
    }
    assert!(matches!(graph.program(&["y", "y"]), Err(GraphError::Duplicate { .. })));
    assert!(matches!(
        graph.program(&[]).map(|none| plan(&Reference, &none, 1)),
        Ok(Err(GraphError::NoOutput))
    ));
    // The program of all outputs is the graph.
    let all = plan(&Reference, &graph.program(&["encoded", "y"])?, 4)?;
    assert_eq!(all.to_string(), plan(&Reference, &graph, 4)?.to_string());

    let mut other = graph.clone();
    other.vector("more", 1)?;
    let stranger = plan(&Reference, &other.program(&["encoded"])?, 0)?;
    match both_programs(Reference)?.with_program(stranger) {
        Err(SessionError::Binding { what, .. }) => assert_eq!(what, "weights of another program"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    // The first plan's memory has no keys and values for the other's.
    let encoder = plan(&Reference, &graph.program(&["encoded"])?, 0)?;
    let weights = weights_of(&graph)?.bind(&encoder, &Reference)?;
    let decoder = plan(&Reference, &graph.program(&["y"])?, 4)?;
    match Session::new(Reference, encoder, weights, None)?.with_program(decoder) {
        Err(SessionError::Binding { what, .. }) => assert_eq!(what, "KV memory of another program"),
        other => panic!("{:?}", other.map(|_| ())),
    }
    // An encoder has no room for tokens.
    let mut session = both_programs(Reference)?;
    let mut encoder = session.program(1).ok_or("no second program")?;
    let said = encoder.run(&step(&[1, 1], &FRAMES)).expect_err("tokens").to_string();
    assert!(said.contains("2 tokens, expected 0 to 0"), "{said}");
    let said = session.main().run(&step(&[0, 0], &FRAMES)).expect_err("no tokens").to_string();
    assert!(said.contains("0 tokens, expected 1 to 16"), "{said}");
    Ok(())
}
