//! PTX's fundamental types.

/// A type as it stands in an opcode or declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[rustfmt::skip]
pub(crate) enum Type {
    Pred,
    B8, B16, B32, B64, B128,
    U8, U16, U32, U64,
    S8, S16, S32, S64,
    F16, F16x2, Bf16, Bf16x2, F32, F64, Tf32,
    E4m3, E5m2, E4m3x2, E5m2x2,
}

impl Type {
    /// The type of this name, without the dot.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        use Type::*;
        Some(match name {
            "pred" => Pred,
            "b8" => B8,
            "b16" => B16,
            "b32" => B32,
            "b64" => B64,
            "b128" => B128,
            "u8" => U8,
            "u16" => U16,
            "u32" => U32,
            "u64" => U64,
            "s8" => S8,
            "s16" => S16,
            "s32" => S32,
            "s64" => S64,
            "f16" => F16,
            "f16x2" => F16x2,
            "bf16" => Bf16,
            "bf16x2" => Bf16x2,
            "f32" => F32,
            "f64" => F64,
            "tf32" => Tf32,
            "e4m3" => E4m3,
            "e5m2" => E5m2,
            "e4m3x2" => E4m3x2,
            "e5m2x2" => E5m2x2,
            _ => return None,
        })
    }

    /// Size in memory; a predicate has none.
    pub(crate) fn bytes(self) -> u32 {
        use Type::*;
        match self {
            Pred => 0,
            B8 | U8 | S8 | E4m3 | E5m2 => 1,
            B16 | U16 | S16 | F16 | Bf16 | E4m3x2 | E5m2x2 => 2,
            B32 | U32 | S32 | F16x2 | Bf16x2 | F32 | Tf32 => 4,
            B64 | U64 | S64 | F64 => 8,
            B128 => 16,
        }
    }

    /// Whether it lies in 64-bit registers.
    pub(crate) fn is_wide(self) -> bool {
        self.bytes() == 8
    }

    pub(crate) fn is_signed(self) -> bool {
        matches!(self, Type::S8 | Type::S16 | Type::S32 | Type::S64)
    }

    pub(crate) fn is_float(self) -> bool {
        use Type::*;
        matches!(self, F16 | F16x2 | Bf16 | Bf16x2 | F32 | F64 | Tf32 | E4m3 | E5m2 | E4m3x2 | E5m2x2)
    }

    /// An integer or untyped bits.
    pub(crate) fn is_integer(self) -> bool {
        !self.is_float() && self != Type::Pred
    }
}
