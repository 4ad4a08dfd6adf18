//! Times of signatures, such as `20150830T123600Z`, from and to Unix seconds.

const DAY: u64 = 86_400;

/// Reads a time. What is no time of the years 1970 to 9999 is `None`.
pub fn parse_time(text: &str) -> Option<u64> {
    let bytes = text.as_bytes();
    if bytes.len() != 16 || bytes[8] != b'T' || bytes[15] != b'Z' {
        return None;
    }
    let digits = |from: usize, to: usize| {
        let part = &bytes[from..to];
        let is_number = part.iter().all(u8::is_ascii_digit);
        is_number.then(|| part.iter().fold(0u64, |number, digit| number * 10 + u64::from(digit - b'0')))
    };
    let (year, month, day) = (digits(0, 4)?, digits(4, 6)?, digits(6, 8)?);
    let (hour, minute, second) = (digits(9, 11)?, digits(11, 13)?, digits(13, 15)?);
    if year < 1970 || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    if !(1..=12).contains(&month) || day < 1 || day > days_in_month(year, month) {
        return None;
    }
    let days = days_before_year(year) + (1..month).map(|month| days_in_month(year, month)).sum::<u64>() + day - 1;
    Some(days * DAY + hour * 3600 + minute * 60 + second)
}

/// Writes a time.
pub fn format_time(unix_seconds: u64) -> String {
    let mut days = unix_seconds / DAY;
    let seconds = unix_seconds % DAY;
    let mut year = 1970 + days / 366;
    while days_before_year(year + 1) <= days {
        year += 1;
    }
    days -= days_before_year(year);
    let mut month = 1;
    while days >= days_in_month(year, month) {
        days -= days_in_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    format!("{year:04}{month:02}{:02}T{hour:02}{minute:02}{second:02}Z", days + 1)
}

fn is_leap(year: u64) -> bool {
    year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
}

fn days_in_month(year: u64, month: u64) -> u64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from the first day of 1970 to the first day of `year`.
fn days_before_year(year: u64) -> u64 {
    let leaps = |year: u64| year / 4 - year / 100 + year / 400;
    (year - 1970) * 365 + leaps(year - 1) - leaps(1969)
}
