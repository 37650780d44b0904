//! A cache file of packed matrices: later loads decode and pack no tensor again.
//!
//! | part | bytes |
//! |---|---|
//! | head | magic 8; version 4 (native byte order); matrix count 4; key 32; data offset 8; data size 8 |
//! | table | per matrix: rows 8, columns 8, offset in the data 8, bytes 8, layout code 8 |
//! | checksums | CRC-32 of each 1 MiB block of each matrix, 4 each |
//! | data | from the next page boundary, the matrices contiguously, each a multiple of 64 bytes |
//!
//! Little-endian except for the version. Head and table follow from the request, so the reader parses
//! nothing: it builds them again and compares. That proves bounds, alignment and sizes at once.
//!
//! Then all threads read blocks into the process's own memory and verify the checksums there. The bytes in
//! use are the verified ones, whatever happens to the file. With [`Sidecar::map`] the file is mapped, and its
//! pages are verified and used. The file is written under a temporary name next to the final one and renamed,
//! so a process that has mapped the old file keeps it.

use std::io::{self, BufWriter, Read, Write};
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::backend::cpu::isa::Order;
use crate::backend::cpu::memory::WeightSlice;
use crate::backend::cpu::pack::{Layout, Matrix, packed_bytes};
use crate::backend::cpu::pool::Pool;
use crate::backend::{NoSidecar, Sidecar};
use crate::file::{ReadAt, Temporary, open_regular};
use crate::quant::{Bits, Codes};

const MAGIC: &[u8; 8] = b"OTTAVACP";
/// Must be incremented when the same tensors are packed into other bytes.
const VERSION: u32 = 1;
/// Byte range of the key.
const KEY: Range<usize> = 16..48;
/// Size of the head, which precedes the table.
const HEAD_BYTES: usize = 64;
/// Bytes per checksum.
const BLOCK_BYTES: usize = 1 << 20;
/// Bytes per read, which are verified while they are in a core's cache.
const READ_BYTES: usize = 128 << 10;
/// Alignment of the data: the largest page size in use.
const DATA_ALIGN: usize = 1 << 16;

/// Reads the matrices from the sidecar's file.
pub(crate) fn load(sidecar: &Sidecar<'_>, order: Order, pool: &Pool) -> Result<Vec<Matrix>, NoSidecar> {
    let expected = Contents::of(sidecar, order)?;
    let (file, checksums) = expected.open(sidecar.path)?;
    let mut slice = match sidecar.map {
        true => expected.map(&file)?,
        false => expected.read(&file, &checksums, pool)?,
    };
    let mut matrices = Vec::with_capacity(expected.records.len());
    for record in &expected.records {
        let data = slice.split(record.bytes).ok_or(LENGTH)?;
        matrices.push(Matrix::packed(data, record.shape, record.layout, order));
    }
    if sidecar.map {
        let found = Blocks::of(&matrices).checksums(pool);
        if let Some(block) = found.iter().zip(&checksums).position(|(found, checksum)| found != checksum) {
            return Err(NoSidecar::Damaged { offset: expected.block_offset(block) });
        }
    }
    Ok(matrices)
}

/// Writes the sidecar's file; on an error the previous file is unchanged.
pub(crate) fn store(
    sidecar: &Sidecar<'_>,
    order: Order,
    matrices: &[Matrix],
    pool: &Pool,
) -> Result<(), NoSidecar> {
    let contents = Contents::of(sidecar, order)?;
    let blocks = Blocks::of(matrices);
    let mut before_data = contents.head.clone();
    before_data.extend(blocks.checksums(pool).iter().flat_map(|checksum| checksum.to_le_bytes()));
    before_data.resize(contents.data_at, 0);
    let temporary = Temporary::beside(sidecar.path).map_err(io_error("create"))?;
    let mut out = BufWriter::with_capacity(BLOCK_BYTES, temporary.file());
    let mut write = |bytes: &[u8]| out.write_all(bytes);
    write(&before_data).map_err(io_error("write"))?;
    blocks.0.into_iter().try_for_each(write).map_err(io_error("write"))?;
    out.flush().map_err(io_error("write"))?;
    drop(out);
    // No sync: the checksums detect a file that a crash has truncated.
    temporary.rename_unsynced(sidecar.path).map_err(io_error("rename"))
}

fn io_error(action: &'static str) -> impl Fn(io::Error) -> NoSidecar {
    move |source| NoSidecar::Io { action, source }
}

const LENGTH: NoSidecar = NoSidecar::Not("as long as its head says");

/// Shape, layout and size of a matrix in the data.
struct MatrixRecord {
    shape: [usize; 2],
    layout: Layout,
    bytes: usize,
}

/// Contents of a file, except for the weights' values.
struct Contents {
    records: Vec<MatrixRecord>,
    /// Head and table.
    head: Vec<u8>,
    /// Number of checksums.
    blocks: usize,
    data_at: usize,
    file_bytes: usize,
}

impl Contents {
    fn of(sidecar: &Sidecar<'_>, order: Order) -> Result<Contents, NoSidecar> {
        Contents::counted(sidecar, order).ok_or(NoSidecar::Not("of a size that can be counted"))
    }

    /// `None` if sizes overflow.
    fn counted(sidecar: &Sidecar<'_>, order: Order) -> Option<Contents> {
        let (mut records, mut table) = (Vec::new(), Vec::new());
        let (mut data_bytes, mut blocks) = (0_usize, 0);
        for shape in sidecar.shapes {
            let (layout, dims) = (Layout::of(shape.form), [shape.rows, shape.cols]);
            let bytes = packed_bytes(dims, layout)?;
            for number in [shape.rows, shape.cols, data_bytes, bytes, code(layout, order)] {
                table.extend((number as u64).to_le_bytes());
            }
            records.push(MatrixRecord { shape: dims, layout, bytes });
            blocks += bytes.div_ceil(BLOCK_BYTES);
            data_bytes = data_bytes.checked_add(bytes)?;
        }
        let data_at = (HEAD_BYTES + table.len() + 4 * blocks).next_multiple_of(DATA_ALIGN);
        let file_bytes = data_at.checked_add(data_bytes)?;
        let mut head = Vec::with_capacity(HEAD_BYTES + table.len());
        head.extend(MAGIC);
        head.extend(VERSION.to_ne_bytes());
        head.extend(u32::try_from(records.len()).ok()?.to_le_bytes());
        head.extend(sidecar.key);
        head.extend((data_at as u64).to_le_bytes());
        head.extend((data_bytes as u64).to_le_bytes());
        head.extend(table);
        Some(Contents { records, head, blocks, data_at, file_bytes })
    }

    /// Opens a file with the expected head and length; returns its checksums.
    fn open(&self, path: &Path) -> Result<(ReadAt, Vec<u32>), NoSidecar> {
        let (file, metadata) = open_regular(path).map_err(io_error("open"))?;
        let wanted = self.head.len() + 4 * self.blocks;
        let mut found = Vec::with_capacity(wanted);
        (&file).take(wanted as u64).read_to_end(&mut found).map_err(io_error("read"))?;
        self.compare(&found)?;
        if metadata.len() != self.file_bytes as u64 {
            return Err(LENGTH);
        }
        let checksums = found[self.head.len()..].as_chunks().0.iter();
        Ok((ReadAt::new(file), checksums.map(|&bytes| u32::from_le_bytes(bytes)).collect()))
    }

    /// Maps all data without verification.
    fn map(&self, file: &ReadAt) -> Result<WeightSlice, NoSidecar> {
        let mut slice = WeightSlice::of_file(file.file()).map_err(io_error("map"))?;
        // Skips the part before the data; the file may have shrunk since it was opened.
        slice.split(self.data_at).ok_or(LENGTH)?;
        Ok(slice)
    }

    /// Reads all data into the process's own memory on all threads and verifies it there.
    fn read(&self, file: &ReadAt, checksums: &[u32], pool: &Pool) -> Result<WeightSlice, NoSidecar> {
        let bytes = self.file_bytes - self.data_at;
        let mut slice =
            WeightSlice::zeroed(bytes, "packed weights").map_err(|_| NoSidecar::Memory { bytes })?;
        let (mut blocks, mut rest, mut offset) = (Vec::new(), slice.as_mut_slice(), self.data_at);
        for record in &self.records {
            let (own, others) = rest.split_at_mut_checked(record.bytes).ok_or(LENGTH)?;
            for block in own.chunks_mut(BLOCK_BYTES) {
                let checksum = *checksums.get(blocks.len()).ok_or(LENGTH)?;
                let bytes = block.len();
                blocks.push(Mutex::new(Block { offset, checksum, bytes: block }));
                offset += bytes;
            }
            rest = others;
        }
        let job = Reading { file, blocks: &blocks, failed: Mutex::default() };
        // SAFETY: any thread may do any chunk below the number of blocks.
        unsafe { pool.run(read_block, &job, blocks.len()) };
        match job.failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            None => Ok(slice),
            Some((_, why)) => Err(why),
        }
    }

    /// File offset of block number `block`.
    fn block_offset(&self, block: usize) -> usize {
        let starts = self.records.iter().scan(self.data_at, |end, record| {
            let start = *end;
            *end += record.bytes;
            Some((start..*end).step_by(BLOCK_BYTES))
        });
        starts.flatten().nth(block).unwrap_or(self.data_at)
    }

    /// Compares everything before the data with the expected bytes; checksums must be present, with any
    /// value.
    fn compare(&self, found: &[u8]) -> Result<(), NoSidecar> {
        let same = |range: Range<usize>| found.get(range.clone()) == self.head.get(range);
        let expected = if !same(0..KEY.start - 4) {
            "a file of packed weights of this version"
        } else if !same(KEY) {
            "of this model file, these options and this version"
        } else if !same(0..self.head.len()) {
            "of this model's matrices"
        } else if found.len() != self.head.len() + 4 * self.blocks {
            return Err(LENGTH);
        } else {
            return Ok(());
        };
        Err(NoSidecar::Not(expected))
    }
}

/// A block to be read into memory.
struct Block<'a> {
    /// Offset in the file.
    offset: usize,
    checksum: u32,
    bytes: &'a mut [u8],
}

impl Block<'_> {
    fn read(&mut self, file: &ReadAt) -> Result<(), NoSidecar> {
        let mut hasher = crc32fast::Hasher::new();
        for (at, piece) in (self.offset..).step_by(READ_BYTES).zip(self.bytes.chunks_mut(READ_BYTES)) {
            file.read(piece, at as u64).map_err(|error| match error.kind() {
                io::ErrorKind::UnexpectedEof => LENGTH,
                _ => io_error("read")(error),
            })?;
            hasher.update(piece);
        }
        let sound = hasher.finalize() == self.checksum;
        if sound { Ok(()) } else { Err(NoSidecar::Damaged { offset: self.offset }) }
    }
}

/// The job of reading blocks.
struct Reading<'a> {
    file: &'a ReadAt,
    /// By chunk; each lock is taken by one thread only.
    blocks: &'a [Mutex<Block<'a>>],
    /// The failed block with the lowest number so far, and its error.
    failed: Mutex<Option<(usize, NoSidecar)>>,
}

/// Reads and checks block `block`.
unsafe fn read_block(job: &Reading<'_>, block: usize, _worker: usize) {
    let read = job.blocks[block].lock().unwrap_or_else(PoisonError::into_inner).read(job.file);
    if let Err(why) = read {
        let mut failed = job.failed.lock().unwrap_or_else(PoisonError::into_inner);
        if failed.as_ref().is_none_or(|(earlier, _)| block < *earlier) {
            *failed = Some((block, why));
        }
    }
}

/// The code of a layout in the table.
fn code(layout: Layout, order: Order) -> usize {
    match layout {
        Layout::Quant { kind, mins, halves } => {
            let bits = match kind {
                Codes::Int(Bits::Four) => 4,
                Codes::Int(Bits::Five) => 5,
                Codes::Int(Bits::Six) => 6,
                Codes::E2m1 => 21,
                Codes::E4m3 => 43,
                Codes::Int(Bits::Eight) => 8 | usize::from(order.byte_bias()) << 16,
            };
            bits | usize::from(mins) << 8 | usize::from(halves) << 9 | usize::from(order.pairs()) << 10
        }
        Layout::F16 => 16,
        Layout::Bf16 => 17,
        Layout::F32 => 32,
    }
}

/// Matrices, cut into blocks.
struct Blocks<'a>(Vec<&'a [u8]>);

impl Blocks<'_> {
    fn of(matrices: &[Matrix]) -> Blocks<'_> {
        Blocks(matrices.iter().flat_map(|matrix| matrix.as_slice().chunks(BLOCK_BYTES)).collect())
    }

    /// The blocks' checksums, computed on all threads.
    fn checksums(&self, pool: &Pool) -> Vec<u32> {
        let mut found = Vec::new();
        found.resize_with(self.0.len(), AtomicU32::default);
        let job = Checking { blocks: &self.0, found: &found };
        // SAFETY: any thread may do any chunk below the number of blocks.
        unsafe { pool.run(check, &job, self.0.len()) };
        found.into_iter().map(AtomicU32::into_inner).collect()
    }
}

/// The job of computing checksums.
struct Checking<'a> {
    blocks: &'a [&'a [u8]],
    found: &'a [AtomicU32],
}

/// Computes the checksum of block `block`.
unsafe fn check(job: &Checking<'_>, block: usize, _worker: usize) {
    job.found[block].store(crc32fast::hash(job.blocks[block]), Ordering::Relaxed);
}

#[cfg(test)]
mod tests;
