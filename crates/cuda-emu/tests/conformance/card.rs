//! Rows on a real card, through cudarc, and the file of what it gave: a line for each row with its
//! form, a check sum of its text and inputs, and `=` if the results are the expected ones, else the
//! results themselves.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use cudarc::driver::{CudaContext, CudaStream, LaunchConfig, PushKernelArg, sys};
use cudarc::nvrtc::Ptx;

use super::row::{Extra, Row};
use super::run::{Outcome, input_bytes, outputs};

/// Where the files of cards lie, one for each card's name: in the repository, or where
/// `CUDA_EMU_GOLDEN` says, on a machine without it.
pub fn folder() -> PathBuf {
    let here = || PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden");
    std::env::var_os("CUDA_EMU_GOLDEN").map_or_else(here, PathBuf::from)
}

/// A check sum of all that decides the results (FNV-1a).
fn sum(row: &Row) -> u64 {
    let text = row.ptx().into_bytes();
    let bytes = text.into_iter().chain(input_bytes(row)).chain(row.memory.iter().copied());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

/// The line of a row in a card's file.
fn line(row: &Row, (results, memory): &Outcome) -> String {
    let words = || results.iter().flatten().map(|v| format!("{v:x}")).collect::<Vec<_>>().join(" ");
    let memory_same = row.memory_after.as_ref().is_none_or(|after| after == memory);
    let same = results == &row.expected && memory_same;
    format!("{} {:016x} {}", row.form, sum(row), if same { "=".to_string() } else { words() })
}

/// What a card gave, by form and check sum: none where that is what was expected.
pub fn recorded(text: &str) -> HashMap<(String, u64), Option<Vec<u64>>> {
    let entry = |line: &str| {
        let mut words = line.split(' ');
        let (form, sum) = (words.next()?.to_string(), u64::from_str_radix(words.next()?, 16).ok()?);
        let rest: Vec<&str> = words.collect();
        let results = rest.iter().map(|w| u64::from_str_radix(w, 16)).collect::<Result<_, _>>();
        Some(((form, sum), if rest == ["="] { None } else { Some(results.ok()?) }))
    };
    text.lines().filter_map(entry).collect()
}

/// The recorded results of a row; none if the card was not asked for this row as it is now.
pub fn of_row(recorded: &HashMap<(String, u64), Option<Vec<u64>>>, row: &Row) -> Option<Vec<Vec<u64>>> {
    match recorded.get(&(row.form.clone(), sum(row)))? {
        None => Some(row.expected.clone()),
        Some(words) => Some(words.chunks(row.outs.len().max(1)).map(<[u64]>::to_vec).collect()),
    }
}

/// Runs all rows that a card can run. Gives its name, the lines, and what is not as expected.
pub fn record(rows: &[Row]) -> Result<(String, String, Vec<String>), Box<dyn std::error::Error>> {
    let context = CudaContext::new(0)?;
    let stream = context.new_stream()?;
    let major = context.attribute(sys::CUdevice_attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?;
    let (mut lines, mut wrong) = (String::new(), Vec::new());
    // PTX for sm_90a runs on nothing else.
    for row in rows.iter().filter(|row| row.arch == cuda_emu::Arch::Sm80 || major == 9) {
        match run(&context, &stream, row) {
            Ok(outcome) => {
                lines += &(line(row, &outcome) + "\n");
                wrong.extend(
                    row.mismatch(&outcome.0, &outcome.1).map(|reason| format!("{}: {reason}", row.form)),
                );
            }
            Err(error) => {
                wrong.push(format!("{}: {error}", row.form));
                // After a fault the context is of no more use: what there is so far is kept.
                if stream.synchronize().is_err() {
                    break;
                }
            }
        }
    }
    Ok((context.name()?.replace(' ', "-"), lines, wrong))
}

fn run(
    context: &Arc<CudaContext>,
    stream: &Arc<CudaStream>,
    row: &Row,
) -> Result<Outcome, Box<dyn std::error::Error>> {
    let function = context.load_module(Ptx::from_src(row.ptx()))?.load_function("row")?;
    let padded = |bytes: &[u8]| [bytes, &[0; 16][..]].concat();
    let mut input = stream.clone_htod(&padded(&input_bytes(row)))?;
    let mut output = stream.clone_htod(&padded(&vec![0; row.inputs.len() * row.outs.len() * 8]))?;
    let mut memory = stream.clone_htod(&padded(&row.memory))?;
    let [x, y, z] = row.grid;
    let config = LaunchConfig { grid_dim: (x, y, z), block_dim: row.block.into(), shared_mem_bytes: 0 };
    let extra = extra(row, cudarc::driver::DevicePtr::device_ptr(&memory, stream).0)?;
    let mut builder = stream.launch_builder(&function);
    builder.arg(&mut input).arg(&mut output).arg(&mut memory);
    if let Some(extra) = &extra {
        builder.arg(extra);
    }
    // SAFETY: the kernel of a row reads and writes these three buffers inside of their lengths.
    unsafe { builder.launch(config)? };
    stream.synchronize()?;
    let results = outputs(row, &stream.clone_dtoh(&output)?);
    let mut after = stream.clone_dtoh(&memory)?;
    after.truncate(row.memory.len());
    Ok((results, after))
}

/// The fourth parameter as a kernel takes it: by value, aligned as a tensor map must be.
#[repr(C, align(64))]
struct Parameter([u8; 128]);

// SAFETY: the parameter is plain bytes, as long as the kernel's own.
unsafe impl cudarc::driver::DeviceRepr for Parameter {}

fn extra(row: &Row, memory: u64) -> Result<Option<Parameter>, Box<dyn std::error::Error>> {
    let map = match &row.extra {
        Extra::None => return Ok(None),
        Extra::Bytes(bytes) => return Ok(Some(Parameter(*bytes))),
        Extra::Map(map) => map,
    };
    use sys::CUtensorMapDataType as Type;
    let ty = match map.element as u32 {
        1 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT8,
        2 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT16,
        4 => Type::CU_TENSOR_MAP_DATA_TYPE_UINT32,
        _ => Type::CU_TENSOR_MAP_DATA_TYPE_UINT64,
    };
    use sys::CUtensorMapSwizzle as Pattern;
    let swizzle = [
        Pattern::CU_TENSOR_MAP_SWIZZLE_NONE,
        Pattern::CU_TENSOR_MAP_SWIZZLE_32B,
        Pattern::CU_TENSOR_MAP_SWIZZLE_64B,
        Pattern::CU_TENSOR_MAP_SWIZZLE_128B,
    ][map.swizzle as usize];
    let steps = [1u32; 5];
    let mut encoded = std::mem::MaybeUninit::<sys::CUtensorMap>::uninit();
    // SAFETY: all arrays have as many elements as the rank says; the map is written by the call.
    let code = unsafe {
        sys::cuTensorMapEncodeTiled(
            encoded.as_mut_ptr(),
            ty,
            map.dims.len() as u32,
            (memory + map.address) as *mut _,
            map.dims.as_ptr(),
            map.strides.as_ptr(),
            map.box_dims.as_ptr(),
            steps.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            swizzle,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_NONE,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    code.result()?;
    // SAFETY: the call gave success, so the map is written; it is 128 plain bytes.
    let bytes = unsafe { std::mem::transmute::<sys::CUtensorMap, [u8; 128]>(encoded.assume_init()) };
    Ok(Some(Parameter(bytes)))
}
