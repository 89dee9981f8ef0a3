//! Numbers of bytes as people write them: 8294400, 64MiB, 2 GB.

/// What `parse` accepts, for error texts.
pub const RULE: &str =
    "a whole number of bytes, optionally with KiB, MiB, GiB or TiB (powers of two) or K, M, G or T (powers of ten)";

/// Parses bytes: a whole number, then perhaps a unit in any case. An `i` makes it a power of two; a `B` at the end changes nothing.
pub fn parse(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|character: char| !character.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = unit.trim_start().to_ascii_lowercase();
    let unit = unit.strip_suffix('b').unwrap_or(&unit);
    let (prefix, base) = unit.strip_suffix('i').map_or((unit, 1000_u64), |prefix| (prefix, 1024));
    let power = match (prefix, base) {
        ("", 1000) => 0,
        ("k", _) => 1,
        ("m", _) => 2,
        ("g", _) => 3,
        ("t", _) => 4,
        _ => return None,
    };
    number.parse::<u64>().ok()?.checked_mul(base.pow(power))
}

/// Bytes in the largest binary unit that gives a whole number: 64 MiB.
pub fn in_words(bytes: u64) -> String {
    let units = [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)];
    let unit = units.into_iter().find(|(_, shift)| bytes > 0 && bytes.trailing_zeros() >= *shift);
    unit.map_or_else(|| format!("{bytes} B"), |(name, shift)| format!("{} {name}", bytes >> shift))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_with_an_i_are_powers_of_two_and_the_others_powers_of_ten() {
        let sizes = [
            ("4096", 4096),
            ("4096 B", 4096),
            ("64KiB", 64 << 10),
            ("64 MiB", 64 << 20),
            ("2gib", 2 << 30),
            ("1Ti", 1 << 40),
            ("5K", 5_000),
            ("5kB", 5_000),
            ("5M", 5_000_000),
            ("5 GB", 5_000_000_000),
            (" 1T ", 1_000_000_000_000),
        ];
        for (text, bytes) in sizes {
            assert_eq!(parse(text), Some(bytes), "{text}");
        }
        for text in
            ["", "B", "MiB", "many", "-1", "1.5G", "1X", "1iB", "1i", "1MiiB", "1Mbb", "1 M 1", "99999999999999T"]
        {
            assert_eq!(parse(text), None, "{text}");
        }
    }

    #[test]
    fn parse_reads_back_what_in_words_writes() {
        for (bytes, words) in
            [(0, "0 B"), (1500, "1500 B"), (65_536, "64 KiB"), (128 << 20, "128 MiB"), (3 << 40, "3 TiB")]
        {
            assert_eq!(in_words(bytes), words);
            assert_eq!(parse(words), Some(bytes));
        }
    }
}
