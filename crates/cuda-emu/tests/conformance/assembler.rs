//! Whether the rows are PTX at all: NVIDIA's own assembler, where there is one, takes them.

use std::process::Command;

use cuda_emu::Arch;

use super::row::Row;

/// Kernels that are assembled at once.
const CHUNK: usize = 100;

/// What `ptxas` says against rows, each with its form; an error if it cannot be started.
pub fn refused(rows: &[Row]) -> std::io::Result<Vec<String>> {
    let mut refused = Vec::new();
    for arch in [Arch::Sm80, Arch::Sm90] {
        // Declarations of modules would meet: such rows stand alone, and those of a newer PTX.
        let (alone, many): (Vec<&Row>, Vec<&Row>) = rows
            .iter()
            .filter(|row| row.arch == arch)
            .partition(|row| !row.module.is_empty() || row.header().contains("8.6"));
        for chunk in many.chunks(CHUNK).chain(alone.chunks(1)) {
            refused.extend(refused_of(arch, chunk)?);
        }
    }
    Ok(refused)
}

fn refused_of(arch: Arch, rows: &[&Row]) -> std::io::Result<Vec<String>> {
    let mut text = rows[0].header();
    let mut starts = Vec::new();
    for (n, row) in rows.iter().enumerate() {
        starts.push(text.lines().count() + 1);
        text += &row.kernel(&format!("row{n}"));
    }
    let path = std::env::temp_dir().join(format!("conformance-{}.ptx", std::process::id()));
    std::fs::write(&path, &text)?;
    let target = if arch == Arch::Sm80 { "sm_80" } else { "sm_90a" };
    let output =
        Command::new("ptxas").args(["-O0", "-arch", target, "-o", "/dev/null"]).arg(&path).output()?;
    std::fs::remove_file(&path)?;
    let messages = String::from_utf8_lossy(&output.stderr).into_owned();
    let of_line = |message: &str| {
        let line: usize = message.split("line ").nth(1)?.split(';').next()?.parse().ok()?;
        Some(rows[starts.partition_point(|start| *start <= line) - 1])
    };
    Ok(messages
        .lines()
        .filter(|message| message.contains("error"))
        .filter_map(|message| {
            of_line(message).map(|row| format!("{}: {message}\n    {}", row.form, row.text))
        })
        .collect())
}
