//! Declarations: variables with their initialisers, functions with their parameters.

use super::lexer::{Token, error};
use super::parser::{DEPTH_MAX, Parser, Result};
use super::{Function, Init, Type, Unit, Variable, VariableSpace};
use crate::error::LoadError;

/// What may stand before a variable or function, collected.
#[derive(Default)]
pub(super) struct Head {
    pub(super) space: Option<VariableSpace>,
    pub(super) align: Option<u32>,
    pub(super) ty: Option<Type>,
    pub(super) vector: u64,
    pub(super) function: Option<bool>,
}

impl<'a> Parser<'a> {
    pub(super) fn declaration(&mut self, unit: &mut Unit<'a>) -> Result<()> {
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
    pub(super) fn head(&mut self) -> Result<Head> {
        let mut head = Head { vector: 1, ..Head::default() };
        while let Some(Token::Word(word)) = self.peek() {
            let Some(parts) = word.strip_prefix('.') else { break };
            self.at += 1;
            for part in parts.split('.') {
                match part {
                    "visible" | "extern" | "weak" | "common" | "ptr" => {}
                    "attribute" => self.variable_attribute()?,
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

    /// `(.managed)`: the host reaches all memory here.
    fn variable_attribute(&mut self) -> Result<()> {
        self.expect('(')?;
        match self.word()? {
            ".managed" => self.expect(')'),
            word => Err(error(self.line(), format!("attribute `{word}` is not supported"))),
        }
    }

    pub(super) fn space(&self, word: &str, head: &mut Head) {
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
    pub(super) fn variables(&mut self, head: &Head) -> Result<Vec<Variable<'a>>> {
        let mut found = vec![self.variable(head)?];
        // Parameters are lists of full declarations; variables share one head.
        while head.space != Some(VariableSpace::Param) && self.accept(',') {
            found.push(self.variable(head)?);
        }
        Ok(found)
    }

    pub(super) fn variable(&mut self, head: &Head) -> Result<Variable<'a>> {
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

    pub(super) fn initialiser(&mut self, init: &mut Vec<Init<'a>>, depth: u32) -> Result<()> {
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

    pub(super) fn function(&mut self, entry: bool) -> Result<Function<'a>> {
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

    pub(super) fn attribute(&mut self, word: &str, function: &mut Function<'a>) -> Result<()> {
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

    pub(super) fn dims(&mut self) -> Result<[u32; 3]> {
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

    pub(super) fn params(&mut self) -> Result<Vec<Variable<'a>>> {
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
}
