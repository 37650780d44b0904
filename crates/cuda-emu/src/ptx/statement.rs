//! The statements of a function's body.

use super::lexer::{Token, error};
use super::parser::{DEPTH_MAX, Parser, Result};
use super::{Instruction, Operand, Source, Statement, Type};

impl<'a> Parser<'a> {
    pub(super) fn body(&mut self) -> Result<Vec<Statement<'a>>> {
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

    pub(super) fn directive(&mut self, word: &'a str, statements: &mut Vec<Statement<'a>>) -> Result<()> {
        if word == ".loc" {
            self.at += 1;
            statements.push(Statement::Source(self.source()?));
        } else if matches!(word, ".pragma" | ".callprototype" | ".calltargets") {
            // Calls through pointers are refused where they stand.
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

    pub(super) fn register_names(&mut self) -> Result<Vec<(&'a str, Option<u32>)>> {
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
    pub(super) fn source(&mut self) -> Result<Source> {
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

    pub(super) fn instruction_or_label(&mut self, statements: &mut Vec<Statement<'a>>) -> Result<()> {
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

    pub(super) fn operand(&mut self, depth: u32) -> Result<Operand<'a>> {
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

    pub(super) fn operands_until(&mut self, close: char, depth: u32) -> Result<Vec<Operand<'a>>> {
        let mut operands = Vec::new();
        while !self.accept(close) {
            operands.push(self.operand(depth + 1)?);
            if !self.accept(',') && self.peek() != Some(Token::Punct(close)) {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
        Ok(operands)
    }

    pub(super) fn address(&mut self, depth: u32) -> Result<Operand<'a>> {
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
