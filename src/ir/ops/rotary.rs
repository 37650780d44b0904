//! Rotary position embedding: the angles of a step, and the rotation.

use std::fmt;
use std::sync::Arc;

use crate::ir::listing::Listed;
use crate::ir::{Access, Names, OpKind, Operation, Place, Rope};

/// Fills `dst` with `[cos | sin]` of `position · inv_freq[i]`, times `magnitude`. Angles are reduced in f64,
/// exact to 128k positions and beyond.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeAngles {
    /// `[tokens, 2 · inv_freq.len()]`: all cosines of a row, then all sines.
    pub dst: Place,
    /// Frequencies in radians per position, `[dims / 2]`.
    pub inv_freq: Arc<[f64]>,
    /// Scale of both (YaRN's attention factor). Usually 1.
    pub magnitude: f32,
}

impl Operation for RopeAngles {
    const NAME: &'static str = "rope_angles";
    const KIND: OpKind = OpKind::Rest;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Write, &mut self.dst);
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        writeln!(f, "{} = angles of {} pairs · {}", Listed(self.dst), self.inv_freq.len(), self.magnitude)
    }
}

/// Rotates each head of `x` in place.
#[derive(Clone, Debug, PartialEq)]
pub struct ApplyRope {
    /// `[tokens, heads · head_dim]`
    pub x: Place,
    /// Elements per head.
    pub head_dim: usize,
    /// The rotation.
    pub rope: Rope,
}

impl Operation for ApplyRope {
    const NAME: &'static str = "rope";
    const KIND: OpKind = OpKind::Norms;

    fn visit(&mut self, visit: &mut dyn FnMut(Access, &mut Place)) {
        visit(Access::Read, &mut self.rope.angles);
        visit(Access::Update, &mut self.x);
    }

    fn write(&self, f: &mut fmt::Formatter<'_>, _: &dyn Names) -> fmt::Result {
        let ApplyRope { x, head_dim, rope } = self;
        writeln!(f, "{} heads of {head_dim}, {:?} by @{}", Listed(*x), rope.pairing, rope.angles.offset)
    }
}
