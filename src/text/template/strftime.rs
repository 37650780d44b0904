//! `strftime_now`: the current date for system prompts, in UTC.

use std::time::{SystemTime, UNIX_EPOCH};

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

/// Date and time in components.
struct Moment {
    year: u64,
    /// 1 to 12.
    month: u64,
    /// 1 to 31.
    day: u64,
    /// 1 to 366.
    year_day: u64,
    /// 0 is Sunday.
    weekday: u64,
    /// Seconds since midnight.
    seconds: u64,
}

/// Formats `now` as C's `strftime`. Unknown codes are copied.
pub(super) fn format(now: SystemTime, format: &str) -> String {
    let moment = Moment::at(now);
    let mut out = String::with_capacity(format.len() + 16);
    let mut chars = format.chars();
    while let Some(c) = chars.next() {
        match (c, chars.clone().next()) {
            ('%', Some('-')) => {
                chars.next();
                let code = chars.next().unwrap_or('-');
                let padded = moment.code(code).unwrap_or_else(|| format!("%-{code}"));
                let bare = padded.trim_start_matches(['0', ' ']);
                let number = padded.chars().all(|c| c.is_ascii_digit() || c == ' ');
                out.push_str(if number && bare.is_empty() {
                    "0"
                } else if number {
                    bare
                } else {
                    &padded
                });
            }
            ('%', Some(code)) => {
                chars.next();
                out.push_str(&moment.code(code).unwrap_or_else(|| format!("%{code}")));
            }
            _ => out.push(c),
        }
    }
    out
}

impl Moment {
    /// Howard Hinnant's `civil_from_days`: date from days, in eras of 400 years that start in March.
    fn at(now: SystemTime) -> Moment {
        let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let days = seconds / 86_400;
        let shifted = days + 719_468;
        let (era, day_of_era) = (shifted / 146_097, shifted % 146_097);
        let year_of_era =
            (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let from_march = (5 * day_of_year + 2) / 153;
        let month = if from_march < 10 { from_march + 3 } else { from_march - 9 };
        let leap = |year: u64| {
            u64::from(year.is_multiple_of(4) && !year.is_multiple_of(100) || year.is_multiple_of(400))
        };
        let calendar_year = year_of_era + era * 400 + u64::from(month <= 2);
        // `day_of_year` starts on the first of March.
        let year_day = if month > 2 { day_of_year + 60 + leap(calendar_year) } else { day_of_year - 305 };
        Moment {
            year_day,
            year: year_of_era + era * 400 + u64::from(month <= 2),
            month,
            day: day_of_year - (153 * from_march + 2) / 5 + 1,
            weekday: (days + 4) % 7,
            seconds: seconds % 86_400,
        }
    }

    fn code(&self, code: char) -> Option<String> {
        let (hour, minute, second) = (self.seconds / 3600, self.seconds / 60 % 60, self.seconds % 60);
        let name =
            |names: &[&'static str], index: u64| names.get(index as usize).copied().unwrap_or_default();
        let (month, weekday) = (name(&MONTHS, self.month - 1), name(&DAYS, self.weekday));
        let short = |name: &str| name.chars().take(3).collect::<String>();
        Some(match code {
            'Y' => self.year.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'm' => format!("{:02}", self.month),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'B' => month.to_owned(),
            'b' | 'h' => short(month),
            'A' => weekday.to_owned(),
            'a' => short(weekday),
            'H' => format!("{hour:02}"),
            'I' => format!("{:02}", (hour + 11) % 12 + 1),
            'p' => if hour < 12 { "AM" } else { "PM" }.to_owned(),
            'M' => format!("{minute:02}"),
            'S' => format!("{second:02}"),
            'F' => format!("{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => format!("{hour:02}:{minute:02}:{second:02}"),
            'R' => format!("{hour:02}:{minute:02}"),
            'D' | 'x' => format!("{:02}/{:02}/{:02}", self.month, self.day, self.year % 100),
            'X' => format!("{hour:02}:{minute:02}:{second:02}"),
            'c' => format!(
                "{} {} {:2} {hour:02}:{minute:02}:{second:02} {}",
                short(weekday),
                short(month),
                self.day,
                self.year
            ),
            'j' => format!("{:03}", self.year_day),
            'U' => format!("{:02}", (self.year_day + 6 - self.weekday) / 7),
            'W' => format!("{:02}", (self.year_day + 6 - (self.weekday + 6) % 7) / 7),
            'w' => self.weekday.to_string(),
            'u' => ((self.weekday + 6) % 7 + 1).to_string(),
            'f' => "000000".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            'Z' => "UTC".to_owned(),
            '%' => "%".to_owned(),
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn known_moments() {
        let at = |seconds| UNIX_EPOCH + Duration::from_secs(seconds);
        let all = "%A %a %d %e %B %b %Y %y %m %H:%I %p %M:%S %F %T %Z %% %q";
        assert_eq!(
            format(at(1_709_210_096), all),
            "Thursday Thu 29 29 February Feb 2024 24 02 12:12 PM 34:56 2024-02-29 12:34:56 UTC % %q"
        );
        assert_eq!(format(at(0), "%d %b %Y %A%"), "01 Jan 1970 Thursday%");
        assert_eq!(format(at(4_107_542_399), "%F %T %a"), "2100-02-28 23:59:59 Sun");
    }
}
