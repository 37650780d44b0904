//! Every opcode form that the decoder knows, against what the PTX manual says of it: a table of rows
//! (`conformance/row.rs`), a file per family. Expected values are computed exactly, in wide integers
//! or as exact rationals, and share no code with the emulator.

#[path = "conformance/assembler.rs"]
mod assembler;
#[path = "conformance/number.rs"]
mod number;
#[path = "conformance/row.rs"]
mod row;
#[path = "conformance/run.rs"]
mod run;
#[path = "conformance/table.rs"]
mod table;
#[path = "conformance/values.rs"]
mod values;

use row::Row;

/// Runs all rows, each by the vector instructions and by the plain loop.
#[test]
fn rows_hold() {
    let mut failed = Vec::new();
    let rows = table::rows();
    println!(
        "{} rows, {} forms",
        rows.len(),
        rows.iter().map(|r| &r.form).collect::<std::collections::HashSet<_>>().len()
    );
    for row in &rows {
        for portable in [false, true] {
            if let Some(reason) = failure(row, portable) {
                failed.push(format!("{}: {reason}", row.form));
                break;
            }
        }
    }
    assert!(failed.is_empty(), "{} of {} rows:\n{}", failed.len(), rows.len(), failed.join("\n"));
}

fn failure(row: &Row, portable: bool) -> Option<String> {
    match run::emulate(row, portable) {
        Ok((results, memory)) => row.mismatch(&results, &memory),
        Err(reason) => Some(reason),
    }
}

/// The rows are what NVIDIA's assembler takes: needs `ptxas` in the path, a few minutes.
#[test]
#[ignore = "needs ptxas"]
fn the_assembler_takes_all_rows() {
    let refused = assembler::refused(&table::rows()).expect("ptxas in the path");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}
