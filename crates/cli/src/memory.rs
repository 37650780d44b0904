//! Memory use of the process.

/// Peak resident set size in bytes; `None` without Linux's `/proc`.
pub fn peak_bytes() -> Option<u64> {
    kibibytes_in(&std::fs::read_to_string("/proc/self/status").ok()?, "VmHWM:")
}

/// Bytes of a line such as `VmHWM:     1234 kB` in a file of `/proc`.
fn kibibytes_in(text: &str, key: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(key))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim_end().parse().ok()?;
    kibibytes.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_peak_is_read_or_missing() {
        let peak_in = |status| kibibytes_in(status, "VmHWM:");
        assert_eq!(peak_in("VmPeak:\t  9 kB\nVmHWM:\t  1234 kB\nVmRSS:\t 1 kB\n"), Some(1234 << 10));
        assert_eq!(peak_in("VmHWM:\t many kB\n"), None);
        assert_eq!(peak_in("VmHWM:\t 12\n"), None);
        assert_eq!(peak_in(""), None);
        assert_eq!(peak_bytes().is_some(), cfg!(target_os = "linux"));
    }
}
