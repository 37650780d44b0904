//! Bounds-checked cursor over GGUF fields. The meaning of the fields is in [`super`].

use crate::checkpoint::Fault;

/// A fault with the byte offset of the offending field.
#[derive(Debug)]
pub(in crate::checkpoint) struct Located {
    pub offset: u64,
    pub fault: Fault,
}

pub(super) type Parsed<T> = Result<T, Located>;

/// Parses `count` elements. The caller has checked `count` against the bytes left.
pub(super) fn repeat<T>(count: u64, mut parse: impl FnMut() -> Parsed<T>) -> Parsed<Vec<T>> {
    let mut elements = Vec::with_capacity(count as usize);
    for _ in 0..count {
        elements.push(parse()?);
    }
    Ok(elements)
}

/// A read position in the available bytes of the file.
pub(super) struct Cursor<'a> {
    bytes: &'a [u8],
    at: usize,
    file_bytes: u64,
}

impl<'a> Cursor<'a> {
    /// `bytes` is a prefix (or all) of a file of `file_bytes` bytes.
    pub(super) fn new(bytes: &'a [u8], file_bytes: u64) -> Cursor<'a> {
        Cursor { bytes, at: 0, file_bytes }
    }

    pub(super) fn offset(&self) -> u64 {
        self.at as u64
    }

    /// Bytes from here to the end of the file.
    pub(super) fn left(&self) -> u64 {
        self.file_bytes.saturating_sub(self.offset())
    }

    pub(super) fn take(&mut self, needed: u64, what: &'static str) -> Parsed<&'a [u8]> {
        let end = usize::try_from(needed).ok().and_then(|needed| self.at.checked_add(needed));
        match end.and_then(|end| self.bytes.get(self.at..end)) {
            Some(taken) => {
                self.at += taken.len();
                Ok(taken)
            }
            None => {
                let fault = Fault::Truncated { what, needed, left: self.left() };
                Err(Located { offset: self.offset(), fault })
            }
        }
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Parsed<[u8; N]> {
        let mut array = [0; N];
        array.copy_from_slice(self.take(N as u64, what)?);
        Ok(array)
    }

    pub(super) fn scalar<const N: usize>(&mut self) -> Parsed<[u8; N]> {
        self.array("metadata value")
    }

    pub(super) fn scalars<const N: usize, T>(
        &mut self,
        count: u64,
        from: fn([u8; N]) -> T,
    ) -> Parsed<Vec<T>> {
        let bytes = self.take(count.saturating_mul(N as u64), "array elements")?;
        Ok(bytes.as_chunks::<N>().0.iter().map(|&chunk| from(chunk)).collect())
    }

    pub(super) fn u32(&mut self, what: &'static str) -> Parsed<u32> {
        self.array(what).map(u32::from_le_bytes)
    }

    pub(super) fn u64(&mut self, what: &'static str) -> Parsed<u64> {
        self.array(what).map(u64::from_le_bytes)
    }
}
