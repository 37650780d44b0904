//! The graphics architectures that a device can pose as, and their limits.

/// A graphics architecture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Arch {
    /// Turing, compute capability 7.5 (T4): what a program for newer cards meets and refuses. Of its limits
    /// only the shared memory is its own, the others are Ampere's.
    Sm75,
    /// Ampere, compute capability 8.0 (A100).
    Sm80,
    /// Hopper, compute capability 9.0 with its own instructions, `sm_90a` (H100, H200).
    Sm90,
}

impl Arch {
    /// Compute capability: major, minor.
    pub fn capability(self) -> (u32, u32) {
        match self {
            Arch::Sm75 => (7, 5),
            Arch::Sm80 => (8, 0),
            Arch::Sm90 => (9, 0),
        }
    }

    /// Shared memory that one block may have with the opt-in attribute, static and dynamic together.
    pub fn shared_bytes_max(self) -> u32 {
        match self {
            Arch::Sm75 => 64 * 1024,
            Arch::Sm80 => 163 * 1024,
            Arch::Sm90 => 227 * 1024,
        }
    }

    /// Whether PTX of this `.target` (`sm_80`, `sm_90a`, `compute_80`) can run here.
    pub fn runs_target(self, target: &str) -> bool {
        let digits = target.trim_start_matches(|c: char| !c.is_ascii_digit());
        let number = digits.trim_end_matches(|c: char| !c.is_ascii_digit());
        let (major, minor) = self.capability();
        let own = major * 10 + minor;
        // `a` targets run on exactly their architecture, `f` targets on their family.
        match number.parse::<u32>() {
            Ok(wanted) if digits.len() > number.len() => wanted == own,
            Ok(wanted) => wanted <= own,
            Err(_) => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_that_run() {
        assert!(Arch::Sm75.runs_target("sm_75") && !Arch::Sm75.runs_target("sm_80"));
        assert!(Arch::Sm80.runs_target("sm_80"));
        assert!(Arch::Sm80.runs_target("sm_75"));
        assert!(!Arch::Sm80.runs_target("sm_86"));
        assert!(!Arch::Sm80.runs_target("sm_90a"));
        assert!(Arch::Sm90.runs_target("sm_90a"));
        assert!(Arch::Sm90.runs_target("sm_89"));
        assert!(!Arch::Sm90.runs_target("sm_100a"));
        assert!(!Arch::Sm90.runs_target("volta"));
    }
}
