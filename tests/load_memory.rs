//! What is resident while a model is loaded: its weights once, not beside the file or another form of them.

#![cfg(target_os = "linux")]

mod tiny;

use std::num::NonZeroUsize;
use std::path::Path;

use ottava::backend::cpu::{Cpu, CpuOptions};
use ottava::checkpoint::{ModelFile, OpenOptions};
use ottava::ir::{KvDtype, Precision, StepLimits};
use ottava::model::{KvBudget, LoadOptions, Model, ModelConfig, SidecarUse};
use tiny::{Outcome, Tiny};

/// Nearly all of it is the table of 32 columns, 30 MB.
const MODEL: Tiny = Tiny::narrow(480_000);

/// Bytes that `/proc/self/status` tells.
fn status(field: &str) -> Outcome<u64> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix(field)).ok_or("no such field")?;
    Ok(1024 * line.trim_start_matches(':').trim_end_matches("kB").trim().parse::<u64>()?)
}

/// Bytes resident of a file's mapping; none if it is not mapped.
fn resident(file: &Path) -> Outcome<Option<u64>> {
    let maps = std::fs::read_to_string("/proc/self/smaps")?;
    let file = file.canonicalize()?;
    let Some((_, map)) = maps.split_once(file.to_str().ok_or("a name without text")?) else {
        return Ok(None);
    };
    let line = map.lines().find_map(|line| line.strip_prefix("Rss:")).ok_or("no such field")?;
    Ok(Some(1024 * line.trim().trim_end_matches("kB").trim().parse::<u64>()?))
}

#[test]
fn weights_are_resident_once_at_every_moment() -> Outcome {
    let mut file = tempfile::NamedTempFile::new()?;
    std::io::Write::write_all(&mut file, &tiny::file(&MODEL, &[])?)?;
    let mut options = LoadOptions {
        limits: StepLimits { tokens_max: 1, outputs_max: 1 },
        kv_dtype: KvDtype::F16,
        kv: KvBudget::Bytes(1 << 20),
        context_max: 32,
        quantise: None,
        sidecar: None,
        activations: Precision::F32,
    };
    let (folder, mut last) = (tempfile::tempdir()?, None);
    // The first one with a sidecar writes it; the others read it, and map it.
    let loads = [(true, false), (false, false), (false, true), (false, true), (true, true)];
    for (mmap, kept) in loads {
        options.sidecar = kept.then(|| folder.path().join("weights.packed"));
        let source = ModelFile::open(file.path(), &OpenOptions { mmap })?;
        let config = ModelConfig::from_file(&source)?;
        let cpu = Cpu::new(&CpuOptions { threads: NonZeroUsize::new(2), ..CpuOptions::default() })?;
        // 5: the peak starts again from what is resident now, vocabulary and all.
        std::fs::write("/proc/self/clear_refs", "5")?;
        let before = status("VmRSS")?;
        let model = Model::load(&source, &config, cpu, &options, &mut |_| {})?;
        let (peak, weights) = (status("VmHWM")?.saturating_sub(before), model.weight_bytes() as u64);
        assert!(weights > 30_000_000, "{weights} bytes of weights");
        // What was resident before may be given back meanwhile.
        assert!(
            peak > weights * 3 / 4,
            "a peak of {peak} bytes with {weights} bytes of weights: nothing was measured"
        );
        assert!(
            peak < weights * 3 / 2 + (4 << 20),
            "mmap {mmap}, {:?}: {peak} bytes for {weights} bytes of weights",
            model.sidecar()
        );
        // Nor pages at the ends of tensors, and what the system mapped around them.
        assert_eq!(resident(file.path())?, mmap.then_some(0), "mmap {mmap}, {:?}", model.sidecar());
        // Packed weights that are read are the process's own: the file is not mapped.
        if let Some(sidecar) = &options.sidecar {
            let mapped = resident(sidecar)?.is_some();
            assert_eq!(mapped, mmap && *model.sidecar() == SidecarUse::Read, "{:?}", model.sidecar());
        }
        last = Some(model.sidecar().clone());
    }
    assert_eq!(last, Some(SidecarUse::Read));
    Ok(())
}
