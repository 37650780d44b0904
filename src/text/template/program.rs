//! From the source of a template to a program that asks its budget.
//!
//! The bytecode of `minijinja` is copied with guards: operators that make larger values (`+`, `*`, `~`)
//! become calls of the functions in `bounds.rs`, and what other instructions make or store is measured
//! there. This is what ties the crate to one version of `minijinja`.

use super::super::error::TextError;
use super::bounds::{ADD, CONCAT, MEASURE, MULTIPLY, ONE, SPEND, STORE};
use minijinja::Error;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::Value;
use regex::{Captures, Regex};

/// Longest source, in bytes; the longest known chat templates have about 40 kB.
const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Tokens within one tag, which bounds how deep its expression can be.
const TAG_TOKENS_MAX: usize = 8192;
/// `elif`s, each of which nests one deeper.
const ELIFS_MAX: usize = 2048;

/// Checks the source and makes it ready for [`compile`]: `{% generation %}` tags, which only mark text for
/// training, become `{% if true %}`, and products are kept from being computed while compiling.
pub(super) fn prepare(source: &str) -> Result<String, TextError> {
    if source.len() > SOURCE_BYTES_MAX {
        let found = source.len();
        return Err(TextError::TemplateLimit(format!(
            "expected at most {SOURCE_BYTES_MAX} bytes, found {found}"
        )));
    }
    let tag = Regex::new(r"\{%([-+]?)\s*(end)?generation\s*([-+]?)%\}");
    let tag = tag.map_err(|error| TextError::TemplateSyntax(error.to_string()))?;
    let plain = tag.replace_all(source, |found: &Captures<'_>| {
        let word = if found.get(2).is_some() { "endif" } else { "if true" };
        format!("{{%{} {word} {}%}}", &found[1], &found[3])
    });
    keep_products_from_folding(&plain)
}

/// Writes `a * b` as `a * __one * b` with a variable in it: the compiler would otherwise compute
/// `'x' * 100000000` on its own. Counts tokens on the way.
fn keep_products_from_folding(source: &str) -> Result<String, TextError> {
    let (mut out, mut copied) = (String::with_capacity(source.len()), 0);
    let (mut in_tag, mut elifs) = (0, 0);
    for token in tokenize(source, false, syntax()?) {
        let (token, span) = token.map_err(syntax_error)?;
        in_tag += 1;
        match token {
            Token::BlockStart | Token::VariableStart => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Mul => {
                let end = span.end_offset as usize;
                out.push_str(source.get(copied..end).unwrap_or_default());
                out.extend([" ", ONE, " * "]);
                copied = end;
            }
            _ => {}
        }
        if in_tag > TAG_TOKENS_MAX || elifs > ELIFS_MAX {
            let line = span.start_line;
            return Err(TextError::TemplateLimit(format!("an expression too long at line {line}")));
        }
    }
    out.push_str(source.get(copied..).unwrap_or_default());
    Ok(out)
}

/// The program of a prepared source, rewritten to ask its budget.
pub(super) fn compile(source: &str) -> Result<Instructions<'_>, TextError> {
    let tree = parse(source, "chat_template", syntax()?).map_err(syntax_error)?;
    let mut generator = CodeGenerator::new("chat_template", source);
    generator.compile_stmt(&tree);
    let (program, blocks) = generator.finish();
    if let Some(name) = blocks.keys().next() {
        let message = format!("expected no template inheritance, found block `{name}`");
        return Err(TextError::TemplateSyntax(message));
    }
    Ok(rewrite(program, source))
}

/// Templates are written for `trim_blocks` and `lstrip_blocks`, as `transformers` sets them.
fn syntax() -> Result<SyntaxConfig, TextError> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax_error)
}

fn syntax_error(error: Error) -> TextError {
    TextError::TemplateSyntax(error.to_string())
}

/// What an instruction is surrounded by in the rewritten program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guard {
    None,
    /// The value that it leaves is measured.
    MeasureAfter,
    /// The value that it stores into a namespace (below the namespace on the stack) is measured.
    StoreBefore,
    /// Text of this length is paid for.
    SpendBefore(usize),
    /// A loop goes round: the clock is looked at.
    TickAfter,
}

impl Guard {
    fn of(instruction: &Instruction<'_>) -> Guard {
        match instruction {
            Instruction::ApplyFilter(..)
            | Instruction::CallFunction(..)
            | Instruction::CallMethod(..)
            | Instruction::CallObject(..)
            | Instruction::BuildList(_)
            | Instruction::BuildTuple(_)
            | Instruction::BuildMap(_)
            | Instruction::Slice
            | Instruction::EndCapture => Guard::MeasureAfter,
            Instruction::SetAttr(_) => Guard::StoreBefore,
            Instruction::EmitRaw(text) => Guard::SpendBefore(text.len()),
            Instruction::Iterate(_) => Guard::TickAfter,
            _ => Guard::None,
        }
    }

    fn before(self) -> Vec<Instruction<'static>> {
        match self {
            Guard::StoreBefore => {
                vec![Instruction::Swap, Instruction::CallFunction(STORE, Some(1)), Instruction::Swap]
            }
            Guard::SpendBefore(bytes) => spend(bytes),
            Guard::None | Guard::MeasureAfter | Guard::TickAfter => Vec::new(),
        }
    }

    fn after(self) -> Vec<Instruction<'static>> {
        match self {
            Guard::MeasureAfter => vec![Instruction::CallFunction(MEASURE, Some(1))],
            Guard::TickAfter => spend(0),
            Guard::None | Guard::StoreBefore | Guard::SpendBefore(_) => Vec::new(),
        }
    }
}

fn spend(bytes: usize) -> Vec<Instruction<'static>> {
    vec![
        Instruction::LoadConst(Value::from(bytes)),
        Instruction::CallFunction(SPEND, Some(1)),
        Instruction::DiscardTop,
    ]
}

/// Copies the program with its guards; jumps go where they went.
fn rewrite<'s>(mut program: Instructions<'s>, source: &'s str) -> Instructions<'s> {
    let guards: Vec<Guard> = (0..).map_while(|at| program.get(at).map(Guard::of)).collect();
    let mut places = vec![0];
    let mut end = 0;
    for guard in &guards {
        end += guard.before().len() + 1 + guard.after().len();
        places.push(end as u32);
    }
    let moved = |target: u32| places.get(target as usize).copied().unwrap_or(end as u32);
    let mut rewritten = Instructions::new("chat_template", source);
    for (at, guard) in (0..).zip(&guards) {
        let line = program.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or(0);
        let Some(instruction) = program.get_mut(at) else { break };
        let instruction = redirect(std::mem::replace(instruction, Instruction::DiscardTop), &moved);
        for instruction in guard.before().into_iter().chain([instruction]).chain(guard.after()) {
            rewritten.add_with_line(instruction, line);
        }
    }
    rewritten
}

/// The instruction with its jump target moved, or the call that stands in for it.
fn redirect<'s>(instruction: Instruction<'s>, moved: &impl Fn(u32) -> u32) -> Instruction<'s> {
    match instruction {
        Instruction::Iterate(to) => Instruction::Iterate(moved(to)),
        Instruction::Jump(to) => Instruction::Jump(moved(to)),
        Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(moved(to)),
        Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(moved(to)),
        Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(moved(to)),
        Instruction::BuildMacro(name, start, flags) => Instruction::BuildMacro(name, moved(start), flags),
        Instruction::Add => Instruction::CallFunction(ADD, Some(2)),
        Instruction::Mul => Instruction::CallFunction(MULTIPLY, Some(2)),
        Instruction::StringConcat => Instruction::CallFunction(CONCAT, Some(2)),
        other => other,
    }
}
