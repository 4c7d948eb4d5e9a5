//! Wall-clock times as Megatron prints them: `2026-01-01 00:00:00.000000`.
//!
//! Megatron prints local time; here it is always UTC, which is what containers and clusters use, needs no time-zone
//! database, and makes the logs of several machines comparable.

use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

/// Microseconds since 1970-01-01 00:00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Timestamp {
    micros: i64,
}

impl Timestamp {
    /// The current time.
    pub fn now() -> Timestamp {
        Timestamp::from(SystemTime::now())
    }

    /// A time by its microseconds since 1970, negative before.
    pub const fn from_micros(micros: i64) -> Timestamp {
        Timestamp { micros }
    }

    /// Seconds since 1970.
    pub fn seconds(self) -> f64 {
        self.micros as f64 / 1e6
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Timestamp {
        let micros = match time.duration_since(UNIX_EPOCH) {
            Ok(after) => i64::try_from(after.as_micros()).unwrap_or(i64::MAX),
            Err(before) => i64::try_from(before.duration().as_micros()).map_or(i64::MIN, |micros| -micros),
        };
        Timestamp { micros }
    }
}

impl Timestamp {
    /// Seconds since 1970 of `YYYY-mm-dd HH:MM:SS`, with or without a fraction, in UTC.
    pub fn parse_seconds(text: &str) -> Option<i64> {
        let (date, time) = text.trim().split_once(' ')?;
        let number = |part: &str| part.parse::<u32>().ok().map(i64::from);
        let mut date = date.splitn(3, '-').map(number);
        let (year, month, day) = (date.next()??, date.next()??, date.next()??);
        let mut time = time.split('.').next()?.splitn(3, ':').map(number);
        let (hour, minute, second) = (time.next()??, time.next()??, time.next()??);
        if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) || !(1..=31).contains(&day) {
            return None;
        }
        // Days since 0000-03-01, with March as the first month: leap days come last.
        let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
        let days = 365 * y + y / 4 - y / 100 + y / 400 + (153 * m + 2) / 5 + day - 1 - 719_468;
        Some(days * 86_400 + hour * 3600 + minute * 60 + second)
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const MICROS_PER_DAY: i64 = 86_400_000_000;
        let (year, month, day) = civil_date(self.micros.div_euclid(MICROS_PER_DAY));
        let of_day = self.micros.rem_euclid(MICROS_PER_DAY);
        let seconds = of_day / 1_000_000;
        let (hour, minute, second, micro) = (seconds / 3600, seconds / 60 % 60, seconds % 60, of_day % 1_000_000);
        write!(f, "{year:04}-{month:02}-{day:02} {hour:02}:{minute:02}:{second:02}.{micro:06}")
    }
}

/// Year, month and day of a day number (0 = 1970-01-01) in the Gregorian calendar.
///
/// Years are counted from March, so that the leap day is the last of its year; 400 years have 146 097 days.
fn civil_date(day_number: i64) -> (i64, i64, i64) {
    let shifted = day_number + 719_468; // days since 0000-03-01
    let era = shifted.div_euclid(146_097);
    let day_of_era = shifted.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let march_month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * march_month + 2) / 5 + 1;
    let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
    let year = era * 400 + year_of_era + i64::from(month <= 2);
    (year, month, day)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// Expected texts printed by Python's `datetime.fromtimestamp(s, timezone.utc)` with `%Y-%m-%d %H:%M:%S.%f`.
    #[test]
    fn equals_python() {
        for (micros, text) in [
            (0, "1970-01-01 00:00:00.000000"),
            (-1, "1969-12-31 23:59:59.999999"),
            (951_782_400_000_000, "2000-02-29 00:00:00.000000"),
            (1_709_251_199_999_999, "2024-02-29 23:59:59.999999"),
            (1_767_225_600_000_000, "2026-01-01 00:00:00.000000"),
            (1_796_005_516_000_042, "2026-11-30 02:25:16.000042"),
            (4_107_542_400_000_000, "2100-03-01 00:00:00.000000"),
        ] {
            assert_eq!(Timestamp::from_micros(micros).to_string(), text);
        }
    }

    #[test]
    fn parsing_inverts_printing() {
        for seconds in [0, 86_399, 951_782_400, 1_709_251_199, 1_767_225_600, 4_107_542_400] {
            let text = Timestamp::from_micros(seconds * 1_000_000).to_string();
            assert_eq!(Timestamp::parse_seconds(&text), Some(seconds), "{text}");
        }
        for bad in ["", "2026-01-01", "2026-13-01 00:00:00", "2026-01-01 00:00", "x-y-z 1:2:3", "99999999999-1-1 0:0:0"]
        {
            assert_eq!(Timestamp::parse_seconds(bad), None, "{bad}");
        }
    }

    #[test]
    fn every_day_follows_the_one_before() {
        let is_leap = |year: i64| (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
        let mut expected = (1970, 1, 1);
        for day_number in 0..200_000 {
            assert_eq!(civil_date(day_number), expected);
            let (year, month, day) = expected;
            let length = match month {
                2 => 28 + i64::from(is_leap(year)),
                4 | 6 | 9 | 11 => 30,
                _ => 31,
            };
            expected = match (day == length, month) {
                (false, _) => (year, month, day + 1),
                (true, 12) => (year + 1, 1, 1),
                (true, _) => (year, month + 1, 1),
            };
        }
    }

    #[test]
    fn converts_system_time() {
        let time = UNIX_EPOCH + Duration::from_micros(1_500_000);
        assert_eq!(Timestamp::from(time), Timestamp::from_micros(1_500_000));
        assert_eq!(Timestamp::from(UNIX_EPOCH - Duration::from_secs(1)), Timestamp::from_micros(-1_000_000));
        assert_eq!(Timestamp::from_micros(1_500_000).seconds(), 1.5);
    }
}
