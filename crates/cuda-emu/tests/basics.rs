//! Small kernels, written by hand.

use cuda_emu::{Checks, Device, DeviceConfig, FaultKind, Launch, LaunchError, Module, launch};

fn device() -> Device {
    Device::new(DeviceConfig { threads: 1, ..DeviceConfig::default() })
}

/// A kernel `k` with a pointer parameter in %rd1 (and a second in %rd2), and a few registers.
fn kernel(body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 smem[];\n
.visible .entry k(.param .u64 a, .param .u64 b) {{
  .reg .pred %p<9>; .reg .b16 %rs<9>; .reg .b32 %r<19>; .reg .f32 %f<9>; .reg .b64 %rd<9>;
  ld.param.u64 %rd1, [a]; ld.param.u64 %rd2, [b];
  mov.u32 %r1, %tid.x; mul.wide.u32 %rd3, %r1, 4; add.s64 %rd4, %rd1, %rd3;
  {body}
  ret;
}}"
    )
}

fn run(
    device: &Device,
    body: &str,
    threads: u32,
    a: u64,
    b: u64,
) -> Result<cuda_emu::LaunchStats, LaunchError> {
    let module = Module::load(device, &kernel(body)).unwrap();
    let kernel = module.kernel("k").unwrap();
    let params = [a.to_le_bytes(), b.to_le_bytes()].concat();
    launch(
        device,
        &Launch { dynamic_shared_bytes: 4096, ..Launch::new(&kernel, [1, 1, 1], [threads, 1, 1], &params) },
    )
}

fn fault(device: &Device, body: &str, threads: u32, a: u64) -> cuda_emu::Fault {
    match run(device, body, threads, a, 0) {
        Err(LaunchError::Fault(fault)) => *fault,
        other => panic!("expected a fault, got {other:?}"),
    }
}

fn words(device: &Device, address: u64, count: usize) -> Vec<u32> {
    let mut bytes = vec![0; count * 4];
    device.memory().copy_out(address, &mut bytes).unwrap();
    bytes.chunks_exact(4).map(|c| u32::from_le_bytes(c.try_into().unwrap())).collect()
}

/// Moves may cost nothing, but copies must not change when what they were copied from does; and they
/// count.
#[test]
fn copies_keep_their_values() {
    let device = device();
    let out = device.memory().alloc(32 * 4).unwrap();
    let body = "
      mov.u32 %r2, 0; mov.u32 %r3, 1; mov.u32 %r9, %r3; mov.u32 %r8, 0;
    LOOP:
      mov.u32 %r4, %r2; add.u32 %r2, %r2, %r3; mov.u32 %r3, %r4;
      add.u32 %r8, %r8, 1; setp.le.u32 %p1, %r8, %r1;
      @%p1 bra LOOP;
      mov.u32 %r10, %r2; mov.u32 %r11, %r10; mov.u32 %r12, 5; mov.u32 %r13, %r12;
      add.u32 %r14, %r11, %r13; mad.lo.u32 %r14, %r9, 1000, %r14;
      st.global.u32 [%rd4], %r14;";
    let stats = run(&device, body, 32, out, 0).unwrap();
    let (mut fibonacci, mut before) = (1, 0);
    for (n, word) in words(&device, out, 32).into_iter().enumerate() {
        assert_eq!(word, fibonacci + 5 + 1000, "{n}");
        (fibonacci, before) = (fibonacci + before, fibonacci);
    }
    // Five instructions come before, and one after; of a branch, the lanes that take it count.
    assert_eq!(stats.warp_instructions, 5 + 4 + 6 * 32 + 7 + 1);
    assert_eq!(stats.thread_instructions, 32 * (5 + 4 + 7 + 1) + 6 * (1..=32).sum::<u64>() - 32);
}

/// Lanes that jump and lanes that come along are one warp from the label on, also where what stands
/// there costs nothing.
#[test]
fn lanes_meet_at_a_label_of_copies() {
    let device = device();
    let out = device.memory().alloc(32 * 4).unwrap();
    let body = "
      setp.lt.u32 %p1, %r1, 16;
      @%p1 bra LABEL;
      add.u32 %r2, %r1, 1; mov.u32 %r3, %r2;
    LABEL:
      mov.u32 %r4, %r1; mov.u32 %r5, %r4;
      st.global.u32 [%rd4], %r5;";
    let stats = run(&device, body, 32, out, 0).unwrap();
    assert!(words(&device, out, 32).into_iter().eq(0..32));
    assert_eq!(stats.warp_instructions, 5 + 2 + 2 + 3 + 1);
}

#[test]
fn copies_before_what_they_copy_keep_their_values() {
    let device = device();
    let out = device.memory().alloc(32 * 4).unwrap();
    // In the text %r3 and %r5 are copied from registers before these are written: with what is known, and
    // with copies.
    for sources in ["mov.u32 %r2, 7; mov.u32 %r4, 9;", "mov.u32 %r2, %r6; mov.u32 %r4, %r8;"] {
        let body = format!(
            "add.u32 %r6, %r1, 7; sub.u32 %r6, %r6, %r1; add.u32 %r8, %r6, 2; bra FIRST;
          LAST: mov.u32 %r3, %r2; mov.u32 %r5, %r4; mad.lo.u32 %r7, %r5, 100, %r3; st.global.u32 [%rd4], %r7; ret;
          FIRST: {sources} bra LAST;"
        );
        run(&device, &body, 32, out, 0).unwrap();
        assert_eq!(words(&device, out, 32), [907; 32], "{sources}");
    }
}

/// The address's register has a number of its own kind: more of those may be in use than of 32 bits.
#[test]
fn ldmatrix_takes_addresses_of_64_bits() {
    let device = device();
    let (out, wide) = (device.memory().alloc(32 * 4).unwrap(), device.memory().alloc(19 * 8).unwrap());
    // So many values of 64 bits are kept that the address has a number beyond all registers of 32.
    let each = |f: fn(usize) -> String| (0..16).map(f).collect::<String>();
    let body = format!(
        "{{ .reg .b64 %w<17>; mov.u64 %rd5, smem; add.u64 %rd6, %rd5, %rd3; st.shared.u32 [%rd6], %r1;
        bar.warp.sync -1; {} and.b64 %rd6, %rd3, 28; shl.b64 %rd6, %rd6, 2; add.u64 %w16, %rd6, %rd5;
        ldmatrix.sync.aligned.m8n8.x1.shared.b16 {{%r2}}, [%w16];
        {} st.global.u64 [%rd2+128], %rd3; st.global.u64 [%rd2+136], %rd5; st.global.u64 [%rd2+144], %rd6;
        st.global.u32 [%rd4], %r2; }}",
        each(|n| format!("xor.b64 %w{n}, %rd2, {n};")),
        each(|n| format!("st.global.u64 [%rd2+{}], %w{n};", 8 * n)),
    );
    run(&device, &body, 32, out, wide).unwrap();
    assert!(words(&device, out, 32).into_iter().eq(0..32));
}

#[test]
fn lanes_diverge_and_meet() {
    let device = device();
    let out = device.memory().alloc(64 * 4).unwrap();
    let body = "
      mov.u32 %r2, 0; mov.u32 %r3, 0;
    LOOP:
      add.u32 %r3, %r3, %r2; add.u32 %r2, %r2, 1;
      setp.le.u32 %p1, %r2, %r1;
      @%p1 bra LOOP;
      and.b32 %r4, %r1, 1; setp.eq.u32 %p2, %r4, 0;
      @%p2 bra EVEN;
      add.u32 %r3, %r3, 1000; bra.uni DONE;
    EVEN: add.u32 %r3, %r3, 2000;
    DONE: activemask.b32 %r5; popc.b32 %r5, %r5; shl.b32 %r5, %r5, 16; or.b32 %r3, %r3, %r5;
      st.global.u32 [%rd4], %r3;";
    run(&device, body, 64, out, 0).unwrap();
    for (n, word) in words(&device, out, 64).into_iter().enumerate() {
        let n = n as u32;
        assert_eq!(
            word,
            (n * (n + 1) / 2) + if n.is_multiple_of(2) { 2000 } else { 1000 } + (32 << 16),
            "{n}"
        );
    }
}

#[test]
fn warps_meet_at_barriers() {
    let device = device();
    let out = device.memory().alloc(128 * 4).unwrap();
    let body = "
      mov.u32 %r2, smem; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;
      st.shared.u32 [%r4], %r1;
      bar.sync 0;
      xor.b32 %r5, %r3, 508; add.u32 %r5, %r2, %r5;
      ld.shared.u32 %r6, [%r5];
      st.global.u32 [%rd4], %r6;";
    for seed in 0..4 {
        let device = Device::new(DeviceConfig { seed, ..device.config().clone() });
        let out = device.memory().alloc(128 * 4).unwrap();
        run(&device, body, 128, out, 0).unwrap();
        assert!(words(&device, out, 128).into_iter().enumerate().all(|(n, word)| word == 127 - n as u32));
    }
    let without = body.replace("bar.sync 0;", "");
    let found = fault(&device, &without, 128, out);
    assert!(
        matches!(
            found.kind,
            FaultKind::Race { access: "read", other_access: "write", .. } | FaultKind::Uninitialised { .. }
        ),
        "{found}"
    );
}

#[test]
fn a_race_names_both_sides() {
    let body = "mov.u32 %r2, smem; and.b32 %r3, %r1, 31; mad.lo.u32 %r2, %r3, 4, %r2;
      setp.lt.u32 %p1, %r1, 32;
      .loc 1 5 0
      @%p1 st.shared.u32 [%r2+8], %r1;
      .loc 1 9 0
      @!%p1 ld.shared.u32 %r4, [%r2+8];";
    let text = kernel(body) + ".file 1 \"shared.cu\"\n";
    let device = device();
    let module = Module::load(&device, &text).unwrap();
    let kernel = module.kernel("k").unwrap();
    let launched = Launch::new(&kernel, [1, 1, 1], [64, 1, 1], &[0; 16]);
    let Err(LaunchError::Fault(found)) = launch(&device, &Launch { dynamic_shared_bytes: 256, ..launched })
    else {
        panic!("not found")
    };
    assert_eq!((found.block, found.warp, found.lane, found.address), ([0; 3], 1, Some(0), Some(8)));
    let side = |place: &cuda_emu::Place| {
        let lines: Vec<String> = place.source.iter().map(ToString::to_string).collect();
        (place.kernel.clone(), lines, place.ptx_line, place.ptx_text.clone())
    };
    let at = |source: &str, line, text: &str| {
        ("k".to_string(), vec![format!("shared.cu:{source}")], line, text.to_string())
    };
    assert_eq!(side(&found.place), at("9", 15, "@!%p1 ld.shared.u32 %r4, [%r2+8];"));
    let FaultKind::Race { access: "read", other_access: "write", other, other_place } = &found.kind else {
        panic!("{found}")
    };
    assert_eq!(other, "warp 0");
    assert_eq!(side(other_place), at("5", 13, "@%p1 st.shared.u32 [%r2+8], %r1;"));
}

#[test]
fn accesses_out_of_bounds_are_found() {
    let device = device();
    let out = device.memory().alloc(63 * 4).unwrap();
    let found = fault(&device, "st.global.u32 [%rd4], %r1;", 64, out);
    assert!(matches!(&found.kind, FaultKind::OutOfBounds { access: "write", .. }), "{found}");
    assert_eq!((found.warp, found.lane, found.address), (1, Some(31), Some(out + 252)));
    let found = fault(&device, "ld.global.u32 %r2, [%rd4+2];", 32, out);
    assert!(matches!(&found.kind, FaultKind::Misaligned { .. }), "{found}");
    let fresh = device.memory().alloc(128).unwrap();
    let found = fault(&device, "ld.global.u32 %r2, [%rd4];", 32, fresh);
    assert!(matches!(&found.kind, FaultKind::Uninitialised { .. }), "{found}");
    let half = device.memory().alloc(256).unwrap();
    let found = fault(&device, "st.global.u32 [%rd4], %r1; ld.global.u32 %r2, [%rd4+4];", 32, half);
    assert!(matches!(&found.kind, FaultKind::Uninitialised { .. }), "{found}");
    assert_eq!((found.lane, found.address), (Some(31), Some(half + 128)), "behind what was written");
    device.memory().free(out).unwrap();
    let found = fault(&device, "st.global.u32 [%rd4], %r1;", 32, out);
    assert!(matches!(&found.kind, FaultKind::UseAfterFree { .. }), "{found}");
    let found = fault(&device, "mov.u32 %r2, smem; st.shared.u32 [%r2+4096], %r1;", 1, out);
    assert!(matches!(&found.kind, FaultKind::OutOfBounds { .. }), "{found}");
}

#[test]
fn barriers_and_collectives_that_not_all_reach_are_found() {
    let device = device();
    let found = fault(&device, "setp.lt.u32 %p1, %r1, 20; @%p1 bar.sync 0;", 32, 0);
    assert!(
        matches!(&found.kind, FaultKind::Divergent { needed: u32::MAX, present: 0xf_ffff, .. }),
        "{found}"
    );
    let found = fault(&device, "setp.lt.u32 %p1, %r1, 32; @%p1 bra L; bar.sync 1; L: bar.sync 0;", 64, 0);
    assert!(matches!(&found.kind, FaultKind::Deadlock { .. }), "{found}");
    let found =
        fault(&device, "setp.lt.u32 %p1, %r1, 7; @%p1 shfl.sync.bfly.b32 %r2, %r1, 1, 31, -1;", 32, 0);
    assert!(matches!(&found.kind, FaultKind::Divergent { .. }), "{found}");
}

#[test]
fn a_copy_must_be_waited_for() {
    let device = device();
    let data = device.memory().alloc(512).unwrap();
    device.memory().fill(data, &[1, 0, 0, 0], 128).unwrap();
    let body = "
      mov.u32 %r2, smem; shl.b32 %r3, %r1, 2; add.u32 %r4, %r2, %r3;
      cp.async.ca.shared.global [%r4], [%rd4], 4;
      cp.async.commit_group;
      cp.async.wait_group 0;
      ld.shared.u32 %r6, [%r4];
      add.u32 %r6, %r6, %r1;
      st.global.u32 [%rd4], %r6;";
    run(&device, body, 128, data, 0).unwrap();
    assert!(words(&device, data, 128).into_iter().enumerate().all(|(n, word)| word == 1 + n as u32));
    let found = fault(&device, &body.replace("wait_group 0", "wait_group 1"), 128, data);
    assert!(matches!(&found.kind, FaultKind::NotAwaited { .. }), "{found}");
    let plain = Device::new(DeviceConfig { checks: Checks::Bounds, ..DeviceConfig::default() });
    let data = plain.memory().alloc(512).unwrap();
    run(&plain, &body.replace("wait_group 0", "wait_group 1"), 128, data, 0).unwrap();
    assert_eq!(words(&plain, data, 1), [u32::MAX]);
}

#[test]
fn endless_loops_and_traps_stop() {
    let device = Device::new(DeviceConfig { warp_instructions_max: 100_000, ..DeviceConfig::default() });
    let found = fault(&device, "L: bra.uni L;", 32, 0);
    assert!(matches!(&found.kind, FaultKind::NeverEnds { .. }), "{found}");
    let found = fault(&device, "trap;", 32, 0);
    assert_eq!(found.kind, FaultKind::Trap);
}

#[test]
fn unknown_instructions_are_named() {
    let texts = [
        ("frobnicate.u32 %r1, %r2;", "instruction is not supported"),
        ("@!%p1 frobnicate;", "instruction is not supported"),
        ("ld.global.frob.u32 %r2, [%rd4];", "modifier `.frob` is not supported here"),
        ("add.u32.f64 %r1, %r2, %r3;", "modifier `.f64` is not supported here"),
        ("ld.global %r2, [%rd4];", "a modifier or type is missing"),
        ("mov.u32 %r2, %frob.x;", "%frob.x"),
        ("add.u32 %r1, %r2, %q;", "%q"),
        ("@%q add.u32 %r1, %r2, %r3;", "%q"),
        ("add.u32 %r1, %r2;", "operand"),
        ("cp.async.cg.shared.global [%r1], [%rd4], 8;", "8"),
        ("bra NOWHERE;", "no label `NOWHERE`"),
        ("@%p1 bra NOWHERE;", "no label `NOWHERE`"),
        ("call frob, ();", "`frob` has no body in this module"),
        ("call %rd1, ();", "`%rd1` has no body in this module"),
        ("call (), %rd1, (), f;", "calls through pointers are not supported"),
    ];
    let device = device();
    for (text, message) in texts {
        let module = Module::load(&device, &kernel(&format!("add.u32 %r2, %r1, 1;\n{text}"))).unwrap();
        let problem = module.kernel("k").unwrap_err();
        assert_eq!((&*problem.kernel, &*problem.text, problem.line), ("k", text, 11), "{problem}");
        assert!(problem.message.contains(message), "{problem}");
        assert_eq!(module.problems().collect::<Vec<_>>(), [&problem]);
    }
    // Prototypes say nothing of their own, and what is no PTX at all is quoted by its line.
    let text = kernel("f: .callprototype ()_ (.param .b64 _); g: .calltargets k; trap;");
    Module::load(&device, &text).unwrap().kernel("k").unwrap();
    let found = Module::load(&device, &kernel("add.u32 %r2, %r1 7;")).unwrap_err();
    assert_eq!((&*found.kernel, &*found.text, found.line), ("k", "add.u32 %r2, %r1 7;", 10), "{found}");
    assert_eq!(found.message, "expected `,` or `;`, found a number");
    // In a function, whose line it is.
    let text = kernel("call f, ();").replace(".visible", ".func f() {\n frobnicate.u32;\n ret;\n}\n.visible");
    let problem = Module::load(&device, &text).unwrap().kernel("k").unwrap_err();
    assert_eq!((&*problem.kernel, &*problem.text, problem.line), ("k", "frobnicate.u32;", 7), "{problem}");
}

/// Directives that stand outside of kernels: a module that has one of these is refused by its line.
#[test]
fn directives_that_are_not_supported_are_named() {
    let device = device();
    let cases = [
        (".global .texref t;", "directive `.texref` is not supported"),
        (".global .samplerref s;", "directive `.samplerref` is not supported"),
        (".visible .global .surfref s;", "directive `.surfref` is not supported"),
        (".tex .u32 t;", "directive `.tex` is not supported"),
        (".global .attribute(.unified(1, 2)) .u32 v;", "attribute `.unified` is not supported"),
        (".visible .entry f() .frob 3 { ret; }", "directive `.frob` is not supported"),
    ];
    for (line, message) in cases {
        let text = kernel("").replace(".extern .shared", &format!("{line}\n.extern .shared"));
        let found = Module::load(&device, &text).unwrap_err();
        assert_eq!((&*found.kernel, &*found.text, found.line, &*found.message), ("", line, 4, message));
    }
}

/// Managed variables are the device's and, at the same address, the host's.
#[test]
fn managed_variables_lie_in_global_memory() {
    let device = device();
    let body = "mov.u64 %rd5, v; ld.global.u32 %r2, [%rd5+4]; st.global.u32 [%rd4], %r2;";
    let text = kernel(body)
        .replace(".visible", ".visible .global .attribute(.managed) .align 4 .u32 v[2] = {5, 6};\n.visible");
    let module = Module::load(&device, &text).unwrap();
    let v = module.global("v").unwrap();
    assert_eq!(words(&device, v.address, 2), [5, 6]);
    device.memory().copy_in(v.address + 4, &[8, 0, 0, 0]).unwrap();
    let out = device.memory().alloc(4).unwrap();
    let (kernel, params) = (module.kernel("k").unwrap(), [out, 0].map(u64::to_le_bytes).concat());
    launch(&device, &Launch::new(&kernel, [1, 1, 1], [1, 1, 1], &params)).unwrap();
    assert_eq!(words(&device, out, 1), [8]);
}

/// A function goes by its other names too.
#[test]
fn aliases_are_called() {
    let device = device();
    let out = device.memory().alloc(4).unwrap();
    let functions = ".func (.param .b32 r) f(.param .b32 x) {
          .reg .b32 %a; ld.param.b32 %a, [x]; add.u32 %a, %a, 30; st.param.b32 [r], %a; ret;
        }
        .func (.param .b32 r) g(.param .b32 x);
        .alias g, f;
        .visible";
    let body = "{ .param .b32 in; .param .b32 back; st.param.b32 [in], 12; call.uni (back), g, (in);
        ld.param.b32 %r2, [back]; } st.global.u32 [%rd4], %r2;";
    let module = Module::load(&device, &kernel(body).replace(".visible", functions)).unwrap();
    let (kernel, params) = (module.kernel("k").unwrap(), [out, 0].map(u64::to_le_bytes).concat());
    launch(&device, &Launch::new(&kernel, [1, 1, 1], [1, 1, 1], &params)).unwrap();
    assert_eq!(words(&device, out, 1), [42]);
}
