//! Where an engine runs, and how memory budgets are written.

/// The device an engine runs on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Device {
    /// The best there is.
    #[default]
    Auto,
    /// The CPU.
    Cpu,
    /// An NVIDIA GPU by its index; an error where there is none.
    Cuda(usize),
}

impl std::str::FromStr for Device {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once(':').unwrap_or((text, "0")) {
            ("auto", "0") => Ok(Device::Auto),
            ("cpu", "0") => Ok(Device::Cpu),
            ("cuda", index) => index.parse().map(Device::Cuda).map_err(|_| format!("no GPU index: {index}")),
            _ => Err(format!("expected auto, cpu, cuda or cuda:N, found {text}")),
        }
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Bytes(pub usize);

impl Bytes {
    /// Mebibytes.
    pub const fn mib(n: usize) -> Bytes {
        Bytes(n.saturating_mul(1 << 20))
    }

    /// Gibibytes.
    pub const fn gib(n: usize) -> Bytes {
        Bytes(n.saturating_mul(1 << 30))
    }
}

impl std::fmt::Display for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let bytes = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..1_048_576 => write!(f, "{:.1} KiB", bytes / 1024.0),
            1_048_576..1_073_741_824 => write!(f, "{:.1} MiB", bytes / 1_048_576.0),
            _ => write!(f, "{:.2} GiB", bytes / 1_073_741_824.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn devices_parse_and_nonsense_is_refused() {
        assert_eq!("cuda:1".parse(), Ok(Device::Cuda(1)));
        assert_eq!("cuda".parse(), Ok(Device::Cuda(0)));
        assert_eq!("auto".parse(), Ok(Device::Auto));
        assert!("cpu:1".parse::<Device>().is_err());
        assert!("cuda:x".parse::<Device>().is_err());
        assert!("metal".parse::<Device>().is_err());
    }

    #[test]
    fn bytes_print_in_binary_units() {
        assert_eq!(Bytes(12).to_string(), "12 B");
        assert_eq!(Bytes::mib(3).to_string(), "3.0 MiB");
        assert_eq!(Bytes::gib(2).to_string(), "2.00 GiB");
    }
}
