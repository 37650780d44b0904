//! Constants shared by host and kernels. Each is defined in a header of `kernels-cu/common/`, and read from
//! there at compile time.

/// The value of `constexpr … NAME = value;` in `attention.cuh`. Without such a line, compilation fails.
pub(super) const fn attention_constant(name: &str) -> usize {
    constant(include_str!("../../../kernels-cu/common/attention.cuh"), name)
}

const fn constant(header: &str, name: &str) -> usize {
    let (header, name) = (header.as_bytes(), name.as_bytes());
    let mut at = 0;
    while at + name.len() + 3 < header.len() {
        if is_at(header, at, b" ")
            && is_at(header, at + 1, name)
            && is_at(header, at + 1 + name.len(), b" = ")
        {
            return number(header, at + name.len() + 4);
        }
        at += 1;
    }
    panic!("no such constant in the header")
}

const fn is_at(text: &[u8], start: usize, part: &[u8]) -> bool {
    let mut i = 0;
    while i < part.len() {
        if start + i >= text.len() || text[start + i] != part[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// Parses the decimal number at `start`, which ends at a semicolon.
const fn number(text: &[u8], start: usize) -> usize {
    let (mut i, mut value) = (start, 0);
    while text[i] != b';' {
        assert!(text[i].is_ascii_digit(), "expected a decimal number and a semicolon");
        value = 10 * value + (text[i] - b'0') as usize;
        i += 1;
    }
    assert!(i > start, "expected a number");
    value
}

#[cfg(test)]
mod tests {
    use super::constant;

    #[test]
    fn a_constant_is_found_by_its_whole_name() {
        let header = "constexpr int MANY_ROWS = 7;\nconstexpr uint32_t ROWS = 64;  // ROWS = 5\n";
        assert_eq!((constant(header, "ROWS"), constant(header, "MANY_ROWS")), (64, 7));
    }

    #[test]
    #[should_panic = "no such constant"]
    fn a_name_that_is_gone_is_an_error() {
        constant("constexpr int ROWS_MAX = 7;", "ROWS");
    }
}
