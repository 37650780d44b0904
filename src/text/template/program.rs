//! Compilation of a template's source to a program within resource limits.
//!
//! The bytecode of `minijinja` is copied with changes. Operators become calls of the functions in
//! `operators.rs`, and results of other instructions are measured by `bounds.rs`. The template's strings are
//! marked as its own. This ties the crate to known versions of `minijinja`.

use super::super::error::TextError;
use super::bounds::{MEASURE, ONE, SPEND, START, STORE};
use super::flexible::{EXTRA, FLEXIBLE};
use super::literals;
use super::methods::is_method;
use super::operators::{
    ADD, ATTRIBUTE, COMPARE, CONCAT, CONTAINS, ITEM, ITERATE, MULTIPLY, REMAINDER, SLICE,
};
use minijinja::Error;
use minijinja::machinery::{CodeGenerator, Instruction, Instructions, Token, parse, tokenize};
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Kwargs, Tuple, Value, ValueKind};
use regex::{Captures, Regex};

/// Maximum length of the source in bytes. The longest known chat templates have about 40 kB.
const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Maximum tokens within one tag, which bounds the depth of its expression.
const TAG_TOKENS_MAX: usize = 8192;
/// Maximum number of `elif`s, each of which adds a level of nesting.
const ELIFS_MAX: usize = 2048;

/// Checks the source and prepares it for [`compile`]. `{% generation %}` only marks text for training, and a
/// `{% block %}` without inheritance has no effect: both become `{% with %}`.
pub(super) fn prepare(source: &str) -> Result<String, TextError> {
    if source.len() > SOURCE_BYTES_MAX {
        let found = source.len();
        return Err(TextError::TemplateLimit(format!(
            "expected at most {SOURCE_BYTES_MAX} bytes, found {found}"
        )));
    }
    let tag = Regex::new(r"\{%([-+]?)\s*(end)?(?:generation|block(?:\s+\w+)*)\s*([-+]?)%\}");
    let tag = tag.map_err(|error| TextError::TemplateSyntax(error.to_string()))?;
    // Line-end normalisation, as in Jinja.
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let plain = tag.replace_all(&source, |found: &Captures<'_>| {
        let word = if found.get(2).is_some() { "endwith" } else { "with" };
        format!("{{%{} {word} {}%}}", &found[1], &found[3])
    });
    adapt(&plain)
}

/// Writes `a * b` as `a * __one * b` with a variable, because the compiler would otherwise fold `'x' *
/// 100000000`. Converts string literals to the engine's syntax and joins adjacent ones. Counts tokens on the
/// way.
fn adapt(source: &str) -> Result<String, TextError> {
    let (mut out, mut copied) = (String::with_capacity(source.len()), 0);
    let (mut in_tag, mut elifs) = (0, 0);
    let mut after_string = false;
    for token in tokenize(source, false, syntax()?) {
        let (token, span) = token.map_err(syntax_error)?;
        let (start, end) = (span.start_offset as usize, span.end_offset as usize);
        in_tag += 1;
        let is_string = matches!(token, Token::Str(_) | Token::String(_));
        match token {
            Token::BlockStart | Token::VariableStart => in_tag = 0,
            Token::Ident("elif") => elifs += 1,
            Token::Mul => {
                out.push_str(source.get(copied..end).unwrap_or_default());
                out.extend([" ", ONE, " * "]);
                copied = end;
            }
            Token::Str(_) | Token::String(_) => {
                let string = source.get(start..end).unwrap_or_default();
                if after_string {
                    out.pop();
                } else {
                    out.push_str(source.get(copied..start).unwrap_or_default());
                    out.push('"');
                }
                out.push_str(&literals::requoted(string, span.start_line)?);
                out.push('"');
                copied = end;
            }
            _ => {}
        }
        after_string = is_string;
        if in_tag > TAG_TOKENS_MAX || elifs > ELIFS_MAX {
            let line = span.start_line;
            return Err(TextError::TemplateLimit(format!("an expression too long at line {line}")));
        }
    }
    out.push_str(source.get(copied..).unwrap_or_default());
    Ok(out)
}

/// Compiles a prepared source and rewrites the program to charge its budget.
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

/// Templates are written for `trim_blocks` and `lstrip_blocks`, which `transformers` sets.
fn syntax() -> Result<SyntaxConfig, TextError> {
    SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build().map_err(syntax_error)
}

fn syntax_error(error: Error) -> TextError {
    TextError::TemplateSyntax(error.to_string())
}

/// Replacement of an instruction in the rewritten program.
#[derive(Default)]
struct Rewritten<'s> {
    before: Vec<Instruction<'s>>,
    instead: Vec<Instruction<'s>>,
    after: Vec<Instruction<'s>>,
}

fn call<'s>(function: &'static str, args: u16) -> Instruction<'s> {
    Instruction::CallFunction(function, Some(args))
}

fn spend<'s>(bytes: usize) -> Vec<Instruction<'s>> {
    vec![Instruction::LoadConst(Value::from(bytes)), call(SPEND, 1), Instruction::DiscardTop]
}

/// Operator of a comparison instruction.
fn comparison(instruction: &Instruction<'_>) -> Option<&'static str> {
    Some(match instruction {
        Instruction::Eq => "==",
        Instruction::Ne => "!=",
        Instruction::Lt => "<",
        Instruction::Lte => "<=",
        Instruction::Gt => ">",
        Instruction::Gte => ">=",
        _ => return None,
    })
}

impl<'s> Rewritten<'s> {
    fn of(instruction: Instruction<'s>) -> Rewritten<'s> {
        let mut new = Rewritten::default();
        match &instruction {
            Instruction::ApplyFilter(..)
            | Instruction::CallFunction(..)
            | Instruction::CallMethod(..)
            | Instruction::CallObject(..)
            | Instruction::BuildList(_)
            | Instruction::BuildTuple(_)
            | Instruction::BuildMap(_)
            | Instruction::EndCapture => new.after.push(call(MEASURE, 1)),
            Instruction::SetAttr(_) => {
                new.before = vec![Instruction::Swap, call(STORE, 1), Instruction::Swap];
            }
            Instruction::EmitRaw(text) => new.before = spend(text.len()),
            // Each loop iteration checks the time limit.
            Instruction::Iterate(_) => new.after = spend(0),
            Instruction::PushLoop(_) => new.before.push(call(ITERATE, 1)),
            _ => {}
        }
        new.instead = instead(instruction);
        new
    }

    fn len(&self) -> usize {
        self.before.len() + self.instead.len() + self.after.len()
    }

    /// Adds a wrapper that fills `varargs` and `kwargs`, which the macro has as parameters.
    fn make_flexible(&mut self) {
        self.after.push(call(FLEXIBLE, 1));
    }

    fn all(self) -> impl Iterator<Item = Instruction<'s>> {
        self.before.into_iter().chain(self.instead).chain(self.after)
    }
}

/// Instructions that replace one.
fn instead(instruction: Instruction<'_>) -> Vec<Instruction<'_>> {
    if let Some(operator) = comparison(&instruction) {
        return vec![Instruction::LoadConst(Value::from(operator)), call(COMPARE, 3)];
    }
    vec![match instruction {
        Instruction::Add => call(ADD, 2),
        Instruction::Mul => call(MULTIPLY, 2),
        Instruction::Rem => call(REMAINDER, 2),
        Instruction::StringConcat => call(CONCAT, 2),
        Instruction::In => call(CONTAINS, 2),
        Instruction::GetItem => call(ITEM, 2),
        Instruction::Slice => call(SLICE, 4),
        Instruction::GetAttr(name) if is_method(name) => {
            return vec![Instruction::LoadConst(Value::from(name)), call(ATTRIBUTE, 2)];
        }
        Instruction::LoadConst(value) => Instruction::LoadConst(own(&value)),
        other => other,
    }]
}

/// A constant of the template with its strings marked as the template's.
fn own(value: &Value) -> Value {
    let pairs = || -> Vec<(Value, Value)> {
        let keys = value.try_iter().into_iter().flatten();
        keys.map(|key| (own(&key), own(&value.get_item(&key).unwrap_or_default()))).collect()
    };
    let items = || value.try_iter().into_iter().flatten().map(|item| own(&item));
    match value.kind() {
        ValueKind::String => Value::from_safe_string(value.as_str().unwrap_or_default().to_owned()),
        ValueKind::Seq if value.is_tuple() => Value::from(Tuple::from(items().collect::<Vec<_>>())),
        ValueKind::Seq => Value::from(items().collect::<Vec<_>>()),
        ValueKind::Map if value.is_kwargs() => {
            let named =
                pairs().into_iter().map(|(key, item)| (key.as_str().unwrap_or_default().to_owned(), item));
            Value::from(Kwargs::from_iter(named))
        }
        ValueKind::Map => Value::from_pairs(pairs()),
        _ => value.clone(),
    }
}

/// Macros with `varargs` or `kwargs`: start of the body, and position of the instruction that builds them.
fn flexible_macros(program: &Instructions<'_>) -> Vec<(u32, u32)> {
    let mut found = Vec::new();
    for at in 0.. {
        let Some(instruction) = program.get(at) else { break };
        let Instruction::BuildMacro(_, start, _) = instruction else { continue };
        let extra =
            |index| matches!(program.get(index), Some(Instruction::Lookup(name)) if EXTRA.contains(name));
        if (*start..at).any(extra) {
            found.push((*start, at));
        }
    }
    found
}

/// Rewrites the program and adjusts jump targets.
fn rewrite<'s>(mut program: Instructions<'s>, source: &'s str) -> Instructions<'s> {
    let flexible = flexible_macros(&program);
    let mut steps = Vec::new();
    for at in 0.. {
        let line = program.get_line(at).and_then(|line| u16::try_from(line).ok()).unwrap_or(0);
        let Some(instruction) = program.get_mut(at) else { break };
        let mut instruction = std::mem::replace(instruction, Instruction::DiscardTop);
        if let Instruction::LoadConst(names) = &mut instruction
            && flexible.iter().any(|&(_, built)| built == at + 1)
        {
            let more = EXTRA.map(Value::from);
            *names = names.try_iter().into_iter().flatten().chain(more).collect();
        }
        let mut new = Rewritten::of(instruction);
        if flexible.iter().any(|&(start, _)| start == at) {
            let stores = EXTRA.iter().rev().map(|name| Instruction::StoreLocal(name));
            new.before.splice(0..0, stores);
        }
        if flexible.iter().any(|&(_, built)| built == at) {
            new.make_flexible();
        }
        steps.push((new, line));
    }
    let start = [call(START, 0), Instruction::DiscardTop];
    let mut end = start.len();
    let mut places = Vec::with_capacity(steps.len());
    for (step, _) in &steps {
        places.push(end as u32);
        end += step.len();
    }
    let moved = |target: u32| places.get(target as usize).copied().unwrap_or(end as u32);
    let mut rewritten = Instructions::new("chat_template", source);
    for instruction in start {
        rewritten.add_with_line(instruction, 0);
    }
    for (step, line) in steps {
        for instruction in step.all() {
            rewritten.add_with_line(redirect(instruction, &moved), line);
        }
    }
    rewritten
}

/// The instruction with its jump target adjusted.
fn redirect<'s>(instruction: Instruction<'s>, moved: &impl Fn(u32) -> u32) -> Instruction<'s> {
    match instruction {
        Instruction::Iterate(to) => Instruction::Iterate(moved(to)),
        Instruction::Jump(to) => Instruction::Jump(moved(to)),
        Instruction::JumpIfFalse(to) => Instruction::JumpIfFalse(moved(to)),
        Instruction::JumpIfFalseOrPop(to) => Instruction::JumpIfFalseOrPop(moved(to)),
        Instruction::JumpIfTrueOrPop(to) => Instruction::JumpIfTrueOrPop(moved(to)),
        Instruction::BuildMacro(name, start, flags) => Instruction::BuildMacro(name, moved(start), flags),
        other => other,
    }
}
