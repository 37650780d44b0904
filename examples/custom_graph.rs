//! A model of your own: a two-layer classifier that answers XOR, built, compiled and run on the
//! reference backend. `cargo run --example custom_graph`

use ottava::backend::{Backend, Reference};
use ottava::graph::{CompileOptions, Fusion, Graph, GraphError};
use ottava::ir::{Precision, Rows, StepInput, StepLimits};
use ottava::session::{NamedWeights, Session, SessionError};

/// Hidden features are "x or y" and "x and y"; the classes are "equal" and "different".
const HIDDEN: [f32; 4] = [10.0, 10.0, 10.0, 10.0];
const HIDDEN_BIAS: [f32; 2] = [-5.0, -15.0];
const CLASSES: [f32; 4] = [-4.0, 4.0, 4.0, -4.0];
const CLASSES_BIAS: [f32; 2] = [4.0, -4.0];

/// Four points, a row each.
const POINTS: [f32; 8] = [0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0];

fn classifier() -> Result<Graph, GraphError> {
    let mut g = Graph::new();
    let (hidden, hidden_bias) = (g.matrix("hidden", 2, 2)?, g.vector("hidden.bias", 2)?);
    let (classes, classes_bias) = (g.matrix("classes", 2, 2)?, g.vector("classes.bias", 2)?);
    let x = g.input("points", Rows::Fixed(4), 2)?;
    let h = g.matmul_bias(x, hidden, hidden_bias)?;
    let h = g.soft_cap(h, 1.0)?; // tanh
    let y = g.matmul_bias(h, classes, classes_bias)?;
    let y = g.softmax(y)?;
    g.output("probabilities", y)?;
    Ok(g)
}

/// By the graph's names, in any order.
fn weights() -> Result<NamedWeights, SessionError> {
    let weights = NamedWeights::new().vector("hidden.bias", HIDDEN_BIAS).vector("classes.bias", CLASSES_BIAS);
    weights.dense("hidden", [2, 2], HIDDEN.to_vec())?.dense("classes", [2, 2], CLASSES.to_vec())
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let backend = Reference;
    let plan = classifier()?.compile(&CompileOptions {
        limits: StepLimits { tokens_max: 1, outputs_max: 1 },
        element_bytes: &|precision| backend.element_bytes(precision),
        fuse: Fusion::On,
        activations: Precision::F32,
    })?;
    println!("{plan}");

    let weights = weights()?.bind(&plan, &backend)?;
    let mut session = Session::new(backend, plan, weights, None)?;
    session.main().set_input("points", &POINTS)?;
    session.main().run(&StepInput::default())?;
    let mut probabilities = [0.0; 8];
    session.read("probabilities", 0, &mut probabilities)?;

    for (point, row) in POINTS.chunks_exact(2).zip(probabilities.chunks_exact(2)) {
        let answer = if row[1] > row[0] { "different" } else { "equal" };
        println!("{} {}: {answer} ({:.4})", point[0], point[1], row[0].max(row[1]));
        assert_eq!(row[1] > row[0], point[0] != point[1], "the classifier answers XOR");
    }
    Ok(())
}
