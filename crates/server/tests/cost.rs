//! The cost of the largest legal requests: CPU time, memory, and CPU time of the thread that answers probes.
//!
//! Each request has a server of its own, in a child process that is measured by `/proc`. The clock is not
//! measured, so that other work on the machine does no harm. The `main` of this file is also the child's.

#[cfg(target_os = "linux")]
#[path = "cost/cases.rs"]
mod cases;
#[cfg(target_os = "linux")]
#[path = "cost/process.rs"]
mod process;
#[cfg(target_os = "linux")]
#[path = "../../../tests/tiny/mod.rs"]
mod tiny;

#[cfg(not(target_os = "linux"))]
fn main() {
    println!("not checked: the cost of requests, since there is no /proc");
}

#[cfg(target_os = "linux")]
fn main() -> std::process::ExitCode {
    match std::env::args_os().nth(1).filter(|first| first == process::SERVE).and(std::env::args_os().nth(2)) {
        Some(model) => process::serve(model.as_ref()),
        None => table(),
    }
    .map_or_else(
        |error| {
            println!("{error}");
            std::process::ExitCode::FAILURE
        },
        |()| std::process::ExitCode::SUCCESS,
    )
}

/// Runs all cases, or those with the first argument in their name.
#[cfg(target_os = "linux")]
fn table() -> tiny::Outcome {
    let wanted = std::env::args().skip(1).find(|argument| !argument.starts_with('-')).unwrap_or_default();
    let folder = tempfile::tempdir()?;
    let model = folder.path().join("tiny.gguf");
    std::fs::write(&model, tiny::llama_of(cases::CONTEXT)?)?;
    let mut failed = 0;
    for case in cases::all().into_iter().filter(|case| case.name.contains(&wanted)) {
        let found = process::cost(&model, &case)?;
        let holds = found.holds(&case);
        failed += usize::from(!holds);
        println!("{} {:36} {found}", if holds { "ok    " } else { "FAILED" }, case.name);
    }
    if failed > 0 { Err(format!("{failed} requests cost too much").into()) } else { Ok(()) }
}
