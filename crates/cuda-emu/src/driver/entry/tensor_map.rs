//! Tensor maps, checked by the rules of the manual.

use std::ffi::c_uint;

use crate::driver::abi::{In, Out, entry_points};
use crate::driver::schedule::driver;
use crate::driver::status::{Answer, Status};
use crate::tensor_map::{Element, Swizzle, TensorMap};

/// The data types from FLOAT16 to TFLOAT32_FTZ are floats, which can be filled with NaN.
const FLOATS: std::ops::RangeInclusive<c_uint> = 6..=12;

fn refuse<T>(status: Status, reason: &str) -> Answer<T> {
    eprintln!("[cuda-emu] {}: cuTensorMapEncodeTiled: {reason}", status.symbol().to_string_lossy());
    Err(status)
}

fn element(data_type: c_uint) -> Answer<Element> {
    Ok(match data_type {
        0 => Element::Byte,
        1 | 6 | 9 => Element::Half,
        2 | 3 | 7 | 10..=12 => Element::Word,
        4 | 5 | 8 => Element::Double,
        13..=15 => return refuse(Status::NotSupported, "types of 4 and 6 bits"),
        other => return refuse(Status::InvalidValue, &format!("data type {other}")),
    })
}

fn swizzle(mode: c_uint) -> Answer<Swizzle> {
    Ok(match mode {
        0 => Swizzle::None,
        1 => Swizzle::Bytes32,
        2 => Swizzle::Bytes64,
        3 => Swizzle::Bytes128,
        4..=6 => return refuse(Status::NotSupported, "swizzle atoms of 32 and 64 bytes"),
        other => return refuse(Status::InvalidValue, &format!("swizzle {other}")),
    })
}

/// Strides in elements and interleaving, which the emulator has only the plain form of.
fn check_plain(element_strides: &[c_uint], interleave: c_uint) -> Answer {
    if let Some(stride) = element_strides.iter().find(|s| !(1..=8).contains(*s)) {
        return refuse(Status::InvalidValue, &format!("element stride {stride}, may be 1 to 8"));
    }
    match interleave {
        0 if element_strides.iter().all(|stride| *stride == 1) => Ok(()),
        0..=2 => refuse(Status::NotSupported, "element strides other than 1, and interleaving"),
        other => refuse(Status::InvalidValue, &format!("interleave {other}")),
    }
}

entry_points! {
    fn cuTensorMapEncodeTiled(
        map: Out<[u8; TensorMap::BYTES]>,
        data_type: c_uint,
        rank: c_uint,
        address: u64,
        dims: In<u64>,
        strides: In<u64>,
        box_dims: In<c_uint>,
        element_strides: In<c_uint>,
        interleave: c_uint,
        swizzle_mode: c_uint,
        l2_promotion: c_uint,
        fill: c_uint,
    ) {
        if !driver().lock().own().card.has_clusters() {
            return refuse(Status::NotSupported, "this card has no tensor memory accelerator");
        }
        if !(1..=5).contains(&rank) || !(map.pointer() as usize).is_multiple_of(64) || l2_promotion > 3 || fill > 1 {
            return refuse(Status::InvalidValue, "rank not 1 to 5, map not 64-byte aligned, or an unknown mode");
        }
        if fill == 1 && !FLOATS.contains(&data_type) {
            return refuse(Status::InvalidValue, "NaN fill of a type that is no float");
        }
        let rank = rank as usize;
        check_plain(&element_strides.list(rank)?, interleave)?;
        let encoded = TensorMap {
            element: element(data_type)?,
            address,
            dims: dims.list(rank)?,
            strides: strides.list(rank - 1)?,
            box_dims: box_dims.list(rank)?,
            swizzle: swizzle(swizzle_mode)?,
            fill_nan: fill == 1,
        };
        match encoded.encode() {
            Ok(bytes) => map.set(bytes),
            Err(error) => refuse(Status::InvalidValue, &error.to_string()),
        }
    }
}
