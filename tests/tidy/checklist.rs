//! Holds the checklist of a new operation (`docs/howto/operation.md`) against the operations there are: the files
//! that name every one of them are those that a new one is added to.

use std::collections::BTreeSet;

use super::lexer::{code_of, without_tests, words_of};
use super::{document, is_test_file, sources};

const CHECKLIST: &str = "docs/howto/operation.md";
/// Where operations are listed by their variants.
const TABLE: &str = "src/ir/ops/mod.rs";
/// Where cases are; `the_table_has_every_operation` sees to them.
const CASES: &str = "tests/op_table/table.rs";
/// Files that exist and must be touched for a new operation, at most.
const FILES_MAX: usize = 5;

#[test]
fn a_new_operation_is_added_to_the_files_of_the_checklist() {
    let sources = sources(&["src"]);
    let table = sources.iter().find(|source| source.path == TABLE).unwrap();
    let operations = operations(&table.text);
    assert!(operations.len() > 10, "found {operations:?} only");
    // Models reach an operation through the graph, which has words of its own.
    let of_backends = sources.iter().filter(|source| {
        source.path != TABLE && !source.path.starts_with("src/graph/") && !is_test_file(&source.path)
    });
    let naming = of_backends.filter(|source| operations.is_subset(&variants(&source.text)));
    let mut found: BTreeSet<&str> = naming.map(|source| &*source.path).collect();
    found.extend([TABLE, CASES]);
    let text = document(CHECKLIST);
    let listed: BTreeSet<&str> = listed(&text).collect();
    assert_eq!(found, listed, "files that name every operation, and those of {CHECKLIST}");
    assert!(listed.len() <= FILES_MAX, "expected at most {FILES_MAX} files, found {listed:?}");
}

/// The variants of the table's macro call.
fn operations(table: &str) -> BTreeSet<String> {
    let code = code_of(table);
    let (_, rows) = code.split_once("\noperations! {").expect("the table of operations");
    let (rows, _) = rows.split_once("\n}").expect("the table's end");
    rows.lines().filter_map(|row| Some(row.trim().split_once('(')?.0.to_owned())).collect()
}

/// All `X` of `Op::X` outside of tests.
fn variants(text: &str) -> BTreeSet<String> {
    let code = without_tests(&code_of(text));
    let words: Vec<(usize, &str)> = words_of(&code).collect();
    let pairs = words.windows(2).filter(|pair| {
        let [(at, word), (next, _)] = [pair[0], pair[1]];
        word == "Op" && &code[at + word.len()..next] == "::"
    });
    pairs.map(|pair| pair[1].1.to_owned()).collect()
}

/// The paths that begin the items between the checklist's marks.
fn listed(text: &str) -> impl Iterator<Item = &str> {
    let (_, rest) = text.split_once("<!-- files -->").expect("the list's first mark");
    let (items, _) = rest.split_once("<!-- /files -->").expect("the list's last mark");
    items.lines().filter_map(|item| item.strip_prefix("- `")?.split_once('`').map(|(path, _)| path))
}

#[test]
fn what_names_an_operation_and_what_lists_a_file_are_read() {
    let found =
        variants("match op { Op::Norm(op) => 1, Kind::Rope => 2 } // Op::Unary\nlet x = \"Op::Sample\";");
    assert_eq!(found, BTreeSet::from(["Norm".to_owned()]));
    let table =
        "operations! is below\noperations! {\n    Embed(Embed),\n    Norm(Normalize),\n}\nimpl Op {}\n";
    assert_eq!(operations(table), BTreeSet::from(["Embed".to_owned(), "Norm".to_owned()]));
    let text = "- `before.rs`: no\n<!-- files -->\n- `a.rs`: one\n- `b.rs`\n<!-- /files -->\n- `c.rs`";
    assert_eq!(listed(text).collect::<Vec<_>>(), ["a.rs", "b.rs"]);
}
