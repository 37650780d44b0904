//! GPU health during a measurement, for the table and the JSON of `ottava bench`.

use ottava::backend::{DeviceHealth, NoHealth};
use serde_json::{Value, json};

/// Merges two samples of a device's health: the maximum of temperature, power and used memory, the minimum SM
/// clock, and all throttle reasons. The other fields are those of `now`, the later sample.
pub fn together(before: Option<DeviceHealth>, now: DeviceHealth) -> DeviceHealth {
    let Some(before) = before else { return now };
    let mut both = now;
    both.temperature_c = both.temperature_c.max(before.temperature_c);
    both.power_w = [both.power_w, before.power_w].into_iter().flatten().reduce(f64::max);
    both.memory_used_bytes = both.memory_used_bytes.max(before.memory_used_bytes);
    both.clock_sm_mhz = [both.clock_sm_mhz, before.clock_sm_mhz].into_iter().flatten().min();
    both.throttle = match (before.throttle, both.throttle) {
        (Some(mut all), Some(more)) => {
            all.extend(more);
            all.sort_unstable();
            all.dedup();
            Some(all)
        }
        (all, more) => all.or(more),
    };
    both
}

/// One table cell, without unknown fields: `64 C, 512 W, 1980 MHz, power cap`.
pub fn short(health: &DeviceHealth) -> String {
    let mut parts = Vec::new();
    parts.extend(health.temperature_c.map(|celsius| format!("{celsius} C")));
    parts.extend(health.power_w.map(|watts| format!("{watts:.0} W")));
    parts.extend(health.clock_sm_mhz.map(|mhz| format!("{mhz} MHz")));
    parts.extend(health.throttle.iter().flatten().map(ToString::to_string));
    parts.extend(health.ecc_uncorrected.filter(|&errors| errors > 0).map(|n| format!("{n} memory errors")));
    parts.extend(health.xid_last.map(|number| format!("Xid {number}")));
    parts.join(", ")
}

/// The health as JSON, or the reason why it is unknown; `null` for a CPU.
pub fn as_json(health: &Result<DeviceHealth, NoHealth>) -> Value {
    match health {
        Ok(health) => known(health),
        Err(NoHealth::Cpu) => Value::Null,
        Err(why) => json!({ "unknown": why.to_string() }),
    }
}

/// The health as JSON; unknown fields are `null`.
pub fn known(health: &DeviceHealth) -> Value {
    let throttle: Option<Vec<String>> =
        health.throttle.as_ref().map(|all| all.iter().map(ToString::to_string).collect());
    json!({
        "name": health.name,
        "temperature_c": health.temperature_c,
        "power_w": health.power_w,
        "power_limit_w": health.power_limit_w,
        "clock_sm_mhz": health.clock_sm_mhz,
        "clock_memory_mhz": health.clock_memory_mhz,
        "throttle": throttle,
        "utilisation_percent": health.utilisation_percent,
        "memory_utilisation_percent": health.memory_utilisation_percent,
        "memory_used_bytes": health.memory_used_bytes,
        "memory_free_bytes": health.memory_free_bytes,
        "ecc_uncorrected": health.ecc_uncorrected,
        "xid_count": health.xid_count,
        "xid_last": health.xid_last,
    })
}

#[cfg(test)]
mod tests {
    use ottava::backend::Throttle;

    use super::*;

    fn at(temperature: u32, power: Option<f64>, throttle: &[Throttle]) -> DeviceHealth {
        let mut health = DeviceHealth::default();
        health.temperature_c = Some(temperature);
        health.power_w = power;
        health.throttle = Some(throttle.to_vec());
        health
    }

    #[test]
    fn the_worst_of_all_moments_is_shown() {
        let hot = at(71, None, &[Throttle::Heat]);
        let both = together(Some(hot.clone()), at(64, Some(512.4), &[Throttle::PowerCap, Throttle::Heat]));
        assert_eq!(short(&both), "71 C, 512 W, power cap, heat");
        assert_eq!(together(None, hot.clone()), hot);
        assert_eq!(short(&DeviceHealth::default()), "");
    }

    #[test]
    fn a_reason_is_given_for_a_gpu_only() {
        assert_eq!(as_json(&Err(NoHealth::Cpu)), Value::Null);
        let unknown = as_json(&Err(NoHealth::NotBuilt));
        assert!(unknown["unknown"].as_str().is_some_and(|why| why.contains("nvml")), "{unknown}");
        assert_eq!(as_json(&Ok(at(64, None, &[Throttle::PowerCap])))["throttle"], json!(["power cap"]));
    }
}
