//! `ottava devices`: the values of `--device` on this machine, and the health of GPUs.

use clap::Args;
use ottava::backend::cpu::{Isa, PrefetchHint};
use serde_json::{Value, json};

use super::visible::in_line;
use super::{Failure, output};

/// Arguments of `devices`.
#[derive(Args)]
pub struct Devices {
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// A device, as text and as data.
struct Line {
    device: String,
    text: String,
    data: Value,
}

impl Devices {
    /// Prints a line per device, and the reason if there is no GPU.
    pub fn run(self) -> Result<(), Failure> {
        let isa = Isa::detect();
        let threads = std::thread::available_parallelism().map_or(1, |threads| threads.get());
        let prefetch = PrefetchHint::detect();
        let data = json!({ "isa": isa.to_string(), "threads": threads, "prefetch": prefetch.to_string() });
        let text = format!("{isa}, {threads} threads, weight prefetch {prefetch}");
        let mut lines = vec![Line { device: "cpu".into(), text, data }];
        let obstacle = match gpus() {
            Ok(gpus) => {
                lines.extend(gpus);
                None
            }
            Err(why) => Some(why),
        };
        if self.json {
            let devices: Vec<Value> = lines
                .into_iter()
                .map(|mut line| {
                    line.data["device"] = line.device.into();
                    line.data
                })
                .collect();
            return output::print_json(&json!({ "devices": devices, "no_gpu": obstacle }));
        }
        for line in lines {
            output::print_line(format_args!("{:<8} {}", line.device, in_line(&line.text)))?;
        }
        obstacle.map_or(Ok(()), |why| output::print_line(format_args!("no GPU: {}", in_line(&why))))
    }
}

#[cfg(feature = "cuda")]
fn gpus() -> Result<Vec<Line>, String> {
    use ottava::backend::cuda;
    let devices = cuda::devices().map_err(|why| why.to_string())?;
    if devices.is_empty() {
        return Err("the NVIDIA driver shows no device".into());
    }
    let line = |info: &cuda::DeviceInfo| {
        let health = cuda::monitor(info).and_then(|monitor| monitor.health());
        let (major, minor) = info.compute_capability;
        let memory = output::Bytes(info.memory_bytes as u64);
        let mut text = format!(
            "{}, compute capability {major}.{minor}, {} multiprocessors, {memory}, at {}",
            info.name, info.multiprocessors, info.pci_bus_id
        );
        if let Ok(health) = &health {
            text = format!("{text}; {}", super::health::short(health));
        }
        let data = json!({
            "name": info.name,
            "compute_capability": format!("{major}.{minor}"),
            "multiprocessors": info.multiprocessors,
            "memory_bytes": info.memory_bytes,
            "pci_bus_id": info.pci_bus_id,
            "health": super::health::as_json(&health),
        });
        Line { device: format!("cuda:{}", info.ordinal), text, data }
    };
    Ok(devices.iter().map(line).collect())
}

#[cfg(not(feature = "cuda"))]
fn gpus() -> Result<Vec<Line>, String> {
    Err("this build has no CUDA backend (feature `cuda`)".into())
}
