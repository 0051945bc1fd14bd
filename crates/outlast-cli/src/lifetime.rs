//! How long records live, as text.

use std::time::Duration;

const UNITS: [(&str, u64); 5] =
    [("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Reads a time such as `90s`, `1h30m` or `500ms`. A number without a unit means seconds.
///
/// # Errors
/// If the text is not a duration. The message lists the forms that are.
pub(crate) fn parse(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a time such as 500ms, 90s, 10m, 2h, 7d or 1h30m");
    let (mut rest, mut sum) = (text, 0u64);
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(rest.len());
        let (number, after) = rest.split_at(end);
        let end = after.find(|letter: char| letter.is_ascii_digit()).unwrap_or(after.len());
        let (unit, after) = after.split_at(end);
        let unit = if unit.is_empty() && after.is_empty() { "s" } else { unit };
        let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit).ok_or_else(wrong)?;
        let number: u64 = number.parse().map_err(|_| wrong())?;
        let part = number.checked_mul(*factor).ok_or_else(wrong)?;
        sum = sum.checked_add(part).ok_or_else(wrong)?;
        rest = after;
    }
    if text.is_empty() { Err(wrong()) } else { Ok(Duration::from_millis(sum)) }
}

#[cfg(test)]
mod tests {
    use super::parse;

    #[test]
    fn times_have_units() {
        let milliseconds = |text| parse(text).map(|time| time.as_millis());
        assert_eq!(milliseconds("90"), Ok(90_000));
        assert_eq!(milliseconds("500ms"), Ok(500));
        assert_eq!(milliseconds("1h30m"), Ok(5_400_000));
        assert_eq!(milliseconds("7d"), Ok(604_800_000));
        for wrong in ["", "m", "1x", "-1s", "1.5h", "1h 3m", "99999999999999999d", "5 "] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
