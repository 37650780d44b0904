//! Instructions that only compute: which function does what one says. They are looked up before the
//! kernel runs, so that the loop over instructions calls them at once.

use super::isa::{Compute, Isa, compile};
use super::{LOCAL_WINDOW, SHARED_WINDOW};
use super::{convert, float, half, int, select};
use crate::decode::{Inst, Op};
use crate::memory::Space;

/// What an instruction does, if it only computes.
pub(super) fn compute<I: Isa>(i: &Inst) -> Option<Compute> {
    // Where one function does several operations, it looks at the instruction again.
    macro_rules! of {
        ($op:pat, |$r:ident, $i:ident, $mask:ident| $work:expr) => {
            compile!(I, |$r, $i, _, $mask| if let $op = $i.op {
                $work
            })
        };
    }
    Some(match i.op {
        Op::Nop => compile!(I, |_r, _i, _, _mask| {}),
        Op::Mov32 => compile!(I, |r, i, _, mask| select::mov::<u32>(r, i, mask)),
        Op::Mov64 => compile!(I, |r, i, _, mask| select::mov::<u64>(r, i, mask)),
        Op::Int(op, ty) => int::int::<I>(op, ty),
        Op::Bits(op) => int::bits::<I>(op),
        Op::Float(op, mode) => float::float::<I>(op, mode),
        Op::Half(op, mode) => half::half::<I>(op, mode),
        Op::Convert(c) => convert::convert::<I>(i, c),
        Op::ConvertPair(_) => of!(Op::ConvertPair(c), |r, i, mask| convert::convert_pair::<I>(r, i, c, mask)),
        Op::Setp(cmp, ty, _) => select::setp::<I>(cmp, ty),
        Op::Set(..) => of!(Op::Set(cmp, ty, combine, float), |r, i, mask| {
            select::set::<I>(r, i, cmp, ty, combine, float, mask)
        }),
        Op::Select32 => compile!(I, |r, i, _, mask| select::select::<I, u32>(r, i, mask)),
        Op::Select64 => compile!(I, |r, i, _, mask| select::select::<I, u64>(r, i, mask)),
        Op::Slct(..) => of!(Op::Slct(wide, float), |r, i, mask| select::slct(r, i, wide, float, mask)),
        Op::Pred(_) => of!(Op::Pred(op), |r, i, mask| select::predicate(r, i, op, mask)),
        Op::Testp(_) => of!(Op::Testp(double), |r, i, mask| select::testp(r, i, double, mask)),
        Op::Pack { .. } => compile!(I, |r, i, lists, mask| if let Op::Pack { bits } = i.op {
            select::pack(r, i, i.slots(lists), bits, mask);
        }),
        Op::Unpack { .. } => compile!(I, |r, i, lists, mask| if let Op::Unpack { bits } = i.op {
            select::unpack(r, i, i.slots(lists), bits, mask);
        }),
        Op::ToGeneric(_) => {
            of!(Op::ToGeneric(space), |r, i, mask| select::offset(r, i, window(space), mask))
        }
        Op::FromGeneric(_) => of!(Op::FromGeneric(space), |r, i, mask| {
            select::offset(r, i, window(space).wrapping_neg(), mask)
        }),
        _ => return None,
    })
}

fn window(space: Space) -> u64 {
    match space {
        Space::Shared => SHARED_WINDOW,
        Space::Local => LOCAL_WINDOW,
        Space::Global | Space::Generic => 0,
    }
}
