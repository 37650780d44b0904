//! Which files use which, and the rings in that. A name counts as used from the file that defines it: what a
//! parent only passes on (`pub use`) makes no arrow to the parent. A module and those inside it may know each other.

use std::collections::{BTreeMap, BTreeSet};

use super::lexer::{is_word, words_of};

/// A module's path: `["kv", "snapshot"]` of `crate::kv::snapshot`.
pub type Module = Vec<String>;

/// What a file says.
#[derive(Default)]
struct File {
    /// Names that it imports or passes on, with the paths behind them; `*` for all of a module.
    imports: Vec<(String, Vec<String>)>,
    /// Paths in its code.
    paths: Vec<Vec<String>>,
    defines: BTreeSet<String>,
}

/// The module of a file of a crate's `src` folder; the library's own is the empty path.
pub fn module_path(path: &str) -> Option<Module> {
    let (_, name) = path.split_once("src/")?;
    let name = name.strip_suffix(".rs")?;
    let name = name.strip_suffix("/mod").unwrap_or(name);
    if name == "main" {
        return None;
    }
    Some(if name == "lib" { Vec::new() } else { name.split('/').map(str::to_owned).collect() })
}

/// The rings of files that use each other, each sorted. `files` are modules with their code, without comments and tests.
pub fn rings(files: &BTreeMap<Module, String>) -> Vec<Vec<Module>> {
    let parsed: BTreeMap<&Module, File> =
        files.iter().map(|(module, code)| (module, parse(module, code, files))).collect();
    let reached = |module: &Module| {
        let file = &parsed[module];
        let paths = file.imports.iter().map(|(_, path)| path).chain(&file.paths);
        let found = paths.filter_map(|path| definer(&absolute(module, path, &parsed)?, &parsed, 0));
        found
            .filter(|other| !other.is_empty() && !other.starts_with(module) && !module.starts_with(other))
            .collect()
    };
    let uses: BTreeMap<&Module, BTreeSet<Module>> =
        files.keys().map(|module| (module, reached(module))).collect();
    let below: BTreeMap<&Module, BTreeSet<&Module>> =
        uses.keys().map(|module| (*module, closure(module, &uses))).collect();
    let mut found: Vec<Vec<Module>> = Vec::new();
    for (&module, reached) in &below {
        let ring: Vec<Module> =
            reached.iter().filter(|other| below[**other].contains(module)).map(|&m| m.clone()).collect();
        if ring.len() > 1 && !found.contains(&ring) {
            found.push(ring);
        }
    }
    found
}

/// All that `module` uses, directly or through others.
fn closure<'m>(module: &'m Module, uses: &'m BTreeMap<&Module, BTreeSet<Module>>) -> BTreeSet<&'m Module> {
    let (mut seen, mut pending) = (BTreeSet::new(), vec![module]);
    while let Some(module) = pending.pop() {
        pending.extend(uses[module].iter().filter(|other| seen.insert(*other)));
    }
    seen
}

fn parse(module: &Module, code: &str, files: &BTreeMap<Module, String>) -> File {
    let mut file = File::default();
    let is_child = |word: &str| files.contains_key(&[module.as_slice(), &[word.to_owned()]].concat());
    let mut before = "";
    let mut statement_ends = 0;
    for (at, word) in words_of(code) {
        if at < statement_ends {
            continue;
        }
        let rest = &code[at + word.len()..];
        if word == "use" && rest.starts_with(char::is_whitespace) {
            let statement = &rest[..rest.find(';').unwrap_or(rest.len())];
            statement_ends = at + word.len() + statement.len();
            import(statement, &[], &mut file.imports);
        } else if ["struct", "enum", "fn", "trait", "const", "static", "type", "union", "macro_rules"]
            .contains(&before)
        {
            file.defines.insert(word.to_owned());
        } else if starts_here(code, at, word)
            && (["crate", "self", "super"].contains(&word) || is_child(word))
        {
            let path = &code[at..];
            let end = path.find(|c| !is_word(c) && c != ':').unwrap_or(path.len());
            file.paths.push(names(&path[..end]));
        }
        before = word;
    }
    file
}

/// Whether `word` is the first of a path.
fn starts_here(code: &str, at: usize, word: &str) -> bool {
    !code[..at].ends_with("::") && code[at + word.len()..].starts_with("::")
}

fn names(path: &str) -> Vec<String> {
    path.split("::").map(str::trim).filter(|name| !name.is_empty()).map(str::to_owned).collect()
}

/// The imports of `a::{b, c as d}`, each by the name that it has here.
fn import(statement: &str, before: &[String], out: &mut Vec<(String, Vec<String>)>) {
    for part in super::split_group(&format!("{{{statement}}}")) {
        let (path, alias) = part.split_once(" as ").unwrap_or((part, ""));
        if let Some(open) = part.find('{') {
            let group = part[open..].trim().trim_start_matches('{').strip_suffix('}').unwrap_or_default();
            import(group, &[before, &names(&part[..open])].concat(), out);
        } else if let path @ [.., last] = [before, &names(path)].concat().as_slice() {
            let name = if alias.is_empty() { last } else { alias.trim() };
            out.push((name.to_owned(), path.to_vec()));
        }
    }
}

/// The path from the library's root; none for another crate's.
fn absolute(module: &Module, path: &[String], files: &BTreeMap<&Module, File>) -> Option<Vec<String>> {
    let (first, rest) = path.split_first()?;
    match first.as_str() {
        "crate" => Some(rest.to_vec()),
        "self" => Some([module, rest].concat()),
        "super" => {
            let above = rest.iter().take_while(|name| *name == "super").count();
            let parent = module.len().checked_sub(above + 1)?;
            Some([&module[..parent], &rest[above..]].concat())
        }
        _ => {
            let child = [module.as_slice(), path].concat();
            files.contains_key(&child[..=module.len()].to_vec()).then_some(child)
        }
    }
}

/// The module whose file defines what `path` names.
fn definer(path: &[String], files: &BTreeMap<&Module, File>, depth: usize) -> Option<Module> {
    let is_module = |len: &usize| *len == 0 || files.contains_key(&path[..*len].to_vec());
    let len = (0..=path.len()).take_while(is_module).last()?;
    let module = path[..len].to_vec();
    let (Some(name), Some(file)) = (path.get(len), files.get(&module)) else { return Some(module) };
    if name == "*" || file.defines.contains(name) || depth > 8 {
        return Some(module);
    }
    let through = |import: &Vec<String>| definer(&absolute(&module, import, files)?, files, depth + 1);
    let named = file.imports.iter().filter(|(own, _)| own == name).map(|(_, path)| path.clone());
    let globs = file.imports.iter().filter(|(own, _)| own == "*").map(|(_, path)| {
        let mut path = path.clone();
        path.pop();
        path.push(name.clone());
        path
    });
    let defines = |found: &Module| files[found].defines.contains(name);
    named
        .clone()
        .find_map(|path| through(&path))
        .or_else(|| globs.filter_map(|path| through(&path)).find(defines))
        .or({
            // A name of another crate is nobody's here.
            if named.count() > 0 { None } else { Some(module.clone()) }
        })
}
