//! Keeps the written architecture and style true: file heads, layers, import cycles, paths in documents, sizes, the
//! wording of comments, and where `unsafe`, the environment and kernels' inline assembly may appear. It reads the
//! repository and nothing else. Every crate under `crates/` is checked; exemptions are lists of names.
//!
//! ARCHITECTURE.md holds the layering table between `<!-- layers -->` and `<!-- /layers -->`:
//! rows of `| module | may use |`, the second cell a list of module names set apart by commas
//! (or `nothing`). The lexing that makes all this safe against comments and strings is in
//! `tests/tidy/lexer.rs`, and is tested here like the other checkers.

#[path = "tidy/checklist.rs"]
mod checklist;
#[path = "tidy/cycles.rs"]
mod cycles;
#[path = "tidy/lexer.rs"]
mod lexer;
#[path = "tidy/prose.rs"]
mod prose;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use lexer::{code_of, is_word, line_of, without_tests, words_of};

/// Lines that a source file has at most, all counted.
const LINES_MAX: usize = 700;
/// Code lines that a source file has at most: no blank lines, comments or tests.
const CODE_LINES_MAX: usize = 400;
/// Code lines from which on a file is printed as a warning: it may hold two concepts.
const CODE_LINES_WARNED: usize = 300;
/// Files that are over a limit, with what they have now: these numbers only go down.
const OVERSIZED: &[(&str, Size)] = &[];
/// Crates exempt from the checks of cycles and of comments: the emulator is frozen.
const FROZEN_CRATES: &[&str] = &["crates/cuda-emu"];
/// Where `unsafe` may be written.
const UNSAFE_ALLOWED: &[&str] = &[
    "src/backend/cpu/",
    "src/backend/cpu.rs",
    "src/backend/cuda/",
    "src/checkpoint/source.rs",
    "crates/cuda-emu/src/driver/",
    "crates/cuda-emu/src/exec/",
    "crates/cuda-emu/src/memory/",
];
/// Where the environment may be read.
const ENVIRONMENT_ALLOWED: &[&str] = &["crates/cli/src/env.rs", "crates/cuda-emu/src/driver/options.rs"];
/// Where kernels may have inline assembly.
const ASSEMBLY_ALLOWED: &str = "kernels-cu/common/ptx.cuh";
/// Folders of documents. Not `benches`: records name what was there on their day.
const DOCUMENT_FOLDERS: &[&str] = &["docs", "src", "kernels-cu", "crates"];
/// Other documents; CHANGELOG.md names what has been.
const OTHER_DOCUMENTS: &[&str] =
    &["README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "benches/README.md", "benches/record/INDEX.md"];

/// How long a file is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Size {
    lines: usize,
    code: usize,
}

/// A source file, by its path from the repository's root with `/` between names.
struct Source {
    path: String,
    text: String,
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// All `.rs` files under `folders`, sorted.
fn sources(folders: &[&str]) -> Vec<Source> {
    files(folders, &["rs"])
}

/// All files under `folders` whose names end so, sorted.
fn files(folders: &[&str], extensions: &[&str]) -> Vec<Source> {
    let mut found = Vec::new();
    let mut pending: Vec<PathBuf> = folders.iter().map(|folder| root().join(folder)).collect();
    while let Some(folder) = pending.pop() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        for path in entries.map(|entry| entry.unwrap().path()) {
            if path.is_dir() {
                pending.push(path);
            } else if path.extension().is_some_and(|own| extensions.iter().any(|other| own == *other)) {
                let text = std::fs::read_to_string(&path).unwrap();
                let names: Vec<&str> =
                    path.strip_prefix(root()).unwrap().iter().map(|n| n.to_str().unwrap()).collect();
                found.push(Source { path: names.join("/"), text });
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    found
}

/// The folders of all crates under `crates/`, sorted.
fn crates() -> Vec<String> {
    let entries = std::fs::read_dir(root().join("crates")).unwrap().map(|entry| entry.unwrap());
    let packages = entries.filter(|entry| entry.path().join("Cargo.toml").exists());
    let mut found: Vec<String> =
        packages.map(|entry| format!("crates/{}", entry.file_name().to_str().unwrap())).collect();
    found.sort();
    found
}

/// The `src` folders of the library and of every crate.
fn libraries() -> Vec<String> {
    std::iter::once("src".into()).chain(crates().iter().map(|package| format!("{package}/src"))).collect()
}

fn library_sources() -> Vec<Source> {
    let folders = libraries();
    sources(&folders.iter().map(String::as_str).collect::<Vec<_>>())
}

fn all_sources() -> Vec<Source> {
    let packages = crates();
    let own = ["src", "tests", "benches", "examples", "fuzz/fuzz_targets"];
    sources(&own.into_iter().chain(packages.iter().map(String::as_str)).collect::<Vec<_>>())
}

fn is_test_file(path: &str) -> bool {
    path.split('/').any(|name| name == "tests" || name == "tests.rs" || name.ends_with("_tests.rs"))
}

/// A document of the root folder.
fn document(name: &str) -> String {
    std::fs::read_to_string(root().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn tidy(problems: Vec<String>) {
    assert!(problems.is_empty(), "{} problems:\n{}", problems.len(), problems.join("\n"));
}

#[test]
fn every_file_opens_by_saying_what_lives_in_it() {
    let all = all_sources();
    assert!(all.len() > 10, "found {} files only", all.len());
    let silent = all.iter().filter(|source| !source.text.starts_with("//!"));
    tidy(silent.map(|source| format!("{}:1: expected the file to open with `//!`", source.path)).collect());
}

#[test]
fn no_file_outgrows_its_reader() {
    let oversized: BTreeMap<&str, Size> = OVERSIZED.iter().copied().collect();
    let all = all_sources();
    let mut problems: Vec<String> = all
        .iter()
        .filter_map(|source| size_problem(&source.path, size_of(source), oversized.get(&*source.path)))
        .collect();
    let exists = |path: &str| all.iter().any(|source| source.path == path);
    let gone = oversized.keys().filter(|path| !exists(path));
    problems.extend(gone.map(|path| format!("{path}:1: gone; take it off OVERSIZED")));
    for source in &all {
        let code = size_of(source).code;
        if code > CODE_LINES_WARNED {
            // Written to the handle: libtest captures `eprintln!` of a test that passes.
            let mut out = std::io::stderr();
            let _ = writeln!(out, "warning: {}: {code} code lines, above {CODE_LINES_WARNED}", source.path);
        }
    }
    tidy(problems);
}

/// Tests are as long as they need to be, up to the limit on all lines.
fn size_of(source: &Source) -> Size {
    let in_library = source.path.starts_with("src/") || source.path.contains("/src/");
    let counts = in_library && !is_test_file(&source.path);
    let code = if counts { without_tests(&code_of(&source.text)) } else { String::new() };
    Size {
        lines: source.text.lines().count(),
        code: code.lines().filter(|line| !line.trim().is_empty()).count(),
    }
}

fn size_problem(path: &str, found: Size, excused: Option<&Size>) -> Option<String> {
    let fits = found.lines <= LINES_MAX && found.code <= CODE_LINES_MAX;
    match excused {
        None if fits => None,
        None => Some(format!(
            "{path}:1: {} lines, {} of them code; expected at most {LINES_MAX} and {CODE_LINES_MAX}: split it",
            found.lines, found.code
        )),
        Some(_) if fits => Some(format!("{path}:1: fits now; take it off OVERSIZED")),
        Some(&excused) if excused == found => None,
        Some(excused) => {
            Some(format!("{path}:1: {found:?}, but OVERSIZED says {excused:?}: it may only shrink"))
        }
    }
}

#[test]
fn unsafe_and_the_environment_stay_in_their_files() {
    let mut problems = Vec::new();
    for source in library_sources() {
        let code = code_of(&source.text);
        let allowed = |places: &[&str]| places.iter().any(|place| source.path.starts_with(place));
        if !allowed(UNSAFE_ALLOWED) {
            let found = words_of(&code).filter(|&(_, word)| word == "unsafe");
            problems.extend(found.map(|(at, _)| {
                format!("{}:{}: `unsafe` outside {UNSAFE_ALLOWED:?}", source.path, line_of(&code, at))
            }));
        }
        if !allowed(ENVIRONMENT_ALLOWED) {
            problems.extend(environment_uses(&code).into_iter().map(|at| {
                format!(
                    "{}:{}: the environment is read in {ENVIRONMENT_ALLOWED:?} only",
                    source.path,
                    line_of(&code, at)
                )
            }));
        }
    }
    tidy(problems);
}

#[test]
fn inline_assembly_stays_in_its_file() {
    let kernels = files(&["kernels-cu"], &["cu", "cuh"]);
    let (own, others): (Vec<_>, Vec<_>) = kernels.iter().partition(|file| file.path == ASSEMBLY_ALLOWED);
    assert!(own.iter().any(|file| !assembly_uses(&file.text).is_empty()), "{ASSEMBLY_ALLOWED} has none");
    assert!(others.len() > 10, "found {} files only", others.len());
    let uses =
        others.iter().flat_map(|file| assembly_uses(&file.text).into_iter().map(|line| (&file.path, line)));
    tidy(
        uses.map(|(path, line)| format!("{path}:{line}: inline assembly outside {ASSEMBLY_ALLOWED}"))
            .collect(),
    );
}

/// Lines with inline assembly.
fn assembly_uses(text: &str) -> Vec<usize> {
    let code = code_of(text);
    let found = words_of(&code).filter(|(_, word)| ["asm", "__asm", "__asm__"].contains(word));
    found.map(|(at, _)| line_of(&code, at)).collect()
}

/// Where `env::var`, `env::vars`, `env::var_os`, … or an import from `env` stands.
fn environment_uses(code: &str) -> Vec<usize> {
    let after_env = |at: usize| code[at + "env".len()..].strip_prefix("::").is_some_and(reads_environment);
    words_of(code).filter(|&(at, word)| word == "env" && after_env(at)).map(|(at, _)| at).collect()
}

fn reads_environment(rest: &str) -> bool {
    let end = rest.find(|c| !is_word(c)).unwrap_or(rest.len());
    let imports = rest.strip_prefix('{').and_then(|rest| rest.split('}').next()).unwrap_or("");
    let mut names = std::iter::once(&rest[..end]).chain(imports.split(',').map(str::trim));
    names.any(|name| name.starts_with("var") || name == "set_var" || name == "remove_var")
}

#[test]
fn the_documents_name_only_paths_that_exist() {
    let all = documents();
    assert!(all.len() > 20, "found {} documents only", all.len());
    let mut problems = Vec::new();
    for Source { path: name, text } in &all {
        let folder = Path::new(name).parent().unwrap();
        let begins = [Path::new(""), folder, &folder.join("src")].map(|begin| root().join(begin));
        let missing = |path: &String| !begins.iter().any(|begin| begin.join(path).exists());
        let named = named_paths(text).into_iter().filter(|(_, path)| missing(path));
        // A link is relative to its document alone.
        let broken = |link: &String| !root().join(folder).join(link).exists();
        let links = links(text).into_iter().filter(|(_, link)| broken(link));
        problems.extend(
            named
                .chain(links)
                .map(|(line, path)| format!("{name}:{line}: there is no `{path}` in the repository")),
        );
    }
    tidy(problems);
}

/// All documents whose paths must exist.
fn documents() -> Vec<Source> {
    let mut all = files(DOCUMENT_FOLDERS, &["md"]);
    for name in OTHER_DOCUMENTS {
        all.push(Source { path: (*name).into(), text: document(name) });
    }
    all
}

/// Targets of links to files, without anchors, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in (1..).zip(text.lines()) {
        let targets = text.split("](").skip(1).filter_map(|rest| rest.split([')', '#']).next());
        let files = targets.filter(|target| !target.is_empty() && !target.contains("://"));
        found.extend(files.map(|target| (line, target.to_owned())));
    }
    found
}

/// Words in single backticks that look like a path of the repository, with their lines. Fenced
/// blocks are left alone.
fn named_paths(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (line, text) in (1..).zip(text.lines()) {
        if text.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if !fenced {
            let quoted = text.split('`').skip(1).step_by(2).filter(|word| looks_like_a_path(word));
            found.extend(quoted.map(|word| (line, word.to_owned())));
        }
    }
    found
}

fn looks_like_a_path(word: &str) -> bool {
    let names_a_file = [".rs", ".sh", ".toml", ".md"].iter().any(|end| word.ends_with(end));
    let is_elsewhere = ["http", "/", "~", "<", "-", "."].iter().any(|start| word.starts_with(start));
    let is_no_path = word.contains(|c: char| c.is_whitespace() || "*?{}[]<>$=:;,|()\"'".contains(c));
    let is_a_rate = word.ends_with("/s");
    (word.contains('/') || names_a_file) && !is_elsewhere && !is_no_path && !is_a_rate
}

/// From a module to those it may use.
type Layers = BTreeMap<String, BTreeSet<String>>;

#[test]
fn modules_use_only_the_layers_below_them() {
    let text = document("ARCHITECTURE.md");
    let layers = parse_layers(&text).unwrap_or_else(|problem| panic!("ARCHITECTURE.md:{problem}"));
    let sources = sources(&["src"]);
    let modules: BTreeSet<&str> = sources.iter().filter_map(|source| module_of(&source.path)).collect();
    let mut problems = Vec::new();
    for module in &modules {
        if !layers.contains_key(*module) {
            problems.push(format!("ARCHITECTURE.md: the layering table has no row for `{module}`"));
        }
    }
    for name in layers.iter().flat_map(|(module, below)| below.iter().chain([module])) {
        if !modules.contains(name.as_str()) {
            problems.push(format!(
                "ARCHITECTURE.md: the layering table names `{name}`, which is no module of src/"
            ));
        }
    }
    let library = sources.iter().find(|source| source.path == "src/lib.rs").unwrap();
    let reexports = reexports(&code_of(&library.text));
    for source in sources.iter().filter(|source| !is_test_file(&source.path)) {
        let Some(module) = module_of(&source.path) else { continue };
        let code = without_tests(&code_of(&source.text));
        for (at, name) in crate_paths(&code) {
            let used = reexports.get(&name).unwrap_or(&name);
            let known = modules.contains(used.as_str()) && used != module;
            if known && !layers.get(module).is_some_and(|below| below.contains(used)) {
                let (path, line) = (&source.path, line_of(&code, at));
                problems.push(format!(
                    "{path}:{line}: `{module}` may not use `{used}` (table in ARCHITECTURE.md)"
                ));
            }
        }
    }
    tidy(problems);
}

#[test]
fn no_files_use_each_other_in_a_ring() {
    let code = |source: &Source| without_tests(&code_of(&source.text));
    let mut problems = Vec::new();
    for library in libraries().iter().filter(|library| !is_frozen(library)) {
        let sources = sources(&[library.as_str()]);
        assert!(!sources.is_empty(), "{library} has no files");
        let own = sources.iter().filter(|source| !is_test_file(&source.path));
        let files =
            own.filter_map(|source| Some((cycles::module_path(&source.path)?, code(source)))).collect();
        for ring in cycles::rings(&files) {
            let names: Vec<String> = ring.iter().map(|module| module.join("::")).collect();
            problems.push(format!("{library}: {} files use each other: {}", ring.len(), names.join(", ")));
        }
    }
    tidy(problems);
}

fn is_frozen(path: &str) -> bool {
    FROZEN_CRATES.iter().any(|package| Path::new(path).starts_with(package))
}

/// The module that a file of `src/` belongs to; none for the library's table of contents.
fn module_of(path: &str) -> Option<&str> {
    let first = path.strip_prefix("src/")?.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first)).filter(|&module| module != "lib")
}

/// The layering table; the error begins with its line.
fn parse_layers(text: &str) -> Result<Layers, String> {
    let marks = |mark: &str| text.lines().position(|line| line.trim() == mark);
    let (start, end) = match (marks("<!-- layers -->"), marks("<!-- /layers -->")) {
        (Some(start), Some(end)) if start < end => (start, end),
        _ => return Err("1: expected a table between `<!-- layers -->` and `<!-- /layers -->`".into()),
    };
    let mut layers = Layers::new();
    for (line, text) in (1..).zip(text.lines()).take(end).skip(start + 1) {
        let text = text.trim();
        let Some(row) = text.strip_prefix('|').and_then(|text| text.strip_suffix('|')) else {
            if text.is_empty() {
                continue;
            }
            return Err(format!("{line}: expected a row `| module | may use |`, found `{text}`"));
        };
        let cells: Vec<String> = row.split('|').map(|cell| cell.replace('`', "").trim().to_owned()).collect();
        let [module, below] = cells.as_slice() else {
            return Err(format!("{line}: expected 2 cells, found {}", cells.len()));
        };
        if module == "module" || module.chars().all(|c| c == '-' || c == ':') {
            continue;
        }
        let names =
            below.split(',').map(str::trim).filter(|name| !["", "nothing", "-", "–", "—"].contains(name));
        if layers.insert(module.clone(), names.map(str::to_owned).collect()).is_some() {
            return Err(format!("{line}: a second row for `{module}`"));
        }
    }
    if layers.is_empty() { Err(format!("{}: an empty table", start + 1)) } else { Ok(layers) }
}

/// The first names behind `crate::` (and `ottava::`, for the program), each with its place.
fn crate_paths(code: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (at, word) in words_of(code).filter(|&(_, word)| word == "crate" || word == "ottava") {
        let Some(rest) = code[at + word.len()..].strip_prefix("::") else { continue };
        found.extend(first_names(rest).into_iter().map(|name| (at, name)));
    }
    found
}

/// `a` of `a::b::c`; `a` and `b` of `{a::{x, y}, b as c}`.
fn first_names(path: &str) -> Vec<String> {
    let name = |path: &str| {
        let path = path.trim_start();
        path[..path.find(|c| !is_word(c)).unwrap_or(path.len())].to_owned()
    };
    let names = if path.starts_with('{') {
        split_group(path).into_iter().map(name).collect()
    } else {
        vec![name(path)]
    };
    names.into_iter().filter(|name| !name.is_empty()).collect()
}

/// The parts of a `{…, …}` group, cut at its own commas.
fn split_group(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0, 1, Vec::new());
    for (at, c) in text.char_indices() {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ => {}
        }
        if depth == 0 || (depth == 1 && c == ',') {
            parts.push(&text[start..at]);
            start = at + 1;
        }
        if depth == 0 {
            break;
        }
    }
    parts
}

/// From a name that the library re-exports to the module it comes from.
fn reexports(library: &str) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    for statement in library.split(';') {
        let Some((_, path)) = statement.split_once("pub use ") else { continue };
        let Some((module, rest)) = path.trim().split_once("::") else { continue };
        let parts = if let Some(at) = rest.find('{') { split_group(&rest[at..]) } else { vec![rest] };
        for part in parts {
            let last = part.rsplit([':', ' ']).find(|word| !word.is_empty());
            found.extend(last.map(|name| (name.trim().to_owned(), module.to_owned())));
        }
    }
    found
}

#[test]
fn sizes_are_counted_without_comments_blanks_and_tests() {
    let text = "//! Head.\n\nuse a;\n// note\nfn f() {\n    /* long\n       note */ g();\n}\n#[cfg(test)]\nmod tests {\n    fn t() {}\n}\n";
    let source = |path: &str| Source { path: path.into(), text: text.into() };
    assert_eq!(size_of(&source("src/a.rs")), Size { lines: 12, code: 4 });
    assert_eq!(size_of(&source("src/a/tests.rs")), Size { lines: 12, code: 0 });
    assert_eq!(size_of(&source("tests/a.rs")), Size { lines: 12, code: 0 });
}

#[test]
fn the_size_ratchet_only_turns_one_way() {
    let size = |lines, code| Size { lines, code };
    let speaks = |found, excused: Option<Size>| size_problem("a.rs", found, excused.as_ref());
    assert_eq!(speaks(size(700, 400), None), None);
    assert!(speaks(size(701, 1), None).unwrap().contains("split it"));
    assert!(speaks(size(500, 401), None).unwrap().starts_with("a.rs:1: 500 lines, 401 of them code"));
    assert_eq!(speaks(size(600, 500), Some(size(600, 500))), None);
    assert!(speaks(size(600, 501), Some(size(600, 500))).unwrap().contains("only shrink"));
    assert!(speaks(size(600, 499), Some(size(600, 500))).unwrap().contains("only shrink"));
    assert!(speaks(size(600, 400), Some(size(600, 500))).unwrap().contains("take it off"));
}

#[test]
fn the_environment_is_found_however_it_is_read() {
    let uses = |code: &str| environment_uses(&code_of(code)).len();
    assert_eq!(uses("std::env::var(\"A\"); env::vars(); std::env::var_os(x); env::set_var(a, b)"), 4);
    assert_eq!(uses("use std::env::{args, var};"), 1);
    assert_eq!(uses("env!(\"A\"); std::env::args(); std::env::temp_dir(); // env::var\n\"env::var\""), 0);
    assert_eq!(
        uses("crate::env::threads(); crate::env::various()"),
        1,
        "a name that begins with var is suspect"
    );
}

#[test]
fn inline_assembly_is_found_and_talk_of_it_is_not() {
    let text = "// asm is elsewhere\nasm(\"x;\");\nint asmodeus = 1;\n__asm__ volatile(\"asm\");\nint x; asm volatile (\"\");\n";
    assert_eq!(assembly_uses(text), [2, 4, 5]);
}

#[test]
fn paths_in_documents_are_told_from_other_words() {
    let text = "See `src/kv/mod.rs` and `build.rs`, not `a b/c`.\n```\n`src/none.rs`\n```\n`GB/s` `/tmp/x` `~/x.md` \
                `https://a/b` `<out>/a` `src/*.rs` `a::b/c` `--x/y` `cargo test` `ci/`";
    let expected = [(1, "src/kv/mod.rs"), (1, "build.rs"), (5, "ci/")];
    assert_eq!(named_paths(text), expected.map(|(line, path)| (line, path.to_owned())));
}

#[test]
fn links_to_files_are_told_from_others() {
    let text = "[a](docs/a.md) and ![b](b.svg)\n[c](https://x/y) [d](#here) [e](../e.md#there)";
    let expected = [(1, "docs/a.md"), (1, "b.svg"), (2, "../e.md")];
    assert_eq!(links(text), expected.map(|(line, path)| (line, path.to_owned())));
}

#[test]
fn the_layering_table_is_read_or_refused_with_its_line() {
    let table = |rows: &str| format!("# A\n<!-- layers -->\n{rows}\n<!-- /layers -->\n");
    let layers =
        parse_layers(&table("| module | may use |\n|---|:--|\n| `a` | `b`, c |\n| b | nothing |\n| c | |"))
            .unwrap();
    let below = |module: &str| layers[module].iter().map(String::as_str).collect::<Vec<_>>();
    assert_eq!((below("a"), below("b"), below("c")), (vec!["b", "c"], vec![], vec![]));
    let refused = |rows: &str| parse_layers(&table(rows)).unwrap_err();
    assert!(refused("| a | b |\n| a | c |").starts_with("4: a second row"));
    assert!(refused("| a | b | c |").starts_with("3: expected 2 cells"));
    assert!(refused("| a | b |\nwords").starts_with("4: expected a row"));
    assert!(refused("|---|---|").starts_with("2: an empty table"));
    assert!(parse_layers("no table").unwrap_err().contains("expected a table"));
}

#[test]
fn crate_paths_are_found_in_uses_groups_and_expressions() {
    let names = |code: &str| {
        let code = without_tests(&code_of(code));
        crate_paths(&code).into_iter().map(|(at, name)| (line_of(&code, at), name)).collect::<Vec<_>>()
    };
    let code = "use crate::kv::A;\nuse crate::{graph::{B, C}, TokenId, model as m};\nlet x = crate::sample::f();\n\
                // crate::text\nlet s = \"crate::engine\";\npub(crate) fn f() {}\n#[cfg(test)]\nmod tests { use crate::api; }\n\
                use ottava::cli;";
    let expected = [(1, "kv"), (2, "graph"), (2, "TokenId"), (2, "model"), (3, "sample"), (9, "cli")];
    assert_eq!(names(code), expected.map(|(line, name)| (line, name.to_owned())));
    let library = "mod token;\npub use token::TokenId;\npub use engine::{Handle, stats::Stats as Counts};\npub use kv::a::B;";
    let from = reexports(library);
    let from: Vec<_> = from.iter().map(|(name, module)| (name.as_str(), module.as_str())).collect();
    assert_eq!(from, [("B", "kv"), ("Counts", "engine"), ("Handle", "engine"), ("TokenId", "token")]);
    assert_eq!(module_of("src/kv/page.rs"), Some("kv"));
    assert_eq!((module_of("src/token.rs"), module_of("src/lib.rs")), (Some("token"), None));
}

#[test]
fn rings_are_found_through_what_parents_pass_on() {
    let rings = |files: &[(&str, &str)]| {
        let files = files.iter().map(|(path, code)| (cycles::module_path(path).unwrap(), (*code).to_owned()));
        let found = cycles::rings(&files.collect());
        found.iter().map(|ring| ring.iter().map(|m| m.join("::")).collect::<Vec<_>>()).collect::<Vec<_>>()
    };
    let parent = ("src/a/mod.rs", "mod b;\nmod c;\npub use b::B;\npub use c::{C, D as E};");
    let none: [Vec<String>; 0] = [];
    // A parent and its children may know each other, and what it passes on is the child's.
    assert_eq!(
        rings(&[parent, ("src/a/b.rs", "struct B;"), ("src/a/c.rs", "use super::B;\nstruct C; struct D;")]),
        none
    );
    let ring = [
        parent,
        ("src/a/b.rs", "struct B; fn f() -> super::E {}"),
        ("src/a/c.rs", "use crate::a::B;\nstruct C; struct D;"),
    ];
    assert_eq!(rings(&ring), [["a::b", "a::c"]]);
    let of_three = [
        ("src/x.rs", "use crate::y::Y; enum X {}"),
        ("src/y.rs", "type Y = crate::z::Z;"),
        ("src/z.rs", "use crate::x; struct Z;"),
    ];
    assert_eq!(rings(&of_three), [["x", "y", "z"]]);
    assert_eq!(rings(&of_three[..2]), none);
}

#[test]
fn the_lexer_blanks_comments_and_strings_and_nothing_else() {
    let cases = [
        ("a // b\nc", "a     \nc"),
        ("a /* b /* c */ d */ e", "a                   e"),
        (r#"f("x\"// y") g"#, r#"f("_______") g"#),
        (r##"r#"a"b"# c"##, r##"r#"___"# c"##),
        ("'\"' 'a '\\'' b'x'", "'_' 'a '__' b'_'"),
        ("fn f<'a>(x: &'a str) {}", "fn f<'a>(x: &'a str) {}"),
        ("\"open\n// still\" unsafe", "\"____\n________\" unsafe"),
        ("br\"\\\" unsafe", "br\"_\" unsafe"),
    ];
    for (text, expected) in cases {
        assert_eq!(code_of(text), expected, "{text}");
    }
    let words: Vec<&str> = words_of("unsafe_code unsafe{} x").map(|(_, word)| word).collect();
    assert_eq!(words, ["unsafe_code", "unsafe", "x"]);
}

#[test]
fn test_items_end_where_their_braces_or_semicolons_do() {
    let kept = |code: &str| without_tests(code).split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(kept("a; #[cfg(test)] mod t { fn f() { } } b;"), "a; b;");
    assert_eq!(kept("#[cfg(test)]\nmod tests;\nb;"), "b;");
    assert_eq!(kept("#[cfg(all(test, unix))] use x::{y, z}; b;"), "b;");
    assert_eq!(kept("#[cfg(test)] #[path = \"_\"] mod tests; b;"), "b;");
    assert_eq!(
        kept("#[cfg(testing)] mod t {} #[cfg(not(test))] fn f() {}"),
        "#[cfg(testing)] mod t {} #[cfg(not(test))] fn f() {}"
    );
}
