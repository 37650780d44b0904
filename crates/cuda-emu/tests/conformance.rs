//! Every opcode form that the decoder knows, against what the PTX manual says of it: a table of rows
//! (`conformance/row.rs`), a file per family. Expected values are computed exactly, in wide integers
//! or as exact rationals, and share no code with the emulator.

#[path = "conformance/assembler.rs"]
mod assembler;
#[path = "conformance/card.rs"]
mod card;
#[path = "conformance/forms.rs"]
mod forms;
#[path = "conformance/number.rs"]
mod number;
#[path = "conformance/row.rs"]
mod row;
#[path = "conformance/run.rs"]
mod run;
#[path = "conformance/table.rs"]
mod table;
#[path = "conformance/values.rs"]
mod values;

use std::collections::BTreeSet;

use cuda_emu::{Arch, Device, DeviceConfig, InstallOptions, Module, Vectors};
use row::{Row, Size};

/// Runs all rows, each by the vector instructions of all widths and by the plain loop.
#[test]
fn rows_hold() {
    let rows = table::rows();
    let wrong = |row: &Row| {
        let reason = [Vectors::Avx2, Vectors::None].into_iter().find_map(|vectors| failure(row, vectors))?;
        Some(format!("{}: {reason}", row.form))
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let failed: Vec<String> = std::thread::scope(|scope| {
        let parts = rows.chunks(rows.len().div_ceil(threads));
        let workers: Vec<_> = parts
            .map(|part| scope.spawn(move || part.iter().filter_map(wrong).collect::<Vec<_>>()))
            .collect();
        workers.into_iter().flat_map(|worker| worker.join().unwrap()).collect()
    });
    assert!(failed.is_empty(), "{} of {} rows:\n{}", failed.len(), rows.len(), failed.join("\n"));
}

fn failure(row: &Row, vectors: Vectors) -> Option<String> {
    match run::emulate(row, vectors) {
        Ok((results, memory)) => row.mismatch(&results, &memory),
        Err(reason) => Some(reason),
    }
}

/// The rows are what NVIDIA's assembler takes: needs `ptxas` in the path, a few minutes.
#[test]
#[ignore = "needs ptxas"]
fn the_assembler_takes_all_rows() {
    let refused = assembler::refused(table::rows()).expect("ptxas in the path");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

/// Each form that the decoder accepts has a row; of what is independent of the rest of a form, each
/// choice has a row of the same instruction.
#[test]
fn every_form_has_a_row() {
    let rows: BTreeSet<String> = table::rows().iter().map(|row| row.form.clone()).collect();
    let missing: Vec<String> = forms::all().difference(&rows).cloned().collect();
    assert_eq!(missing, forms::WITHOUT_ROW, "{} forms have no row", missing.len());
    let words: BTreeSet<(&str, &str)> = rows.iter().flat_map(|form| forms::words(form)).collect();
    let missing: Vec<_> =
        forms::independent().into_iter().filter(|(head, word)| !words.contains(&(head, word))).collect();
    assert!(missing.is_empty(), "{} choices are in no row: {missing:#?}", missing.len());
}

/// Each special register that the decoder knows has a row, and each opcode of the kernels that
/// are committed or ship.
#[test]
fn registers_and_what_kernels_name_have_rows() {
    let rows: BTreeSet<&str> = table::rows().iter().map(|row| row.form.as_str()).collect();
    let missing: Vec<String> =
        forms::registers().into_iter().filter(|name| !rows.contains(&**name)).collect();
    assert_eq!(missing, forms::REGISTERS_WITHOUT_ROW);
    let missing: Vec<&str> = forms::of_kernels().difference(&rows).copied().collect();
    assert!(missing.is_empty(), "{missing:#?}");
}

/// What a card gave is what the emulator gives: bit by bit, or within the row's tolerance.
#[test]
fn the_emulator_agrees_with_recorded_cards() {
    let Ok(files) = std::fs::read_dir(card::folder()) else {
        return eprintln!("no card is recorded yet in {}", card::folder().display());
    };
    let mut failed = Vec::new();
    for file in files {
        let path = file.unwrap().path();
        let recorded = card::recorded(&std::fs::read_to_string(&path).unwrap());
        for row in table::rows() {
            let Some(results) = card::of_row(&recorded, row) else { continue };
            let row = Row { expected: results, memory_after: None, ..row.clone() };
            if let Some(reason) = failure(&row, Vectors::Avx2) {
                failed.push(format!("{}, {}: {reason}", path.display(), row.form));
            }
        }
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}

/// The way through the driver that records a card, on the emulated one: a part of the rows.
#[test]
fn rows_hold_through_the_driver() {
    let device = DeviceConfig { arch: Arch::Sm90, threads: 1, ..InstallOptions::default().device };
    let options = InstallOptions { device, ..InstallOptions::skipped_by("CUDA_EMU_TEST_GPU") };
    cuda_emu::install(&options).unwrap();
    let rows: Vec<Row> = table::rows().iter().step_by(61).cloned().collect();
    let (_, lines, wrong) = card::record(&rows).unwrap();
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(lines.lines().count(), rows.len());
}

/// Runs all rows on the machine's card and writes what they gave to `tests/golden/<card>.txt`.
#[test]
#[ignore = "needs a card: CUDA_EMU_TEST_GPU=1"]
fn record_the_card() {
    assert!(std::env::var_os("CUDA_EMU_TEST_GPU").is_some(), "CUDA_EMU_TEST_GPU=1 lets this use the card");
    let (name, lines, wrong) = card::record(table::rows()).unwrap();
    std::fs::create_dir_all(card::folder()).unwrap();
    std::fs::write(card::folder().join(format!("{name}.txt")), lines).unwrap();
    assert!(wrong.is_empty(), "{} rows:\n{}", wrong.len(), wrong.join("\n"));
}

/// What is no instruction, or one that the emulator does not know, is refused: no modifier, and no
/// operand, is passed over in silence.
#[test]
fn what_is_no_instruction_is_refused() {
    let texts = [
        "mad.hi.sat.s32 %r1, %r2, %r3, %r4;",
        "mul.sat.s32 %r1, %r2, %r3;",
        "add.sat.u32 %r1, %r2, %r3;",
        "add.hi.s32 %r1, %r2, %r3;",
        "mul.s32 %r1, %r2, %r3;",
        "add.f32 %r1, %r2;",
        "add.f32 %r1, %r2, %r3, %r4;",
        "add.u32 %r1, %r2, %x3;",
        "max.NaN.f64 %x1, %x2, %x3;",
        "max.xorsign.abs.f32 %r1, %r2, %r3;",
        "min.f32 %r1, %r2, %r3, %r4;",
        "fma.f32 %r1, %r2, %r3, %r4;",
        "add.ftz.bf16 %h1, %h2, %h3;",
        "fma.rn.sat.bf16 %h1, %h2, %h3, %h4;",
        "cvt.rn.satfinite.e4m3x2.bf16x2 %h1, %r1;",
        "cvt.rn.sat.bf16.f32 %h1, %r1;",
        "setp.lt.b32 %p1, %r1, %r2;",
        "ld.global.frob.u32 %r1, [%x1];",
        "st.global.frob.u32 [%x1], %r1;",
        "ld.global.v3.u32 {%r1, %r2, %r3}, [%x1];",
        "ld.global.v4.u32 {%r1, %r2}, [%x1];",
        "ld.global.u32 {%r1, %r2}, [%x1];",
        "atom.global.frob.add.u32 %r1, [%x1], %r2;",
        "red.exch.b32 [%x1], %r2;",
        "bar.frob 0;",
        "fence.frob;",
        "fence.proxy.frob;",
        "mbarrier.init.frob.b64 [%r1], 1;",
        "mbarrier.arrive.frob.shared.b64 %x1, [%r1];",
        "cp.async.ca.frob.shared.global [%r1], [%x1], 4;",
        "cp.async.cg.shared.global [%r1], [%x1], 8;",
        "cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%x1], [%r1], 16;",
        "shfl.up.b32 %r1, %r2, 1, 0;",
        "shfl.sync.up.b32 %r1, %r2, 1, 0;",
        "vote.ballot.b32 %r1, %p1;",
        "griddepcontrol.frob;",
        "setmaxnreg.frob.sync.aligned.u32 24;",
        "multimem.ld_reduce.global.add.f32 %r1, [%x1];",
        "shfl.sync.up.L2::64B.b32 %r1, %r2, 1, 0, -1;",
        "add.u32.f64 %x1, %x2, %x3;",
        "add.approx.f32 %r1, %r2, %r3;",
        "selp.b32.clamp %r1, %r2, %r3, %p1;",
        "isspacep.param %p1, %x1;",
        "mbarrier.arrive.noComplete.shared::cta.b64 %x1, [%r1];",
        "mbarrier.arrive.try_wait.shared::cta.b64 %x1, [%r1];",
        "atom.global.add.s16 %h1, [%x1], %h2;",
        "ld.global.bf16x2 %r1, [%x1];",
        "mov.u32 %r1, %tid;",
        "mov.u32 %r1, %laneid.x;",
    ];
    let accepted: Vec<&str> = texts.into_iter().filter(|text| is_accepted(text)).collect();
    assert!(accepted.is_empty(), "{accepted:#?}");
}

fn is_accepted(text: &str) -> bool {
    let row = Row::new("refused", &[], &[Size::X], vec![vec![0]]).sm90().text(text);
    let device = Device::new(DeviceConfig { arch: Arch::Sm90, ..DeviceConfig::default() });
    Module::load(&device, &row.ptx()).is_ok_and(|module| module.kernel("row").is_ok())
}
