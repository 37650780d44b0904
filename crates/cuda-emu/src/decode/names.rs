//! Names of registers: scopes, and a virtual register for each name that is used.

use std::collections::HashMap;

use crate::ptx::Type;

/// Which file a register lies in, and how much of it it uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Kind {
    Pred,
    /// 16 bits, in the 32-bit file.
    Half,
    Word,
    Wide,
}

impl Kind {
    pub(super) fn of(ty: Type) -> Option<Self> {
        match ty.bytes() {
            0 => Some(Kind::Pred),
            1 | 2 => Some(Kind::Half),
            4 => Some(Kind::Word),
            8 => Some(Kind::Wide),
            _ => None,
        }
    }
}

/// A register as written: virtual registers are numbered through, whatever their kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Register {
    pub(super) kind: Kind,
    pub(super) id: u32,
}

#[derive(Debug, Default)]
struct Scope<'a> {
    parent: Option<usize>,
    single: HashMap<&'a str, Kind>,
    /// `%r<7>`: prefix, count.
    families: HashMap<&'a str, (Kind, u32)>,
    used: HashMap<&'a str, Register>,
}

/// Nested scopes of names.
#[derive(Debug, Default)]
pub(super) struct Scopes<'a> {
    all: Vec<Scope<'a>>,
    current: Option<usize>,
    count: u32,
}

impl<'a> Scopes<'a> {
    /// Opens a scope; `inherit` is false for the body of another function.
    pub(super) fn open(&mut self, inherit: bool) {
        let parent = if inherit { self.current } else { None };
        self.all.push(Scope { parent, ..Scope::default() });
        self.current = Some(self.all.len() - 1);
    }

    /// The scope that is open.
    pub(super) fn current(&self) -> usize {
        self.current.unwrap_or(0)
    }

    /// Goes back to a scope that was current before.
    pub(super) fn return_to(&mut self, scope: Option<usize>) {
        self.current = scope;
    }

    /// Closes the current scope; whether there was one to go back to.
    pub(super) fn close(&mut self) -> bool {
        self.current = self.current.and_then(|c| self.all[c].parent);
        self.current.is_some()
    }

    pub(super) fn parent(&self, scope: usize) -> Option<usize> {
        self.all[scope].parent
    }

    pub(super) fn declare(&mut self, kind: Kind, name: &'a str, count: Option<u32>) {
        let Some(scope) = self.current.map(|c| &mut self.all[c]) else { return };
        match count {
            Some(count) => drop(scope.families.insert(name, (kind, count))),
            None => drop(scope.single.insert(name, kind)),
        }
    }

    /// The register of a name, if one is declared.
    pub(super) fn find(&mut self, name: &'a str) -> Option<Register> {
        let prefix = name.trim_end_matches(|c: char| c.is_ascii_digit());
        let number: Option<u32> = name[prefix.len()..].parse().ok();
        let mut at = self.current;
        while let Some(index) = at {
            let scope = &mut self.all[index];
            if let Some(register) = scope.used.get(name) {
                return Some(*register);
            }
            let family = scope.families.get(prefix).filter(|(_, count)| number.is_some_and(|n| n < *count));
            if let Some(kind) = scope.single.get(name).copied().or(family.map(|(kind, _)| *kind)) {
                let register = Register { kind, id: self.count };
                self.count += 1;
                scope.used.insert(name, register);
                return Some(register);
            }
            at = scope.parent;
        }
        None
    }

    /// How many registers have been used.
    pub(super) fn count(&self) -> u32 {
        self.count
    }
}
