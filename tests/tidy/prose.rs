//! A ratchet on the wording of comments: words that stand for a missing noun are counted per folder, and no count may
//! rise above `tests/tidy/prose.table`. `PROSE_UPDATE=1 cargo test --test tidy` writes the table anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::lexer::words_of;
use super::{Source, crates, files, is_frozen, root};

const TABLE: &str = "tests/tidy/prose.table";
/// Columns that a comment's line has at most, indentation included.
const COLUMNS_MAX: usize = 110;
/// Habits by the words that count.
const HABITS: [(&str, &[&str]); 8] = [
    ("what", &["what"]),
    ("who", &["who", "whose", "whom"]),
    ("nobody", &["nobody", "anyone", "everyone", "whoever"]),
    ("behind", &["behind"]),
    ("beside", &["beside"]),
    ("stands", &["stand", "stands"]),
    ("says", &["say", "says", "said", "tell", "tells", "told", "ask", "asks", "asked", "know", "knows"]),
    ("so_many", &["so many", "so few", "so long", "so much"]),
];
/// First words, and first pairs of words, of a comment that names no subject.
const STARTS: [&str; 3] = ["what", "who", "nobody"];
const START_PAIRS: &str = "the same|none of|of a|of an|of the|of all|of two|as many|as much|as long";

/// Counts of a folder: the habits, blocks without a subject, lines over [`COLUMNS_MAX`].
type Counts = [usize; HABITS.len() + 2];

#[test]
fn comments_get_no_vaguer_and_no_wider() {
    let found = table(&counts());
    if std::env::var_os("PROSE_UPDATE").is_some() {
        std::fs::write(root().join(TABLE), &found).unwrap();
    }
    let committed = std::fs::read_to_string(root().join(TABLE)).unwrap_or_default();
    let allowed: BTreeMap<&str, Vec<usize>> = committed.lines().filter_map(row).collect();
    let mut problems = Vec::new();
    for (folder, counts) in found.lines().filter_map(row) {
        let most = allowed.get(folder).cloned().unwrap_or_else(|| vec![0; counts.len()]);
        let names = HABITS.iter().map(|(name, _)| *name).chain(["no_subject", "wide"]);
        let over = names.zip(counts.iter().zip(&most)).filter(|(_, (count, most))| count > most);
        problems
            .extend(over.map(|(name, (count, most))| format!("{folder}: {name} {count}, at most {most}")));
    }
    assert!(problems.is_empty(), "{}\n\nThe table of today, for {TABLE}:\n{found}", problems.join("\n"));
}

/// The counts of a row; none for the head.
fn row(line: &str) -> Option<(&str, Vec<usize>)> {
    let (folder, counts) = line.split_once(' ')?;
    Some((folder, counts.split_whitespace().map(|count| count.parse().ok()).collect::<Option<_>>()?))
}

fn table(counts: &BTreeMap<String, Counts>) -> String {
    let mut text = format!("folder {}\n", HABITS.map(|(name, _)| name).join(" ") + " no_subject wide");
    for (folder, counts) in counts {
        let counts: Vec<String> = counts.iter().map(usize::to_string).collect();
        writeln!(text, "{folder} {}", counts.join(" ")).unwrap();
    }
    text
}

fn counts() -> BTreeMap<String, Counts> {
    let packages = crates();
    let kept = packages.iter().map(String::as_str).filter(|package| !is_frozen(package));
    let folders: Vec<&str> = ["src", "kernels-cu"].into_iter().chain(kept).collect();
    let mut all = BTreeMap::new();
    for Source { path, text } in files(&folders, &["rs", "cu", "cuh"]) {
        let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
        let counts: &mut Counts = all.entry(folder.to_owned()).or_default();
        let mut in_block = false;
        for line in text.lines() {
            let comment = line.trim_start().strip_prefix("//").map(|text| text.trim_matches(['/', '!', ' ']));
            let marks = |text: &&str| !text.starts_with("```") && !text.starts_with("SAFETY");
            let Some(comment) = comment.filter(marks).map(str::to_lowercase) else {
                in_block = false;
                continue;
            };
            let words: Vec<&str> = words_of(&comment).map(|(_, word)| word).collect();
            let pairs: Vec<String> = words.windows(2).map(|pair| pair.join(" ")).collect();
            for (count, (_, habit)) in counts.iter_mut().zip(HABITS) {
                *count += words.iter().filter(|word| habit.contains(word)).count();
                *count += pairs.iter().filter(|pair| habit.contains(&pair.as_str())).count();
            }
            let starts = STARTS.iter().any(|start| comment.starts_with(start))
                || pairs.first().is_some_and(|pair| START_PAIRS.split('|').any(|start| start == pair));
            counts[HABITS.len()] += usize::from(!in_block && starts);
            counts[HABITS.len() + 1] += usize::from(line.chars().count() > COLUMNS_MAX);
            in_block = true;
        }
    }
    all
}
