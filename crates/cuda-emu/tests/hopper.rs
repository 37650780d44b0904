//! Hopper's own instructions: TMA, mbarriers, wgmma, clusters.

mod support;

use cuda_emu::{
    Arch, Device, DeviceConfig, Element, FaultKind, LaunchError, LaunchStats, Swizzle, TensorMap,
};
use support::edit::Edit;
use support::{Params, Random, assert_near, download, floats, half, load, upload};

const PTX: &str = include_str!("ptx/hopper.sm_90a.ptx");

fn device(seed: u64) -> Device {
    Device::new(DeviceConfig { arch: Arch::Sm90, seed, ..DeviceConfig::default() })
}

fn map(address: u64, rows: usize, k: usize, swizzle: Swizzle) -> [u8; 128] {
    let (dims, strides, box_dims) = (vec![k as u64, rows as u64], vec![k as u64 * 2], vec![64, 64]);
    let map =
        TensorMap { element: Element::Half, address, dims, strides, box_dims, swizzle, fill_nan: false };
    map.encode().unwrap()
}

fn gemm(seed: u64, ptx: &str) -> Result<LaunchStats, LaunchError> {
    let device = device(seed);
    let module = load(&device, ptx);
    let kernel = module.kernel("gemm").unwrap();
    let (m, n, k) = (128, 64, 256);
    let mut random = Random(seed);
    let (a, b) = (random.halves(m * k), random.halves(n * k));
    let da = upload(&device, &a, |v| v.to_le_bytes());
    let db = upload(&device, &b, |v| v.to_le_bytes());
    let c = floats(&device, m * n);
    let params = Params::new(&kernel).pointer(c);
    let params = params.push(&map(da, m, k, Swizzle::Bytes128)).push(&map(db, n, k, Swizzle::Bytes128));
    let stats = params.int(n as i32).int(k as i32).launch(&device, [1, 2, 1], [256, 1, 1], 32768)?;
    let value = |v: u16| f64::from(half(v));
    let dot = |i: usize| (0..k).map(|e| value(a[i / n * k + e]) * value(b[i % n * k + e])).sum::<f64>();
    assert_near(&download(&device, c, m * n), &(0..m * n).map(dot).collect::<Vec<_>>(), 1e-4);
    Ok(stats)
}

fn fault_of(ptx: &str) -> FaultKind {
    match gemm(0, ptx) {
        Err(LaunchError::Fault(fault)) => fault.kind,
        other => panic!("not found: {other:?}"),
    }
}

#[test]
fn tma_and_wgmma() {
    for seed in 0..20 {
        let stats = gemm(seed, PTX).unwrap();
        assert_eq!(stats.tensor_multiply_adds, 128 * 64 * 256);
        assert_eq!(stats.global_bytes_read, 2 * (128 + 64 + 64) / 2 * 256 * 2);
    }
}

#[test]
fn what_tma_and_wgmma_get_wrong_is_named() {
    let broken = |from: &str, to: &str| {
        assert!(PTX.contains(from), "{from}");
        fault_of(&PTX.replace(from, to))
    };
    // Not waited for: the accumulators, and the stage that is given back.
    let kind = broken("wgmma.wait_group.sync.aligned 0;", "wgmma.wait_group.sync.aligned 1;");
    assert!(matches!(kind, FaultKind::NotAwaited { .. } | FaultKind::Race { .. }), "{kind}");
    // Of the producer's waits, those of its first round pass at once: the stages are empty. The
    // third is for a stage that was given out before; the sixth is the consumer's first.
    for wait in [2, 5] {
        let skipped = Edit::nth((wait, 8), "gemm", "mbarrier.try_wait*;", "setp.eq.u32 p, 0, 0;");
        let kind = fault_of(&skipped.apply(PTX));
        // What shows first: an arrival too many, or a tile that is not there, asked for or not.
        let named = matches!(
            kind,
            FaultKind::NotAwaited { .. } | FaultKind::Uninitialised { .. } | FaultKind::Invalid(_)
        );
        assert!(named, "wait {wait}: {kind}");
    }
    let kind = broken("mbarrier.init.shared::cta.b64", "// mbarrier.init.shared::cta.b64");
    assert!(matches!(kind, FaultKind::Uninitialised { .. } | FaultKind::Invalid(_)), "{kind}");
}

/// A report names the kernel, the line, the register and what touched it.
#[test]
fn registers_of_wgmma_are_named() {
    const CHAINED: &str = include_str!("ptx/chained.sm_90a.ptx");
    let report = |edit: Edit| {
        let device = device(0);
        let ptx = edit.apply(CHAINED);
        let module = load(&device, &ptx);
        let kernel = module.kernel("chained").unwrap();
        let params = Params::new(&kernel).pointer(floats(&device, 512)).int(3);
        let Err(LaunchError::Fault(fault)) = params.launch(&device, [1, 1, 1], [128, 1, 1], 0) else {
            panic!("not found")
        };
        let line = ptx.lines().nth(fault.place.ptx_line as usize - 1).unwrap().to_string();
        (fault.to_string(), line)
    };
    let (text, line) = report(Edit::nth((1, 2), "chained", "wgmma.fence.sync.aligned;", ""));
    let wanted = "wgmma has register `%r14` without wgmma.fence after its write in `chained` (PTX line 59: `cvt.rn.f16x2.f32 %r14, %f5, %f4";
    assert!(text.starts_with(wanted), "{text}");
    assert!(line.contains("m64n8k16"), "{line}");
    let commit = "wgmma.commit_group.sync.aligned;";
    let changed = "wgmma.commit_group.sync.aligned; mov.b32 %r15, 0;";
    let (text, line) = report(Edit::nth((1, 2), "chained", commit, changed));
    let wanted =
        "write of the fragment of A `%r15` of wgmma before waiting for it, started in `chained` (PTX line 64";
    assert!(text.starts_with(wanted), "{text}");
    assert!(line.contains("mov.b32 %r15, 0"), "{line}");
}

#[test]
fn clusters_read_each_other() {
    for seed in 0..4 {
        let device = device(seed);
        let module = load(&device, PTX);
        let kernel = module.kernel("exchange").unwrap();
        assert_eq!(kernel.cluster_required(), Some([2, 1, 1]));
        let out = floats(&device, 128);
        Params::new(&kernel).pointer(out).launch(&device, [4, 1, 1], [32, 1, 1], 0).unwrap();
        let mut bytes = [0; 512];
        device.memory().copy_out(out, &mut bytes).unwrap();
        for (n, word) in bytes.chunks_exact(4).enumerate() {
            let (block, thread) = (n / 32, n % 32);
            assert_eq!(
                i32::from_le_bytes(word.try_into().unwrap()),
                ((block % 2) ^ 1) as i32 * 100 + thread as i32
            );
        }
    }
}

#[test]
fn bulk_copies_in_and_out() {
    let device = device(0);
    let run = |ptx: &str| {
        let module = load(&device, ptx);
        let kernel = module.kernel("bulk").unwrap();
        let values: Vec<f32> = (0..256).map(|n| n as f32).collect();
        let (from, to) = (upload(&device, &values, |v| v.to_le_bytes()), floats(&device, 256));
        Params::new(&kernel).pointer(to).pointer(from).launch(&device, [1, 1, 1], [256, 1, 1], 0)?;
        assert!(download(&device, to, 256).iter().enumerate().all(|(n, v)| *v == 2.0 * n as f32));
        Ok::<(), LaunchError>(())
    };
    run(PTX).unwrap();
    let Err(LaunchError::Fault(fault)) = run(&PTX.replace("fence.proxy.async.shared::cta;", "")) else {
        panic!("not found")
    };
    assert!(matches!(fault.kind, FaultKind::MissingProxyFence { .. }), "{fault}");
}
