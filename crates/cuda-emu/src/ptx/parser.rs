//! Tokens to the syntax tree: the parser's small steps, and a text's top level. Declarations and
//! statements have files of their own.

use super::lexer::{Spanned, Token, error, tokens};
use super::{Number, Unit};
use crate::error::LoadError;

/// Nesting of brackets in an operand; deeper is no PTX.
pub(super) const DEPTH_MAX: u32 = 8;

/// Characters of a line that an error shows.
const QUOTED_MAX: usize = 200;

pub(super) type Result<T> = std::result::Result<T, LoadError>;

/// Parses a whole text.
///
/// # Errors
/// The first thing that is not PTX, with its line.
pub(crate) fn parse(text: &str) -> Result<Unit<'_>> {
    unit(text).map_err(|error| {
        let line = (error.line as usize).checked_sub(1).and_then(|line| text.lines().nth(line));
        let quoted = line.unwrap_or_default().trim().chars().take(QUOTED_MAX).collect();
        LoadError { text: quoted, ..error }
    })
}

fn unit(text: &str) -> Result<Unit<'_>> {
    let mut parser = Parser { tokens: tokens(text)?, at: 0 };
    let mut unit = Unit::default();
    while let Some(token) = parser.peek() {
        let Token::Word(word) = token else { return Err(parser.unexpected("a directive")) };
        parser.top_level(word, &mut unit)?;
    }
    Ok(unit)
}

pub(super) struct Parser<'a> {
    pub(super) tokens: Vec<Spanned<'a>>,
    pub(super) at: usize,
}

impl<'a> Parser<'a> {
    pub(super) fn peek(&self) -> Option<Token<'a>> {
        self.tokens.get(self.at).map(|t| t.token)
    }

    pub(super) fn line(&self) -> u32 {
        self.tokens.get(self.at).or(self.tokens.last()).map_or(1, |t| t.line)
    }

    pub(super) fn unexpected(&self, wanted: &str) -> LoadError {
        match self.peek() {
            Some(token) => error(self.line(), format!("expected {wanted}, found {token}")),
            None => error(self.line(), format!("expected {wanted}, found the end")),
        }
    }

    pub(super) fn next(&mut self) -> Option<Token<'a>> {
        let token = self.peek();
        self.at += 1;
        token
    }

    pub(super) fn accept(&mut self, punct: char) -> bool {
        let found = self.peek() == Some(Token::Punct(punct));
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, punct: char) -> Result<()> {
        if self.accept(punct) { Ok(()) } else { Err(self.unexpected(&format!("`{punct}`"))) }
    }

    pub(super) fn word(&mut self) -> Result<&'a str> {
        let Some(Token::Word(word)) = self.peek() else { return Err(self.unexpected("a name")) };
        self.at += 1;
        Ok(word)
    }

    pub(super) fn integer(&mut self) -> Result<u64> {
        let negative = self.accept('-');
        let Some(Token::Number(Number::Int(value))) = self.peek() else {
            return Err(self.unexpected("an integer"));
        };
        self.at += 1;
        Ok(if negative { value.wrapping_neg() } else { value })
    }

    pub(super) fn integer32(&mut self) -> Result<u32> {
        let line = self.line();
        self.integer()?.try_into().map_err(|_| error(line, "number does not fit in 32 bits"))
    }

    pub(super) fn top_level(&mut self, word: &'a str, unit: &mut Unit<'a>) -> Result<()> {
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
            ".alias" => {
                self.at += 1;
                let name = self.word()?;
                self.expect(',')?;
                unit.aliases.push((name, self.word()?));
                self.expect(';')?;
            }
            _ => self.declaration(unit)?,
        }
        Ok(())
    }

    pub(super) fn skip_section(&mut self) -> Result<()> {
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

    pub(super) fn skip_to_semicolon(&mut self) {
        while let Some(token) = self.next() {
            if token == Token::Punct(';') {
                break;
            }
        }
    }

    pub(super) fn offset(&mut self) -> Result<i64> {
        if self.accept('+') {
            Ok(self.integer()? as i64)
        } else if self.accept('-') {
            Ok((self.integer()? as i64).wrapping_neg())
        } else {
            Ok(0)
        }
    }

    pub(super) fn number(&mut self) -> Result<Number> {
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ptx::{Instruction, Operand, Source, Statement, VariableSpace};

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
