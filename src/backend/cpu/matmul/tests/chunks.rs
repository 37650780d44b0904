//! The division of several products' panels into chunks.

use crate::backend::cpu::matmul::*;
use crate::backend::cpu::pack::PANEL;
use crate::ir::Activation;

/// The panels of an operation in chunks of two, as pairs of product and panel. A product is given by its
/// first panel in the list, its number of panels, and its finish.
fn steps(products: &[(usize, usize, Finish)]) -> Vec<Vec<(usize, usize)>> {
    let args = |&(first_panel, panels, finish): &(usize, usize, Finish)| PanelArgs {
        rows: panels * PANEL - 1,
        finish,
        first_panel,
        ..PanelArgs::of_shape(1, 1, 64)
    };
    let panels = products.iter().map(|(first, panels, _)| first + panels).max().unwrap_or(0);
    let products: Vec<_> = products.iter().map(args).collect();
    let list = PanelList { isa: Isa::Portable, products: &products, panels, per_chunk: 2 };
    let number = |of: &PanelArgs| products.iter().position(|product| std::ptr::eq(product, of)).unwrap();
    let chunk = |chunk| list.steps(chunk).map(|(product, panel)| (number(product), panel)).collect();
    (0..=panels.div_ceil(2)).map(chunk).collect()
}

#[test]
fn a_chunk_goes_through_its_products_one_after_the_other() {
    let store = Finish::Store;
    let three = steps(&[(0, 3, store), (3, 1, store), (4, 1, store)]);
    assert_eq!(three, [vec![(0, 0), (0, 1)], vec![(0, 2), (1, 0)], vec![(2, 0)], vec![]]);
    let silu = Finish::Activate(Activation::Silu);
    let gated = steps(&[(0, 3, store), (0, 3, silu), (0, 3, Finish::Multiply), (3, 1, store)]);
    let first = vec![(0, 0), (0, 1), (1, 0), (1, 1), (2, 0), (2, 1)];
    assert_eq!(gated, [first, vec![(0, 2), (1, 2), (2, 2), (3, 0)], vec![]]);
}
