//! Names and texts of result codes.

use std::ffi::{CStr, c_char, c_uint};

use crate::driver::abi::{Out, entry_points};
use crate::driver::status::{Answer, Status};

fn describe(
    code: c_uint,
    target: &Out<*const c_char>,
    success: &'static CStr,
    text: fn(Status) -> &'static CStr,
) -> Answer {
    let found = if code == 0 { Some(success) } else { Status::from_code(code).map(text) };
    target.set(found.map_or(std::ptr::null(), CStr::as_ptr))?;
    found.map(|_| ()).ok_or(Status::InvalidValue)
}

entry_points! {
    fn cuGetErrorName(code: c_uint, name: Out<*const c_char>) {
        describe(code, &name, c"CUDA_SUCCESS", Status::symbol)
    }

    fn cuGetErrorString(code: c_uint, text: Out<*const c_char>) {
        describe(code, &text, c"no error", Status::text)
    }
}
