//! Which modifiers the opcodes of memory, barriers and copies may have: what is not known is refused,
//! not passed over. Arithmetic checks its own where it is decoded.

use super::body::Reason;
use super::operand::Opcode;

const SCOPES: &[&str] = &["cta", "cluster", "gpu", "sys"];
const SPACES: &[&str] = &[
    "global",
    "const",
    "shared",
    "shared::cta",
    "shared::cluster",
    "local",
    "param",
    "param::entry",
    "param::func",
];

/// Modifiers of an opcode's first word besides types, scopes and spaces; none if others look at them.
fn known(word: &str) -> Option<&'static [&'static str]> {
    Some(match word {
        "ld" | "ldu" => &[
            "weak", "volatile", "relaxed", "acquire", "mmio", "ca", "cg", "cs", "lu", "cv", "nc", "v2", "v4",
        ],
        "st" => &["weak", "volatile", "relaxed", "release", "mmio", "wb", "cg", "cs", "wt", "v2", "v4"],
        "atom" | "red" => &[
            "relaxed", "acquire", "release", "acq_rel", "add", "min", "max", "and", "or", "xor", "exch",
            "cas", "inc", "dec", "noftz", "v2", "v4",
        ],
        "bar" | "barrier" => &[
            "warp", "sync", "arrive", "wait", "red", "popc", "and", "or", "aligned", "release", "acquire",
            "relaxed",
        ],
        "fence" | "membar" => {
            &["sc", "acq_rel", "acquire", "release", "gl", "proxy", "alias", "async", "mbarrier_init"]
        }
        "mbarrier" => &[
            "init",
            "inval",
            "arrive",
            "arrive_drop",
            "expect_tx",
            "complete_tx",
            "test_wait",
            "try_wait",
            "pending_count",
            "parity",
            "noComplete",
            "release",
            "acquire",
            "relaxed",
        ],
        "cp" => &[
            "async",
            "ca",
            "cg",
            "commit_group",
            "wait_group",
            "wait_all",
            "mbarrier",
            "arrive",
            "noinc",
            "bulk",
            "tensor",
            "1d",
            "2d",
            "3d",
            "4d",
            "5d",
            "tile",
            "bulk_group",
            "mbarrier::complete_tx::bytes",
            "multicast::cluster",
            "read",
            "prefetch",
            "L2",
        ],
        "griddepcontrol" => &["wait", "launch_dependents"],
        "setmaxnreg" => &["inc", "dec", "sync", "aligned"],
        _ => return None,
    })
}

/// Fails on the first modifier that the opcode cannot have.
pub(super) fn check(op: &Opcode) -> Result<(), Reason> {
    let Some(known) = known(op.parts[0]) else { return Ok(()) };
    let hint = |part: &&str| {
        let hints = ["L1::", "L2::", "async::", "tensormap::", "sync_restrict::"];
        hints.iter().any(|hint| part.starts_with(hint))
    };
    let all: Vec<&str> =
        [known, SCOPES, SPACES].concat().into_iter().chain(op.parts.iter().copied().filter(hint)).collect();
    op.only(&all)
}
