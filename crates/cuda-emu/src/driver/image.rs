//! Module images: PTX text, and fat binaries, of which the best PTX for the device is taken.
//!
//! Only PTX can be emulated. A fat binary whose PTX is compressed, or that holds machine code only,
//! gives an error that says how to build one that can be.

use std::collections::BTreeMap;
use std::ffi::CStr;

use super::abi::Handle;
use super::status::Status;
use crate::arch::Arch;
use crate::module::Module;

/// A module of the program.
#[derive(Debug)]
pub(crate) struct LoadedModule {
    pub(crate) context: Handle,
    pub(crate) module: Module,
    /// Functions that were asked for, by name: asking again gives the same handle.
    pub(crate) functions: BTreeMap<String, Handle>,
}

/// Why an image cannot be loaded: the code, and the reason in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ImageError {
    pub(crate) status: Status,
    pub(crate) message: String,
}

const FAT_MAGIC: [u8; 4] = 0xba55_ed50_u32.to_le_bytes();
const FAT_WRAPPER_MAGIC: [u8; 4] = 0x4662_43b1_u32.to_le_bytes();
const ELF_MAGIC: [u8; 4] = [0x7f, b'E', b'L', b'F'];
/// Bytes of a fat binary's header, and the least of an entry's.
const FAT_HEADER_BYTES: usize = 16;
const ENTRY_HEADER_BYTES: usize = 64;
/// Entry kinds.
const PTX: u16 = 1;
const CUBIN: u16 = 2;
/// Flags of a payload compressed with LZ4 or zstd.
const COMPRESSED: u64 = 0x2000 | 0x8000;

const HOW: &str =
    "build it with PTX, uncompressed: nvcc --no-compress -gencode arch=compute_80,code=compute_80";

/// The PTX text of an image.
///
/// # Errors
/// There is none that the device runs.
///
/// # Safety
/// `image` must point to PTX text that ends with zero, to a fat binary, a wrapper of one, or an ELF
/// file, as `cuModuleLoadData` demands.
pub(crate) unsafe fn ptx_of(image: *const u8, arch: Arch) -> Result<String, ImageError> {
    let starts_with = |magic: [u8; 4]| {
        // SAFETY: an image that ends here differs here, at its zero: no magic has a zero byte.
        (0..4).all(|index| unsafe { *image.add(index) } == magic[index])
    };
    if starts_with(ELF_MAGIC) {
        return Err(no_ptx(format!("a cubin cannot be emulated; {HOW}")));
    }
    if starts_with(FAT_WRAPPER_MAGIC) {
        // SAFETY: a wrapper is {magic: u32, version: u32, data: pointer, …}.
        return unsafe { ptx_of(image.add(8).cast::<*const u8>().read_unaligned(), arch) };
    }
    if starts_with(FAT_MAGIC) {
        // SAFETY: a fat binary has its header, and after it as many bytes as that says.
        let bytes = unsafe {
            let header = std::slice::from_raw_parts(image, FAT_HEADER_BYTES);
            std::slice::from_raw_parts(image, fat_bytes(header))
        };
        return ptx_of_fat_binary(bytes, arch);
    }
    // SAFETY: what is none of these is text that ends with zero.
    let text = unsafe { CStr::from_ptr(image.cast()) };
    Ok(text.to_string_lossy().into_owned())
}

fn fat_bytes(header: &[u8]) -> usize {
    let after = usize::try_from(number(header, 8, 8)).unwrap_or(0);
    (number(header, 6, 2) as usize).max(FAT_HEADER_BYTES).saturating_add(after)
}

/// The little-endian number of so many bytes at an offset; 0 where the bytes end before.
fn number(bytes: &[u8], at: usize, width: usize) -> u64 {
    let found = bytes.get(at..at + width).unwrap_or(&[]);
    found.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn no_ptx(message: String) -> ImageError {
    ImageError { status: Status::NoBinaryForGpu, message }
}

/// The best PTX of a fat binary: that for the highest architecture that the device is at least, and
/// with architecture-specific instructions before one without.
pub(crate) fn ptx_of_fat_binary(bytes: &[u8], arch: Arch) -> Result<String, ImageError> {
    let invalid = |message: &str| ImageError { status: Status::InvalidImage, message: message.to_string() };
    let mut best: Option<(u64, bool, String)> = None;
    let mut others = Vec::new();
    let mut at = (number(bytes, 6, 2) as usize).max(FAT_HEADER_BYTES);
    while at < bytes.len() {
        let entry = &bytes[at..];
        let header = number(entry, 4, 4) as usize;
        let payload = usize::try_from(number(entry, 8, 8)).map_err(|_| invalid("fat binary: entry size"))?;
        let end =
            header.checked_add(payload).filter(|end| header >= ENTRY_HEADER_BYTES && *end <= entry.len());
        let end = end.ok_or_else(|| invalid("fat binary: an entry runs past the end"))?;
        let (kind, target) = (number(entry, 0, 2) as u16, number(entry, 28, 4));
        match kind {
            PTX if number(entry, 40, 8) & COMPRESSED != 0 => {
                others.push(format!("compressed PTX for {target}"))
            }
            PTX => {
                let text = String::from_utf8_lossy(&entry[header..end]);
                let text = text.trim_end_matches('\0');
                let name = target_of(text);
                let specific = name.ends_with(|c: char| c.is_ascii_lowercase());
                if !arch.runs_target(name) {
                    others.push(format!("PTX for {name}"));
                } else if best.as_ref().is_none_or(|b| (b.0, b.1) < (target, specific)) {
                    best = Some((target, specific, text.to_string()));
                }
            }
            CUBIN => others.push(format!("machine code for {target}")),
            _ => {}
        }
        at += end;
    }
    let held = if others.is_empty() { "nothing".to_string() } else { others.join(", ") };
    let (major, minor) = arch.capability();
    best.map(|(_, _, text)| text).ok_or_else(|| {
        no_ptx(format!("no usable PTX for sm_{major}{minor}; the fat binary has {held}; {HOW}"))
    })
}

/// The architecture that PTX text is for, such as `sm_90a`.
pub(crate) fn target_of(text: &str) -> &str {
    let line = text.lines().find_map(|line| line.trim_start().strip_prefix(".target")).unwrap_or("");
    line.split(',').next().unwrap_or("").trim()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An entry as `fatbinary` writes it: a 64-byte header and a padded payload.
    fn entry(kind: u16, target: u32, flags: u64, payload: &[u8]) -> Vec<u8> {
        let padded = payload.len().next_multiple_of(8);
        let mut bytes = vec![0; 64];
        bytes[0..2].copy_from_slice(&kind.to_le_bytes());
        bytes[2..4].copy_from_slice(&0x101_u16.to_le_bytes());
        bytes[4..8].copy_from_slice(&64_u32.to_le_bytes());
        bytes[8..16].copy_from_slice(&(padded as u64).to_le_bytes());
        bytes[28..32].copy_from_slice(&target.to_le_bytes());
        bytes[40..48].copy_from_slice(&flags.to_le_bytes());
        bytes.extend(payload);
        bytes.resize(64 + padded, 0);
        bytes
    }

    fn fat(entries: &[Vec<u8>]) -> Vec<u8> {
        let body = entries.concat();
        let mut bytes = FAT_MAGIC.to_vec();
        bytes.extend(1_u16.to_le_bytes());
        bytes.extend(16_u16.to_le_bytes());
        bytes.extend((body.len() as u64).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn ptx(target: &str) -> Vec<u8> {
        format!("// made here\n.version 9.0\n.target {target}\n.address_size 64\n").into_bytes()
    }

    #[test]
    fn the_best_ptx_is_taken() {
        let cubin = entry(CUBIN, 90, 0, b"\x7fELF");
        let image = fat(&[cubin, entry(PTX, 80, 0, &ptx("sm_80")), entry(PTX, 90, 0, &ptx("sm_90a"))]);
        assert_eq!(target_of(&ptx_of_fat_binary(&image, Arch::Sm80).unwrap()), "sm_80");
        assert_eq!(target_of(&ptx_of_fat_binary(&image, Arch::Sm90).unwrap()), "sm_90a");
        // SAFETY: `image` is a whole fat binary.
        let text = unsafe { ptx_of(image.as_ptr(), Arch::Sm90) }.unwrap();
        assert!(text.ends_with(".address_size 64\n"), "padding is cut off");
    }

    #[test]
    fn what_cannot_be_emulated_says_why() {
        let image = fat(&[entry(CUBIN, 90, 0, b"\x7fELF"), entry(PTX, 90, 0x8000, b"....")]);
        let error = ptx_of_fat_binary(&image, Arch::Sm90).unwrap_err();
        assert_eq!(error.status, Status::NoBinaryForGpu);
        assert!(error.message.contains("machine code for 90, compressed PTX for 90"), "{}", error.message);
        assert!(error.message.contains("--no-compress"));
        // SAFETY: the bytes start as an ELF file does.
        let error = unsafe { ptx_of(c"\x7fELF".as_ptr().cast(), Arch::Sm90) }.unwrap_err();
        assert_eq!(error.status, Status::NoBinaryForGpu);
    }

    #[test]
    fn cut_fat_binaries_are_errors() {
        let image = fat(&[entry(PTX, 80, 0, &ptx("sm_80"))]);
        for length in FAT_HEADER_BYTES + 1..image.len() {
            let error = ptx_of_fat_binary(&image[..length], Arch::Sm80).unwrap_err();
            assert_eq!(error.status, Status::InvalidImage, "cut to {length} bytes");
        }
    }
}
