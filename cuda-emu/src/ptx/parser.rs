//! Tokens to the syntax tree.

use super::lexer::{Spanned, Token, error, tokens};
use super::{
    Function, Init, Instruction, Number, Operand, Source, Statement, Type, Unit, Variable, VariableSpace,
};
use crate::error::LoadError;

/// Nesting of brackets in an operand; deeper is no PTX.
const DEPTH_MAX: u32 = 8;

type Result<T> = std::result::Result<T, LoadError>;

/// Parses a whole text.
///
/// # Errors
/// The first thing that is not PTX, with its line.
pub(crate) fn parse(text: &str) -> Result<Unit<'_>> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut unit = Unit::default();
    while let Some(token) = parser.peek() {
        let Token::Word(word) = token else { return Err(parser.unexpected("a directive")) };
        parser.top_level(word, &mut unit)?;
    }
    Ok(unit)
}

struct Parser<'a> {
    tokens: Vec<Spanned<'a>>,
    at: usize,
}

/// What may stand before a variable or function, collected.
#[derive(Default)]
struct Head {
    space: Option<VariableSpace>,
    align: Option<u32>,
    ty: Option<Type>,
    vector: u64,
    function: Option<bool>,
}

impl<'a> Parser<'a> {
    fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|t| t.token)
    }

    fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    fn unexpected(&self, wanted: &str) -> LoadError {
        match self.peek() {
            Some(token) => error(self.line(), format!("expected {wanted}, found {token:?}")),
            None => error(self.line(), format!("expected {wanted}, found the end")),
        }
    }

    fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn accept(&mut self, punct: char) -> bool {
        let found = self.peek() == Some(Token::Punct(punct));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, punct: char) -> Result<()> {
        if self.accept(punct) { Ok(()) } else { Err(self.unexpected(&format!("`{punct}`"))) }
    }

    fn word(&mut self) -> Result<&'a str> {
        let Some(Token::Word(word)) = self.peek() else { return Err(self.unexpected("a name")) };
        self.at += 1;
        Ok(word)
    }

    fn integer(&mut self) -> Result<u64> {
        let negative = self.accept('-');
        let Some(Token::Number(Number::Int(value))) = self.peek() else {
            return Err(self.unexpected("an integer"));
        };
        self.at += 1;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    fn integer32(&mut self) -> Result<u32> {
        let line = self.line();
        self.integer()?.try_into().map_err(|_| error(line, "number does not fit in 32 bits"))
    }

    fn top_level(&mut self, word: &'a str, unit: &mut Unit<'a>) -> Result<()> {
        match word {
            ".version" => {
                self.at += 2;
            }
            ".target" => {
                self.at += 1;
                unit.target = self.word()?;
                while self.accept(',') {
                    self.word()?;
                }
            }
            ".address_size" => {
                self.at += 1;
                if self.integer()? != 64 {
                    return Err(error(self.line(), "only 64-bit addresses are supported"));
                }
            }
            ".file" => {
                self.at += 1;
                let number = self.integer32()?;
                let Some(Token::Text(name)) = self.next() else { return Err(self.unexpected("a file name")) };
                while self.accept(',') {
                    self.integer()?;
                }
                unit.files.push((number, name));
            }
            ".section" => self.skip_section()?,
            ".pragma" => self.skip_to_semicolon(),
            ".alias" => return Err(error(self.line(), ".alias is not supported")),
            _ => self.declaration(unit)?,
        }
        Ok(())
    }

    fn skip_section(&mut self) -> Result<()> {
        while !self.accept('{') {
            if self.next().is_none() {
                return Err(self.unexpected("a section's body"));
            }
        }
        while !self.accept('}') {
            if self.next().is_none() {
                return Err(self.unexpected("a section's end"));
            }
        }
        Ok(())
    }

    fn skip_to_semicolon(&mut self) {
        while let Some(token) = self.next() {
            if token == Token::Punct(';') {
                break;
            }
        }
    }

    fn declaration(&mut self, unit: &mut Unit<'a>) -> Result<()> {
        let head = self.head()?;
        match head.function {
            Some(entry) => unit.functions.push(self.function(entry)?),
            None => {
                let mut variables = self.variables(&head)?;
                self.expect(';')?;
                unit.variables.append(&mut variables);
            }
        }
        Ok(())
    }

    /// Linking directives, space, alignment, type: words that begin with a dot.
    fn head(&mut self) -> Result<Head> {
        let mut head = Head { vector: 1, ..Head::default() };
        while let Some(Token::Word(word)) = self.peek() {
            let Some(parts) = word.strip_prefix('.') else { break };
            self.at += 1;
            for part in parts.split('.') {
                match part {
                    "visible" | "extern" | "weak" | "common" | "managed" | "ptr" => {}
                    "entry" => head.function = Some(true),
                    "func" => head.function = Some(false),
                    "global" | "const" | "shared" | "local" | "param" => self.space(part, &mut head),
                    "align" => head.align = Some(self.integer32()?),
                    "v2" => head.vector = 2,
                    "v4" => head.vector = 4,
                    _ => {
                        head.ty = Some(Type::parse(part).ok_or_else(|| {
                            error(self.line(), format!("directive `.{part}` is not supported"))
                        })?)
                    }
                }
            }
            if head.function.is_some() {
                break;
            }
        }
        Ok(head)
    }

    fn space(&self, word: &str, head: &mut Head) {
        // A pointer parameter's `.ptr .global` names what it points to: the first space counts.
        head.space = head.space.or(Some(match word {
            "global" => VariableSpace::Global,
            "const" => VariableSpace::Const,
            "shared" => VariableSpace::Shared,
            "local" => VariableSpace::Local,
            _ => VariableSpace::Param,
        }));
    }

    /// `name[3][4] = {..}, other`, after the head.
    fn variables(&mut self, head: &Head) -> Result<Vec<Variable<'a>>> {
        let mut found = vec![self.variable(head)?];
        // Parameters are lists of full declarations; variables share one head.
        while head.space != Some(VariableSpace::Param) && self.accept(',') {
            found.push(self.variable(head)?);
        }
        Ok(found)
    }

    fn variable(&mut self, head: &Head) -> Result<Variable<'a>> {
        let line = self.line();
        let (Some(space), Some(ty)) = (head.space, head.ty) else {
            return Err(self.unexpected("a variable's space and type"));
        };
        let name = self.word()?;
        let mut count = Some(head.vector);
        let too_big = || error(line, format!("variable `{name}` is too big"));
        while self.accept('[') {
            if self.accept(']') {
                count = None;
                continue;
            }
            let length = self.integer()?;
            count = match count {
                Some(count) => Some(count.checked_mul(length).filter(|c| *c < 1 << 31).ok_or_else(too_big)?),
                None => return Err(self.unexpected("no length after an open one")),
            };
            self.expect(']')?;
        }
        let mut init = Vec::new();
        if self.accept('=') {
            self.initialiser(&mut init, 0)?;
            count = count.or(Some(init.len() as u64));
        }
        let align = head.align.unwrap_or(ty.bytes().max(1) * head.vector as u32);
        if !align.is_power_of_two() || align > 1 << 16 {
            return Err(error(line, format!("alignment {align} is no power of two up to 65536")));
        }
        Ok(Variable { space, name, ty, align, count, init, line })
    }

    fn initialiser(&mut self, init: &mut Vec<Init<'a>>, depth: u32) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(self.unexpected("an initialiser of less depth"));
        }
        if self.accept('{') {
            while !self.accept('}') {
                self.initialiser(init, depth + 1)?;
                if !self.accept(',') && self.peek() != Some(Token::Punct('}')) {
                    return Err(self.unexpected("`,` or `}`"));
                }
            }
            return Ok(());
        }
        let value = match self.peek() {
            Some(Token::Word("generic")) => {
                self.at += 1;
                self.expect('(')?;
                let name = self.word()?;
                self.expect(')')?;
                Init::Address(name, self.offset()?)
            }
            Some(Token::Word(_)) => Init::Address(self.word()?, self.offset()?),
            _ => Init::Number(self.number()?),
        };
        init.push(value);
        Ok(())
    }

    fn offset(&mut self) -> Result<i64> {
        if self.accept('+') {
            Ok(self.integer()? as i64)
        } else if self.accept('-') {
            Ok((self.integer()? as i64).wrapping_neg())
        } else {
            Ok(0)
        }
    }

    fn number(&mut self) -> Result<Number> {
        let negative = self.accept('-');
        let Some(Token::Number(number)) = self.peek() else { return Err(self.unexpected("a number")) };
        self.at += 1;
        Ok(match number {
            number if !negative => number,
            Number::Int(v) => Number::Int(v.wrapping_neg()),
            Number::Single(v) => Number::Single(v ^ 1 << 31),
            Number::Double(v) => Number::Double(v ^ 1 << 63),
        })
    }

    fn function(&mut self, entry: bool) -> Result<Function<'a>> {
        let returns =
            if !entry && self.peek() == Some(Token::Punct('(')) { self.params()? } else { Vec::new() };
        let line = self.line();
        let name = self.word()?;
        let params = if self.peek() == Some(Token::Punct('(')) { self.params()? } else { Vec::new() };
        let mut function = Function {
            entry,
            name,
            returns,
            params,
            block_max: None,
            block_required: None,
            cluster_required: None,
            body: None,
            line,
        };
        loop {
            match self.peek() {
                Some(Token::Word(word)) => {
                    self.at += 1;
                    self.attribute(word, &mut function)?;
                }
                Some(Token::Punct(';')) => {
                    self.at += 1;
                    return Ok(function);
                }
                Some(Token::Punct('{')) => {
                    self.at += 1;
                    let in_kernel = |e: LoadError| LoadError { kernel: name.to_string(), ..e };
                    function.body = Some(self.body().map_err(in_kernel)?);
                    return Ok(function);
                }
                _ => return Err(self.unexpected("a function's body")),
            }
        }
    }

    fn attribute(&mut self, word: &str, function: &mut Function<'a>) -> Result<()> {
        match word {
            ".maxntid" => function.block_max = Some(self.dims()?),
            ".reqntid" => function.block_required = Some(self.dims()?),
            ".reqnctapercluster" => function.cluster_required = Some(self.dims()?),
            ".minnctapersm" | ".maxnctapersm" | ".maxnreg" | ".maxclusterrank" => {
                self.integer()?;
            }
            ".pragma" => self.skip_to_semicolon(),
            ".noreturn" | ".explicitcluster" | ".blocksareclusters" => {}
            _ => return Err(error(self.line(), format!("directive `{word}` is not supported"))),
        }
        Ok(())
    }

    fn dims(&mut self) -> Result<[u32; 3]> {
        let mut dims = [self.integer32()?, 1, 1];
        for dim in &mut dims[1..] {
            if self.accept(',') {
                *dim = self.integer32()?;
            }
        }
        if dims.iter().try_fold(1u32, |n, d| n.checked_mul(*d)).is_none_or(|n| n == 0 || n > 1024) {
            return Err(error(self.line(), format!("{dims:?} is not 1 to 1024 threads")));
        }
        Ok(dims)
    }

    fn params(&mut self) -> Result<Vec<Variable<'a>>> {
        let mut params = Vec::new();
        self.expect('(')?;
        while !self.accept(')') {
            let head = self.head()?;
            // A function may take registers as parameters: they are passed like memory here.
            let head = Head { space: head.space.or(Some(VariableSpace::Param)), ..head };
            params.push(self.variable(&head)?);
            if !self.accept(',') && self.peek() != Some(Token::Punct(')')) {
                return Err(self.unexpected("`,` or `)`"));
            }
        }
        Ok(params)
    }

    fn body(&mut self) -> Result<Vec<Statement<'a>>> {
        let mut statements = Vec::new();
        let mut depth = 1u32;
        while depth > 0 {
            match self.peek() {
                Some(Token::Punct('{')) => {
                    self.at += 1;
                    depth += 1;
                    statements.push(Statement::Open);
                }
                Some(Token::Punct('}')) => {
                    self.at += 1;
                    depth -= 1;
                    statements.push(Statement::Close);
                }
                Some(Token::Punct(';')) => self.at += 1,
                Some(Token::Word(word)) if word.starts_with('.') => self.directive(word, &mut statements)?,
                Some(_) => self.instruction_or_label(&mut statements)?,
                None => return Err(self.unexpected("`}`")),
            }
        }
        statements.pop();
        Ok(statements)
    }

    fn directive(&mut self, word: &'a str, statements: &mut Vec<Statement<'a>>) -> Result<()> {
        if word == ".loc" {
            self.at += 1;
            statements.push(Statement::Source(self.source()?));
        } else if word == ".pragma" {
            self.skip_to_semicolon();
        } else if word == ".branchtargets" {
            self.at += 1;
            let mut labels = vec![self.word()?];
            while self.accept(',') {
                labels.push(self.word()?);
            }
            self.expect(';')?;
            statements.push(Statement::Targets(labels));
        } else if word == ".reg" || word.starts_with(".reg.") {
            self.at += 1;
            let rest = word.strip_prefix(".reg").filter(|r| !r.is_empty());
            let ty = if let Some(rest) = rest { rest } else { self.word()? };
            let ty = Type::parse(&ty[1..])
                .ok_or_else(|| error(self.line(), format!("registers of type `{ty}`")))?;
            statements.push(Statement::Registers(ty, self.register_names()?));
        } else {
            let head = self.head()?;
            let variables = self.variables(&head)?;
            self.expect(';')?;
            statements.extend(variables.into_iter().map(Statement::Variable));
        }
        Ok(())
    }

    fn register_names(&mut self) -> Result<Vec<(&'a str, Option<u32>)>> {
        let mut names = Vec::new();
        loop {
            let name = self.word()?;
            let mut count = None;
            if self.accept('<') {
                count = Some(self.integer32()?);
                self.expect('>')?;
            }
            names.push((name, count));
            if !self.accept(',') {
                self.expect(';')?;
                return Ok(names);
            }
        }
    }

    /// `.loc file line column [, function_name label [+ n], inlined_at file line column]`
    fn source(&mut self) -> Result<Source> {
        let (file, line, _column) = (self.integer32()?, self.integer32()?, self.integer32()?);
        let mut source = Source { file, line, inlined_at: None };
        while self.accept(',') {
            match self.word()? {
                "function_name" => {
                    self.word()?;
                    self.offset()?;
                }
                "inlined_at" => {
                    source.inlined_at = Some((self.integer32()?, self.integer32()?));
                    self.integer32()?;
                }
                _ => return Err(self.unexpected("`function_name` or `inlined_at`")),
            }
        }
        Ok(source)
    }

    fn instruction_or_label(&mut self, statements: &mut Vec<Statement<'a>>) -> Result<()> {
        let first = self.at;
        let line = self.line();
        let mut guard = None;
        if self.accept('@') {
            let negated = self.accept('!');
            guard = Some((self.word()?, negated));
        }
        let opcode = self.word()?;
        if guard.is_none() && self.accept(':') {
            statements.push(Statement::Label(opcode));
            return Ok(());
        }
        let mut operands = Vec::new();
        while self.peek() != Some(Token::Punct(';')) {
            operands.push(self.operand(0)?);
            if !self.accept(',') && self.peek() != Some(Token::Punct(';')) {
                return Err(self.unexpected("`,` or `;`"));
            }
        }
        let span = (self.tokens[first].start, self.tokens[self.at].end);
        self.at += 1;
        statements.push(Statement::Instruction(Instruction { guard, opcode, operands, line, span }));
        Ok(())
    }

    fn operand(&mut self, depth: u32) -> Result<Operand<'a>> {
        if depth > DEPTH_MAX {
            return Err(self.unexpected("an operand of less depth"));
        }
        match self.peek() {
            Some(Token::Punct('{')) => {
                self.at += 1;
                Ok(Operand::Vector(self.operands_until('}', depth)?))
            }
            Some(Token::Punct('(')) => {
                self.at += 1;
                Ok(Operand::Group(self.operands_until(')', depth)?))
            }
            Some(Token::Punct('[')) => {
                self.at += 1;
                self.address(depth)
            }
            Some(Token::Punct('!')) => {
                self.at += 1;
                Ok(Operand::Not(self.word()?))
            }
            Some(Token::Word(name)) => {
                self.at += 1;
                if self.accept('|') {
                    return Ok(Operand::Pair(name, self.word()?));
                }
                let offset = self.offset()?;
                Ok(if offset == 0 { Operand::Name(name) } else { Operand::Sum(name, offset) })
            }
            _ => Ok(Operand::Number(self.number()?)),
        }
    }

    fn operands_until(&mut self, close: char, depth: u32) -> Result<Vec<Operand<'a>>> {
        let mut operands = Vec::new();
        while !self.accept(close) {
            operands.push(self.operand(depth + 1)?);
            if !self.accept(',') && self.peek() != Some(Token::Punct(close)) {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
        Ok(operands)
    }

    fn address(&mut self, depth: u32) -> Result<Operand<'a>> {
        let (base, offset) = match self.operand(depth + 1)? {
            Operand::Sum(name, offset) => (Operand::Name(name), offset),
            base => (base, 0),
        };
        let mut rest = Vec::new();
        while self.accept(',') {
            rest.push(self.operand(depth + 1)?);
        }
        self.expect(']')?;
        Ok(Operand::Address(Box::new(base), offset, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KERNEL: &str = "
.version 9.0
.target sm_90a, debug
.address_size 64
.global .align 4 .b8 table[2][3] = {{1, 2}, 3};
.extern .shared .align 128 .b8 smem[];
.visible .entry k(.param .align 64 .b8 k_param_0[128], .param .u64 .ptr .global .align 1 p)
.maxntid 128, 1, 1
{
  .reg .pred %p<3>;
  .loc 1 22 5, function_name $L__info_string0, inlined_at 1 23 3
  @!%p1 bra $L1;
$L1:
  { .reg .b32 t; ld.global.v2.u32 {%r1, _}, [%rd1+-8]; }
  shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r3], [%rd1, {%r1, %r2}], [%r4];
}
.file 1 \"a.cu\"
";

    #[test]
    fn a_kernel_with_everything() {
        let unit = parse(KERNEL).unwrap();
        assert_eq!((unit.target, unit.files.as_slice()), ("sm_90a", [(1, "a.cu")].as_slice()));
        assert_eq!(
            (unit.variables[0].bytes(), unit.variables[0].init.len(), unit.variables[1].count),
            (6, 3, None)
        );
        let kernel = &unit.functions[0];
        assert_eq!(
            (kernel.params[0].bytes(), kernel.params[1].space, kernel.block_max),
            (128, VariableSpace::Param, Some([128, 1, 1]))
        );
        let body = kernel.body.as_ref().unwrap();
        assert!(matches!(
            body[1],
            Statement::Source(Source { file: 1, line: 22, inlined_at: Some((1, 23)) })
        ));
        let instructions: Vec<&Instruction> = body
            .iter()
            .filter_map(|s| if let Statement::Instruction(i) = s { Some(i) } else { None })
            .collect();
        assert_eq!(instructions[0].guard, Some(("%p1", true)));
        assert_eq!(
            instructions[1].operands[1],
            Operand::Address(Box::new(Operand::Name("%rd1")), -8, vec![])
        );
        assert_eq!(instructions[2].operands[0], Operand::Pair("%r1", "%p1"));
        assert_eq!(
            &KERNEL[instructions[2].span.0..instructions[2].span.1],
            "shfl.sync.bfly.b32 %r1|%p1, %r2, 1, 31, -1;"
        );
        assert!(matches!(&instructions[3].operands[1], Operand::Address(_, 0, rest) if rest.len() == 1));
    }

    #[test]
    fn every_beginning_of_a_text_is_an_error_or_a_tree() {
        for end in 0..KERNEL.len() {
            let _ = parse(&KERNEL[..end]);
        }
        for start in 0..KERNEL.len() {
            let _ = parse(&KERNEL[start..]);
        }
        assert!(parse(&format!(".visible .entry k() {{ mov.b32 a, {}1", "{".repeat(100_000))).is_err());
    }
}
